"""Spark as a producer and as a consumer of a cluster on an object store with latency."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.clusters import StoreCluster, on_store
from benchmarks.figures import Figures, Target
from benchmarks.rows import cached
from benchmarks.s3_store import Store, running_store
from benchmarks.work import Work
from benchmarks.works.store_record import PROCESSES, send, timed
from benchmarks.works.stream import await_start, committed_to_seen, seen_by
from sparklog import Producer, SparkProducer

SENT = "100 records from Spark: send to acks=all"
SEEN = "committed to seen by a running stream"

_LATENCY_MS = 30
_RECORDS = 100
_SENDS = _STREAM_RECORDS = 30
_WARM_SENDS = 2
_BUDGET_SECONDS = 8
_PATIENCE_SECONDS = 60


def run(bench: Bench, figures: Figures) -> None:
    """Measure a new cluster in each run: sends first, then the stream."""
    parts: dict[str, Callable[[Bench, Store, StoreCluster, Path], list[float]]] = {
        SENT: _sent,
        SEEN: _seen,
    }
    for one in range(bench.runs):
        with (
            bench.temporary("store-spark") as folder,
            running_store(folder / "store.log") as store,
            on_store(store, folder) as cluster,
        ):
            cluster.create_topic("records")
            for what, part in parts.items():
                taken = part(bench, store, cluster, folder)
                figures.add_latencies(what, PROCESSES, taken, 90)
                store.set_latency(0)
                middle = sorted(taken)[len(taken) // 2] * 1000
                bench.say(f"  run {one + 1}: {what} {middle:.0f} ms")


def _sent(bench: Bench, store: Store, cluster: StoreCluster, _: Path) -> list[float]:
    with cached(bench.spark, _RECORDS, 100, partitions=1) as rows:
        producer = SparkProducer(cluster.connection, bench.spark)

        def send_rows() -> None:
            producer.send(rows, "records").result(_PATIENCE_SECONDS * 1000)

        for _warm in range(2 * _WARM_SENDS):
            send_rows()
        store.set_latency(_LATENCY_MS)
        for _warm in range(_WARM_SENDS):
            send_rows()
        return timed(send_rows, bench.scaled(_SENDS, least=3), _BUDGET_SECONDS)


def _seen(bench: Bench, store: Store, cluster: StoreCluster, folder: Path) -> list[float]:
    stream = bench.spark.readStream.format("sparklog").option("cluster", str(cluster.config_file))
    frame = stream.option("subscribe", "records").option("startingOffsets", "latest").load()
    with Producer(cluster.connection) as producer, seen_by(frame, folder) as seen:

        def send_value(value: bytes) -> None:
            send(producer, "records", _LATENCY_MS, value)

        await_start(send_value, seen)
        store.set_latency(_LATENCY_MS)
        deadline = time.monotonic() + 2 * _BUDGET_SECONDS
        count = bench.scaled(_STREAM_RECORDS, least=3)
        try:
            return committed_to_seen(send_value, seen, count, _WARM_SENDS, deadline)
        finally:
            store.set_latency(0)


WORK = Work(
    "store_spark",
    "Spark on an object store: 100 records, and a running stream",
    "A cluster on the S3 API server of the benchmarks, three brokers in a process each without "
    "Spark, 30 ms a request, 4 partitions, RF 3, defaults throughout. 100 cached rows of 100 B in "
    "one Spark partition are sent by `SparkProducer.send`, each send after the one before was "
    "acknowledged. Then a plain producer sends records with random pauses, and the time is taken "
    "from the acknowledgement of a record until it is in the hands of `foreachBatch`, collected. "
    "30 sends and 30 records a run, or as many as fit into 8 s and 16 s, 3 at least; 2 of each "
    "are not measured.",
    run,
    (
        Target(f"{SENT}, p50", PROCESSES, 1100, 700),
        Target(f"{SEEN}, p50", PROCESSES, 1200, 700),
    ),
    most_runs=2,
)
