"""The delay from a record's commit until a running stream has seen it."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench import Bench
from benchmarks.clusters import embedded
from benchmarks.figures import Figures, Target
from benchmarks.work import Work
from sparklog import Producer
from sparklog.errors import SparklogError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARKLOG = "sparklog, embedded"
KAFKA = "Kafka, defaults"
WHAT = "committed to seen"

_RECORDS = 40
_WARM_RECORDS = 8
_PATIENCE_SECONDS = 60


def run(bench: Bench, figures: Figures) -> None:
    """Measure both systems in turn."""
    records = bench.scaled(_RECORDS, least=5)
    for one in range(bench.runs):
        taken = {SPARKLOG: _sparklog(bench, records)}
        if bench.kafka is not None:
            taken[KAFKA] = _kafka(bench, records)
        for name, latencies in taken.items():
            figures.add_latencies(WHAT, name, latencies, 90)
            middle = sorted(latencies)[len(latencies) // 2] * 1000
            bench.say(f"  run {one + 1}: {name} {middle:.0f} ms")


def _sparklog(bench: Bench, records: int) -> list[float]:
    with bench.temporary("stream") as folder, embedded(folder, bench.spark) as cluster:
        cluster.create_topic("records")
        stream = bench.spark.readStream.format("sparklog").option("cluster", cluster.root)
        frame = stream.option("subscribe", "records").option("startingOffsets", "latest").load()
        with Producer(cluster.connection) as producer, seen_by(frame, folder) as seen:
            return _one_by_one(
                lambda value: producer.send("records", value).result(60), seen, records
            )


def _kafka(bench: Bench, records: int) -> list[float]:
    kafka = bench.kafka
    assert kafka is not None
    topic = f"stream-{time.time_ns()}"
    kafka.create_topic(topic)
    with (
        bench.temporary("stream") as folder,
        kafka.producer() as producer,
        seen_by(kafka.stream(topic), folder) as seen,
    ):
        taken = _one_by_one(lambda value: producer.send(topic, value, value), seen, records)
    kafka.delete_topic(topic)
    return taken


class Seen:
    """The times at which records were first seen."""

    def __init__(self) -> None:
        self._times: dict[bytes, float] = {}
        self._more = threading.Condition()

    def note(self, batch: DataFrame, _: int) -> None:
        """Note the time of a micro-batch: records are seen when Python has received them."""
        values = [bytes(row[0]) for row in batch.select("value").collect()]
        now = time.perf_counter()
        with self._more:
            for value in values:
                self._times.setdefault(value, now)
            self._more.notify_all()

    def await_record(self, value: bytes, timeout: float = _PATIENCE_SECONDS) -> float | None:
        """Return the time at which a record was seen, or `None` after the timeout in s."""
        with self._more:
            self._more.wait_for(lambda: value in self._times, timeout)
            return self._times.get(value)


@contextmanager
def seen_by(frame: DataFrame, folder: Path) -> Iterator[Seen]:
    """Run a stream over `frame` and yield the times at which its records were seen."""
    seen = Seen()
    writer = frame.writeStream.foreachBatch(seen.note)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        yield seen
    finally:
        query.stop()


def _one_by_one(send: Callable[[bytes], object], seen: Seen, records: int) -> list[float]:
    await_start(send, seen)
    return committed_to_seen(send, seen, records, _WARM_RECORDS)


def committed_to_seen(
    send: Callable[[bytes], object],
    seen: Seen,
    records: int,
    warm_records: int,
    deadline: float = math.inf,
) -> list[float]:
    """Return the seconds from the acknowledgement of each record until it was seen.

    Parameters: `warm_records`, the number of first records that are not measured; `deadline`, a
    time on the monotonic clock after which no further record is sent once three were measured.
    """
    pauses = random.Random(7)
    taken: list[float] = []
    for number in range(warm_records + records):
        if len(taken) >= 3 and time.monotonic() > deadline:
            break
        value = b"record %d" % number
        send(value)
        answered = time.perf_counter()
        at = seen.await_record(value)
        if at is None:
            raise SparklogError(f"the stream has not shown {value!r} within {_PATIENCE_SECONDS} s")
        if number >= warm_records:
            # The stream may see a record before its producer has read the answer.
            taken.append(max(at - answered, 0.0))
        # A random pause avoids synchronisation with the stream's triggers.
        time.sleep(pauses.uniform(0.05, 0.25))
    return taken


def await_start(send: Callable[[bytes], object], seen: Seen) -> None:
    """Send records until one is seen: the stream's first poll determines its latest offsets."""
    for number in range(_PATIENCE_SECONDS):
        send(b"first %d" % number)
        if seen.await_record(b"first %d" % number, timeout=1) is not None:
            return


WORK = Work(
    "stream",
    "Committed to seen by a running stream",
    "40 records a run from a plain producer, acks=all, one after the other with random pauses; "
    "from the answer to the record in the hands of `foreachBatch`, collected. The stream has no "
    "trigger of its own, so a micro-batch follows the one before. sparklog: embedded cluster over "
    "the same Spark session, defaults throughout.",
    run,
    (Target(f"{WHAT}, p50", SPARKLOG, 400),),
)
