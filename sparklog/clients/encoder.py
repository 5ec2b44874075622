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


def encode(
    batches: Iterator[pa.RecordBatch],
    logs: Mapping[int, Location],
    partitioner: Partitioner,
) -> Iterator[EncodedFile]:
    """Write the records of `batches` to the inboxes of their partitions' leaders.

    Parameters: `batches` with the columns key, value (binary), and where given headers,
    partition and timestamp; `logs`, where the log of each partition's leader lies. Yields the
    files, each with the partition that it is for; the order of records is kept in each partition.
    """
    open_files: dict[int, _Open] = {}
    for batch in batches:
        if not batch.num_rows:
            continue
        explicit = batch.column("partition") if "partition" in batch.schema.names else None
        chosen = partitioner.partition(batch.column("key"), batch.column("value"), explicit)
        records = _records(batch)
        for partition in map(int, np.unique(chosen)):
            rows = records if (chosen == partition).all() else records.filter(chosen == partition)
            if partition not in open_files:
                writer = BatchFileWriter(logs[partition], new_batch_path())
                open_files[partition] = _Open(writer)
            open_files[partition].add(rows)
            if open_files[partition].writer.size_bytes >= _FILE_BYTES:
                yield _finish(partition, open_files.pop(partition))
    for partition, one in sorted(open_files.items()):
        yield _finish(partition, one)


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
