"""Undelivered records of a producer without Spark, gathered into batches by partition."""

from __future__ import annotations

import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.model import RECORD_COLUMNS, TopicIdPartition
from sparklog.producer.partitioner import Partitioner

Headers = Sequence[tuple[str, bytes | None]]


class RecordMetadata(NamedTuple):
    """The partition, offset and timestamp of a sent record.

    Attributes
    ----------
    topic : str
        The name of the topic.
    partition : int
        The number of the partition.
    offset : int
        The record's offset; -1 with acks=0.
    timestamp_ms : int
        Its time in ms since 1970.

    Examples
    --------
    >>> from sparklog import Producer
    >>> with Producer("sparklog-data/cluster") as producer:
    ...     sent = producer.send("orders", b"an order", partition=0, timestamp_ms=1_000)
    >>> sent.result()
    RecordMetadata(topic='orders', partition=0, offset=..., timestamp_ms=1000)
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


Delivered = Callable[[Exception | None, RecordMetadata | None], None]


class ProducerRecord(NamedTuple):
    """A record that was passed to `send`, and the future and callback for its outcome."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers | None
    partition: int | None
    timestamp_ms: int
    size_bytes: int
    sent_ms: int
    future: Future[RecordMetadata]
    on_delivery: Delivered | None


@dataclass(eq=False)
class GatheredBatch:
    """Records of one partition that are sent together; every attempt has the same batch id."""

    key: TopicIdPartition
    records: list[ProducerRecord] = field(default_factory=list)
    size_bytes: int = 0
    batch_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    attempts: int = 0
    not_before_ms: int = 0

    @property
    def created_ms(self) -> int:
        """The time at which `send` took the first record, in ms of the monotonic clock."""
        return self.records[0].sent_ms

    def add(self, record: ProducerRecord) -> None:
        """Append a record."""
        self.records.append(record)
        self.size_bytes += record.size_bytes

    def table(self) -> pa.Table:
        """Return the records as a table for `BatchFileWriter.write`."""
        headers = [
            None
            if record.headers is None
            else [{"key": name, "value": value} for name, value in record.headers]
            for record in self.records
        ]
        times = np.array([record.timestamp_ms for record in self.records], dtype=np.int64) * 1000
        of = RECORD_COLUMNS.field
        return pa.table(
            {
                "timestamp": pa.array(times).cast(of("timestamp").type),
                "key": pa.array([record.key for record in self.records], pa.binary()),
                "value": pa.array([record.value for record in self.records], pa.binary()),
                "headers": pa.array(headers, of("headers").type),
            }
        )


class Accumulator:
    """The batches of every partition, in order.

    Invariant: at most one batch of a partition is in flight. Not thread-safe: only the sender's
    thread calls it.

    Parameters: `batch_size`, the size in bytes at which a batch is due; `linger_ms`, the time in ms
    after which a smaller batch is due.
    """

    def __init__(self, batch_size: int, linger_ms: int) -> None:
        self._batch_size = batch_size
        self._linger_ms = linger_ms
        self._queues: dict[TopicIdPartition, deque[GatheredBatch]] = defaultdict(deque)
        self._in_flight: dict[TopicIdPartition, GatheredBatch] = {}

    def __bool__(self) -> bool:
        return any(self._queues.values())

    def add(
        self, topic_id: str, records: Sequence[ProducerRecord], partitioner: Partitioner
    ) -> None:
        """Append records of one topic to the batches of their partitions, in order."""
        explicit = [record.partition for record in records]
        chosen = partitioner.partition(
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array(explicit, pa.int32()) if any(one is not None for one in explicit) else None,
        )
        for record, partition in zip(records, map(int, chosen), strict=True):
            key = TopicIdPartition(topic_id, partition)
            queue = self._queues[key]
            is_open = queue and not queue[-1].attempts
            if not is_open or queue[-1].size_bytes + record.size_bytes > self._batch_size:
                queue.append(GatheredBatch(key))
            queue[-1].add(record)

    def due(self, now_ms: int, is_flushing: bool) -> list[GatheredBatch]:
        """Return the batches that are due, one per partition at most; mark them as in flight."""
        due = []
        for key, queue in self._queues.items():
            if not queue or key in self._in_flight:
                continue
            batch = queue[0]
            if batch.attempts:
                is_due = now_ms >= batch.not_before_ms
            else:
                is_full = len(queue) > 1 or batch.size_bytes >= self._batch_size
                is_due = is_full or is_flushing or now_ms - batch.created_ms >= self._linger_ms
            if is_due:
                due.append(batch)
        for batch in due:
            batch.attempts += 1
            self._in_flight[batch.key] = batch
        return due

    def next_due_ms(self) -> int | None:
        """Return the time in ms at which the next batch is due at the latest, or `None`."""
        waiting = [
            queue[0].not_before_ms if queue[0].attempts else queue[0].created_ms + self._linger_ms
            for key, queue in self._queues.items()
            if queue and key not in self._in_flight
        ]
        return min(waiting, default=None)

    def again(self, batch: GatheredBatch, not_before_ms: int) -> None:
        """Schedule a batch to be sent again, before the later batches of its partition."""
        batch.not_before_ms = not_before_ms
        del self._in_flight[batch.key]

    def done(self, batch: GatheredBatch) -> None:
        """Remove a batch that was delivered or has failed."""
        self._queues[batch.key].remove(batch)
        if self._in_flight.get(batch.key) is batch:
            del self._in_flight[batch.key]

    def waiting(self) -> list[GatheredBatch]:
        """Return all batches that are neither in flight nor done."""
        return [
            batch
            for key, queue in self._queues.items()
            for batch in queue
            if self._in_flight.get(key) is not batch
        ]

    @property
    def in_flight(self) -> Mapping[TopicIdPartition, GatheredBatch]:
        """The batches that are being sent, or were sent and have no outcome yet, by partition."""
        return self._in_flight
