"""Clusters of sparklog with three brokers: embedded in this process, or in one of its own."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sparklog.broker.application import Application
from sparklog.clients.admin import Admin
from sparklog.clients.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.errors import SparklogError
from sparklog.logger import ROOT as LOGGER
from sparklog.storage.location import StorageOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKER_IDS = (0, 1, 2)
CHECKOUT = Path(__file__).resolve().parents[1]
_PATIENCE_SECONDS = 120


def configuration(folder: Path, *, is_synced: bool = True, **settings: Any) -> dict[str, Any]:
    """Return the configuration of a cluster in a folder: defaults, but for `settings`.

    `is_synced`: whether files are synced to the disk before they count, which is the default.
    """
    brokers = [{"broker.id": one, "log.dirs": str(folder / f"broker-{one}")} for one in BROKER_IDS]
    given = {key.replace("_", "."): value for key, value in settings.items()}
    if not is_synced:
        given["storage.options"] = {str(folder): {"sync": "false"}}
    return {"cluster.root": str(folder / "cluster"), "brokers": brokers, **given}


class Cluster:
    """A running cluster, as a client sees it."""

    def __init__(self, root: str, storage_options: StorageOptions | None = None) -> None:
        self.root = root
        self.connection = Connection(root, storage_options=storage_options)

    def create_topic(self, topic: str, partitions: int = 4) -> None:
        """Create a topic on all brokers and wait until each replica has reported."""
        admin = Admin(self.connection)
        configs = {"min.insync.replicas": "2"}
        admin.create_topic(topic, partitions, len(BROKER_IDS), configs=configs)
        await_true(lambda: len(self.positions(topic)) == partitions * len(BROKER_IDS), "leaders")

    def positions(self, topic: str) -> list[tuple[int, int]]:
        """Return (log end offset, high watermark) of every replica that is as elected."""
        metadata = self.connection.metadata()
        found = []
        for number in range(metadata.topic(topic).partitions):
            state = metadata.partition(topic, number)
            for broker in (one.broker_id for one in state.replicas):
                location = self.connection.replica_location(state, broker)
                row = self.connection.journal(location).rows.get(state.key)
                if row is not None and row["leader_epoch"] == state.leader_epoch:
                    found.append((row["log_end_offset"], row["high_watermark"]))
        return found

    def await_in_all_logs(self, topic: str, records: int) -> None:
        """Wait until all three replicas hold so many records."""
        wanted = records * len(BROKER_IDS)
        await_true(lambda: sum(end for end, _ in self.positions(topic)) >= wanted, "copies")

    def await_known_to_all(self, topic: str, records: int) -> None:
        """Wait until all three replicas know so many records to be committed."""
        wanted = records * len(BROKER_IDS)
        await_true(lambda: sum(mark for _, mark in self.positions(topic)) >= wanted, "marks")


class EmbeddedCluster(Cluster):
    """A cluster whose brokers run in threads of this process."""

    def __init__(self, root: str, application: Application) -> None:
        super().__init__(root, application.config.storage_options)
        self._application = application

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the brokers rest while something else is measured; heartbeats go on."""
        with self._application.between_rounds():
            yield


@contextmanager
def embedded(
    folder: Path, spark: SparkSession | None = None, *, is_synced: bool = True, **settings: Any
) -> Iterator[EmbeddedCluster]:
    """Run a cluster in this process, over `spark` or copying by itself."""
    given = configuration(folder, is_synced=is_synced, **settings)
    config = parse(ClusterConfig, given, "the benchmark")
    with _errors_only():
        application = Application(config, spark)
        application.start()
        thread = threading.Thread(target=application.run, name="brokers")
        thread.start()
        try:
            yield EmbeddedCluster(config.cluster_root, application)
        finally:
            application.stop()
            thread.join()


@contextmanager
def _errors_only() -> Iterator[None]:
    """Log no warning meanwhile; the level that was set before is set again."""
    logger = logging.getLogger(LOGGER)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def resident(folder: Path, *, with_spark: bool = True, is_synced: bool = True) -> Iterator[Cluster]:
    """Run a cluster in a process of its own, as `jobs.cluster` does."""
    file = folder / "cluster.yaml"
    given = configuration(folder, is_synced=is_synced)
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    command = [sys.executable, "-m", "jobs.cluster", "--config", str(file)]
    command += ["--log-level", "error"] + ([] if with_spark else ["--without-spark"])
    log = folder / "cluster.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=CHECKOUT, stdout=output, stderr=output)
    try:
        _await_brokers(folder / "cluster", process, log)
        yield Cluster(str(folder / "cluster"), given.get("storage.options"))
    finally:
        process.terminate()
        process.wait()


def _await_brokers(root: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    def is_up() -> bool:
        if process.poll() is not None:
            raise SparklogError(f"the cluster's process has ended: {log.read_text()[-2000:]}")
        try:
            alive = Connection(str(root)).metadata().brokers.values()
        except SparklogError:
            return False
        return sum(one.is_alive for one in alive) == len(BROKER_IDS)

    await_true(is_up, "brokers", every_seconds=0.2)


def await_true(look: Callable[[], bool], what: str, every_seconds: float = 0.005) -> None:
    """Wait until `look` says so; `SparklogError` where it never does."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not look():
        if time.monotonic() > deadline:
            raise SparklogError(f"there were no {what} in {_PATIENCE_SECONDS} s")
        time.sleep(every_seconds)
