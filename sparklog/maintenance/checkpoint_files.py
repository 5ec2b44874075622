"""Kafka's checkpoint files as text, for migration from and to Kafka, and for Kafka's tools.

`replication-offset-checkpoint`, `recovery-point-offset-checkpoint` and
`log-start-offset-checkpoint` have one line `topic partition offset` for each partition of a log
directory. `leader-epoch-checkpoint` has one line `epoch startOffset` for each epoch of one
partition. Each file begins with a line with the version, 0, and a line with the number of entries
(rule 1.5). The order of offset checkpoints has no meaning (Kafka's is that of a hash table); the
writer chooses it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from sparklog.errors import ProtocolError, StorageError
from sparklog.model import EpochEntry, check_topic_name

HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
"""The name of a file in a partition's folder; the other files are in the log directory itself."""

_VERSION = "0"
_OFFSET_FIELDS = 3
_EPOCH_FIELDS = 2
_MAX_INT = (1 << 31) - 1
_MAX_LONG = (1 << 63) - 1

_Entry = TypeVar("_Entry")


def format_offsets(offsets: Mapping[tuple[str, int], int]) -> str:
    """Return an offset checkpoint: the offset of each (topic, partition), in the given order."""
    return _format(
        f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()
    )


def parse_offsets(text: str, source: str) -> dict[tuple[str, int], int]:
    """Return the offset of each (topic, partition) of an offset checkpoint, in its order.

    Raises `StorageError` for a malformed line; its message has the line's number and the file's
    name `source`.
    """

    def entry(fields: Sequence[str]) -> tuple[tuple[str, int], int]:
        topic, partition, offset = fields
        check_topic_name(topic)
        return (topic, _number(partition, _MAX_INT)), _number(offset, _MAX_LONG)

    offsets: dict[tuple[str, int], int] = {}
    for line, (key, offset) in _parse(text, source, _OFFSET_FIELDS, entry):
        if key in offsets:
            raise _malformed(source, line, f"partition {key[1]} of topic {key[0]} is there twice")
        offsets[key] = offset
    return offsets


def format_epochs(entries: Iterable[EpochEntry]) -> str:
    """Return a leader-epoch checkpoint: one partition's history, oldest first."""
    return _format(f"{entry.epoch} {entry.start_offset}" for entry in entries)


def parse_epochs(text: str, source: str) -> list[EpochEntry]:
    """Return the entries of a leader-epoch checkpoint; both columns must increase (9.6).

    Raises `StorageError` for a malformed line; its message has the line's number and the file's
    name `source`.
    """

    def entry(fields: Sequence[str]) -> EpochEntry:
        epoch, start_offset = fields
        return EpochEntry(_number(epoch, _MAX_INT), _number(start_offset, _MAX_LONG))

    history: list[EpochEntry] = []
    for line, found in _parse(text, source, _EPOCH_FIELDS, entry):
        if history and not (
            found.epoch > history[-1].epoch and found.start_offset > history[-1].start_offset
        ):
            raise _malformed(source, line, "epochs and start offsets must grow from line to line")
        history.append(found)
    return history


def read_offsets(file: Path) -> dict[tuple[str, int], int]:
    """Return the content of an offset checkpoint; `StorageError` if missing or malformed."""
    return parse_offsets(_text(file), str(file))


def read_epochs(file: Path) -> list[EpochEntry]:
    """Return the content of a leader-epoch checkpoint; `StorageError` if missing or malformed."""
    return parse_epochs(_text(file), str(file))


def _text(file: Path) -> str:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise StorageError(f"{file} cannot be read ({error.strerror}): name a readable file") from (
            error
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _malformed(str(file), line, "it is no UTF-8 text") from None


def _format(lines: Iterable[str]) -> str:
    body = list(lines)
    return "\n".join([_VERSION, str(len(body)), *body]) + "\n"


def _parse(
    text: str, source: str, field_count: int, entry: Callable[[Sequence[str]], _Entry]
) -> list[tuple[int, _Entry]]:
    """Return the entries with their line numbers, which start at 1."""
    # Lines end as in Java. `splitlines` splits at further characters, which are invalid in names.
    lines = [line.rstrip("\n") for line in io.StringIO(text, newline=None)]
    if not lines or lines[0] != _VERSION:
        found = repr(lines[0]) if lines else "an empty file"
        raise _malformed(source, 1, f"the version must be {_VERSION}, found {found}")
    try:
        expected = _number(lines[1], _MAX_INT)
    except (IndexError, ValueError):
        raise _malformed(source, 2, "the number of entries is missing or no number") from None
    entries = []
    for number, line in enumerate(lines[2:], start=3):
        fields = line.split()
        if len(fields) != field_count:
            raise _malformed(source, number, f"expected {field_count} fields, found {len(fields)}")
        try:
            entries.append((number, entry(fields)))
        except (ValueError, ProtocolError) as error:
            raise _malformed(source, number, str(error)) from None
    if len(entries) != expected:
        raise _malformed(source, 2, f"{expected} entries are announced, {len(entries)} follow")
    return entries


def _number(text: str, most: int) -> int:
    # Checked before the conversion: Python refuses to convert very long numbers.
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not is_number or int(text) > most:
        raise ValueError(f"{text[:40]!r} is not a number from 0 to {most}")
    return int(text)


def _malformed(source: str, line: int, problem: str) -> StorageError:
    return StorageError(f"{source}, line {line}: {problem}")
