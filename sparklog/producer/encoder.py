"""Encoding of Arrow batches of records to batch files, with one open file per partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.clock import SystemClock
from sparklog.errors import SparklogError
from sparklog.model import RECORD_COLUMNS, new_batch_path
from sparklog.producer.partitioner import Partitioner
from sparklog.storage.batch_files import BatchFile, BatchFileWriter
from sparklog.storage.location import Location

_RECORD_COLUMNS = [name for name in RECORD_COLUMNS.names if name != "offset_delta"]
_ROW_GROUP_BYTES = 16 << 20
_FILE_BYTES = 256 << 20
"""The size in bytes at which a file is finished and a new one begun, so that a batch stays cheap to
copy again."""

_RECORDS_BYTES = 512 << 20
"""The size in bytes of the records at which a file is finished, however small they are compressed.
Leaders refuse files whose records take more than 1 GiB and 20 times the file."""


class EncodedFile(NamedTuple):
    """A batch file that a task wrote, and its partition."""

    partition: int
    file: BatchFile


@dataclass
class _Open:
    """The open file of one partition, and the records that are not written to it yet."""

    writer: BatchFileWriter
    buffered: list[pa.RecordBatch] = field(default_factory=list)
    buffered_bytes: int = 0
    records_bytes: int = 0

    def add(self, records: pa.RecordBatch) -> None:
        self.buffered.append(records)
        self.buffered_bytes += records.nbytes
        self.records_bytes += records.nbytes
        if self.buffered_bytes >= _ROW_GROUP_BYTES:
            self.flush()

    @property
    def is_full(self) -> bool:
        """Whether a new file has to be begun."""
        return self.writer.size_bytes >= _FILE_BYTES or self.records_bytes >= _RECORDS_BYTES

    def flush(self) -> None:
        if self.buffered:
            self.writer.write(_records(pa.Table.from_batches(self.buffered)))
            self.buffered.clear()
            self.buffered_bytes = 0


class Encoder:
    """Writes records to the inboxes of the leaders of one topic's partitions.

    Parameters: `logs`, the location of the log of each partition's leader; `partitioner`, which
    picks the partitions of records without an explicit one.
    """

    def __init__(self, logs: Mapping[int, Location], partitioner: Partitioner) -> None:
        self._logs = logs
        self._partitioner = partitioner
        self._open: dict[int, _Open] = {}

    def add(self, batch: pa.RecordBatch) -> Iterator[EncodedFile]:
        """Write the records of `batch`; yield the files that have reached their maximum size.

        `batch` has the columns key and value (binary or text), and optionally headers, partition
        and timestamp. The order of records is kept in each partition. Raises `SparklogError` if the
        partitioner refuses a record, for example because its partition does not exist.
        """
        if not batch.num_rows:
            return
        explicit = batch.column("partition") if "partition" in batch.schema.names else None
        try:
            chosen = self._partitioner.partition(
                batch.column("key"), batch.column("value"), explicit
            )
        except (TypeError, ValueError) as error:
            raise SparklogError(f"the partitioner refused a record: {error}") from error
        given = batch.select([name for name in batch.schema.names if name in _RECORD_COLUMNS])
        for partition, rows in _by_partition(given, chosen):
            if partition not in self._open:
                writer = BatchFileWriter(self._logs[partition], new_batch_path())
                self._open[partition] = _Open(writer)
            self._open[partition].add(rows)
            if self._open[partition].is_full:
                yield _finish(partition, self._open.pop(partition))

    def close(self) -> Iterator[EncodedFile]:
        """Finish the open files, and yield them."""
        for partition, one in sorted(self._open.items()):
            yield _finish(partition, one)
        self._open.clear()


def _finish(partition: int, one: _Open) -> EncodedFile:
    one.flush()
    return EncodedFile(partition, one.writer.close())


def _by_partition(
    batch: pa.RecordBatch, chosen: npt.NDArray[np.int32]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each partition, in their order."""
    counts = np.bincount(chosen)
    if counts[chosen[0]] == batch.num_rows:
        yield int(chosen[0]), batch
        return
    # numpy sorts narrow integer types by radix sort, several times faster than int32.
    narrow = chosen.astype(np.min_scalar_type(len(counts)))
    in_order = batch.take(pa.array(np.argsort(narrow, kind="stable")))
    ends = np.cumsum(counts)
    for partition in map(int, np.flatnonzero(counts)):
        yield partition, in_order.slice(ends[partition] - counts[partition], counts[partition])


def _records(given: pa.Table) -> pa.Table:
    """Return records with the columns of a file; without timestamps they get the current time."""
    columns: dict[str, Any] = {}
    for name in _RECORD_COLUMNS:
        kind = RECORD_COLUMNS.field(name).type
        if name in given.schema.names:
            columns[name] = given.column(name).cast(kind)
        elif name == "timestamp":
            now_us = SystemClock().now_ms() * 1000
            columns[name] = pa.array(np.full(given.num_rows, now_us, dtype="datetime64[us]"), kind)
        else:
            columns[name] = pa.nulls(given.num_rows, kind)
    return pa.table(columns)
