"""Many rows from Spark, produced with acks=all and stored on all three replicas."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench import Bench, seconds
from benchmarks.clusters import embedded
from benchmarks.figures import Figures, Target
from benchmarks.kafka import DEFAULTS, TUNED
from benchmarks.rows import PARTITIONS, SIZES, Size, cached
from benchmarks.work import Work
from sparklog import SparkProducer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARKLOG = "sparklog"
KNOWN = "sparklog, until every replica knows"
UNSYNCED = "sparklog, not synced"
UNSYNCED_KNOWN = "sparklog, not synced, until every replica knows"
KAFKA_DEFAULTS = "Kafka, defaults"
KAFKA_TUNED = "Kafka, tuned"
KAFKA_SYNCED = "Kafka, tuned, each append synced"
DELTA = "three Delta appends"

_REPLICAS = 3


def run(bench: Bench, figures: Figures) -> None:
    """Measure all systems in turn, each on its own topic or table."""
    for size in SIZES:
        count = bench.scaled(size.records, least=1000)
        with cached(bench.spark, count, size.value_bytes) as rows:
            _run_size(bench, figures, size, rows, count)


def _run_size(bench: Bench, figures: Figures, size: Size, rows: DataFrame, count: int) -> None:
    systems: dict[str, Callable[[DataFrame, int], dict[str, float]]] = {
        SPARKLOG: lambda frame, wanted: _sparklog(bench, frame, wanted),
        KAFKA_SYNCED: lambda frame, _: _kafka(bench, frame, TUNED, KAFKA_SYNCED, is_synced=True),
        UNSYNCED: lambda frame, wanted: _sparklog(bench, frame, wanted, is_synced=False),
        KAFKA_DEFAULTS: lambda frame, _: _kafka(bench, frame, DEFAULTS, KAFKA_DEFAULTS),
        KAFKA_TUNED: lambda frame, _: _kafka(bench, frame, TUNED, KAFKA_TUNED),
        DELTA: lambda frame, _: _delta(bench, frame),
    }
    if bench.kafka is None:
        del systems[KAFKA_SYNCED], systems[KAFKA_DEFAULTS], systems[KAFKA_TUNED]
    # As many rows as are measured: a JVM gets faster for minutes.
    for system in systems.values():
        system(rows, count)
    for one in range(bench.runs):
        for system in systems.values():
            # Writes of the other systems must not be part of the measurement.
            os.sync()
            for figure, value in system(rows, count).items():
                figures.add(size.name, figure, "s", value)
                bench.say(f"  {size.name}, run {one + 1}: {figure} {value:.3f} s")


def _sparklog(
    bench: Bench, rows: DataFrame, count: int, *, is_synced: bool = True
) -> dict[str, float]:
    with (
        bench.temporary("sparklog") as folder,
        embedded(folder, bench.spark, is_synced=is_synced) as cluster,
    ):
        for topic in ("warm", "rows"):
            cluster.create_topic(topic, PARTITIONS)
        producer = SparkProducer(cluster.connection, bench.spark)
        producer.send(rows.limit(1000), "warm").result()
        start = time.perf_counter()
        producer.send(rows, "rows").result()
        cluster.await_in_all_logs("rows", count)
        in_all_logs = time.perf_counter() - start
        cluster.await_known_to_all("rows", count)
        known = time.perf_counter() - start
        return {
            SPARKLOG if is_synced else UNSYNCED: in_all_logs,
            KNOWN if is_synced else UNSYNCED_KNOWN: known,
        }


def _kafka(
    bench: Bench,
    rows: DataFrame,
    settings: Mapping[str, str],
    name: str,
    *,
    is_synced: bool = False,
) -> dict[str, float]:
    kafka = bench.kafka
    assert kafka is not None
    topic = f"rows-{time.time_ns()}"
    for one in (f"warm-{topic}", topic):
        kafka.create_topic(one, PARTITIONS, is_synced=is_synced)
    kafka.write(rows.limit(1000), f"warm-{topic}", settings)
    taken = seconds(lambda: kafka.write(rows, topic, settings))
    for one in (f"warm-{topic}", topic):
        kafka.delete_topic(one)
    return {name: taken}


def _delta(bench: Bench, rows: DataFrame) -> dict[str, float]:
    with bench.temporary("delta") as folder:
        tables = [folder / f"replica-{number}" for number in range(_REPLICAS)]
        append_to_each(rows.limit(1000), tables)
        return {DELTA: seconds(lambda: append_to_each(rows, tables))}


def append_to_delta(rows: DataFrame, table: Path) -> None:
    """Append rows to a plain Delta table, as users without a log do."""
    rows.write.format("delta").mode("append").save(str(table))


def append_to_each(rows: DataFrame, tables: Sequence[Path]) -> None:
    """Append rows to the tables in sequence: three replicas without a log."""
    for table in tables:
        append_to_delta(rows, table)


WORK = Work(
    "produce",
    "1,000,000 x 100 B and 500,000 x 1 KiB, produced and on all three replicas",
    "Rows are cached in Spark before the clock starts. acks=all, replication factor 3, 4 "
    "partitions, min.insync.replicas 2, a fresh topic or table each time, beside a small one that "
    "was just written to. sparklog: embedded cluster over the same Spark session, "
    "`SparkProducer.send` until it is answered and the checkpoints of all three replicas cover "
    "every record; the second line goes on until the two followers know the high watermark, "
    "too. Kafka: until the sink's `save` returns, with defaults, and tuned (lz4, linger.ms 20, "
    "batch.size 256 KiB). Delta: three appends of the same rows, one after the other. sparklog "
    "syncs batch files and commits to the disk before they count, which is compared with Kafka's "
    "flush.messages=1; not synced (storage option sync: false) it is compared with Kafka as it is "
    "by default and with Delta, which do not sync either. Before each, what was written is synced.",
    run,
    tuple(
        target
        for size, least in (("100 B", 0.9), ("1 KiB", 0.6))
        for target in (
            Target(size, SPARKLOG, least, 0.5, (KAFKA_SYNCED,)),
            Target(size, UNSYNCED, least, 0.5, (KAFKA_TUNED,)),
            Target(size, UNSYNCED, 0.5, 0.4, (DELTA,)),
        )
    ),
)
