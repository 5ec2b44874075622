"""A hundred records from a warm Spark, sent repeatedly."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from benchmarks.bench import Bench, seconds
from benchmarks.clusters import embedded
from benchmarks.figures import Figures, Target
from benchmarks.kafka import DEFAULTS, TUNED
from benchmarks.rows import cached
from benchmarks.work import Work
from benchmarks.works.produce import append_to_each
from sparklog import SparkProducer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARKLOG = "sparklog, embedded"
UNSYNCED = "sparklog, embedded, not synced"
WHAT = "100 records"

_RECORDS = 100
_SENDS = 60
_DELTA_SENDS = 10
_WARM_SENDS = 10


def run(bench: Bench, figures: Figures) -> None:
    """Measure all systems in turn; each sends the same records many times."""
    sends = bench.scaled(_SENDS, least=10)
    with cached(bench.spark, _RECORDS, 100, partitions=1) as rows:
        systems: dict[str, Callable[[], list[float]]] = {
            SPARKLOG: lambda: _sparklog(bench, rows, sends),
            UNSYNCED: lambda: _sparklog(bench, rows, sends, is_synced=False),
        }
        if bench.kafka is not None:
            systems["Kafka, tuned, each append synced"] = lambda: _kafka(
                bench, rows, TUNED, sends, is_synced=True
            )
            systems["Kafka, defaults"] = lambda: _kafka(bench, rows, DEFAULTS, sends)
            systems["Kafka, tuned"] = lambda: _kafka(bench, rows, TUNED, sends)
        systems["three Delta appends"] = lambda: _delta(bench, rows, min(sends, _DELTA_SENDS))
        for one in range(bench.runs):
            for name, system in systems.items():
                taken = system()
                figures.add_latencies(WHAT, name, taken, 99)
                bench.say(f"  run {one + 1}: {name} {sorted(taken)[len(taken) // 2] * 1000:.0f} ms")


def _repeated(send: Callable[[], object], sends: int) -> list[float]:
    for _ in range(_WARM_SENDS):
        send()
    return [seconds(send) for _ in range(sends)]


def _sparklog(bench: Bench, rows: DataFrame, sends: int, *, is_synced: bool = True) -> list[float]:
    with (
        bench.temporary("sparklog") as folder,
        embedded(folder, bench.spark, is_synced=is_synced) as cluster,
    ):
        cluster.create_topic("rows")
        producer = SparkProducer(cluster.connection, bench.spark)
        return _repeated(lambda: producer.send(rows, "rows").result(), sends)


def _kafka(
    bench: Bench,
    rows: DataFrame,
    settings: Mapping[str, str],
    sends: int,
    *,
    is_synced: bool = False,
) -> list[float]:
    kafka = bench.kafka
    assert kafka is not None
    topic = f"small-{time.time_ns()}"
    kafka.create_topic(topic, is_synced=is_synced)
    taken = _repeated(lambda: kafka.write(rows, topic, settings), sends)
    kafka.delete_topic(topic)
    return taken


def _delta(bench: Bench, rows: DataFrame, sends: int) -> list[float]:
    with bench.temporary("delta") as folder:
        tables = [folder / f"replica-{number}" for number in range(3)]
        return _repeated(lambda: append_to_each(rows, tables), sends)


WORK = Work(
    "small_batches",
    "100 records from a warm Spark: send to committed on all replicas",
    "100 cached rows of 100 B in one Spark partition, sent at least 50 times a run, one send after "
    "the other, acks=all to a topic of 4 partitions. sparklog: embedded cluster over the same "
    "Spark session, `SparkProducer.send` until it is answered; synced to the disk unless it says "
    "otherwise, as Kafka with flush.messages=1. Kafka: the sink's `save`. p50 and p99 are taken of "
    "each run.",
    run,
    (
        Target(f"{WHAT}, p50", SPARKLOG, 200, 150),
        Target(f"{WHAT}, p99", SPARKLOG, 600),
    ),
)
