"""Clusters of real processes: their configuration, their ends, and a client.

No test sleeps for a fixed time: every wait polls a condition until it holds, or until a deadline.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml

from sparklog.clock import wait_until
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.errors import ERROR_CODES, StorageError
from sparklog.model import TableSchema, new_batch_path
from sparklog.producer.produce_requests import (
    PendingProduce,
    ProduceClient,
    ProduceResponse,
    RequestedBatch,
)
from sparklog.storage.batch_files import BatchFileWriter, read_records, records_table
from sparklog.storage.commits import read_commits
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log_files import newest_version
from sparklog.storage.journal import CHECKPOINTS, Journal, ProduceAnswer, answers_in
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog

ROOT = Path(__file__).parents[2]
SESSION_MS = 2_000
"""In ms; short, so that a test takes seconds, and long enough for a process that waits for a busy
core.
"""
PATIENCE = 90.0
"""Timeout of a wait, in seconds."""

_Found = TypeVar("_Found")


def wait_for(
    poll: Callable[[], _Found],
    what: str,
    process: Process | None = None,
    patience: float = PATIENCE,
) -> _Found:
    """Return the first true result; fail after `patience` in seconds, or when `process` ends."""

    def found_or_ended() -> tuple[_Found, bool]:
        found = poll()
        return found, process is not None and process.popen.poll() is not None

    found, ended = wait_until(found_or_ended, patience * 1000, pause_ms=20, until=any)
    if not found:
        told = f"\n{process.stderr}" if process is not None else ""
        raise AssertionError(f"there was no {what} {'in the end' if ended else 'in time'}{told}")
    return found


class Process:
    """A process that runs a job; its output goes to files."""

    def __init__(
        self,
        command: Sequence[str | Path],
        output: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path = ROOT,
    ) -> None:
        self.command = [str(part) for part in command]
        self._output = output
        with (
            output.with_suffix(".out").open("wb") as stdout,
            output.with_suffix(".err").open("wb") as stderr,
        ):
            self.popen = subprocess.Popen(
                self.command,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    @property
    def stderr(self) -> str:
        """The output on standard error so far."""
        return self._output.with_suffix(".err").read_text(encoding="utf-8")

    @property
    def stdout(self) -> str:
        """The output on standard output so far."""
        return self._output.with_suffix(".out").read_text(encoding="utf-8")

    def wait_for_event(self, event: str) -> None:
        """Wait until the process has logged an event."""
        wait_for(lambda: f'"event": "{event}"' in self.stderr, f"event {event!r}", self)

    def exit_code(self) -> int:
        """Wait for the end."""
        return self.popen.wait(PATIENCE)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process."""
        self.popen.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        self.send(number)
        return self.exit_code()

    def kill(self) -> None:
        """End the process by SIGKILL."""
        self.end(signal.SIGKILL)

    def send_to_children(self, command: str, number: signal.Signals) -> int:
        """Send a signal to the processes of this one's session whose command line has a text;
        return their number.
        """
        reached = 0
        for one in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                process = int(one.name)
                line = (one / "cmdline").read_bytes().decode(errors="replace")
                if command in line and os.getsid(process) == self.popen.pid:
                    os.kill(process, number)
                    reached += 1
        return reached

    def close(self) -> None:
        """End the process and its children if they still run; print its standard error."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        # It is shown if the test fails.
        print(*self.command, self.stderr[-10_000:], sep="\n")

    def has_left_nothing(self) -> bool:
        """Whether the process and all of its children have ended."""
        self.popen.poll()
        try:
            os.killpg(self.popen.pid, 0)
        except ProcessLookupError:
            return True
        return False


class Cluster:
    """A cluster of three brokers in a folder, run by any processes, and a client of it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.processes: list[Process] = []
        self.settings = {
            "cluster.root": "cluster",
            "broker.session.timeout.ms": SESSION_MS,
            "broker.heartbeat.interval.ms": 300,
        } | {key.replace("_", "."): value for key, value in settings.items()}
        folder.mkdir(parents=True, exist_ok=True)

    # --- processes ------------------------------------------------------------------------------

    def configuration(self, broker_id: int | None = None, **changes: Any) -> Path:
        """Write the configuration of the cluster, or of one broker, and return its file."""
        brokers = [{"broker.id": one, "log.dirs": f"broker-{one}"} for one in range(3)]
        own = {"brokers": brokers} if broker_id is None else brokers[broker_id]
        name = "cluster" if broker_id is None else f"broker-{broker_id}"
        values = self.settings | own | {key.replace("_", "."): of for key, of in changes.items()}
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
        return file

    def run(self, *options: str, broker_id: int | None = None, with_spark: bool = False) -> Process:
        """Start jobs.cluster, or jobs.broker for one broker, by `python -m`."""
        job = "jobs.cluster" if broker_id is None else "jobs.broker"
        config = self.configuration(broker_id)
        how = [] if with_spark else ["--without-spark"]
        return self.start([sys.executable, "-m", job, "--config", config, *how, *options])

    def start(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        folder: Path = ROOT,
    ) -> Process:
        """Start a process in a folder; it is ended with the test at the latest."""
        output = self.folder / f"process-{len(self.processes)}"
        process = Process(command, output, environment, folder)
        self.processes.append(process)
        return process

    def close(self) -> None:
        """End the processes that still run."""
        for process in self.processes:
            process.close()

    # --- state ----------------------------------------------------------------------------------

    def connect(self) -> Connection:
        """Return a new connection, once there is a cluster root."""

        def poll() -> Connection | None:
            try:
                return Connection(str(self.folder / "cluster"))
            except StorageError:
                return None

        found = wait_for(poll, "cluster root")
        assert found is not None
        return found

    def rows(self, schema: TableSchema, root: str = "cluster") -> list[dict[str, Any]]:
        """Return the rows of a control table; for a checkpoint, the journal's rows."""
        location = Location.of(str(self.folder / root))
        if schema in CHECKPOINTS:
            journal = Journal(location, with_operations=True)
            tables = journal.row_table, journal.epoch_table, journal.operation_table
            found = tables[CHECKPOINTS.index(schema)]()
        else:
            found = ControlTable(location, schema).rows()
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows

    def log(self, broker_id: int, partition: int = 0) -> list[tuple[int, int, bytes | None]]:
        """Return a replica's records, committed or not: offset, leader epoch, value."""
        log = RecordLog(Location.of(str(self.folder / f"broker-{broker_id}")))
        keys = [key for key in log.partitions() if key.partition == partition]
        return [
            (record.offset, record.leader_epoch, record.value)
            for key in keys
            for record in read_records(log.location, log.batches(key), 0, log.log_end_offset(key))
        ]

    def high_watermark(self, broker_id: int, partition: int = 0) -> int | None:
        """Return the high watermark in a replica's row."""
        for key, row in self.journal(broker_id).rows.items():
            if key.partition == partition:
                return int(row["high_watermark"])
        return None

    def journal(self, broker_id: int) -> Journal:
        """Return a broker's journal."""
        return Journal(Location.of(str(self.folder / f"broker-{broker_id}")))

    def answers(self, broker_id: int) -> list[ProduceAnswer]:
        """Return all answers to requests in a broker's journal."""
        log = self.journal(broker_id).location
        commits = read_commits(log, 0, newest_version(log))
        return [answer for commit in commits for answer in answers_in(commit)]


class Client:
    """A client of a cluster: it creates a topic, produces with retries, and consumes."""

    def __init__(self, cluster: Cluster, topic: str = "t") -> None:
        self.connection = cluster.connect()
        self.topic = topic
        self._client = ProduceClient(self.connection, client_id="test")

    def create_topic(self, leader: int | None = None, min_isr: int = 2) -> None:
        """Create a topic of one partition on three live brokers, led by `leader` if it is given."""
        brokers = wait_for(self._three_alive, "third live broker")
        first = brokers[0] if leader is None else leader
        replicas = [first, *(one for one in brokers if one != first)]
        configs = {"min.insync.replicas": min_isr}
        Admin(self.connection).create_topic(self.topic, assignment={0: replicas}, configs=configs)

    def _three_alive(self) -> list[int]:
        brokers = self.connection.metadata().brokers.values()
        alive = sorted(one.broker_id for one in brokers if one.is_alive)
        return alive if len(alive) == 3 else []

    def leader(self) -> int | None:
        """Return the current leader of the partition."""
        return self.connection.metadata().partition(self.topic, 0).leader

    def isr(self) -> list[int]:
        """Return the in-sync replicas of the partition."""
        return self.connection.metadata().partition(self.topic, 0).isr

    def send(
        self, values: Sequence[bytes], acks: int = -1, batch_id: str | None = None
    ) -> PendingProduce:
        """Write one batch to the leader's inbox and request it; retries of a batch have its id."""
        state = self.connection.metadata().partition(self.topic, 0)
        log = self.connection.leader_location(state).child("log")
        writer = BatchFileWriter(log, new_batch_path(batch_id))
        writer.write(records_table(values, None, time.time_ns() // 1_000_000))
        requested = RequestedBatch(state, writer.close())
        return self._client.send([requested], 1 if acks == 1 else "all", timeout_ms=300_000)

    def produce(self, *values: bytes, acks: int = -1) -> int:
        """Send one batch until it is stored, as Kafka's producer does; return its base offset."""
        batch_id = uuid.uuid4().hex
        answer = wait_for(lambda: self._try(values, acks, batch_id), "answer to a producer")
        assert answer is not None
        return answer.base_offset

    def _try(self, values: Sequence[bytes], acks: int, batch_id: str) -> ProduceResponse | None:
        state = self.connection.metadata().partition(self.topic, 0)
        if state.leader is None:
            return None
        pending = self.send(values, acks, batch_id)
        wait_for(lambda: pending.is_done or self._epoch() != state.leader_epoch, "answer")
        response = pending.response
        if response is None or response.error == "NONE":
            return response
        assert ERROR_CODES[response.error].retriable, response
        return None

    def _epoch(self) -> int:
        return self.connection.metadata().partition(self.topic, 0).leader_epoch

    def committed(self) -> list[bytes | None]:
        """Return the values of all committed records, in order of offset."""
        state = self.connection.metadata().partition(self.topic, 0)
        [visible] = self.connection.visible([state])
        log = RecordLog(visible.location)
        log.refresh(visible.log_version)
        batches = log.batches(state.key)
        records = list(read_records(log.location, batches, 0, visible.high_watermark))
        assert [record.offset for record in records] == list(range(visible.high_watermark))
        return [record.value for record in records]
