"""A round of torture: a configuration, load under a nemesis, healing, draining, the verdict."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sparklog.cluster.connection import Connection
from sparklog.consumer.consumer import Consumer
from sparklog.storage.record_log import RecordLog
from tests.faults.broker_processes import PARTITIONS, TOPIC, BrokerProcesses
from tests.faults.client_processes import GROUP, ClientProcesses
from tests.faults.faulty_store import FaultyStore, running_faulty_store
from tests.faults.judge import judge, unavailable
from tests.faults.nemesis import Nemesis, ensure_running
from tests.jobs.processes import wait_for

SESSION_MS = 9_000
"""The default session of a broker, as in Kafka."""

_FAULT_SHARE = 0.05
_DRAIN_SECONDS = 900.0
_LONG_SESSIONS = 2.0
"""Sessions without an acknowledgement after which the logs of a round are kept."""


class Configuration(NamedTuple):
    """The storage, brokers and clients of a round.

    `latency_ms` and `hang_seconds` are those of the S3 server, half of whose lists leave out the
    objects of the last `list_lag_seconds`; `executors`, whether each broker's
    Spark has an executor; `streams`, the number of Spark applications that stream into topics;
    `is_compacted`, whether the topic of the producers is compacted while it is written.
    """

    storage: Literal["folder", "s3", "s3 buckets"] = "folder"
    brokers: int = 3
    with_spark: bool = False
    executors: bool = False
    streams: int = 0
    session_ms: int = SESSION_MS
    producers: int = 2
    consumers: int = 2
    records_per_second: float = 1_000.0
    latency_ms: float = 30.0
    hang_seconds: float = 10.0
    is_compacted: bool = False
    list_lag_seconds: float = 0.0


_QUICK_MS = 3_000
"""A session with which kills follow each other three times as fast."""

CONFIGURATIONS = (
    Configuration(),
    Configuration(brokers=5, session_ms=_QUICK_MS, is_compacted=True),
    Configuration(session_ms=_QUICK_MS),
    Configuration("s3", records_per_second=300.0, list_lag_seconds=5.0),
    Configuration(brokers=5, session_ms=_QUICK_MS, streams=1),
    Configuration("s3", records_per_second=300.0, is_compacted=True, list_lag_seconds=5.0),
    Configuration("s3 buckets", records_per_second=300.0),
    Configuration(brokers=5),
    Configuration(with_spark=True, records_per_second=300.0),
    Configuration("s3", brokers=5, records_per_second=300.0),
    Configuration(with_spark=True, executors=True, records_per_second=100.0),
)
"""The configurations of `make torture`, one round each in turn."""

Result = dict[str, Any]


def run_round(
    folder: Path,
    configuration: Configuration,
    seed: int,
    seconds: float,
    *,
    pause_seconds: float = 2.0,
    actions: tuple[str, ...] = (),
) -> Result:
    """Run one round in a new folder, and return its result.

    Parameters: `seconds` of load under a nemesis of random actions, each some `pause_seconds`
    after the one before; `actions` to carry out in their order instead.

    The folder remains if there was an anomaly or a long time without acknowledgements, and is
    removed otherwise.
    """
    begun = time.monotonic()
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        store: FaultyStore | None = None
        roots = _folders(folder, configuration)
        buckets: tuple[str, ...] = ()
        if configuration.storage != "folder":
            store = stack.enter_context(
                running_faulty_store(
                    folder / "store.log",
                    configuration.latency_ms,
                    0.0,
                    seed,
                    configuration.hang_seconds,
                )
            )
            roots, buckets = _uris(store, configuration)
        brokers = BrokerProcesses(
            folder / "processes",
            roots,
            configuration.session_ms,
            store.options() if store is not None else {},
            configuration.with_spark,
            configuration.executors,
            [TOPIC, *(f"stream-{one}" for one in range(configuration.streams))],
            configuration.is_compacted,
        )
        stack.callback(brokers.close)
        brokers.start()
        clients = ClientProcesses(
            brokers,
            configuration.producers,
            configuration.consumers,
            configuration.records_per_second,
            configuration.streams,
        )
        wait_for(lambda: all(_is_acknowledged(one) for one in clients.producer_logs), "answer")
        nemesis = Nemesis(brokers, clients, seed, store, buckets)
        if store is not None:
            store.set_share(_FAULT_SHARE)
            store.set_list_lag(configuration.list_lag_seconds)
        for action in actions:
            nemesis.act(action)
            brokers.await_in_sync()
        if not actions:
            nemesis.run(seconds, pause_seconds)
        faults = store.faults() if store is not None else {}
        if store is not None:
            store.set_share(0.0)
            store.set_list_lag(0.0)
        ensure_running(brokers)
        brokers.await_in_sync()
        clients.stop_producers()
        clients.stop_streams()
        wait_for(lambda: is_drained(brokers.connection), "drained group", patience=_DRAIN_SECONDS)
        clients.stop_consumers()
        if configuration.is_compacted:
            wait_for(lambda: is_cleaned(brokers.connection), "compaction", patience=_DRAIN_SECONDS)
        found, producers, compacted = judge(
            brokers.cluster,
            clients.producer_logs,
            clients.consumer_logs,
            clients.checkpoints,
            is_compacted=configuration.is_compacted,
        )
        gaps = sorted(unavailable(producers, nemesis.deeds, configuration.session_ms))
        deeds = Counter(one.action for one in nemesis.deeds)
        result: Result = {
            "storage": configuration.storage,
            "brokers": configuration.brokers,
            "spark": configuration.with_spark,
            "executors": configuration.executors,
            "streams": configuration.streams,
            "session_ms": configuration.session_ms,
            "seed": seed,
            "seconds": round(time.monotonic() - begun),
            "acknowledged": sum(
                one.size for log in producers for one in log.answered if one.error == "NONE"
            ),
            "failed": sum(
                one.size for log in producers for one in log.answered if one.error != "NONE"
            ),
            "compacted": compacted,
            "deeds": dict(sorted(deeds.items())),
            "faults": faults,
            "unavailable_ms": [one.ms for one in gaps if one.is_single],
            "overlapping_ms": [one.ms for one in gaps if not one.is_single],
            "longest_gap": gaps[-1]._asdict() if gaps else {},
            "anomalies": len(found),
            "first_anomalies": [list(one) for one in found[:10]],
        }
    limit_ms = _LONG_SESSIONS * configuration.session_ms
    is_long = any(one.is_single and one.ms > limit_ms for one in gaps)
    if is_long:
        (folder / "deeds.json").write_text(json.dumps(nemesis.deeds), encoding="utf-8")
    elif not found:
        shutil.rmtree(folder)
    return result


def _folders(folder: Path, configuration: Configuration) -> list[str]:
    names = ["cluster", *(f"broker-{one}" for one in range(configuration.brokers))]
    return [str(folder / "roots" / name) for name in names]


def _uris(store: FaultyStore, configuration: Configuration) -> tuple[list[str], tuple[str, ...]]:
    """Return the roots, and the buckets that may be away: those of brokers, one for each."""
    brokers = range(configuration.brokers)
    if configuration.storage == "s3":
        bucket = store.bucket("fire")
        return [f"{bucket}/cluster", *(f"{bucket}/broker-{one}" for one in brokers)], ()
    names = tuple(f"broker-{one}" for one in brokers)
    roots = [f"{store.bucket('cluster')}/root", *(f"{store.bucket(one)}/root" for one in names)]
    return roots, names


def _is_acknowledged(log: Path) -> bool:
    return '["answered"' in log.read_text(encoding="utf-8")


def is_cleaned(connection: Connection) -> bool:
    """Whether compaction has removed a record of each partition."""
    metadata = connection.metadata()
    states = [metadata.partition(TOPIC, one) for one in range(PARTITIONS)]
    logs = {one.key: RecordLog(connection.leader_location(one)) for one in states}
    return all(
        any(not batch.has_all_offsets for batch in log.batches(key)) for key, log in logs.items()
    )


def is_drained(connection: Connection) -> bool:
    """Whether the group has committed the end of every partition."""
    partitions = [(TOPIC, one) for one in range(PARTITIONS)]
    with Consumer(connection.cluster, GROUP, storage_options=connection.storage_options) as reader:
        ends = reader.end_offsets(partitions)
        committed = {one: reader.committed(one) for one in ends}
    return all(
        ((found := committed[one]) is not None and found.offset >= end) or end == 0
        for one, end in ends.items()
    )
