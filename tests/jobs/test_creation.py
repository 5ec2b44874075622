"""Brokers that start at the same time on an empty store create one cluster."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.cluster.root_format import read_format
from sparklog.errors import StorageError
from sparklog.model import BROKERS
from sparklog.producer.plain import Producer
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location, StorageOptions
from tests.jobs.processes import SESSION_MS, Process, wait_for
from tests.storage.test_s3 import Store, store
from tests.storage.test_s3 import pytestmark as needs_store

__all__ = ["store"]

IDS = (0, 1, 2)


class Place:
    """An empty place for a cluster of three brokers, each in a process of its own."""

    def __init__(self, root: str, options: StorageOptions, folder: Path) -> None:
        self.root = root
        self.options = options
        self.folder = folder
        self.processes: list[Process] = []

    def location(self, name: str) -> Location:
        return Location.of(f"{self.root}/{name}", self.options)

    def start(self, broker_id: int) -> Process:
        """Start a broker."""
        values = {
            "cluster.root": f"{self.root}/cluster",
            "broker.id": broker_id,
            "log.dirs": f"{self.root}/broker-{broker_id}",
            "storage.options": dict(self.options),
            "broker.session.timeout.ms": 3 * SESSION_MS,
            "broker.heartbeat.interval.ms": 300,
        }
        file = self.folder / f"broker-{broker_id}.yaml"
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
        command = [sys.executable, "-m", "jobs.broker", "--config", str(file), "--without-spark"]
        output = self.folder / f"process-{len(self.processes)}"
        process = Process(command, output)
        self.processes.append(process)
        return process

    def states(self) -> dict[int, str]:
        """Return the brokers' states; empty before there is a cluster."""
        try:
            rows = ControlTable(self.location("cluster"), BROKERS).rows().to_pylist()
        except StorageError:
            return {}
        return {row["broker_id"]: row["state"] for row in rows}

    def await_alive(self) -> None:
        """Wait until all brokers are registered and alive."""
        wait_for(lambda: self.states() == dict.fromkeys(IDS, "alive"), "three live brokers")

    def check(self) -> None:
        """Check that all roots are of one cluster, and that it stores records on three replicas."""
        formats = [read_format(self.location(f"broker-{one}")) for one in IDS]
        formats.append(read_format(self.location("cluster")))
        assert len({one.cluster_id if one else None for one in formats}) == 1
        connection = Connection(f"{self.root}/cluster", storage_options=self.options)
        configs = {"min.insync.replicas": 3}
        Admin(connection).create_topic("t", replication_factor=3, configs=configs)
        with Producer(connection, acks="all") as producer:
            assert producer.send("t", b"v").result(60).offset == 0

    def close(self) -> None:
        """End the processes that still run."""
        for process in self.processes:
            process.close()


@pytest.fixture(params=["folder", pytest.param("store", marks=needs_store)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty local folder, and an empty prefix of an object store."""
    if request.param == "folder":
        made = Place(str(tmp_path / "data"), {}, tmp_path)
    else:
        running: Store = request.getfixturevalue("store")
        made = Place(running.bucket(), running.options(), tmp_path)
    yield made
    made.close()


def test_three_brokers_that_start_at_once_create_one_cluster(place: Place) -> None:
    """Exactly one of them creates the cluster; all three are brokers of it and replicate."""
    brokers = [place.start(one) for one in IDS]
    place.await_alive()
    place.check()
    for process in brokers:
        assert process.end() == 0, process.stderr
        assert "Traceback" not in process.stderr
    created = [process for process in brokers if '"event": "cluster created"' in process.stderr]
    assert len(created) == 1


def test_brokers_that_are_killed_while_they_create_a_cluster_create_it_at_their_next_start(
    place: Place,
) -> None:
    """Each is killed as soon as it has written something, and later starts complete the rest."""
    first = [place.start(one) for one in IDS]
    wait_for(lambda: place.location("cluster").names(), "table")
    for process in first:
        process.send(signal.SIGKILL)
    for process in first:
        process.exit_code()
    for broker_id in IDS:
        place.start(broker_id)
    place.await_alive()
    place.check()
