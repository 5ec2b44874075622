"""Offset look-ups for tools and clients: earliest, latest, by timestamp (rule 8.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.clock import wait_until
from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Connection, Visible
from sparklog.errors import ProtocolError, SparklogError, StorageError
from sparklog.model import Batch, TopicPartition

_WAIT_MS = 10
"""Interval in ms between polls of unavailable partitions: a failover's steps take as long."""


class OffsetAndTimestamp(NamedTuple):
    """An offset found by timestamp.

    Attributes
    ----------
    offset : int
        The offset of the record.
    timestamp_ms : int
        The record's own time in ms since 1970.
    leader_epoch : int
        The epoch of the leader that appended it.

    Examples
    --------
    >>> from sparklog import Consumer, TopicPartition
    >>> with Consumer("sparklog-data/cluster") as consumer:
    ...     found = consumer.offsets_for_times({TopicPartition("clicks", 0): 1_500})
    >>> found[TopicPartition("clicks", 0)].timestamp_ms
    2000
    """

    offset: int
    timestamp_ms: int
    leader_epoch: int


class Offsets:
    """Finds offsets in the committed logs that `logs` reads.

    `timeout_ms` is how long a partition may lack a leader that has caught up. After that its error
    is raised, usually LEADER_NOT_AVAILABLE or OFFSET_NOT_AVAILABLE.
    """

    def __init__(self, logs: CommittedLogs, timeout_ms: int = 60_000) -> None:
        self._logs = logs
        self._timeout_ms = timeout_ms

    def beginning(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition.

        Raises UNKNOWN_TOPIC_OR_PARTITION.
        """
        seen = self._fetchable(partitions)
        return {partition: one.log_start_offset for partition, one in seen.items()}

    def end(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition: the offset after its last committed record.

        Raises UNKNOWN_TOPIC_OR_PARTITION.
        """
        seen = self.visible(partitions)
        return {partition: one.high_watermark for partition, one in seen.items()}

    def for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first committed record of each partition that is not older than its time.

        `times_ms` are in ms since 1970. The result is `None` if all records are older. Raises
        UNKNOWN_TOPIC_OR_PARTITION, and `SparklogError` for a negative time.
        """
        for partition, time_ms in times_ms.items():
            if time_ms < 0:
                raise SparklogError(
                    f"timestamp {time_ms!r} for {partition.topic}-{partition.partition} is "
                    "negative: give ms since 1970"
                )
        found = self._for_times(self._fetchable(times_ms), times_ms)
        # All records below the high watermark are older; records above it may not be (KIP-207).
        missing = [partition for partition, one in found.items() if one is None]
        return found | self._for_times(self.visible(missing), times_ms) if missing else found

    def of_max_timestamp(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first committed record with the newest timestamp of each partition (KIP-734).

        The result is `None` if a partition has no record. Raises UNKNOWN_TOPIC_OR_PARTITION.
        """
        seen = self.visible(partitions)
        return {partition: self._of_max_timestamp(one) for partition, one in seen.items()}

    def visible(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Visible]:
        """Return the visible offsets of each partition, up to the latest.

        Waits until leaders are elected and have caught up.
        """
        return self._awaited(partitions, wants_latest=True)

    def _fetchable(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Visible]:
        """Return the offsets that a fetch is served of each partition; waits for leaders."""
        return self._awaited(partitions, wants_latest=False)

    def _awaited(
        self, partitions: Iterable[TopicPartition], *, wants_latest: bool
    ) -> dict[TopicPartition, Visible]:
        wanted = list(partitions)

        def seen() -> dict[TopicPartition, Visible] | SparklogError:
            metadata = self._logs.metadata(max_age_ms=0)
            keys = {one: metadata.partition(*one).key for one in wanted}
            seen = self._logs.visible(keys.values())
            failed = self._first_failure(seen.values(), wants_latest)
            if failed is not None:
                return failed
            found = {one: seen[key] for one, key in keys.items()}
            return {one: what for one, what in found.items() if isinstance(what, Visible)}

        found = wait_until(
            seen, self._timeout_ms, pause_ms=_WAIT_MS, until=lambda one: not _is_passing(one)
        )
        if isinstance(found, SparklogError):
            raise found
        return found

    def _first_failure(
        self, seen: Iterable[Visible | SparklogError], wants_latest: bool
    ) -> SparklogError | None:
        for one in seen:
            if isinstance(one, SparklogError):
                return one
            if wants_latest:
                try:
                    one.check_latest()
                except ProtocolError as error:
                    return error
        return None

    def _for_times(
        self, seen: Mapping[TopicPartition, Visible], times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return {
            partition: self._for_time(visible, times_ms[partition])
            for partition, visible in seen.items()
        }

    def _for_time(self, visible: Visible, time_ms: int) -> OffsetAndTimestamp | None:
        for batch in self._logs.batches(visible, visible.log_start_offset):
            # The headers show which file may hold the record, so usually only one file is read.
            if batch.max_timestamp_ms < time_ms:
                continue
            offsets, found_ms = self._visible_records(visible, batch)
            fits = found_ms >= time_ms
            if fits.any():
                first = int(fits.argmax())
                return OffsetAndTimestamp(
                    int(offsets[first]), int(found_ms[first]), batch.leader_epoch
                )
        return None

    def _of_max_timestamp(self, visible: Visible) -> OffsetAndTimestamp | None:
        found: OffsetAndTimestamp | None = None
        batches = self._logs.batches(visible, visible.log_start_offset)
        # Usually only the first file is read: the timestamps of the others are older.
        for batch in sorted(batches, key=lambda one: (-one.max_timestamp_ms, one.base_offset)):
            if found is not None and batch.max_timestamp_ms <= found.timestamp_ms:
                break
            offsets, found_ms = self._visible_records(visible, batch)
            if not found_ms.size:
                continue
            newest = int(found_ms.argmax())
            if found is None or found_ms[newest] > found.timestamp_ms:
                found = OffsetAndTimestamp(
                    int(offsets[newest]), int(found_ms[newest]), batch.leader_epoch
                )
        return found

    def _visible_records(
        self, visible: Visible, batch: Batch
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the offsets and the timestamps in ms of a batch's records that are visible."""
        records = self._logs.read(visible.location, batch)
        offsets = records["offset_delta"].to_numpy().astype(np.int64) + batch.base_offset
        times_ms = records["timestamp"].cast(pa.int64()).to_numpy() // 1000
        is_visible = (offsets >= visible.log_start_offset) & (offsets < visible.high_watermark)
        return offsets[is_visible], times_ms[is_visible]


def beginning_offsets(
    connection: Connection, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the earliest offset of each partition; see `Offsets.beginning`."""
    return Offsets(CommittedLogs(connection)).beginning(partitions)


def end_offsets(
    connection: Connection, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the latest offset of each partition; see `Offsets.end`."""
    return Offsets(CommittedLogs(connection)).end(partitions)


def offsets_for_times(
    connection: Connection, times_ms: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Return the first offset of each partition at or after a time; see `Offsets.for_times`."""
    return Offsets(CommittedLogs(connection)).for_times(times_ms)


def _is_passing(found: object) -> bool:
    """Return whether this is an error that may be over at the next attempt."""
    is_retriable = isinstance(found, ProtocolError) and found.retriable
    return is_retriable or isinstance(found, StorageError)
