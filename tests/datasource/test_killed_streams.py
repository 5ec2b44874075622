"""A stream from topic to topic that is killed at any moment writes every record once."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparklog.groups.committed_offsets import lag
from sparklog.producer.plain import Producer
from tests.available_now import run_to_end
from tests.datasource.piping_stream import piping
from tests.jobs.processes import Process, wait_for
from tests.running_cluster import RunningCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = 2
PATIENCE = 240.0
"""Timeout in seconds: with all cores busy, Spark and its Python processes start slowly."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningCluster]:
    # The brokers tick every 50 ms only, because Spark needs the two cores as well.
    cluster = RunningCluster(tmp_path / "running")
    yield cluster
    cluster.stop()


class Traffic:
    """Sends numbers, one record each, until it is stopped."""

    def __init__(self, cluster: RunningCluster, topic: str) -> None:
        self._root = cluster.connection.cluster
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Send until the end of the block, and until all records are delivered."""
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        # The rate of batches is low enough for two cores that also run Spark.
        with Producer(self._root, linger_ms=200) as producer:
            while not self._ended.wait(0.01):
                producer.send(self._topic, b"%d" % self.sent, key=b"%d" % (self.sent % 7))
                self.sent += 1


class Pipe:
    """The program, with one checkpoint and many processes."""

    def __init__(self, cluster: RunningCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._checkpoint = folder / "checkpoint"
        self._started = 0

    @property
    def arguments(self) -> list[str]:
        return [self._cluster.connection.cluster, "source", "target", str(self._checkpoint)]

    def newest(self, log: str) -> int:
        """Return the newest micro-batch of a log of the checkpoint, or -1 if it is empty."""
        folder = self._checkpoint / log
        names = [one.name for one in folder.iterdir()] if folder.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def be_killed(self, delay_seconds: float) -> bool:
        """Start it, and kill it this time after the beginning of the first new micro-batch.

        Return whether the kill came before a micro-batch was noted as done.
        """
        self._started += 1
        before = self.newest("offsets")
        program = [sys.executable, "-m", "tests.datasource.piping_stream", *self.arguments]
        with closing(Process(program, self._folder / f"process-{self._started}")) as process:
            wait_for(lambda: self.newest("offsets") > before, "micro-batch", process, PATIENCE)
            time.sleep(delay_seconds)
        return self.newest("offsets") > self.newest("commits")


def test_a_stream_that_is_killed_at_any_moment_loses_and_doubles_nothing(
    running: RunningCluster, tmp_path: Path, spark: SparkSession
) -> None:
    """After many kills every record is written once, and the group's lag is 0."""
    moments = random.Random(6)
    running.create_topic("source", partitions=2)
    running.create_topic("target", partitions=3)
    pipe = Pipe(running, tmp_path)
    traffic = Traffic(running, "source")
    with traffic.flowing():
        in_the_middle = [pipe.be_killed(moments.uniform(0, 2)) for _ in range(KILLS)]
    assert any(in_the_middle), "no kill left a micro-batch to be repeated"
    run_to_end(piping(spark, *pipe.arguments).trigger(availableNow=True).start)
    found = [int(row["value"]) for rows in running.committed("target").values() for row in rows]
    assert sorted(found) == list(range(traffic.sent))
    assert {one.lag for one in lag(running.connection, "piping")} == {0}
