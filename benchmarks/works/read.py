"""The same rows read by a batch query that processes each byte."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import sparklog
from benchmarks.bench import Bench
from benchmarks.clusters import EmbeddedCluster, embedded
from benchmarks.figures import Figures, Target
from benchmarks.kafka import DEFAULTS, SHORT_WAIT, TUNED, Kafka
from benchmarks.rows import PARTITIONS, SIZES, Size, cached
from benchmarks.work import Work
from benchmarks.works.produce import append_to_delta
from sparklog import SparkProducer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

FORMAT = 'format("sparklog")'
READ = "sparklog.read"
DELTA = "plain Delta scan"
KAFKA = tuple(
    f"Kafka, {written}{wait}"
    for written in ("written with defaults", "written tuned")
    for wait in ("", ", fetch.max.wait.ms=10")
)

Load = Callable[[], "DataFrame"]


def run(bench: Bench, figures: Figures) -> None:
    """Write once, and read with all systems in turn."""
    for size in SIZES:
        with (
            bench.temporary("read") as folder,
            embedded(folder, bench.spark) as cluster,
        ):
            systems = _written(bench, cluster, folder, size)
            _measure(bench, figures, cluster, size, systems)
            if bench.kafka is not None:
                for topic in (f"default-{folder.name}", f"tuned-{folder.name}"):
                    bench.kafka.delete_topic(topic)


def _written(bench: Bench, cluster: EmbeddedCluster, folder: Path, size: Size) -> dict[str, Load]:
    spark, kafka = bench.spark, bench.kafka
    count = bench.scaled(size.records, least=1000)
    with cached(spark, count, size.value_bytes) as rows:
        cluster.create_topic("rows", PARTITIONS)
        SparkProducer(cluster.connection, spark).send(rows, "rows").result()
        cluster.await_known_to_all("rows", count)
        append_to_delta(rows, folder / "delta")
        if kafka is not None:
            for written, settings in (("default", DEFAULTS), ("tuned", TUNED)):
                kafka.create_topic(f"{written}-{folder.name}", PARTITIONS)
                kafka.write(rows, f"{written}-{folder.name}", settings)
    options = {"cluster": cluster.root, "subscribe": "rows", "startingOffsets": "earliest"}
    delta = str(folder / "delta")
    systems: dict[str, Load] = {
        FORMAT: lambda: spark.read.format("sparklog").options(**options).load(),
        READ: lambda: sparklog.read(spark, **options),
        DELTA: lambda: spark.read.format("delta").load(delta),
    }
    if kafka is not None:
        for number, name in enumerate(KAFKA):
            topic = f"{('default', 'tuned')[number // 2]}-{folder.name}"
            systems[name] = _kafka_load(kafka, topic, (DEFAULTS, SHORT_WAIT)[number % 2])
    return systems


def _kafka_load(kafka: Kafka, topic: str, settings: Mapping[str, str]) -> Load:
    return lambda: kafka.read(topic, settings)


def _measure(
    bench: Bench,
    figures: Figures,
    cluster: EmbeddedCluster,
    size: Size,
    systems: dict[str, Load],
) -> None:
    hashes = set()
    for load in systems.values():
        _hash(load)
        _noop(load)
    for one in range(bench.runs):
        for name, load in systems.items():
            # Reading needs no broker. sparklog's brokers run while it is measured, as Kafka's do.
            if name in (FORMAT, READ):
                found = {"hash": _timed(_hash, load), "noop": _timed(_noop, load)}
            else:
                with cluster.held():
                    found = {"hash": _timed(_hash, load), "noop": _timed(_noop, load)}
            hashes.add(json.dumps(found["hash"][1]))
            for how, (taken, _) in found.items():
                figures.add(f"{size.name}, {how}", name, "s", taken)
            bench.say(f"  {size.name}, run {one + 1}: {name} {found['hash'][0]:.3f} s")
    assert len(hashes) == 1, f"the systems do not give the same rows: {hashes}"


def _timed(action: Callable[[Load], object], load: Load) -> tuple[float, object]:
    start = time.perf_counter()
    result = action(load)
    return time.perf_counter() - start, result


def _hash(load: Load) -> list[int]:
    """Read and hash each key and value, regardless of order; return the count and the hash."""
    from pyspark.sql import functions as sf

    key, value = (sf.col(name).cast("binary") for name in ("key", "value"))
    row = load().agg(sf.count("*"), sf.bit_xor(sf.xxhash64(key, value))).first()
    assert row is not None
    return list(row)


def _noop(load: Load) -> None:
    """Read each key and value into a sink that drops them."""
    load().select("key", "value").write.format("noop").mode("overwrite").save()


WORK = Work(
    "read",
    "A batch read of the same rows, all bytes touched",
    "The topics that the sinks have written, read as a batch into an xxhash64 over every key and "
    "value, and into Spark's noop sink; resolving offsets is included. The hashes of all systems "
    "are compared, and are the same. Kafka: topics written with defaults and tuned, each read with "
    "the default fetch.max.wait.ms and with 10; its best is the measure. sparklog's brokers run "
    "while sparklog is read.",
    run,
    tuple(
        Target(f"{size.name}, {how}", system, 0.5, None, KAFKA)
        for size in SIZES
        for how in ("hash", "noop")
        for system in (FORMAT, READ)
    ),
)
