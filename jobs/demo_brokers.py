"""The brokers of the demo: threads of its own process, or a process each."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import yaml

from jobs.demo_output import print_event
from sparklog.broker.application import Application
from sparklog.broker.tick import StoppedError
from sparklog.clock import wait_until
from sparklog.cluster.connection import Connection
from sparklog.config import BrokerEntry, ClusterConfig, load
from sparklog.errors import SparklogError, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 120
END_SECONDS = 60


class LastAppend(NamedTuple):
    """The append after which a leader crashes.

    `send` sends the batch, `has_appended` checks for it in the leader's log, and `fence` fences the
    leader after its crash.
    """

    send: Callable[[], None]
    has_appended: Callable[[], bool]
    fence: Callable[[], None]


class Brokers(Protocol):
    """The brokers of a cluster, and the ways in which the demo treats them."""

    config: ClusterConfig

    def start(self) -> None:
        """Start all brokers; return when the cluster exists."""

    def stop(self) -> None:
        """Stop all brokers cleanly."""

    def restart(self, broker_id: int) -> None:
        """Start a broker again that has crashed."""

    def check(self) -> None:
        """Raise `SparklogError` if a broker has ended by itself."""

    def crash_after_append(self, broker_id: int, append: LastAppend) -> None:
        """Crash a leader after its last append and before any follower has a copy.

        The followers do nothing from before the append until after the fence: a crashed broker's
        log is still readable, and they would copy the batch until another broker leads.
        """


class InOneProcess:
    """All brokers in threads of this process; a crash drops the broker's state in memory."""

    def __init__(self, config: Path, spark: SparkSession) -> None:
        self.config = load(ClusterConfig, config)
        self._application = Application(self.config, spark)
        self._rounds = threading.Thread(target=self._application.run, name="rounds", daemon=True)

    def start(self) -> None:
        """Start all brokers."""
        self._application.start()
        self._rounds.start()

    def stop(self) -> None:
        """Park all brokers."""
        self._application.stop()
        self._rounds.join()

    def restart(self, broker_id: int) -> None:
        """Start a broker again."""
        with self._application.between_rounds():
            self._application.start_broker(broker_id)

    def check(self) -> None:
        """Raise `SparklogError` if the rounds have ended."""
        if not self._rounds.is_alive():
            raise SparklogError("the brokers have ended by themselves: see their log")

    def crash_after_append(self, broker_id: int, append: LastAppend) -> None:
        """Stop the leader's tick after the commit of its log, between the rounds of the others."""
        with self._application.between_rounds() as brokers:
            append.send()
            try:
                brokers[broker_id].leader_tick(stop_after="log_commit")
            except StoppedError:
                self._application.drop_broker(broker_id)
            if not append.has_appended():
                raise SparklogError(f"broker {broker_id} had nothing to append: it was not killed")
            append.fence()


class InProcesses:
    """A process for each broker, without Spark; a crash is SIGKILL.

    The events of the brokers' logs are printed as the demo's own.
    """

    def __init__(self, config: Path) -> None:
        self.config = load(ClusterConfig, config)
        self._files = {
            one.broker_id: self._write(config.with_name(f"broker-{one.broker_id}.yaml"), one)
            for one in self.config.brokers
        }
        self._running: dict[int, subprocess.Popen[str]] = {}

    def _write(self, file: Path, broker: BrokerEntry) -> Path:
        """Write the configuration of one broker, and return its file."""
        keys = {
            "cluster.root": self.config.cluster_root,
            "broker.id": broker.broker_id,
            "log.dirs": [*broker.log_dirs],
            # The followers are stopped for a part of the demo, and stay members meanwhile.
            "broker.session.timeout.ms": PATIENCE_SECONDS * 1000,
        }
        file.write_text(yaml.safe_dump(keys, sort_keys=False), encoding="utf-8")
        return file

    def start(self) -> None:
        """Start all processes; wait until their brokers are registered."""
        with ExitStack() as failed:
            failed.callback(self.stop)
            for broker_id in self._files:
                self.restart(broker_id)
            if not wait_until(self._all_alive, PATIENCE_SECONDS * 1000, pause_ms=100):
                raise SparklogError(f"the brokers have not started within {PATIENCE_SECONDS} s")
            failed.pop_all()

    def stop(self) -> None:
        """Stop all brokers by SIGTERM; kill a process that does not end in time."""
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def restart(self, broker_id: int) -> None:
        """Start a broker's process, in the process group of the demo: Ctrl-C stops all of them."""
        command = [sys.executable, "-m", "jobs.broker", "--config", str(self._files[broker_id])]
        process = subprocess.Popen(
            [*command, "--without-spark"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running[broker_id] = process
        threading.Thread(target=_narrate, args=[process], daemon=True).start()

    def check(self) -> None:
        """Raise `SparklogError` if a process has ended by itself."""
        for broker_id, process in self._running.items():
            if (code := process.poll()) is not None:
                raise SparklogError(f"the process of broker {broker_id} has ended with {code}")

    def crash_after_append(self, broker_id: int, append: LastAppend) -> None:
        """Stop the followers by SIGSTOP, kill the leader by SIGKILL, fence it, continue them."""
        followers = [one for of, one in self._running.items() if of != broker_id]
        for follower in followers:
            follower.send_signal(signal.SIGSTOP)
        try:
            append.send()
            if not wait_until(append.has_appended, PATIENCE_SECONDS * 1000, pause_ms=10):
                raise SparklogError(f"broker {broker_id} has appended nothing: it was not killed")
            leader = self._running.pop(broker_id)
            leader.kill()
            leader.wait()
            append.fence()
        finally:
            for follower in followers:
                follower.send_signal(signal.SIGCONT)

    def _all_alive(self) -> bool:
        self.check()
        try:
            brokers = Connection(self.config.cluster_root).metadata().brokers.values()
        except StorageError:
            return False
        return {one.broker_id for one in brokers if one.is_alive} == {*self._files}


def _narrate(process: subprocess.Popen[str]) -> None:
    """Print the events of the story that a process logs, until it ends."""
    assert process.stderr is not None, "the process was started with a pipe"
    for line in process.stderr:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            print_event(event)
