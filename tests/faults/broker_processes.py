"""A cluster of three or five brokers, each an application of its own, with its clients."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.cluster.roots import ClusterRoot
from sparklog.errors import ProtocolError, StorageError
from sparklog.storage.location import Location, StorageOptions
from tests.jobs.processes import Process, wait_for

TOPIC = "fire"
PARTITIONS = 3
PATIENCE_SECONDS = 300.0


@dataclass
class BrokerProcesses:
    """Brokers and clients as processes.

    Parameters: `folder`, of configurations and logs; `roots`, the URIs or paths of the cluster's
    root and then of each broker; `session_ms`; `storage_options` of the roots; `executors`, whether
    each broker's Spark has an executor that does all of its record work; `topics` to create;
    `is_compacted`, whether `TOPIC` is compacted, by cleaners that run each second.
    """

    folder: Path
    roots: Sequence[str]
    session_ms: int
    storage_options: StorageOptions = field(default_factory=dict)
    with_spark: bool = False
    executors: bool = False
    topics: Sequence[str] = (TOPIC,)
    is_compacted: bool = False
    brokers: dict[int, Process] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.ids = range(len(self.roots) - 1)
        common: dict[str, Any] = {
            "cluster.root": self.roots[0],
            "broker.session.timeout.ms": self.session_ms,
            "broker.heartbeat.interval.ms": max(self.session_ms // 6, 300),
            "unclean.leader.election.enable": False,
        }
        if self.is_compacted:
            common["log.cleaner.backoff.ms"] = 1_000
        if self.executors:
            common["execution"] = "spark"
        if self.storage_options:
            common["storage.options"] = self.storage_options
        listed = [{"broker.id": one, "log.dirs": self.roots[one + 1]} for one in self.ids]
        self._write("cluster", {**common, "brokers": listed})
        for one in listed:
            self._write(f"broker-{one['broker.id']}", {**common, **one})
        self.cluster = str(self.folder / "cluster.yaml")

    def _write(self, name: str, values: dict[str, Any]) -> None:
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")

    def start(self) -> None:
        """Create the cluster, start all brokers and create the topic."""
        ClusterRoot.create(Location.of(self.roots[0], self.storage_options))
        for one in self.ids:
            self.start_broker(one)
        self.connection = Connection(self.cluster)
        wait_for(lambda: len(self.alive()) == len(self.ids), "live brokers", patience=300)
        assignment = {
            one: [(one + after) % len(self.ids) for after in range(3)] for one in range(PARTITIONS)
        }
        configs = {"min.insync.replicas": "2"}
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        for topic in self.topics:
            Admin(self.connection).create_topic(
                topic,
                assignment=assignment,
                configs=configs | (compacted if self.is_compacted and topic == TOPIC else {}),
            )

    def start_broker(self, broker_id: int) -> None:
        """Start the process of a broker; an earlier one of the same broker may still run."""
        config = str(self.folder / f"broker-{broker_id}.yaml")
        if self.executors:
            process = self.run("tests.faults.executors_process", config)
        else:
            how = [] if self.with_spark else ["--without-spark"]
            process = self.run("jobs.broker", "--config", config, *how)
        self.brokers[broker_id] = process

    def run(self, module: str, *arguments: str) -> Process:
        """Start a Python module as a process."""
        return self._start(sys.executable, "-m", module, *arguments)

    def run_command(self, *arguments: str) -> Process:
        """Start the command sparklog as a process."""
        return self._start(str(Path(sys.executable).with_name("sparklog")), *arguments)

    def _start(self, *command: str) -> Process:
        output = self.folder / f"process-{len(self.processes)}"
        process = Process(command, output)
        self.processes.append(process)
        return process

    def alive(self) -> list[int]:
        """Return the live brokers."""
        brokers = self.connection.metadata().brokers.values()
        return sorted(one.broker_id for one in brokers if one.is_alive)

    def controller(self) -> int | None:
        """Return the active controller, or `None` if there is none or nothing answers."""
        try:
            listed = Admin(self.connection).list_brokers()
        except (ProtocolError, StorageError):
            return None
        return next((one.broker.broker_id for one in listed if one.is_controller), None)

    def broker_epoch(self, broker_id: int) -> int | None:
        """Return the epoch of a broker's registration, or `None` if nothing answers."""
        try:
            return self.connection.metadata().brokers[broker_id].broker_epoch
        except (ProtocolError, StorageError):
            return None

    def leaders(self) -> dict[int, int | None]:
        """Return the leader of each partition."""
        metadata = self.connection.metadata()
        return {one: metadata.partition(TOPIC, one).leader for one in range(PARTITIONS)}

    def is_in_sync(self) -> bool:
        """Whether every partition has a leader and its three replicas in the ISR."""
        try:
            metadata = self.connection.metadata()
            states = [metadata.partition(TOPIC, one) for one in range(PARTITIONS)]
        except (ProtocolError, StorageError):
            return False
        return all(
            one.leader is not None and len(one.isr) == 3 and not one.is_reassigning
            for one in states
        )

    def await_in_sync(self) -> None:
        """Wait until every partition has a leader and all of its replicas in the ISR."""
        wait_for(self.is_in_sync, "full in-sync sets", patience=PATIENCE_SECONDS)

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.send(signal.SIGCONT)
            process.close()
