"""A soak in real time: three brokers in processes of their own, which are killed and suspended.

Producers, consumers, failovers, retention, compaction, merging, vacuum and scrubs at once, at a
rate of records that does not change.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import yaml

from benchmarks.clusters import CHECKOUT, await_true
from benchmarks.soak.retention import keep_for
from benchmarks.soak.samples import Sample, append, disk, median, memory_mib
from benchmarks.soak.simulation import BROKERS, PARTITIONS, READ, TOPICS, has_keys
from benchmarks.soak.workload import (
    Pair,
    Reader,
    ViolationError,
    Written,
    check_retained,
    made_record,
)
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.errors import SparklogError
from sparklog.maintenance.audit import audit
from sparklog.maintenance.scrub import scrub
from sparklog.model import TopicPartition
from sparklog.producer.accumulator import RecordMetadata
from sparklog.producer.plain import Producer

_KEPT_MS = 600_000
CONFIG = {
    "unclean.leader.election.enable": False,
    "log.retention.check.interval.ms": 30_000,
    "log.merger.min.lag.ms": 30_000,
    "producer.id.expiration.ms": 600_000,
    "file.delete.delay.ms": _KEPT_MS,
    "metadata.history.retention.ms": _KEPT_MS,
    "log.vacuum.interval.ms": 60_000,
}

_SECOND_OF_CPU = os.sysconf("SC_CLK_TCK")
_DOWN_SECONDS = 20
_DELIVERY_MS = 600_000


class BrokerProcess:
    """The process of a broker, which is started again and again."""

    def __init__(self, folder: Path, broker_id: int) -> None:
        self._folder = folder
        self._name = f"broker-{broker_id}"
        given = {
            **CONFIG,
            "cluster.root": str(folder / "cluster"),
            "broker.id": broker_id,
            "log.dirs": str(folder / self._name),
        }
        self._file = folder.with_name(f"{folder.name}-{self._name}.yaml")
        self._file.write_text(yaml.safe_dump(given), encoding="utf-8")
        self._log = self._file.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None
        self.is_suspended = False
        self._used_seconds = 0.0

    def start(self) -> float:
        """Start the process; return the seconds of processor time until the broker has started."""
        begin = self._log.stat().st_size if self._log.exists() else 0
        command = [sys.executable, "-m", "jobs.broker", "--config", str(self._file)]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "--without-spark"], cwd=CHECKOUT, stdout=output, stderr=output
            )

        def has_started() -> bool:
            self.check()
            with self._log.open("rb") as lines:
                lines.seek(begin)
                return b'"broker started"' in lines.read()

        await_true(has_started, "start of a broker", every_seconds=0.05)
        self._used_seconds = self._seconds()
        return self._used_seconds

    def check(self) -> None:
        """Raise `SparklogError` if the process has ended by itself."""
        status = None if self._process is None else self._process.poll()
        if status is not None:
            text = self._log.read_text(encoding="utf-8", errors="replace")
            raise SparklogError(f"{self._name} has ended with {status}: {text[-2_000:]}")

    def kill(self) -> None:
        """Kill the process."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def suspend(self) -> None:
        """Suspend the process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.is_suspended = True

    def resume(self) -> None:
        """Let a suspended process go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.is_suspended = False

    def stop(self) -> None:
        """Let the process stop cleanly."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def used_seconds(self) -> float:
        """Return the processor time since the last call."""
        before, self._used_seconds = self._used_seconds, self._seconds()
        return max(self._used_seconds - before, 0.0)

    def _seconds(self) -> float:
        if self._process is None:
            return 0.0
        with suppress(OSError):
            line = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii")
            user, system = line.rpartition(")")[2].split()[11:13]
            return (int(user) + int(system)) / _SECOND_OF_CPU
        return 0.0

    @property
    def memory_mib(self) -> float:
        """Resident memory in MiB."""
        return 0.0 if self._process is None else memory_mib(self._process.pid)


class PlainWriter:
    """The records of one partition, sent one by one."""

    def __init__(self, producer: Producer, partition: TopicPartition, seed: int) -> None:
        self._producer = producer
        self._partition = partition
        self._random = random.Random(seed)
        self._sent = 0
        self._under_way: deque[tuple[Future[RecordMetadata], Pair]] = deque()
        self.written = Written()

    def send(self) -> None:
        """Send the next record."""
        key, value = made_record(self._random, self._sent, has_keys=has_keys(self._partition))
        topic, partition = self._partition
        future = self._producer.send(topic, value, key=key, partition=partition)
        self._under_way.append((future, (key, value)))
        self._sent += 1

    def take_answers(self, *, waits: bool = False) -> None:
        """Take the answers that are there, or wait for all."""
        while self._under_way and (waits or self._under_way[0][0].done()):
            future, record = self._under_way.popleft()
            self.written.add(self._partition, future.result().offset, [record])


class RealTime:
    """Brokers in processes, clients in this one, and a plan of what happens when."""

    def __init__(
        self, folder: Path, seed: int, samples: Path, say: Callable[[str], object] = print
    ) -> None:
        self.folder, self._samples, self._say = folder, samples, say
        self._root = folder / "cluster"
        self._random = random.Random(seed)
        folder.mkdir(parents=True)
        self._brokers = {one: BrokerProcess(folder, one) for one in BROKERS}
        for broker in self._brokers.values():
            broker.start()
        self._create_topics()
        for broker in self._brokers.values():
            broker.stop()
        keep_for(folder, _KEPT_MS)
        self._start_seconds = [broker.start() for broker in self._brokers.values()]
        self._producer = Producer(self._root, delivery_timeout_ms=_DELIVERY_MS)
        names = [TopicPartition(topic, one) for topic in TOPICS for one in range(PARTITIONS)]
        self._writers = {
            name: PlainWriter(self._producer, name, seed + place)
            for place, name in enumerate(names)
        }
        self._reader = Reader(self._root, READ, members=2)
        self._returns: tuple[BrokerProcess, float] | None = None
        self._sampled_at = self._begun = time.monotonic()

    def _create_topics(self) -> None:
        admin = Admin(Connection(self._root))
        for topic, configs in TOPICS.items():
            assignment = {
                number: [(number + other) % len(BROKERS) for other in BROKERS]
                for number in range(PARTITIONS)
            }
            given = {key: str(value) for key, value in configs.items()}
            admin.create_topic(
                topic, assignment=assignment, configs={"min.insync.replicas": "2", **given}
            )

    def run(self, seconds: float, records_per_second: float) -> None:
        """Write, read, and let things happen for `seconds`; then check.

        Raises
        ------
        ViolationError
            A record is lost, repeated, moved or changed, or an audit or a scrub found something.
        """
        plan: Sequence[tuple[float, Callable[[], object]]] = (
            (1 / records_per_second, self._write),
            (0.5, self._read),
            (60, self.sample),
            (110, self._fail_over),
            (170, self._reader.replace_member),
            (430, self._scrub),
            (900, self._audit),
        )
        due = [time.monotonic() + every for every, _ in plan]
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            for place, (every, action) in enumerate(plan):
                if due[place] <= now:
                    # Times that a long action has missed are left out.
                    due[place] = max(due[place] + every, now)
                    action()
            if self._returns is not None and self._returns[1] <= now:
                self._return()
            time.sleep(max(0.0, min(due) - time.monotonic()))
        self.check()

    def _write(self) -> None:
        for broker in self._brokers.values():
            broker.check()
        writer = self._random.choice(list(self._writers.values()))
        writer.send()
        for writer in self._writers.values():
            writer.take_answers()

    def _read(self) -> None:
        self._reader.step()

    def _fail_over(self) -> None:
        broker = self._random.choice(list(self._brokers.values()))
        if self._random.random() < 0.3:
            broker.suspend()
        else:
            broker.kill()
        self._returns = broker, time.monotonic() + _DOWN_SECONDS

    def _return(self) -> None:
        if self._returns is None:
            return
        broker, _ = self._returns
        self._returns = None
        if broker.is_suspended:
            broker.resume()
        else:
            self._start_seconds.append(broker.start())

    def _scrub(self) -> None:
        report = scrub(Connection(self._root), restart=True)
        if report.findings:
            raise ViolationError(f"a scrub found {report.findings}")

    def _audit(self) -> None:
        findings = audit(Connection(self._root))
        if findings:
            raise ViolationError(f"an audit found {[str(one) for one in findings]}")

    def check(self) -> None:
        """Let everything settle, then audit, and read every retained record by a new consumer."""
        self._return()
        for writer in self._writers.values():
            writer.take_answers(waits=True)
        read = {name: one for name, one in self._writers.items() if not has_keys(name)}

        def is_read() -> bool:
            self._read()
            return all(
                self._reader.positions.get(name, 0) == one.written.end_offset
                for name, one in read.items()
            )

        await_true(is_read, "end of the readers", every_seconds=0.1)
        findings = audit(Connection(self._root), verify_files=True)
        if findings:
            raise ViolationError(f"an audit found {[str(one) for one in findings]}")
        count = sum(
            check_retained(self._root, name, writer.written)
            for name, writer in self._writers.items()
        )
        self._say(f"{self.records} records acknowledged, {count} retained: the audit is clean")

    @property
    def records(self) -> int:
        """The number of acknowledged records."""
        return sum(writer.written.end_offset for writer in self._writers.values())

    def sample(self) -> None:
        """Append a sample to the file of samples."""
        now = time.monotonic()
        passed, self._sampled_at = now - self._sampled_at, now
        used = [broker.used_seconds() for broker in self._brokers.values()]
        starts, self._start_seconds = self._start_seconds, []
        append(
            self._samples,
            Sample(
                at=round(now - self._begun),
                records=self.records,
                **vars(disk(self.folder)),
                tick_ms=round(sum(used) / len(used) / passed * 1000, 1),
                start_ms=median(one * 1000 for one in starts),
                memory_mib=round(max(one.memory_mib for one in self._brokers.values()), 1),
            ),
        )

    def close(self) -> None:
        """End clients and brokers."""
        self._reader.close()
        self._producer.close()
        for broker in self._brokers.values():
            if broker.is_suspended:
                broker.resume()
            broker.stop()
