"""Retention of the partitions that one broker root leads (rule 8.3).

The leader decides for all replicas: followers take its log start offset over with its records. A
check reads no table and writes nothing if there is nothing to delete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from sparklog.broker.leading.led_partitions import LedPartitions
from sparklog.broker.log_starts import LogStarts
from sparklog.broker.replicas import Replicas
from sparklog.broker.tick import Effects
from sparklog.clock import Clock, Interval
from sparklog.cluster.metadata import Metadata
from sparklog.config import Settings
from sparklog.model import Batch, TopicIdPartition
from sparklog.protocol.replication.log_start_offset import may_be_deleted, may_be_requested
from sparklog.protocol.rules import RowTuples, Rules


class Retention:
    """Deletes old records of the led partitions, every log.retention.check.interval.ms.

    The first check is that of the first tick that leads a partition: a scheduled run may be shorter
    than the interval. An administrator's request is served in the next tick.
    """

    def __init__(
        self,
        replicas: Replicas,
        log_starts: LogStarts,
        led: LedPartitions,
        rules: Rules,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._replicas = replicas
        self._log = replicas.root.log
        self._log_starts = log_starts
        self._led = led
        self._rules = rules
        self._settings = settings
        self._interval = Interval(clock)
        self._partitions: object = None
        self._requested: set[TopicIdPartition] = set()

    def tick(self, metadata: Metadata, now_ms: int, effects: Effects) -> bool:
        """Move log start offsets, and remove batches below them; return whether any was.

        Called when nothing is staged. Makes one commit, if there is anything to delete. Raises as
        `Replicas.commit` does; the next tick repeats the check.
        """
        self._take_requests(metadata)
        is_due = bool(self._led) and self._interval.is_over
        requested = {key for key in self._requested if self._may_be_requested(key)}
        unremoved = self._log_starts.unremoved()
        if not (is_due or requested or unremoved):
            return False
        starts = self._decide(self._led.keys() if is_due else requested, metadata, now_ms)
        if starts or unremoved:
            removed = self._log_starts.move(starts, now_ms, effects)
            self._replicas.commit(now_ms, removed=removed)
            self._log_starts.note_committed(starts.keys() | unremoved)
            effects.done("log_start")
        if is_due:
            self._interval.begin(self._settings.log_retention_check_interval_ms)
        # A request that the rule has seen is done, or void.
        self._requested -= requested
        return bool(starts or unremoved)

    def _take_requests(self, metadata: Metadata) -> None:
        """Note the partitions with a request, if the states of partitions have changed."""
        if self._partitions is metadata.partitions:
            return
        self._requested = {
            key
            for key, leadership in self._led.items()
            if leadership.state.delete_records_offset is not None
        }
        self._partitions = metadata.partitions

    def _may_be_requested(self, key: TopicIdPartition) -> bool:
        if key not in self._led:
            return False
        replica = self._replicas[key]
        offset = self._led[key].state.delete_records_offset
        return may_be_requested(offset, replica.log_start_offset, replica.high_watermark)

    def _decide(
        self, keys: Collection[TopicIdPartition], metadata: Metadata, now_ms: int
    ) -> dict[TopicIdPartition, int]:
        """Return the log start offsets that move, by the rule."""
        replicas: list[dict[str, Any]] = []
        batches: list[tuple[Any, ...]] = []
        for key in keys:
            row = self._row(key, metadata, now_ms)
            oldest = list(self._oldest(key, row))
            if oldest or self._may_be_requested(key):
                replicas.append(row)
                batches += oldest
        if not replicas:
            return {}
        found = self._rules.run(
            "log_start_offset", replicas=replicas, batches=RowTuples(_OF_BATCH, batches)
        )
        return {
            TopicIdPartition(row["topic_id"], row["partition"]): row["log_start_offset"]
            for row in found
        }

    def _row(self, key: TopicIdPartition, metadata: Metadata, now_ms: int) -> dict[str, Any]:
        state, replica, settings = self._led[key].state, self._replicas[key], self._settings
        topic = metadata.topics.get(key.topic_id)
        own_ms = topic.config.retention_ms if topic else None
        own_bytes = topic.config.retention_bytes if topic else None
        if topic and not topic.config.has_retention(settings):
            # Only an administrator deletes records of a log that is compacted alone.
            own_ms = own_bytes = -1
        retention_bytes = settings.log_retention_bytes if own_bytes is None else own_bytes
        live = self._log.batches(key, replica.log_start_offset) if retention_bytes >= 0 else ()
        requested = state.delete_records_offset
        last = None if requested is None else self._log.batch_at(key, requested - 1)
        return {
            **key._asdict(),
            "log_start_offset": replica.log_start_offset,
            "high_watermark": replica.high_watermark,
            "log_size_bytes": sum(batch.size_bytes for batch in live),
            "retention_ms": settings.retention_ms if own_ms is None else own_ms,
            "retention_bytes": retention_bytes,
            "delete_records_offset": requested,
            "delete_records_epoch": state.delete_records_epoch,
            "last_deleted_epoch": last.leader_epoch if last is not None else None,
            "now_ms": now_ms,
        }

    def _oldest(self, key: TopicIdPartition, row: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        """Yield the first batches of a log as rows of the rule, up to the first that is kept.

        Yields nothing if that is the first one, as usual.
        """
        left = row["log_size_bytes"]
        limits = row["now_ms"], row["retention_ms"]
        yielded = False
        for batch in self._log.batches(key, row["log_start_offset"]):
            left -= batch.size_bytes
            appended_at_ms = self._log.appended_at_ms(batch)
            may_go = may_be_deleted(
                batch.max_timestamp_ms, appended_at_ms, *limits, left, row["retention_bytes"]
            )
            if may_go or yielded:
                yield _row_of(batch, appended_at_ms)
                yielded = True
            if not may_go:
                return


_OF_BATCH = (
    "topic_id",
    "partition",
    "base_offset",
    "last_offset_delta",
    "size_bytes",
    "max_timestamp_ms",
    "appended_at_ms",
)
"""The columns of a batch for the rule `log_start_offset`."""


def _row_of(batch: Batch, appended_at_ms: int) -> tuple[Any, ...]:
    return (
        *batch.topic_id_partition,
        batch.base_offset,
        batch.last_offset_delta,
        batch.size_bytes,
        batch.max_timestamp_ms,
        appended_at_ms,
    )
