"""A cluster that runs in parallel with the test, for clients without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparklog.broker.application import Application
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.storage.parquet import ParquetContent
from sparklog.storage.record_log import RecordLog


class RunningCluster:
    """Three brokers in threads of this process, over tables in a folder."""

    def __init__(self, folder: Path, tick_interval_ms: int = 50) -> None:
        self.folder = folder
        values = {
            "cluster.root": str(folder / "cluster"),
            "brokers": [
                {"broker.id": one, "log.dirs": str(folder / f"broker-{one}")} for one in range(3)
            ],
            "broker.session.timeout.ms": 2_000,
            "broker.heartbeat.interval.ms": 200,
            "replica.lag.time.max.ms": 2_000,
            "tick.interval.ms": tick_interval_ms,
        }
        self.application = Application(parse(ClusterConfig, values, "the test"))
        self.application.start()
        self._thread = threading.Thread(target=self.application.run)
        self._thread.start()
        self.connection = Connection(str(folder / "cluster"))

    def stop(self) -> None:
        """Stop all brokers cleanly."""
        self.application.stop()
        self._thread.join()

    def create_topic(self, topic: str, partitions: int = 1, **configs: Any) -> None:
        """Create a topic on all three brokers, with the first of them leading the first
        partition.
        """
        assignment = {
            partition: [(partition + one) % 3 for one in range(3)]
            for partition in range(partitions)
        }
        keys = {key.replace("_", "."): value for key, value in configs.items()}
        Admin(self.connection).create_topic(topic, assignment=assignment, configs=keys)

    def committed(self, topic: str) -> dict[int, list[dict[str, Any]]]:
        """Return all committed records by partition, in order of offset."""
        metadata = self.connection.metadata()
        count = metadata.topic(topic).partitions
        found: Mapping[int, list[dict[str, Any]]] = {one: [] for one in range(count)}
        for visible in self.connection.visible(
            [metadata.partition(topic, number) for number in range(count)]
        ):
            log = RecordLog(visible.location)
            log.refresh(visible.log_version)
            for batch in log.batches(visible.state.key):
                rows: pa.Table = ParquetContent(log.location.read_bytes(batch.path)).read()
                for row in rows.to_pylist():
                    offset = batch.base_offset + row.pop("offset_delta")
                    if offset < visible.high_watermark:
                        found[visible.state.partition].append({"offset": offset, **row})
        for records in found.values():
            assert [record["offset"] for record in records] == list(range(len(records)))
        return dict(found)


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A running cluster that the tests of a module share; each creates its own topics."""
    cluster = RunningCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()
