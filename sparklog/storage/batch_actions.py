"""A batch as the Delta log has it: an add action whose partition values are the batch's header."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from sparklog.model import HEADER_COLUMNS, Batch
from sparklog.storage.delta_log import AddedFile, RemovedFile

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

MIN_TIMESTAMP_MS = -62_135_596_800_000
MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The times that Delta's statistics can name, in ms since 1970: the years 1 to 9999."""


def live_batches(table: DeltaTable) -> Iterator[tuple[Batch, int]]:
    """Yield the batches that a version of the table consists of, in no order.

    Each with the time that its writer gave it, in ms since 1970.
    """
    actions = pa.table(table.get_add_actions(flatten=True))
    if not actions.num_rows:
        return iter(())
    columns = {
        "path": map(unquote, actions["path"].to_pylist()),
        "size_bytes": actions["size_bytes"].to_pylist(),
        **{name: actions[f"partition.{name}"].to_pylist() for name in HEADER_COLUMNS.names},
        "record_count": actions["num_records"].to_pylist(),
        "last_offset_delta": actions["max.offset_delta"].to_pylist(),
        "min_timestamp_ms": _milliseconds(actions["min.timestamp"]),
        "max_timestamp_ms": _milliseconds(actions["max.timestamp"]),
    }
    batches = map(Batch._make, zip(*(columns[name] for name in Batch._fields), strict=True))
    return zip(batches, actions["modification_time"].to_pylist(), strict=True)


def batch_of(file: AddedFile) -> Batch:
    """Return the batch that a commit added."""
    values = file.partition_values
    lowest, highest = file.statistics["minValues"], file.statistics["maxValues"]
    return Batch(
        path=file.path,
        size_bytes=file.size_bytes,
        topic_id=str(values["topic_id"]),
        topic=str(values["topic"]),
        partition=_int(values["partition"]),
        leader_epoch=_int(values["leader_epoch"]),
        base_offset=_int(values["base_offset"]),
        producer_id=_int(values["producer_id"]),
        producer_epoch=_int(values["producer_epoch"]),
        base_sequence=_int(values["base_sequence"]),
        checksum=str(values["checksum"]),
        record_count=file.statistics["numRecords"],
        last_offset_delta=highest["offset_delta"],
        min_timestamp_ms=_milliseconds_of(lowest["timestamp"]),
        max_timestamp_ms=_milliseconds_of(highest["timestamp"]),
    )


def added_file(batch: Batch, now_ms: int) -> AddedFile:
    """Return what adds `batch` to a log; `OverflowError` for a time that Delta cannot name."""
    header = {name: str(getattr(batch, name)) for name in HEADER_COLUMNS.names}
    statistics = {
        "numRecords": batch.record_count,
        "minValues": {"offset_delta": 0, "timestamp": _text(batch.min_timestamp_ms, 0)},
        "maxValues": {
            "offset_delta": batch.last_offset_delta,
            # Engines skip files by this, so it must not be below any record's time.
            "timestamp": _text(batch.max_timestamp_ms, 999),
        },
        "nullCount": {"offset_delta": 0, "timestamp": 0},
    }
    return AddedFile(batch.path, batch.size_bytes, now_ms, header, statistics)


def removed_file(batch: Batch, now_ms: int) -> RemovedFile:
    """Return what removes `batch` from a log."""
    header = {name: str(getattr(batch, name)) for name in HEADER_COLUMNS.names}
    return RemovedFile(batch.path, now_ms, batch.size_bytes, header)


def _int(value: str | None) -> int:
    return int(value) if value is not None else -1


def _text(time_ms: int, microseconds: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=time_ms, microseconds=microseconds)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _milliseconds_of(text: str) -> int:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _milliseconds(times: pa.ChunkedArray) -> list[int]:
    microseconds = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
    milliseconds: list[int] = np.floor_divide(microseconds, 1000).tolist()
    return milliseconds
