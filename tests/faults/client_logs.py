"""Logs of client processes: one JSON line before and after each call, readable after SIGKILL.

A line is one write to a file that is opened for appending, so a process that is killed loses no
line that it has written. Times are CLOCK_MONOTONIC in ms, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


def now_ms() -> int:
    """Return the time of this machine's monotonic clock in ms."""
    return time.monotonic_ns() // 1_000_000


class ClientLog:
    """The log of one client, open for writing."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, kind: str, *fields: Any) -> None:
        """Append one line: the kind of the event, its time, its fields."""
        os.write(self._descriptor, (json.dumps([kind, now_ms(), *fields]) + "\n").encode())


class Sent(NamedTuple):
    """Records `first` to `first + size - 1` of a producer, about to be sent."""

    at_ms: int
    partition: int
    first: int
    size: int


class Answered(NamedTuple):
    """Answers of records in a row: NONE and the offset of the first one, or an error."""

    at_ms: int
    partition: int
    first: int
    size: int
    error: str
    offset: int


class Assigned(NamedTuple):
    """Partitions that a member of the group was assigned."""

    at_ms: int
    member: str
    partitions: tuple[int, ...]


class Polled(NamedTuple):
    """Records of one partition that one poll returned, as (offset, value)."""

    at_ms: int
    member: str
    partition: int
    records: tuple[tuple[int, bytes], ...]


class Committed(NamedTuple):
    """A commit of offsets; `ended_ms` and `error` are `None` if the member ended before it."""

    at_ms: int
    member: str
    offsets: dict[int, int]
    ended_ms: int | None
    error: str | None


@dataclass
class ProducerLog:
    """The log of one producer."""

    name: str
    sent: list[Sent] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)


@dataclass
class GroupLog:
    """The logs of all members of a group; each member's events are in order."""

    assigned: list[Assigned] = field(default_factory=list)
    polled: list[Polled] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)


def _lines(file: Path) -> Iterator[list[Any]]:
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def read_producer(file: Path) -> ProducerLog:
    """Return the log of a producer; its name is that of the file."""
    log = ProducerLog(file.stem)
    for kind, *fields in _lines(file):
        if kind == "sent":
            log.sent.append(Sent(*fields))
        else:
            log.answered.append(Answered(*fields))
    return log


def read_group(files: Sequence[Path]) -> GroupLog:
    """Return the logs of the members of a group; each member's name is that of its file."""
    log = GroupLog()
    for file in files:
        pending: tuple[int, dict[int, int]] | None = None
        for kind, at_ms, *fields in _lines(file):
            if kind == "assigned":
                log.assigned.append(Assigned(at_ms, file.stem, tuple(fields[0])))
            elif kind == "polled":
                records = tuple((offset, value.encode()) for offset, value in fields[1])
                log.polled.append(Polled(at_ms, file.stem, fields[0], records))
            elif kind == "committing":
                pending = at_ms, {int(one): offset for one, offset in fields[0].items()}
            elif kind == "committed" and pending is not None:
                log.committed.append(Committed(pending[0], file.stem, pending[1], at_ms, fields[0]))
                pending = None
        if pending is not None:
            log.committed.append(Committed(pending[0], file.stem, pending[1], None, None))
    return log
