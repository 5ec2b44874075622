"""Fetching: the next records of a consumer, read from the logs of replicas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.clock import Clock
from sparklog.cluster.client_metrics import ClientMetrics
from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Visible
from sparklog.cluster.replica_selection import RackAwareReplicaSelector
from sparklog.cluster.sound_replicas import SoundReplicas
from sparklog.config import ConsumerConfig
from sparklog.consumer.assigned_partition import AssignedPartition, ConsumerRecord, FetchedBatch
from sparklog.consumer.deserializers import Deserializers
from sparklog.consumer.fetch_quota import FetchQuota
from sparklog.consumer.positions import Positions
from sparklog.errors import AccessDeniedError, ProtocolError, SparklogError
from sparklog.logger import get_logger
from sparklog.model import Batch, TopicPartition
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.location import Location, one_line

_log = get_logger(__name__)

_DECODED = 2_000
"""Maximum number of records that are converted to Python objects at once.

A batch may have a million records.
"""

_POLL_MS = 3
"""Interval in ms of polls for new records while fetched records are being returned."""


_Ready = tuple[AssignedPartition, Visible]


class _Failure(NamedTuple):
    """The error of a partition that cannot be read, and the position at which it occurred."""

    partition: AssignedPartition
    position: int | None
    error: SparklogError

    def is_current(self, read: Iterable[AssignedPartition]) -> bool:
        """Return whether the partition is in `read` and still at this position."""
        return any(one is self.partition and one.position == self.position for one in read)


class Fetcher:
    """Fetches records for one consumer; the `AssignedPartition`s store the positions."""

    def __init__(
        self,
        logs: CommittedLogs,
        config: ConsumerConfig,
        clock: Clock,
        selector: RackAwareReplicaSelector | None = None,
        quota: FetchQuota | None = None,
        deserializers: Deserializers | None = None,
    ) -> None:
        self.metrics = ClientMetrics(
            ("records-consumed", "bytes-consumed", "fetch"), ("fetch-size", "records-per-request")
        )
        """The totals and sizes of Kafka's `consumer-fetch-manager-metrics`."""
        self._logs = logs
        self._positions = Positions(logs, config.auto_offset_reset)
        self._config = config
        self._clock = clock
        self._selector = selector
        self._quota = quota
        self._deserializers = deserializers or Deserializers()
        self._polled_ms: int | None = None
        self._waiting_since_ms: int | None = None
        self._last_served: AssignedPartition | None = None
        self._sound = SoundReplicas(logs)
        # The partition that cannot be read, its position and the error. The error is raised when
        # there are no records to return and the partition is still to be read there.
        self._failure: _Failure | None = None
        self._has_failed = False

    def poll(self, assigned: Iterable[AssignedPartition], *, is_assigned_by_user: bool) -> None:
        """Poll for committed records of the partitions without fetched records.

        Raises errors that a later poll cannot resolve: OFFSET_OUT_OF_RANGE (`LogTruncationError`
        after an unclean election) and `NoOffsetForPartitionError` with auto.offset.reset=none, and
        UNKNOWN_TOPIC_OR_PARTITION for a partition that the user has assigned and that no longer
        exists.
        """
        partitions = [one for one in assigned if not one.is_paused]
        hungry = [one for one in partitions if not one.has_records]
        if not hungry:
            return
        now_ms = self._clock.monotonic_ms()
        is_busy = len(hungry) < len(partitions)
        if is_busy and self._polled_ms is not None and now_ms - self._polled_ms < _POLL_MS:
            return
        if self._quota is not None and self._quota.left_ms(now_ms):
            return
        self._polled_ms = now_ms
        seen = self._logs.visible(one.key for one in hungry)
        ready: list[_Ready] = []
        for one in hungry:
            what = seen[one.key]
            if isinstance(what, Visible):
                one.high_watermark = what.high_watermark
                ready.append((one, what))
            elif is_assigned_by_user and _is_gone(what):
                raise what
            elif isinstance(what, AccessDeniedError):
                # Later polls do not resolve it: the caller gets the error, and may poll the others.
                self._failure = _Failure(one, one.position, what)
        self._fetch(self._with_positions(ready), now_ms)

    def drain(
        self, assigned: Collection[AssignedPartition], max_records: int
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return fetched records, and move the positions past them.

        Partitions are emptied one after the other, beginning with the one that was served last.
        Raises CORRUPT_MESSAGE or KAFKA_STORAGE_ERROR if a partition is damaged in every in-sync
        replica, and `RecordDeserializationError` if a deserializer fails at the first record. The
        call after that serves the other partitions first. If anything interrupts the call, such as
        a signal in a deserializer, the positions stay.
        """
        before = [(one, one.position, one.offset_epoch) for one in assigned if one.has_records]
        try:
            taken = self._drain(assigned, max_records)
        except BaseException as error:
            if not isinstance(error, SparklogError):
                for one, position, offset_epoch in before:
                    if position is not None:
                        one.seek(position, offset_epoch)
            raise
        if taken:
            self.metrics.add("records-consumed", sum(map(len, taken.values())))
        return taken

    def _drain(
        self, assigned: Iterable[AssignedPartition], max_records: int
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return fetched records; see `drain`."""
        read = [one for one in assigned if not one.is_paused]
        failure, self._failure = self._failure, None
        if failure is not None and not failure.is_current(read):
            failure = None
        may_fail, self._has_failed = not self._has_failed, False
        if failure is not None and may_fail:
            self._has_failed = True
            raise failure.error
        partitions = [one for one in read if one.has_records]
        if self._last_served in partitions:
            first = partitions.index(self._last_served)
            partitions = partitions[first:] + partitions[:first]
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        for one in partitions:
            if max_records <= 0:
                break
            records, error = self._take(one, max_records)
            if records:
                taken[one.name] = records
                max_records -= len(records)
                self._last_served = one
            if error is not None:
                failure = _Failure(one, one.position, error)
                if may_fail and not taken:
                    break
        if failure is not None and not taken:
            self._has_failed = True
            raise failure.error
        self._failure = failure
        return taken

    def _take(
        self, one: AssignedPartition, max_records: int
    ) -> tuple[list[ConsumerRecord], SparklogError | None]:
        """Return fetched records of a partition, and the error of the next one, or `None`."""
        taken: list[ConsumerRecord] = []
        while len(taken) < max_records and one.has_records:
            if not one.records:
                try:
                    self._decode(one)
                except (ProtocolError, AccessDeniedError) as error:
                    return taken, error
                continue
            chosen = islice(one.records, max_records - len(taken))
            records, failure = self._deserializers.apply(chosen)
            for _ in records:
                one.records.popleft()
            taken += records
            if records:
                one.position = records[-1].offset + 1
                one.offset_epoch = records[-1].leader_epoch
            if failure is not None:
                return taken, failure
        return taken, None

    def find_positions(self, assigned: Iterable[AssignedPartition]) -> None:
        """Find missing positions of partitions with available leaders; raises as `poll`."""
        wanted = {one.key: one for one in assigned if one.position is None}
        seen = self._logs.visible(wanted)
        self._with_positions(
            [(wanted[key], what) for key, what in seen.items() if isinstance(what, Visible)]
        )

    # --- internals ------------------------------------------------------------------------------

    def _with_positions(self, ready: list[_Ready]) -> list[_Ready]:
        """Find missing positions, and compare the others with a new leader's log.

        Returns the partitions that have a position and whose logs could be read.
        """
        found = []
        for one, visible in ready:
            try:
                self._find(one, visible)
            except AccessDeniedError as error:
                self._failure = _Failure(one, one.position, error)
            except UNREADABLE as error:
                self._not_readable(one, visible.location, error)
            except ProtocolError as error:
                if error.code.name != "KAFKA_STORAGE_ERROR":
                    raise
                self._failure = _Failure(one, one.position, error)
            else:
                if one.position is not None:
                    found.append((one, visible))
        return found

    def _find(self, one: AssignedPartition, visible: Visible) -> None:
        """Find or check a position.

        If the leader's log is damaged, the position is compared with another in-sync replica's log.
        The leader's log is read only for this comparison, because a consumer may fetch from a
        follower.
        """
        position = one.position
        if (
            position is not None
            and self._is_compared(one, position, visible)
            and visible.state.key in self._logs.log(visible).damaged
        ):
            if position > visible.high_watermark:
                # The log end offset is unknown until the log is repaired.
                return
            sound = self._sound.with_sound_log(visible, position - 1, position)
            visible = visible._replace(location=sound.location, log_version=sound.log_version)
        self._positions.find(one, visible)

    def _is_compared(self, one: AssignedPartition, position: int, visible: Visible) -> bool:
        is_new_leader = one.leader_epoch != visible.state.leader_epoch
        return position > visible.high_watermark or (is_new_leader and one.offset_epoch >= 0)

    def _fetch(self, ready: list[_Ready], now_ms: int) -> None:
        """Choose the batches to read next: up to fetch.max.bytes, but at least one batch."""
        left = self._config.fetch_max_bytes
        found = []
        # The order rotates, so that a partition with a large backlog does not always come first.
        for one, visible in _rotated(ready, self._last_served):
            source = self._source(one, visible)
            try:
                members, size = self._members(one, source, left)
            except (ProtocolError, AccessDeniedError) as error:
                self._failure = _Failure(one, one.position, error)
                continue
            except UNREADABLE as error:
                self._not_readable(one, source.location, error)
                continue
            if members:
                found.append((one, members))
                left -= size
            if left <= 0:
                break
        size = self._config.fetch_max_bytes - left
        if size < self._config.fetch_min_bytes and self._is_waiting(now_ms):
            return
        self._waiting_since_ms = None
        if self._quota is not None:
            self._quota.note(size, now_ms)
        if found:
            batches = [member.batch for _, members in found for member in members]
            self.metrics.add("fetch")
            self.metrics.add("bytes-consumed", size)
            self.metrics.record("fetch-size", size)
            self.metrics.record("records-per-request", sum(batch.record_count for batch in batches))
        for one, members in found:
            one.fetched.extend(members)

    def _source(self, one: AssignedPartition, leader: Visible) -> Visible:
        """Return the replica to read, with its visible offsets."""
        if self._selector is None or one.position is None:
            return leader
        source = self._selector.select(leader, self._logs.metadata())
        # A follower with a log start offset above the position has deleted its record.
        return source if source.log_start_offset <= one.position else leader

    def _members(
        self, one: AssignedPartition, visible: Visible, left: int
    ) -> tuple[list[FetchedBatch], int]:
        assert one.position is not None, "positions are found before anything is fetched"
        if one.position >= visible.high_watermark:
            return [], 0
        visible = self._sound.with_sound_log(visible, one.position, one.position + 1)
        members: list[FetchedBatch] = []
        size, limit = 0, min(left, self._config.max_partition_fetch_bytes)
        for batch in self._logs.batches(visible, one.position):
            if members and size + batch.size_bytes > limit:
                break
            members.append(
                FetchedBatch(visible.location, batch, one.position, visible.high_watermark)
            )
            size += batch.size_bytes
        return members, size

    def _is_waiting(self, now_ms: int) -> bool:
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        return now_ms - self._waiting_since_ms < self._config.fetch_max_wait_ms

    def _decode(self, one: AssignedPartition) -> None:
        """Convert a part of the fetched records; read the next batch first if necessary."""
        fetched = one.fetched.popleft()
        try:
            table = fetched.records if fetched.records is not None else self._read(fetched)
        except UNREADABLE as error:
            # The partition is polled again: merged batches are replaced, and brokers come back.
            one.fetched.clear()
            self._not_readable(one, fetched.location, error)
            if not self._read_elsewhere(one, fetched) and isinstance(error, AccessDeniedError):
                raise
            return
        if table.num_rows > _DECODED:
            one.fetched.appendleft(fetched._replace(records=table.slice(_DECODED)))
        one.records.extend(_records(one.name, fetched.batch, table.slice(0, _DECODED)))
        if not one.records:
            # Compaction may remove all records of a batch and keep its range of offsets.
            one.position = min(fetched.batch.next_offset, fetched.below_offset)
            one.offset_epoch = fetched.batch.leader_epoch

    def _read_elsewhere(self, one: AssignedPartition, fetched: FetchedBatch) -> bool:
        """Fetch the batch at a partition's position from any in-sync replica that can be read.

        Returns whether there is one.

        Raises CORRUPT_MESSAGE if no replica can be read and the file is damaged. If the file is not
        damaged, the partition is polled again, because its root may come back.
        """
        assert one.position is not None, "a batch is fetched at a position"
        found = self._sound.read_at(one.key, one.position)
        if found is not None:
            seen, batch, records = found
            again = FetchedBatch(seen.location, batch, one.position, seen.high_watermark)
            one.fetched.append(again._replace(records=_wanted(again, records)))
            return True
        damage = self._sound.damage(fetched.location, fetched.batch)
        if damage is not None:
            raise ProtocolError(
                "CORRUPT_MESSAGE",
                f"{damage}; no other replica in sync can be read there: restore the file, or seek "
                f"to offset {fetched.batch.next_offset} to go on without these records",
            )
        return False

    def _read(self, fetched: FetchedBatch) -> pa.Table:
        return _wanted(fetched, self._logs.read(fetched.location, fetched.batch))

    def _not_readable(self, one: AssignedPartition, location: Location, error: Exception) -> None:
        _log.warning("not readable", partition=str(one), error=one_line(error))
        self._logs.release(location)


def _wanted(fetched: FetchedBatch, table: pa.Table) -> pa.Table:
    """Return the records of a batch that are in the range of offsets to return."""
    first, below = fetched.from_offset, fetched.below_offset
    base = fetched.batch.base_offset
    if first <= base and fetched.batch.next_offset <= below:
        return table
    deltas = table["offset_delta"].to_numpy()
    return table.filter(pa.array((deltas >= first - base) & (deltas < below - base)))


def _records(name: TopicPartition, batch: Batch, table: pa.Table) -> Iterator[ConsumerRecord]:
    offsets = table["offset_delta"].to_numpy().astype(np.int64) + batch.base_offset
    times_ms = table["timestamp"].cast(pa.int64()).to_numpy() // 1000
    keys, values = (table[column].to_pylist() for column in ("key", "value"))
    rows = zip(
        repeat(name.topic),
        repeat(name.partition),
        offsets.tolist(),
        repeat(batch.leader_epoch),
        times_ms.tolist(),
        keys,
        values,
        _headers(table["headers"]),
        strict=False,
    )
    return map(ConsumerRecord._make, rows)


def _headers(column: pa.ChunkedArray) -> Iterable[tuple[tuple[str, bytes | None], ...]]:
    if column.null_count == len(column):
        return repeat((), len(column))
    return (
        tuple((header["key"], header["value"]) for header in row or ())
        for row in column.to_pylist()
    )


def _rotated(ready: list[_Ready], last: AssignedPartition | None) -> list[_Ready]:
    """Return the partitions rotated, so that the one after the one served last is first."""
    after = next((index + 1 for index, (one, _) in enumerate(ready) if one is last), 0)
    return ready[after:] + ready[:after]


def _is_gone(error: SparklogError) -> bool:
    return isinstance(error, ProtocolError) and error.code.name == "UNKNOWN_TOPIC_OR_PARTITION"
