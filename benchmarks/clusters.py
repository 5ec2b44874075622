"""Clusters of sparklog with three brokers, embedded in this process or in other processes.

The other processes are one for the cluster, or one for each broker. Clusters are on a local disk or
on the S3 API server of the benchmarks.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.s3_store import CLIENT, Store
from sparklog.broker.application import Application
from sparklog.clock import wait_until
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import ClusterConfig, parse
from sparklog.errors import SparklogError
from sparklog.logger import ROOT as LOGGER
from sparklog.storage.location import Location, StorageOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKER_IDS = (0, 1, 2)
CHECKOUT = Path(__file__).resolve().parents[1]
_PATIENCE_SECONDS = 120
_END_SECONDS = 30


def configuration(folder: Path, *, is_synced: bool = True, **settings: Any) -> dict[str, Any]:
    """Return the configuration of a cluster in a folder, with defaults except for `settings`.

    Parameters: `is_synced`, whether files are synced to the disk before they count, the default.
    """
    brokers = [{"broker.id": one, "log.dirs": str(folder / f"broker-{one}")} for one in BROKER_IDS]
    given = {key.replace("_", "."): value for key, value in settings.items()}
    if not is_synced:
        given["storage.options"] = {str(folder): {"sync": "false"}}
    return {"cluster.root": str(folder / "cluster"), "brokers": brokers, **given}


class Cluster:
    """A client's view of a running cluster."""

    def __init__(self, root: str, storage_options: StorageOptions | None = None) -> None:
        self.root = root
        self.connection = Connection(root, storage_options=storage_options)

    def create_topic(self, topic: str, partitions: int = 4, leader: int | None = None) -> None:
        """Create a topic on all brokers and wait until each replica has reported.

        All partitions are led by `leader`; by default the leaders are distributed.
        """
        admin = Admin(self.connection)
        configs = {"min.insync.replicas": "2"}
        if leader is None:
            admin.create_topic(topic, partitions, len(BROKER_IDS), configs=configs)
        else:
            replicas = sorted(BROKER_IDS, key=lambda one: one != leader)
            assignment = dict.fromkeys(range(partitions), replicas)
            admin.create_topic(topic, assignment=assignment, configs=configs)
        await_true(lambda: len(self.positions(topic)) == partitions * len(BROKER_IDS), "leaders")

    def positions(self, topic: str) -> list[tuple[int, int]]:
        """Return (log end offset, high watermark) of each replica in the current leader epoch."""
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
        """Wait until the logs of all three replicas have `records` records in total each."""
        wanted = records * len(BROKER_IDS)
        await_true(lambda: sum(end for end, _ in self.positions(topic)) >= wanted, "copies")

    def await_known_to_all(self, topic: str, records: int) -> None:
        """Wait until the high watermarks of all three replicas cover `records` records."""
        wanted = records * len(BROKER_IDS)
        await_true(lambda: sum(mark for _, mark in self.positions(topic)) >= wanted, "marks")


class EmbeddedCluster(Cluster):
    """A cluster whose brokers run in threads of this process."""

    def __init__(self, root: str, application: Application) -> None:
        super().__init__(root, application.config.storage_options)
        self._application = application

    @contextmanager
    def held(self) -> Iterator[None]:
        """Pause the brokers' rounds during another measurement; heartbeats continue."""
        with self._application.between_rounds():
            yield


@contextmanager
def embedded(
    folder: Path, spark: SparkSession | None = None, *, is_synced: bool = True, **settings: Any
) -> Iterator[EmbeddedCluster]:
    """Run a cluster in this process, with files copied by `spark` or by this process."""
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
    """Log only errors within the block; restore the level after it."""
    logger = logging.getLogger(LOGGER)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def resident(folder: Path, *, with_spark: bool = True, is_synced: bool = True) -> Iterator[Cluster]:
    """Run a cluster in a separate process, as `jobs.cluster` does."""
    given = configuration(folder, is_synced=is_synced)
    options = given.get("storage.options")
    with _job("cluster", folder, given, with_spark=with_spark) as job:
        _await_brokers(str(folder / "cluster"), options, [job])
        yield Cluster(str(folder / "cluster"), options)


class StoreCluster(Cluster):
    """A cluster on an object store; Spark's data source opens it by `config_file`."""

    def __init__(self, root: str, options: StorageOptions, config_file: Path) -> None:
        super().__init__(root, options)
        self.config_file = config_file


@contextmanager
def on_store(
    store: Store, folder: Path, *, is_together: bool = False, **settings: Any
) -> Iterator[StoreCluster]:
    """Run a cluster on an object store, without Spark: one process per broker.

    Parameters: `folder`, for configurations and logs; `is_together`, whether one process runs all
    brokers instead; `settings`, as in `configuration`. Brokers start before the store adds latency.
    The processes are killed at the end, since their data is no longer needed.
    """
    store.set_latency(0)
    uri = store.bucket(f"cluster-{time.time_ns()}")
    root, roots = f"{uri}/cluster", {one: f"{uri}/broker-{one}" for one in BROKER_IDS}
    given = {name.replace("_", "."): value for name, value in settings.items()}
    given["cluster.root"] = root
    cluster = {
        **given,
        "brokers": [{"broker.id": one, "log.dirs": roots[one]} for one in BROKER_IDS],
    }
    client_file = folder / "client.yaml"
    options = store.options(CLIENT)
    client_file.write_text(
        yaml.safe_dump({**cluster, "storage.options": options}), encoding="utf-8"
    )
    with ExitStack() as running:
        if is_together:
            cluster["storage.options"] = store.options("cluster")
            jobs = [running.enter_context(_job("cluster", folder, cluster, is_killed=True))]
        else:
            locations = [Location.of(one, options) for one in roots.values()]
            ClusterRoot.create(Location.of(root, options), locations)
            jobs = []
            for one in BROKER_IDS:
                own = {"broker.id": one, "log.dirs": roots[one]}
                broker = {**given, **own, "storage.options": store.options(f"broker-{one}")}
                jobs.append(running.enter_context(_job("broker", folder, broker, is_killed=True)))
        _await_brokers(root, options, jobs)
        yield StoreCluster(root, options, client_file)


class _Job:
    """A process of `jobs`; `check` raises `SparklogError` with the end of its log if it ended."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def check(self) -> None:
        """Raise `SparklogError` unless the process is running."""
        status = self._process.poll()
        if status is not None:
            raise SparklogError(
                f"{self._log.name}: the process has ended with {status}: "
                f"{self._log.read_text(errors='replace')[-2000:]}"
            )


@contextmanager
def _job(
    name: str,
    folder: Path,
    given: dict[str, Any],
    *,
    with_spark: bool = False,
    is_killed: bool = False,
) -> Iterator[_Job]:
    """Run `jobs.NAME`, and end its process in any case."""
    own = f"{name}-{given['broker.id']}" if "broker.id" in given else name
    file, log = folder / f"{own}.yaml", folder / f"{own}.log"
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.guarded", f"jobs.{name}", "--config", str(file)]
    command += ["--log-level", "error"] + ([] if with_spark else ["--without-spark"])
    with log.open("wb") as output:
        # In a new session, so that a JVM started by the process is killed with it.
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield _Job(process, log)
    finally:
        if not is_killed:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _await_brokers(root: str, options: StorageOptions | None, jobs: Sequence[_Job]) -> None:
    def is_up() -> bool:
        for job in jobs:
            job.check()
        try:
            alive = Connection(root, storage_options=options).metadata().brokers.values()
        except SparklogError:
            return False
        return sum(one.is_alive for one in alive) == len(BROKER_IDS)

    await_true(is_up, "brokers", every_seconds=0.2)


def await_true(poll: Callable[[], bool], what: str, every_seconds: float = 0.005) -> None:
    """Wait until a condition holds; raises `SparklogError` after 120 s."""
    if not wait_until(poll, _PATIENCE_SECONDS * 1000, pause_ms=every_seconds * 1000):
        raise SparklogError(f"there were no {what} in {_PATIENCE_SECONDS} s")
