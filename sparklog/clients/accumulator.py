"""What a plain producer has yet to deliver: records, gathered to batches by partition."""

from __future__ import annotations

import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.clients.partitioner import Partitioner
from sparklog.model import RECORD_COLUMNS, TopicIdPartition

Headers = Sequence[tuple[str, bytes | None]]


class RecordMetadata(NamedTuple):
    """Where a record was stored; `offset` is -1 where no answer was awaited (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


Delivered = Callable[[Exception | None, RecordMetadata | None], None]


class ProducerRecord(NamedTuple):
    """A record as it was given to `send`, and who waits for it."""

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
class ProducerBatch:
    """Records of one partition that go together; they keep the batch's id in every attempt."""

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
        """When its first record was sent."""
        return self.records[0].sent_ms

    def add(self, record: ProducerRecord) -> None:
        """Put a record at the end."""
        self.records.append(record)
        self.size_bytes += record.size_bytes

    def table(self) -> pa.Table:
        """Return the records as `BatchFileWriter.write` takes them."""
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
    """The batches of every partition, in order; of each partition one is on its way at most.

    Parameters: `batch_size`, bytes at which a batch is due; `linger_ms`, how long it may wait for
    more. Not safe for threads: the sender's alone.
    """

    def __init__(self, batch_size: int, linger_ms: int) -> None:
        self._batch_size = batch_size
        self._linger_ms = linger_ms
        self._queues: dict[TopicIdPartition, deque[ProducerBatch]] = defaultdict(deque)
        self._on_their_way: dict[TopicIdPartition, ProducerBatch] = {}

    def __bool__(self) -> bool:
        return any(self._queues.values())

    def add(
        self, topic_id: str, records: Sequence[ProducerRecord], partitioner: Partitioner
    ) -> None:
        """Put records of one topic into their partitions' batches, in order."""
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
                queue.append(ProducerBatch(key))
            queue[-1].add(record)

    def due(self, now_ms: int, is_flushing: bool) -> list[ProducerBatch]:
        """Return the batches that are to be sent now, the first of their partitions each."""
        due = []
        for key, queue in self._queues.items():
            if not queue or key in self._on_their_way:
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
            self._on_their_way[batch.key] = batch
        return due

    def next_due_ms(self) -> int | None:
        """Return when the next batch is due, at the latest; `None` where none waits."""
        waiting = [
            queue[0].not_before_ms if queue[0].attempts else queue[0].created_ms + self._linger_ms
            for key, queue in self._queues.items()
            if queue and key not in self._on_their_way
        ]
        return min(waiting, default=None)

    def again(self, batch: ProducerBatch, not_before_ms: int) -> None:
        """Let a batch be sent again; those of its partition behind it wait."""
        batch.not_before_ms = not_before_ms
        del self._on_their_way[batch.key]

    def done(self, batch: ProducerBatch) -> None:
        """Take a batch out, delivered or failed."""
        self._queues[batch.key].remove(batch)
        if self._on_their_way.get(batch.key) is batch:
            del self._on_their_way[batch.key]

    def waiting(self) -> list[ProducerBatch]:
        """Return all batches that are neither on their way nor done."""
        return [
            batch
            for key, queue in self._queues.items()
            for batch in queue
            if self._on_their_way.get(key) is not batch
        ]

    def on_their_way(self) -> list[ProducerBatch]:
        """Return the batches that have been sent and not been answered."""
        return list(self._on_their_way.values())
