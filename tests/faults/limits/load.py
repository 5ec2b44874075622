"""Three brokers as processes with producers and a group, of which single processes are limited."""

from __future__ import annotations

import json
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.broker_processes import BrokerProcesses
from tests.faults.client_logs import read_producer
from tests.faults.client_processes import ClientProcesses
from tests.faults.judge import judge
from tests.faults.rounds import is_drained
from tests.jobs.processes import Process, wait_for

SESSION_MS = 3_000
_DRAIN_SECONDS = 300.0

Anomalies = Counter[str]


class Load(NamedTuple):
    """Running brokers and clients."""

    brokers: BrokerProcesses
    clients: ClientProcesses

    def acknowledged(self) -> int:
        """Return the number of records that the producers have acknowledged so far."""
        producers = [read_producer(log) for log in self.clients.producer_logs]
        answers = [one for producer in producers for one in producer.answered]
        return sum(one.size for one in answers if one.error == "NONE")

    def await_progress(self, records: int = 500, patience: float = 120.0) -> float:
        """Wait until `records` more are acknowledged; return the seconds that it took."""
        began, before = time.monotonic(), self.acknowledged()
        wait_for(
            lambda: self.acknowledged() >= before + records, "acknowledgement", patience=patience
        )
        return time.monotonic() - began

    def verdict(self) -> dict[str, Any]:
        """Let all clients end, and return the counts of records, of errors and of anomalies."""
        for broker_id, process in self.brokers.brokers.items():
            if process.popen.poll() is not None:
                self.brokers.start_broker(broker_id)
        self.brokers.await_in_sync()
        self.clients.stop_producers()
        wait_for(
            lambda: is_drained(self.brokers.connection), "drained group", patience=_DRAIN_SECONDS
        )
        self.clients.stop_consumers()
        found, producers, _ = judge(
            self.brokers.cluster, self.clients.producer_logs, self.clients.consumer_logs
        )
        answers = [one for producer in producers for one in producer.answered]
        errors: Counter[str] = Counter()
        for one in answers:
            errors[one.error] += one.size
        return {
            "acknowledged": errors.pop("NONE", 0),
            "errors": dict(errors),
            "anomalies": len(found),
            "first_anomalies": found[:3],
        }


@contextmanager
def running_load(
    folder: Path,
    roots: Sequence[Path],
    *,
    records_per_second: float = 500.0,
    producers: int = 1,
    consumers: int = 1,
    session_ms: int = SESSION_MS,
    kind: type[BrokerProcesses] = BrokerProcesses,
) -> Iterator[Load]:
    """Start brokers and clients; `roots` are those of the cluster and then of each broker.

    Parameters: `kind`, a class of brokers that are started in another way.
    """
    brokers = kind(folder / "processes", [str(one) for one in roots], session_ms)
    try:
        brokers.start()
        clients = ClientProcesses(brokers, producers, consumers, records_per_second)
        load = Load(brokers, clients)
        load.await_progress()
        yield load
    finally:
        brokers.close()


def set_descriptors(process: Process, most: int) -> None:
    """Change the soft limit of open files of a running process."""
    _, hard = resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE, (min(most, hard), hard))


def descriptors(process: Process) -> int:
    """Return the number of open files of a process."""
    return len(list(Path(f"/proc/{process.popen.pid}/fd").iterdir()))


def memory_bytes(process: Process) -> Mapping[str, int]:
    """Return the resident size of a process, VmRSS, and its peak, VmHWM."""
    return _memory_bytes(str(process.popen.pid))


def own_memory_bytes() -> Mapping[str, int]:
    """Return the resident size of this process, VmRSS, and its peak, VmHWM."""
    return _memory_bytes("self")


def _memory_bytes(process: str) -> Mapping[str, int]:
    lines = Path(f"/proc/{process}/status").read_text("ascii").splitlines()
    found = (line.split() for line in lines)
    return {one[0][:-1]: int(one[1]) << 10 for one in found if one[0] in ("VmRSS:", "VmHWM:")}


def events(process: Process) -> list[dict[str, Any]]:
    """Return the events in the log of a process; a line that is not JSON is an event of its own."""
    found = []
    for line in process.stderr.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            found.append({"event": "no JSON", "line": line})
    return found


def errors(process: Process) -> list[str]:
    """Return the distinct messages of warnings and errors of a process, with their counts."""
    counts: Counter[str] = Counter()
    for one in events(process):
        if one.get("level") in ("warning", "error") or "level" not in one:
            counts[" ".join(f"{key}={value}" for key, value in one.items() if key in _SHOWN)] += 1
    return [f"{count} x {message}" for message, count in counts.most_common()]


_SHOWN = ("event", "action", "error", "reason", "line")
