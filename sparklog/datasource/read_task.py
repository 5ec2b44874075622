"""The work of a Spark task: read its files and yield their records as Arrow batches."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from tempfile import NamedTemporaryFile
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from sparklog.datasource.columns import CREATE_TIME, arrow_schema
from sparklog.errors import SparklogError, StorageError
from sparklog.logger import get_logger
from sparklog.model import Batch, TopicIdPartition, TopicPartition
from sparklog.storage.location import Location, StorageOptions, one_line

_log = get_logger(__name__)

BATCH_ROWS = 20_000
"""Number of records in an Arrow batch: enough to be fast, few enough for large records."""

_IN_MEMORY_BYTES = 64 << 20
"""Bytes up to which an object of a store is held in memory; a larger one is held in a file."""


class OffsetRange(NamedTuple):
    """The offsets from `start` on and below `end` of a partition."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets, including those of compacted records."""
        return self.end - self.start


class PlannedFile(NamedTuple):
    """A batch file: its path in the log, size in bytes, checksum, and range of offsets."""

    path: str
    size_bytes: int
    checksum: str
    base_offset: int
    next_offset: int

    @classmethod
    def of(cls, batch: Batch) -> PlannedFile:
        """Return the file of a batch."""
        path, size_bytes = batch.path, batch.size_bytes
        return cls(path, size_bytes, batch.checksum, batch.base_offset, batch.next_offset)


@dataclass(frozen=True)
class ReadTask:
    """The input of one Spark task, which is sent to it pickled.

    `cluster` is the root of the cluster, and `storage_options` its stores' options: if a file is
    damaged, other replicas of the topic with this id are found there.
    """

    range: OffsetRange
    log: Location
    files: tuple[PlannedFile, ...]
    include_headers: bool
    cluster: str
    storage_options: StorageOptions = field(repr=False)
    topic_id: str


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield a task's records in order of offset, with the columns that Spark expects.

    A file that is missing, damaged or unreadable is replaced by the same offsets of any in-sync
    replica. No record of a file is yielded before its checksum was verified. Raises `StorageError`
    if no replica has the offsets.
    """
    for file in task.files:
        try:
            yield from _read_file(task, task.log, file)
        except _UnreadableFileError as error:
            _log.warning("another replica is read", error=str(error))
            yield from _read_elsewhere(task, file, error)


class _UnreadableFileError(StorageError):
    """A file cannot be read, and no record of it was yielded."""


def _read_elsewhere(
    task: ReadTask, file: PlannedFile, error: _UnreadableFileError
) -> Iterator[pa.RecordBatch]:
    """Yield the task's records of a file from an in-sync replica; raise `error` if none has them.

    Other replicas may have them in other batches. All files are opened before a record is yielded.
    """
    # Imported only here: a task that reads its own files starts without metadata and rules.
    from sparklog.cluster.committed_logs import CommittedLogs
    from sparklog.cluster.connection import Connection
    from sparklog.cluster.sound_replicas import SoundReplicas
    from sparklog.storage.errors import UNREADABLE

    start, end = max(task.range.start, file.base_offset), min(task.range.end, file.next_offset)
    key = TopicIdPartition(task.topic_id, task.range.partition.partition)
    try:
        logs = CommittedLogs(Connection(task.cluster, storage_options=task.storage_options))
        replicas = list(SoundReplicas(logs).in_sync(key, end))
    except (SparklogError, *UNREADABLE) as failure:
        _log.warning("no other replica found", error=one_line(failure))
        raise error from failure
    for seen in replicas:
        part = replace(task, range=task.range._replace(start=start, end=end))
        log = seen.location.child("log")
        try:
            batches = [one for one in logs.batches(seen, start) if one.base_offset < end]
            if not batches or batches[0].base_offset > start or batches[-1].next_offset < end:
                continue
            opened = [(one, _open(part, log, one)) for one in map(PlannedFile.of, batches)]
        except (SparklogError, *UNREADABLE) as failure:
            _log.info("copy not readable", root=seen.location.uri, error=one_line(failure))
            continue
        for one, parquet in opened:
            with parquet:
                yield from _read_opened(part, one, parquet)
        return
    raise error


def _read_file(task: ReadTask, log: Location, file: PlannedFile) -> Iterator[pa.RecordBatch]:
    with _open(task, log, file) as parquet:
        yield from _read_opened(task, file, parquet)


def _read_opened(
    task: ReadTask, file: PlannedFile, parquet: pq.ParquetFile
) -> Iterator[pa.RecordBatch]:
    names = ["offset_delta", "timestamp", "key", "value"]
    names += ["headers"] if task.include_headers else []
    first, end = task.range.start - file.base_offset, task.range.end - file.base_offset
    groups = _row_groups(parquet.metadata, first, end)
    # Arrow's threads may outlive a short process, and Spark has its own.
    batches = parquet.iter_batches(BATCH_ROWS, groups, names, use_threads=False)
    for rows in batches:
        wanted = _slice(rows, first, end)
        if wanted.num_rows:
            yield _as_spark_has_it(task, file, wanted)


def _open(task: ReadTask, log: Location, file: PlannedFile) -> pq.ParquetFile:
    """Open a file whose bytes match its checksum; `_UnreadableFileError` otherwise.

    An object of a store is read whole, by one request, also if the task needs a part of it.
    """
    where = f"{log.uri}/{file.path}"
    try:
        content = _content(log, file, where)
        checksum = xxhash.xxh3_64_hexdigest(content)
        if checksum != file.checksum:
            raise _UnreadableFileError(
                f"CORRUPT_MESSAGE: {where} of {task.range.partition} cannot be read (its bytes "
                f"have checksum {checksum}, not {file.checksum}), and no other replica in sync has "
                f"a copy of offsets {file.base_offset} to {file.next_offset - 1}: run sparklog "
                "audit and restore the file, or begin after these offsets"
            )
        return pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
    except FileNotFoundError as error:
        raise _UnreadableFileError(
            f"{where} was removed since this query was planned: run the query again, or restart "
            "the stream"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise _UnreadableFileError(
            f"{where} of {task.range.partition} cannot be read ({one_line(error)}): run sparklog "
            "audit, and read another replica meanwhile"
        ) from error


def _content(log: Location, file: PlannedFile, where: str) -> pa.Buffer:
    """Return the bytes of a file; a local file and a large object are mapped into memory."""
    if log.is_local:
        with pa.memory_map(where) as mapped:
            return mapped.read_buffer()
    if file.size_bytes <= _IN_MEMORY_BYTES:
        return pa.py_buffer(log.read_bytes(file.path))
    # The file has no name any more when the block ends; its bytes stay until they are unmapped.
    with NamedTemporaryFile(prefix="sparklog-") as local:
        with log.open(file.path) as source:
            shutil.copyfileobj(source, local, log.chunk_bytes)
        local.flush()
        with pa.memory_map(local.name) as mapped:
            return mapped.read_buffer()


def _row_groups(metadata: pq.FileMetaData, first: int, end: int) -> list[int]:
    """Return the row groups that may have rows with first <= offset_delta < end."""
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
