"""One record at a time from the plain producer to a cluster on an object store with latency."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import NamedTuple

from benchmarks.bench import Bench, seconds
from benchmarks.clusters import Cluster, on_store
from benchmarks.figures import Figures, Target
from benchmarks.request_list import by_table, listed
from benchmarks.s3_server import KINDS
from benchmarks.s3_store import Store, running_store
from benchmarks.work import Work
from sparklog import Producer
from sparklog.errors import SparklogError

PROCESSES = "three brokers, a process each"
TOGETHER = "three brokers in one process"
SEND_LIST = "store_record-send"
"""The name of the table with the requests of one send, of all processes."""

_SENDS = 40
_LEAST_SENDS = 3
_WARM_SENDS = 2
_WARM_UNDELAYED = 10
_PATIENCE_SECONDS = 60
_VALUE = b'{"id":"0000000000","ev":"click"}'.ljust(100)


class _Latency(NamedTuple):
    """A latency of requests, and the duration of measurements at it."""

    milliseconds: int
    seconds: float


_LATENCIES = {
    PROCESSES: (_Latency(10, 2), _Latency(30, 8), _Latency(100, 8)),
    TOGETHER: (_Latency(30, 6),),
}


def what(latency_ms: float) -> str:
    """Return the name of the figure at a latency."""
    return f"one record, {latency_ms:g} ms a request"


def run(bench: Bench, figures: Figures) -> None:
    """Measure each way of running the brokers, at each latency in turn."""
    for one in range(bench.runs):
        for system, latencies in _LATENCIES.items():
            with (
                bench.temporary("store-record") as folder,
                running_store(folder / "store.log") as store,
                on_store(store, folder, is_together=system == TOGETHER) as cluster,
            ):
                cluster.create_topic("records")
                _measure(bench, figures, store, cluster, system, latencies)
            found = [figures.get(f"{what(ms)}, p50", system) for ms, _ in latencies]
            medians = ", ".join(f"{each.values[-1]:.0f} ms" for each in found if each is not None)
            bench.say(f"  run {one + 1}: {system} {medians}")


def _measure(
    bench: Bench,
    figures: Figures,
    store: Store,
    cluster: Cluster,
    system: str,
    latencies: Sequence[_Latency],
) -> None:
    with Producer(cluster.connection) as producer:
        for _ in range(_WARM_UNDELAYED):
            send(producer, "records", 0)
        for latency_ms, budget_seconds in latencies:
            store.set_latency(latency_ms)
            for _ in range(_WARM_SENDS):
                send(producer, "records", latency_ms)
            action = partial(send, producer, "records", latency_ms)
            taken = timed(action, bench.scaled(_SENDS, least=_LEAST_SENDS), budget_seconds)
            figures.add_latencies(what(latency_ms), system, taken, 99)
            if (system, latency_ms) == (PROCESSES, 30):
                with store.logged() as log:
                    send(producer, "records", latency_ms)
                figures.tables[SEND_LIST] = listed([("send", log)])
                for kind in KINDS:
                    count = sum(one.kind == kind for one in log)
                    figures.add(f"{kind} of all processes during a send", system, "requests", count)
        # Closing the producer need not wait for the latency of its last requests.
        store.set_latency(0)


def timed(action: Callable[[], object], most: int, budget_seconds: float) -> list[float]:
    """Return the duration in s of each of `most` calls, or of fewer that fit in the budget."""
    taken: list[float] = []
    deadline = time.monotonic() + budget_seconds
    while len(taken) < most:
        if len(taken) >= _LEAST_SENDS and time.monotonic() > deadline:
            break
        taken.append(seconds(action))
    return taken


def send(producer: Producer, topic: str, latency_ms: float, value: bytes = _VALUE) -> None:
    """Send a record and wait for its acknowledgement; raises `SparklogError` if it fails."""
    try:
        producer.send(topic, value).result(_PATIENCE_SECONDS)
    except FutureTimeoutError:
        raise SparklogError(
            f"a record was not acknowledged within {_PATIENCE_SECONDS} s at {latency_ms:g} ms a "
            "request: run the work alone, on a machine that is idle"
        ) from None


def appendix(figures: Figures) -> str:
    """Return the requests of one send by table."""
    if SEND_LIST not in figures.tables:
        return ""
    introduction = (
        "The requests of all processes while one record was sent at 30 ms a request "
        f"([one by one](benchmarks/{SEND_LIST}.csv)):"
    )
    return "\n".join([introduction, "", *by_table(figures.tables[SEND_LIST])])


def _targets() -> tuple[Target, ...]:
    found = []
    for system in (PROCESSES, TOGETHER):
        found.append(Target(f"{what(30)}, p50", system, 700, 350))
        found.append(Target(f"{what(30)}, p99", system, 1200))
    return (*found, Target(f"{what(100)}, p50", PROCESSES, 2200, 1100))


WORK = Work(
    "store_record",
    "One record on an object store: send to acks=all",
    "A cluster on the S3 API server of the benchmarks, which answers a request after 10, 30 or "
    "100 ms: three brokers in a process each (`jobs/broker.py --without-spark`), or all in one "
    "(`jobs/cluster.py --without-spark`). The plain producer sends records of 100 B, each when "
    "the one before it was acknowledged, acks=all, RF 3, 4 partitions, defaults throughout; 40 "
    "records a run, or as many as fit into 8 s, 3 at least. Clusters start and are warmed without "
    "latency, and 2 sends at each latency are not measured.",
    run,
    _targets(),
    appendix=appendix,
    has_table=True,
    most_runs=2,
)
