"""What a Spark task does: read its files and give their records as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparklog.datasource.columns import CREATE_TIME, arrow_schema
from sparklog.errors import StorageError
from sparklog.model import TopicPartition
from sparklog.storage.location import Location

BATCH_ROWS = 20_000
"""How many records an Arrow batch has: enough to be fast, few enough for large records."""

_IN_ONE_REQUEST_BYTES = 8 << 20


class OffsetRange(NamedTuple):
    """The offsets from `start` on and below `end` of a partition."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets that are; compacted records count."""
        return self.end - self.start


class PlannedFile(NamedTuple):
    """A batch file: its path in the log, its size in bytes, and the offset of its first record."""

    path: str
    size_bytes: int
    base_offset: int


@dataclass(frozen=True)
class ReadTask:
    """What one Spark task reads; it travels to the task pickled."""

    range: OffsetRange
    log: Location
    files: tuple[PlannedFile, ...]
    include_headers: bool


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield a task's records in order of offset, with the columns that Spark expects.

    Raises `StorageError` where a file is gone or damaged.
    """
    for file in task.files:
        try:
            yield from _read_file(task, file)
        except FileNotFoundError as error:
            raise StorageError(
                f"{task.log.uri}/{file.path} was removed since this query was planned: run the "
                "query again, or restart the stream"
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise StorageError(
                f"{task.log.uri}/{file.path} of {task.range.partition} cannot be read ({error}): "
                "run sparklog audit, and read another replica meanwhile"
            ) from error


def _read_file(task: ReadTask, file: PlannedFile) -> Iterator[pa.RecordBatch]:
    names = ["offset_delta", "timestamp", "key", "value"]
    names += ["headers"] if task.include_headers else []
    first, end = task.range.start - file.base_offset, task.range.end - file.base_offset
    with _open(task.log, file) as parquet:
        groups = _row_groups(parquet.metadata, first, end)
        # Arrow's threads may outlive a short process, and Spark has its own.
        batches = parquet.iter_batches(BATCH_ROWS, groups, names, use_threads=False)
        for rows in batches:
            wanted = _slice(rows, first, end)
            if wanted.num_rows:
                yield _as_spark_has_it(task, file, wanted)


def _open(log: Location, file: PlannedFile) -> pq.ParquetFile:
    if log.is_local:
        return pq.ParquetFile(f"{log.uri}/{file.path}", memory_map=True, pre_buffer=False)
    if file.size_bytes <= _IN_ONE_REQUEST_BYTES:
        source = pa.BufferReader(log.read_bytes(file.path))
        return pq.ParquetFile(source, pre_buffer=False)
    return pq.ParquetFile(log.open(file.path), pre_buffer=False)


def _row_groups(metadata: pq.FileMetaData, first: int, end: int) -> list[int]:
    """Return the row groups that may hold first <= offset_delta < end."""
    [column] = [
        number
        for number in range(metadata.num_columns)
        if metadata.schema.column(number).path == "offset_delta"
    ]
    groups = []
    for group in range(metadata.num_row_groups):
        extent = metadata.row_group(group).column(column).statistics
        known = extent is not None and extent.has_min_max
        if not known or (extent.min < end and extent.max >= first):
            groups.append(group)
    return groups


def _slice(rows: pa.RecordBatch, first: int, end: int) -> pa.RecordBatch:
    """Return the rows with first <= offset_delta < end; they are in order of offset."""
    deltas = rows.column("offset_delta").to_numpy()
    start, stop = np.searchsorted(deltas, [first, end])
    return rows.slice(start, stop - start)


def _as_spark_has_it(task: ReadTask, file: PlannedFile, rows: pa.RecordBatch) -> pa.RecordBatch:
    count = rows.num_rows
    deltas = rows.column("offset_delta").cast(pa.int64())
    topic, partition = task.range.partition
    columns = [
        rows.column("key"),
        rows.column("value"),
        pa.repeat(pa.scalar(topic), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pc.add(deltas, file.base_offset),
        rows.column("timestamp"),
        pa.repeat(pa.scalar(CREATE_TIME, pa.int32()), count),
    ]
    if task.include_headers:
        headers = rows.column("headers")
        # A record without headers has null there, as Kafka's source gives it.
        none = pc.equal(pc.list_value_length(headers), 0)
        columns.append(pc.if_else(none, pa.scalar(None, headers.type), headers))
    schema = arrow_schema(include_headers=task.include_headers)
    return pa.RecordBatch.from_arrays(
        [one.cast(field.type) for one, field in zip(columns, schema, strict=True)], schema=schema
    )
