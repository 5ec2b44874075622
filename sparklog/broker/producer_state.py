"""State of idempotent producers whose batches are no longer in the log (rules 3.6, 8.4).

A batch in the log carries its producer's state in its header. When batches are merged, or removed
because a log is restarted, that state is kept in the table `producer_state`. It is written before
the commit that removes the batches.

A row counts as long as the log has a record of the row's leader epoch at the row's last offset, or
begins after it. An epoch and an offset identify one record for good. So rows written ahead of a
commit that never came, or left over from a truncation, do not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa

from sparklog.broker.checkpoints import overwrite
from sparklog.broker.replicas import Replicas
from sparklog.clock import Clock, Interval
from sparklog.config import Settings
from sparklog.model import PRODUCER_STATE, Batch, ProducerBatch, TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.record_log import REMEMBERED_BATCHES

_CHECK_INTERVAL_MS = 600_000
"""Time in ms between two searches for expired producers; Kafka's
producer.id.expiration.check.interval.ms."""

Producer = tuple[TopicIdPartition, int]
"""A producer in a partition: the partition and the producer's id."""


class ProducerState:
    """The producers of one broker root, as far as their batches were removed from the log."""

    def __init__(self, replicas: Replicas, rules: Rules, settings: Settings, clock: Clock) -> None:
        self._replicas = replicas
        self._log = replicas.root.log
        self._table = replicas.root.producer_state
        self._rules = rules
        self._settings = settings
        self._interval = Interval(clock)
        self._batches: dict[Producer, list[ProducerBatch]] = {}
        self._outdated: set[TopicIdPartition] = set()
        stored = producer_batches(self._table.rows())
        self._put(batch for batch in stored if self._counts(batch))
        # The partitions of stored rows that do not count.
        self._outdated = {one.topic_id_partition for one in stored} - self.partitions()

    def batches(self, partition: TopicIdPartition, producer_id: int) -> list[ProducerBatch]:
        """Return a producer's last batches that were removed, in order of offset."""
        found = self._batches.get((partition, producer_id), [])
        return [batch for batch in found if self._counts(batch)]

    def said_by(self, batches: Iterable[Batch], snapshot_offset: int) -> list[ProducerBatch]:
        """Return the state of live batches that a batch ending at `snapshot_offset` replaces."""
        return [
            ProducerBatch(
                *batch.topic_id_partition,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.last_sequence,
                batch.base_offset,
                batch.next_offset - 1,
                batch.leader_epoch,
                self._log.appended_at_ms(batch),
                snapshot_offset,
            )
            for batch in batches
            if batch.producer_id >= 0
        ]

    def add(self, added: Collection[ProducerBatch], now_ms: int) -> None:
        """Write `added` to the table, before the commit that removes these batches from the log.

        Producers that have been silent for producer.id.expiration.ms are dropped.
        """
        if not added:
            return
        self._put([*(one for one in self._all() if not self._is_refuted(one)), *added])
        for producer in self._expired(now_ms):
            del self._batches[producer]
        self._write()

    def expire(self, now_ms: int) -> bool:
        """Drop producers that have been silent for producer.id.expiration.ms; return if any was.

        Called by every tick that is not idle. Checks every `_CHECK_INTERVAL_MS`, or every
        producer.id.expiration.ms if that is shorter.
        """
        if not self._batches or not self._interval.is_over:
            return False
        self._interval.begin(min(_CHECK_INTERVAL_MS, self._settings.producer_id_expiration_ms))
        expired = self._expired(now_ms)
        for producer in expired:
            del self._batches[producer]
        if expired:
            self._write()
        return bool(expired)

    def truncate(self, points: Mapping[TopicIdPartition, int]) -> None:
        """Drop rows that end at or after each replica's new end; called after the cut (6.5)."""
        self._drop(lambda batch: batch.last_offset >= points.get(batch.topic_id_partition, 1 << 63))

    def partitions(self) -> set[TopicIdPartition]:
        """Return the partitions of which the table may have rows."""
        return {key for key, _ in self._batches} | self._outdated

    def remove(self, keys: Collection[TopicIdPartition]) -> None:
        """Drop all rows of replicas of deleted topics; called after the removal (rule 7.9)."""
        gone = self.partitions() & set(keys)
        if gone:
            # Until it is written.
            self._outdated |= gone
            self._put(one for one in self._all() if one.topic_id_partition not in keys)
            self._write()

    def restart(self, kept: Mapping[TopicIdPartition, Collection[ProducerBatch]]) -> None:
        """Drop all rows but `kept` of replicas whose logs have been restarted (6.7)."""
        offsets = {
            key: {(batch.producer_id, batch.base_offset) for batch in batches}
            for key, batches in kept.items()
        }

        def is_dropped(batch: ProducerBatch) -> bool:
            left = offsets.get(batch.topic_id_partition)
            return left is not None and (batch.producer_id, batch.base_offset) not in left

        self._drop(is_dropped)

    def _all(self) -> list[ProducerBatch]:
        return [batch for producer in sorted(self._batches) for batch in self._batches[producer]]

    def _drop(self, is_dropped: Callable[[ProducerBatch], bool]) -> None:
        known = self._all()
        kept = [batch for batch in known if not is_dropped(batch)]
        if len(kept) < len(known):
            self._put(kept)
            self._write()

    def _put(self, batches: Iterable[ProducerBatch]) -> None:
        """Keep each producer's last batches: of those that count, and of those that do not yet."""
        by_offset: dict[Producer, dict[int, ProducerBatch]] = defaultdict(dict)
        for batch in batches:
            by_offset[batch.topic_id_partition, batch.producer_id][batch.base_offset] = batch
        self._batches = {}
        for producer, found in by_offset.items():
            in_order = [found[offset] for offset in sorted(found)]
            count = [batch for batch in in_order if self._counts(batch)]
            to_come = [batch for batch in in_order if not self._counts(batch)]
            kept = count[-REMEMBERED_BATCHES:] + to_come[-REMEMBERED_BATCHES:]
            self._batches[producer] = kept

    def _counts(self, batch: ProducerBatch) -> bool:
        found = self._log.batch_at(batch.topic_id_partition, batch.last_offset)
        if found is None:
            key = batch.topic_id_partition
            is_known = key in self._replicas
            return is_known and batch.last_offset < self._replicas[key].log_start_offset
        return found.leader_epoch == batch.leader_epoch

    def _is_refuted(self, batch: ProducerBatch) -> bool:
        """Whether the log has another record at this offset; a missing record refutes nothing."""
        found = self._log.batch_at(batch.topic_id_partition, batch.last_offset)
        return found is not None and found.leader_epoch != batch.leader_epoch

    def _expired(self, now_ms: int) -> list[Producer]:
        rows: list[dict[str, Any]] = []
        for partition, producer_id in self._batches:
            live = self._log.producer_batches(partition, producer_id)
            times = [self._log.appended_at_ms(batch) for batch in live]
            times += [batch.timestamp_ms for batch in self._batches[partition, producer_id]]
            rows.append(
                {
                    "topic_id": partition.topic_id,
                    "partition": partition.partition,
                    "producer_id": producer_id,
                    "appended_at_ms": max(times),
                    "now_ms": now_ms,
                    "producer_id_expiration_ms": self._settings.producer_id_expiration_ms,
                }
            )
        return [
            (TopicIdPartition(row["topic_id"], row["partition"]), row["producer_id"])
            for row in self._rules.run("expired_producers", batches=rows)
        ]

    def _write(self) -> None:
        rows = PRODUCER_STATE.rows([batch._asdict() for batch in self._all()])
        overwrite(self._table, rows, self._replicas.root.fence)
        self._outdated = set()


def producer_batches(rows: pa.Table) -> list[ProducerBatch]:
    """Return the rows of a `producer_state` table."""
    return [ProducerBatch(**row) for row in rows.to_pylist()]
