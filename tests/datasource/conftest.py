"""A small cluster, and its reads without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparklog.datasource.batch_read import plan_batch
from sparklog.datasource.options import Mode, ReadOptions, parse_read_options
from sparklog.datasource.read_task import ReadTask, read_task
from sparklog.datasource.stream_read import StreamRead
from sparklog.testing import LocalCluster

Row = tuple[str, int, int, bytes | None]
"""Topic, partition, offset, value."""


class Readable:
    """A cluster of three brokers with racks a, b, c, and readers of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = LocalCluster(folder, racks={0: "a", 1: "b", 2: "c"})

    @property
    def root(self) -> str:
        return str(self.folder / "cluster")

    def create_topic(self, topic: str, partitions: int = 1, **configs: Any) -> None:
        assignment = {
            one: [(one + replica) % 3 for replica in range(3)] for one in range(partitions)
        }
        keys = {key.replace("_", "."): value for key, value in configs.items()}
        self.cluster.create_topic(topic, assignment=assignment, configs=keys)
        self.cluster.tick_until_idle()

    def produce(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Store one batch and commit it."""
        self.cluster.produce(topic, partition, values)
        self.cluster.tick_until_idle()

    def options(self, mode: Mode, **given: str) -> ReadOptions:
        retries = {"fetchOffset.numRetries": "0"}
        return parse_read_options({"cluster": self.root} | retries | given, mode)

    def batch(self, **given: str) -> list[ReadTask]:
        return plan_batch(self.options("batch", **given))

    def stream(self, **given: str) -> StreamRead:
        return StreamRead(self.options("stream", **given), clock=self.cluster.clock)

    def store_unevenly(self, topic: str, kept: int, lost: int) -> None:
        """Let broker 0 commit `kept` records, then `lost` more that broker 1 never gets.

        They are lost by `go_offline` and `elect_unclean`.
        """
        self.produce(topic, *(f"kept {one}".encode() for one in range(kept)))
        self.cluster.crash(1)
        self.cluster.crash(2)
        self.cluster.fence(1)
        self.cluster.tick_until_idle()
        self.produce(topic, *(f"lost {one}".encode() for one in range(lost)))
        assert self.cluster.replica(0, topic, 0).high_watermark == kept + lost

    def go_offline(self) -> None:
        """Crash the only in-sync broker, and restart broker 1, which is out of sync."""
        self.cluster.crash(0)
        self.cluster.restart(1)
        self.cluster.fence(0)

    def elect_unclean(self, topic: str) -> None:
        """Elect broker 1, which truncates the records that it does not have."""
        self.cluster.elect_leaders("unclean", [(topic, 0)])
        self.cluster.tick_until_idle()


def rows(tasks: list[ReadTask]) -> list[Row]:
    """Read tasks one after the other."""
    return [
        (row["topic"], row["partition"], row["offset"], row["value"])
        for task in tasks
        for batch in read_task(task)
        for row in batch.to_pylist()
    ]


def offsets(tasks: list[ReadTask]) -> list[int]:
    return [row[2] for row in rows(tasks)]


@pytest.fixture
def readable(tmp_path: Path) -> Iterator[Readable]:
    made = Readable(tmp_path)
    yield made
    made.cluster.close()
