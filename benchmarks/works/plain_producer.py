"""One record at a time from plain producers, without Spark on the client's side."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from benchmarks.bench import Bench, seconds
from benchmarks.clusters import Cluster, embedded, resident
from benchmarks.figures import Figures, Target
from benchmarks.work import Work
from sparklog import Producer

RESIDENT = "sparklog, resident"
RESIDENT_WITHOUT_SPARK = "sparklog, resident without Spark"
EMBEDDED = "sparklog, embedded without Spark"
UNSYNCED = "sparklog, resident without Spark, not synced"
KAFKA = "Kafka, its Java producer"
KAFKA_SYNCED = "Kafka, its Java producer, each append synced"
WHAT = "one record"

_SENDS = 200
_WARM_SENDS = 30
_VALUE = b'{"id":"0000000000","ev":"click"}'.ljust(100)


def run(bench: Bench, figures: Figures) -> None:
    """Measure each kind of cluster in turn; only Kafka runs in parallel to another one."""
    sends = bench.scaled(_SENDS, least=20)
    clusters: dict[str, Callable[[Path], AbstractContextManager[Cluster]]] = {
        RESIDENT: resident,
        RESIDENT_WITHOUT_SPARK: lambda folder: resident(folder, with_spark=False),
        EMBEDDED: embedded,
        UNSYNCED: lambda folder: resident(folder, with_spark=False, is_synced=False),
    }
    for one in range(bench.runs):
        taken = {name: _sparklog(bench, start, sends) for name, start in clusters.items()}
        if bench.kafka is not None:
            taken[KAFKA] = _kafka(bench, sends)
            taken[KAFKA_SYNCED] = _kafka(bench, sends, is_synced=True)
        for name, latencies in taken.items():
            figures.add_latencies(WHAT, name, latencies, 99)
            middle = sorted(latencies)[len(latencies) // 2] * 1000
            bench.say(f"  run {one + 1}: {name} {middle:.1f} ms")


def _sparklog(
    bench: Bench, start: Callable[[Path], AbstractContextManager[Cluster]], sends: int
) -> list[float]:
    with bench.temporary("sparklog") as folder, start(folder) as cluster:
        cluster.create_topic("records")
        with Producer(cluster.connection) as producer:
            return _one_by_one(
                lambda key: producer.send("records", _VALUE, key=key).result(60), sends
            )


def _kafka(bench: Bench, sends: int, *, is_synced: bool = False) -> list[float]:
    kafka = bench.kafka
    assert kafka is not None
    topic = f"records-{time.time_ns()}"
    kafka.create_topic(topic, is_synced=is_synced)
    with kafka.producer() as producer:
        taken = _one_by_one(lambda key: producer.send(topic, _VALUE, key), sends)
    kafka.delete_topic(topic)
    return taken


def _one_by_one(send: Callable[[bytes], object], sends: int) -> list[float]:
    for number in range(_WARM_SENDS):
        send(b"%d" % number)
    return [seconds(partial(send, b"%d" % number)) for number in range(sends)]


WORK = Work(
    "plain_producer",
    "One record from the plain producer: send to acks=all",
    "Records of 100 B, 200 a run, each sent when the one before it was answered; the producers' "
    "own defaults, acks=all, 4 partitions. sparklog's cluster is resident in a process of its own "
    "(`jobs/cluster.py`, with Spark and with `--without-spark`), or embedded in the producer's "
    "process without Spark. Kafka's Java producer runs in the JVM of a Spark session; a call "
    "through Python's gateway is included. sparklog syncs files and commits before they count, "
    "unless it says otherwise; Kafka does so with flush.messages=1.",
    run,
    (Target(f"{WHAT}, p50", RESIDENT, 50, 25),),
)
