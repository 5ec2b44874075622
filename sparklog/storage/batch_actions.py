"""A batch in the Delta log: an add action whose partition values are the batch's header.

The header carries a checksum of itself. An action whose checksum does not match is damaged: its
values are read as far as possible, and it is marked as not sound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import xxhash
from deltalake import DeltaTable

from sparklog.model import HEADER_COLUMNS, Batch
from sparklog.storage.commits import AddedFile, Commit, RemovedFile

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

MIN_TIMESTAMP_MS = -62_135_596_800_000
MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The range of times that Delta's statistics can represent, in ms since 1970: years 1 to 9999."""


class ReadBatch(NamedTuple):
    """A batch as an add action describes it.

    `modified_at_ms` is the add action's modification time, in ms since 1970. `header_checksum` is
    the checksum that the header carries. If `is_sound` is False, the checksum does not match and
    any value may be wrong; a number that cannot be parsed is `UNREADABLE_NUMBER`.
    """

    batch: Batch
    modified_at_ms: int
    header_checksum: str
    is_sound: bool


UNREADABLE_NUMBER = -2
"""Placeholder for a number that cannot be parsed; no valid header contains it."""


_HEADER_TEXT = "\n".join(["%s"] * len(Batch._fields))


def header_checksum(batch: Batch) -> str:
    """Return the checksum of a batch's header: its values, and its file's size and statistics.

    Of the path it covers only the batch id, so copies of a batch have the same header checksum.
    """
    text = _HEADER_TEXT % (batch.batch_id, *batch[1:])
    # A damaged commit may have half of a surrogate pair as text.
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))


def live_batches(table: DeltaTable) -> Iterator[ReadBatch]:
    """Yield the batches of a version of the table, in no particular order."""
    actions = pa.table(table.get_add_actions(flatten=True))
    if not actions.num_rows:
        return
    columns: dict[str, Iterable[Any]] = {
        "path": map(unquote, actions["path"].to_pylist()),
        "size_bytes": actions["size_bytes"].to_pylist(),
        **{name: actions[f"partition.{name}"].to_pylist() for name in _HEADER},
        "record_count": actions["num_records"].to_pylist(),
        "last_offset_delta": actions["max.offset_delta"].to_pylist(),
        "min_timestamp_ms": milliseconds(actions["min.timestamp"]),
        "max_timestamp_ms": milliseconds(actions["max.timestamp"]),
    }
    written_at_ms = actions["modification_time"].to_pylist()
    known: dict[Any, Any] = {}
    for name in columns.keys() - {"path", "checksum"}:
        columns[name] = _shared(columns[name], known)
    rows = zip(
        zip(*(columns[name] for name in Batch._fields), strict=True),
        _shared(written_at_ms, known),
        actions["partition.header_checksum"].to_pylist(),
        strict=True,
    )
    for values, modified_at_ms, checksum in rows:
        batch = Batch._make(values)
        if header_checksum(batch) == checksum:
            yield ReadBatch(batch, modified_at_ms, checksum, is_sound=True)
        else:
            yield ReadBatch(_readable(batch), modified_at_ms, str(checksum), is_sound=False)


def _shared(values: Iterable[Any], known: dict[Any, Any]) -> list[Any]:
    """Return the values, with the object of `known` for each that is equal to an earlier one.

    Batches share their topic, their epoch, and often sizes and times. Each object takes memory.
    """
    return [known.setdefault(value, value) for value in values]


def batch_of(file: AddedFile) -> ReadBatch:
    """Return the batch of an add action."""
    values = file.partition_values
    lowest, highest = (_map(file.statistics.get(name)) for name in ("minValues", "maxValues"))
    batch = Batch(
        path=file.path,
        size_bytes=file.size_bytes,
        topic_id=str(values.get("topic_id")),
        topic=str(values.get("topic")),
        partition=_int(values.get("partition")),
        leader_epoch=_int(values.get("leader_epoch")),
        base_offset=_int(values.get("base_offset")),
        producer_id=_int(values.get("producer_id")),
        producer_epoch=_int(values.get("producer_epoch")),
        base_sequence=_int(values.get("base_sequence")),
        checksum=str(values.get("checksum")),
        record_count=_int(file.statistics.get("numRecords")),
        last_offset_delta=_int(highest.get("offset_delta")),
        min_timestamp_ms=milliseconds_of(lowest.get("timestamp")),
        max_timestamp_ms=milliseconds_of(highest.get("timestamp")),
    )
    checksum = str(values.get("header_checksum"))
    return ReadBatch(batch, file.modified_at_ms, checksum, header_checksum(batch) == checksum)


def added_batches(commit: Commit) -> Sequence[ReadBatch]:
    """Return the batches of a commit's add actions; they are computed once for all readers."""
    return commit.derived(_batches_of)


def _batches_of(commit: Commit) -> Sequence[ReadBatch]:
    return tuple(map(batch_of, commit.added))


def has_damaged_header(commit: Commit) -> bool:
    """Return whether a commit adds a batch whose header does not match its checksum."""
    return any(not one.is_sound for one in added_batches(commit))


def added_file(batch: Batch, now_ms: int) -> AddedFile:
    """Return the add action of `batch`; raises `OverflowError` for a time outside Delta's range."""
    times_ms = batch.min_timestamp_ms, batch.max_timestamp_ms
    statistics = file_statistics(batch.record_count, batch.last_offset_delta, *times_ms)
    return AddedFile(batch.path, batch.size_bytes, now_ms, _header(batch), statistics)


def file_statistics(
    record_count: int, last_offset_delta: int, min_timestamp_ms: int, max_timestamp_ms: int
) -> dict[str, Any]:
    """Return the statistics of an add action; raises as `added_file` does."""
    return {
        "numRecords": record_count,
        "minValues": {"offset_delta": 0, "timestamp": _text(min_timestamp_ms, 0)},
        "maxValues": {
            "offset_delta": last_offset_delta,
            # Engines skip files by this value. Invariant: it is at least each record's timestamp.
            "timestamp": _text(max_timestamp_ms, 999),
        },
        "nullCount": {"offset_delta": 0, "timestamp": 0},
    }


def removed_file(batch: Batch, now_ms: int) -> RemovedFile:
    """Return the remove action of `batch`."""
    return RemovedFile(batch.path, now_ms, batch.size_bytes, _header(batch))


_HEADER = tuple(name for name in HEADER_COLUMNS.names if name != "header_checksum")
_header_values = attrgetter(*_HEADER)


def _header(batch: Batch) -> dict[str, str]:
    header = dict(zip(_HEADER, map(str, _header_values(batch)), strict=True))
    header["header_checksum"] = header_checksum(batch)
    return header


def _readable(batch: Batch) -> Batch:
    """Return a damaged batch, with each null replaced by a placeholder of the right type."""
    texts = ("path", "topic_id", "topic", "checksum")
    filled = (
        (str(value) if name in texts else UNREADABLE_NUMBER) if value is None else value
        for name, value in zip(Batch._fields, batch, strict=True)
    )
    return Batch._make(filled)


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _int(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return UNREADABLE_NUMBER


@lru_cache(maxsize=1024)
def _text(time_ms: int, microseconds: int) -> str:
    """Return a time in the format of statistics; cached, since a commit's batches share times."""
    moment = _EPOCH + timedelta(milliseconds=time_ms, microseconds=microseconds)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def milliseconds_of(text: Any) -> int:
    """Return a time from an action's statistics, in ms since 1970."""
    return _parsed_ms(text) if isinstance(text, str) else UNREADABLE_NUMBER


@lru_cache(maxsize=1024)
def _parsed_ms(text: str) -> int:
    """Parse a time as `milliseconds_of` does; cached, since a commit's batches share times."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (TypeError, ValueError):
        return UNREADABLE_NUMBER


def milliseconds(times: pa.ChunkedArray) -> list[int | None]:
    """Return the times of a snapshot's actions, in ms since 1970."""
    microseconds = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    if microseconds.null_count:
        return [one if one is None else one // 1000 for one in microseconds.to_pylist()]
    values: list[int | None] = np.floor_divide(microseconds.to_numpy(), 1000).tolist()
    return values
