"""A batch as the Delta log has it: an add action whose partition values are the batch's header.

The header carries a checksum of itself. An action that does not match it is damaged: it is read
as well as possible, and marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import xxhash
from deltalake import DeltaTable

from sparklog.model import HEADER_COLUMNS, Batch
from sparklog.storage.delta_log import AddedFile, Commit, RemovedFile

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

MIN_TIMESTAMP_MS = -62_135_596_800_000
MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The times that Delta's statistics can name, in ms since 1970: the years 1 to 9999."""


class ReadBatch(NamedTuple):
    """A batch as an add action describes it.

    `modified_at_ms` is the time that the writer gave it, in ms since 1970; `header_checksum`, the
    checksum that the header carries. A header that does not match it may have any value wrong, and
    a number that cannot be read is `UNREADABLE_NUMBER`.
    """

    batch: Batch
    modified_at_ms: int
    header_checksum: str
    is_sound: bool


UNREADABLE_NUMBER = -2
"""Stands for a number that cannot be read; no header has it."""


def header_checksum(batch: Batch) -> str:
    """Return the checksum of a batch's header: its values, its file's size and statistics.

    A copy of the batch has the same one: of the path it covers the batch id only.
    """
    text = "\n".join(map(str, (batch.batch_id, *batch[1:])))
    return xxhash.xxh3_64_hexdigest(text.encode())


def live_batches(table: DeltaTable) -> Iterator[ReadBatch]:
    """Yield the batches that a version of the table consists of, in no order."""
    actions = pa.table(table.get_add_actions(flatten=True))
    if not actions.num_rows:
        return
    columns = {
        "path": map(unquote, actions["path"].to_pylist()),
        "size_bytes": actions["size_bytes"].to_pylist(),
        **{name: actions[f"partition.{name}"].to_pylist() for name in _HEADER},
        "record_count": actions["num_records"].to_pylist(),
        "last_offset_delta": actions["max.offset_delta"].to_pylist(),
        "min_timestamp_ms": milliseconds(actions["min.timestamp"]),
        "max_timestamp_ms": milliseconds(actions["max.timestamp"]),
    }
    rows = zip(
        zip(*(columns[name] for name in Batch._fields), strict=True),
        actions["modification_time"].to_pylist(),
        actions["partition.header_checksum"].to_pylist(),
        strict=True,
    )
    for values, modified_at_ms, checksum in rows:
        batch = Batch._make(values)
        if header_checksum(batch) == checksum:
            yield ReadBatch(batch, modified_at_ms, checksum, is_sound=True)
        else:
            yield ReadBatch(_readable(batch), modified_at_ms, str(checksum), is_sound=False)


def batch_of(file: AddedFile) -> ReadBatch:
    """Return the batch that a commit added."""
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
    """Return the batches that a commit adds."""
    return commit.derived(_batches_of)


def _batches_of(commit: Commit) -> Sequence[ReadBatch]:
    return tuple(map(batch_of, commit.added))


def has_damaged_header(commit: Commit) -> bool:
    """Return whether a commit adds a batch whose header does not match its checksum."""
    return any(not one.is_sound for one in added_batches(commit))


def added_file(batch: Batch, now_ms: int) -> AddedFile:
    """Return what adds `batch` to a log; `OverflowError` for a time that Delta cannot name."""
    times_ms = batch.min_timestamp_ms, batch.max_timestamp_ms
    statistics = file_statistics(batch.record_count, batch.last_offset_delta, *times_ms)
    return AddedFile(batch.path, batch.size_bytes, now_ms, _header(batch), statistics)


def file_statistics(
    record_count: int, last_offset_delta: int, min_timestamp_ms: int, max_timestamp_ms: int
) -> dict[str, Any]:
    """Return what an add action says of the records in a file; raises as `added_file` does."""
    return {
        "numRecords": record_count,
        "minValues": {"offset_delta": 0, "timestamp": _text(min_timestamp_ms, 0)},
        "maxValues": {
            "offset_delta": last_offset_delta,
            # Engines skip files by this, so it must not be below any record's time.
            "timestamp": _text(max_timestamp_ms, 999),
        },
        "nullCount": {"offset_delta": 0, "timestamp": 0},
    }


def removed_file(batch: Batch, now_ms: int) -> RemovedFile:
    """Return what removes `batch` from a log."""
    return RemovedFile(batch.path, now_ms, batch.size_bytes, _header(batch))


_HEADER = tuple(name for name in HEADER_COLUMNS.names if name != "header_checksum")


def _header(batch: Batch) -> dict[str, str]:
    header = {name: str(getattr(batch, name)) for name in _HEADER}
    return header | {"header_checksum": header_checksum(batch)}


def _readable(batch: Batch) -> Batch:
    """Return a damaged batch with a value of the right type in the place of each null."""
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
    except (TypeError, ValueError):
        return UNREADABLE_NUMBER


@lru_cache(maxsize=1024)
def _text(time_ms: int, microseconds: int) -> str:
    """Return a time as statistics name it; many batches of a commit have the same ones."""
    moment = _EPOCH + timedelta(milliseconds=time_ms, microseconds=microseconds)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def milliseconds_of(text: Any) -> int:
    """Return a time of an action's statistics in ms since 1970."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (AttributeError, TypeError, ValueError):
        return UNREADABLE_NUMBER


def milliseconds(times: pa.ChunkedArray) -> list[int | None]:
    """Return the times of a snapshot's actions in ms since 1970."""
    microseconds = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    if microseconds.null_count:
        return [one if one is None else one // 1000 for one in microseconds.to_pylist()]
    values: list[int | None] = np.floor_divide(microseconds.to_numpy(), 1000).tolist()
    return values
