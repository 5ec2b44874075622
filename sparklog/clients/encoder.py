"""Encoding: from Arrow batches of records to batch files, one for each partition, in a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.clients.partitioner import Partitioner
from sparklog.clock import SystemClock
from sparklog.model import RECORD_COLUMNS, new_batch_path
from sparklog.storage.batch_files import BatchFile, BatchFileWriter
from sparklog.storage.location import Location

_ROW_GROUP_BYTES = 16 << 20
_FILE_BYTES = 256 << 20
"""Where a file ends and the next begins, so that a batch stays easy to copy again."""


class EncodedFile(NamedTuple):
    """A batch file that a task wrote, and its partition."""

    partition: int
    file: BatchFile


@dataclass
class _Open:
    """The file that one partition's records go to, and what is not written to it yet."""

    writer: BatchFileWriter
    buffered: list[pa.Table] = field(default_factory=list)
    buffered_bytes: int = 0

    def add(self, records: pa.Table) -> None:
        self.buffered.append(records)
        self.buffered_bytes += records.nbytes
        if self.buffered_bytes >= _ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.buffered:
            self.writer.write(pa.concat_tables(self.buffered).combine_chunks())
            self.buffered.clear()
            self.buffered_bytes = 0


class Encoder:
    """Writes records to the inboxes of the leaders of one topic's partitions.

    Parameters: `logs`, where the log of each partition's leader lies; `partitioner`, which picks
    partitions where the records name none.
    """

    def __init__(self, logs: Mapping[int, Location], partitioner: Partitioner) -> None:
        self._logs = logs
        self._partitioner = partitioner
        self._open: dict[int, _Open] = {}

    def add(self, batch: pa.RecordBatch) -> Iterator[EncodedFile]:
        """Write the records of `batch`; yield the files that are full by that.

        `batch` has the columns key, value (binary), and where given headers, partition and
        timestamp. The order of records is kept in each partition.
        """
        if not batch.num_rows:
            return
        explicit = batch.column("partition") if "partition" in batch.schema.names else None
        chosen = self._partitioner.partition(batch.column("key"), batch.column("value"), explicit)
        records = _records(batch)
        for partition in map(int, np.unique(chosen)):
            rows = records if (chosen == partition).all() else records.filter(chosen == partition)
            if partition not in self._open:
                writer = BatchFileWriter(self._logs[partition], new_batch_path())
                self._open[partition] = _Open(writer)
            self._open[partition].add(rows)
            if self._open[partition].writer.size_bytes >= _FILE_BYTES:
                yield _finish(partition, self._open.pop(partition))

    def close(self) -> Iterator[EncodedFile]:
        """Finish the files that are open, and yield them."""
        for partition, one in sorted(self._open.items()):
            yield _finish(partition, one)
        self._open.clear()


def _finish(partition: int, one: _Open) -> EncodedFile:
    one.flush()
    return EncodedFile(partition, one.writer.close())


def _records(batch: pa.RecordBatch) -> pa.Table:
    """Return the record columns of `batch`, with a time for those that have none."""
    columns: dict[str, Any] = {}
    for column in RECORD_COLUMNS:
        if column.name == "offset_delta":
            continue
        if column.name in batch.schema.names:
            columns[column.name] = batch.column(column.name).cast(column.type)
        elif column.name == "timestamp":
            now_us = SystemClock().now_ms() * 1000
            times = np.full(batch.num_rows, now_us, dtype="datetime64[us]")
            columns[column.name] = pa.array(times, column.type)
        else:
            columns[column.name] = pa.nulls(batch.num_rows, column.type)
    return pa.table(columns)
