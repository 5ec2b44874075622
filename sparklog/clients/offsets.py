"""Offsets for tools and clients: earliest, latest, by timestamp (rule 8.2)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.clients.committed_logs import CommittedLogs
from sparklog.clients.connection import Connection, Visible
from sparklog.errors import ProtocolError, SparklogError, StorageError
from sparklog.model import TopicPartition

_WAIT_SECONDS = 0.01
"""Between two looks at partitions that are not available: as long as a failover's steps take."""


class OffsetAndTimestamp(NamedTuple):
    """An offset that was found by time, its record's own time, and its leader epoch."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class Offsets:
    """Looks up offsets in the committed logs that `logs` reads.

    `timeout_ms` is how long a partition may be without a leader that has caught up; after that
    its error is raised, LEADER_NOT_AVAILABLE or OFFSET_NOT_AVAILABLE as a rule.
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

        `times_ms` are ms since 1970; the answer is `None` where all records are older. Raises
        UNKNOWN_TOPIC_OR_PARTITION, and `SparklogError` for a negative time.
        """
        for partition, time_ms in times_ms.items():
            if time_ms < 0:
                raise SparklogError(
                    f"timestamp {time_ms!r} for {partition.topic}-{partition.partition} is "
                    "negative: give ms since 1970"
                )
        found = self._for_times(self._fetchable(times_ms), times_ms)
        # No record below the high watermark is young enough; one above it may be (KIP-207).
        missing = [partition for partition, one in found.items() if one is None]
        return found | self._for_times(self.visible(missing), times_ms) if missing else found

    def visible(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Visible]:
        """Return the offsets of each partition up to the latest.

        Waits for leaders that have yet to be elected, or to catch up.
        """
        return self._awaited(partitions, wants_latest=True)

    def _fetchable(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Visible]:
        """Return the offsets of each partition that a fetch is served; waits for leaders."""
        return self._awaited(partitions, wants_latest=False)

    def _awaited(
        self, partitions: Iterable[TopicPartition], *, wants_latest: bool
    ) -> dict[TopicPartition, Visible]:
        deadline = time.monotonic() + self._timeout_ms / 1000
        wanted = list(partitions)
        while True:
            metadata = self._logs.metadata(max_age_ms=0)
            keys = {one: metadata.partition(*one).key for one in wanted}
            seen = self._logs.visible(keys.values())
            failed = self._first_failure(seen.values(), wants_latest)
            if failed is None:
                found = {one: seen[key] for one, key in keys.items()}
                return {one: what for one, what in found.items() if isinstance(what, Visible)}
            is_passing = isinstance(failed, StorageError) or (
                isinstance(failed, ProtocolError) and failed.retriable
            )
            if not is_passing or time.monotonic() > deadline:
                raise failed
            time.sleep(_WAIT_SECONDS)

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
            # The header tells which file may hold it, so that one is read as a rule.
            if batch.max_timestamp_ms < time_ms:
                continue
            records = self._logs.read(visible.location, batch)
            offsets = records["offset_delta"].to_numpy().astype(np.int64) + batch.base_offset
            found_ms = records["timestamp"].cast(pa.int64()).to_numpy() // 1000
            fits = (
                (found_ms >= time_ms)
                & (offsets >= visible.log_start_offset)
                & (offsets < visible.high_watermark)
            )
            if fits.any():
                first = int(fits.argmax())
                return OffsetAndTimestamp(
                    int(offsets[first]), int(found_ms[first]), batch.leader_epoch
                )
        return None


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
