"""Batches for tests, with and without the files that they name."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparklog.model import Batch, TopicIdPartition, new_batch_path
from sparklog.storage.batch_files import BatchFile, BatchFileWriter, records_table
from sparklog.storage.commits import BROKER_EPOCH
from sparklog.storage.fence import Fence
from sparklog.storage.location import Location

TOPIC_ID = "a-topic-id"
P0, P1 = TopicIdPartition(TOPIC_ID, 0), TopicIdPartition(TOPIC_ID, 1)
FENCE = Fence(BROKER_EPOCH, 1)


def batch(base_offset: int, count: int = 10, **header: Any) -> Batch:
    """Return a batch of `count` records at `base_offset` whose file does not exist."""
    made = Batch(
        path=new_batch_path(),
        size_bytes=1000,
        topic_id=TOPIC_ID,
        topic="t",
        partition=0,
        leader_epoch=0,
        base_offset=base_offset,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        checksum="00000000deadbeef",
        record_count=count,
        last_offset_delta=count - 1,
        min_timestamp_ms=1_000,
        max_timestamp_ms=2_000,
    )
    return made._replace(**header)


def chain(base_offset: int, *counts: int, **header: Any) -> list[Batch]:
    """Return batches that follow each other from `base_offset` on."""
    batches = []
    for count in counts:
        batches.append(batch(base_offset, count, **header))
        base_offset += count
    return batches


def write_file(
    log: Location,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    timestamp_ms: int = 1_000,
) -> BatchFile:
    """Write a batch file into the inbox of the log at `log`."""
    writer = BatchFileWriter(log, new_batch_path())
    writer.write(records_table(values, keys, timestamp_ms))
    return writer.close()


def batch_of_file(file: BatchFile, base_offset: int = 0, **header: Any) -> Batch:
    """Return the batch whose file is `file`."""
    return batch(
        base_offset,
        file.record_count,
        path=file.path,
        size_bytes=file.size_bytes,
        checksum=file.checksum,
        min_timestamp_ms=file.min_timestamp_ms,
        max_timestamp_ms=file.max_timestamp_ms,
    )._replace(**header)


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Simulate a full disk: a write is cut short at this file size, and the next one fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
