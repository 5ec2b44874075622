"""Fetching: the records that a consumer gets next, read from the leaders' logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.broker.leader_roots import UNREADABLE
from sparklog.clients.assigned_partitions import (
    AssignedPartition,
    ConsumerRecord,
    FetchedBatch,
    Positions,
)
from sparklog.clients.committed_logs import CommittedLogs
from sparklog.clients.connection import Visible
from sparklog.clients.replica_selection import RackAwareReplicaSelector
from sparklog.clients.sound_replicas import SoundReplicas
from sparklog.clock import Clock
from sparklog.config import ConsumerConfig
from sparklog.errors import (
    ProtocolError,
    SparklogError,
)
from sparklog.logger import get_logger
from sparklog.model import Batch, TopicPartition
from sparklog.storage.location import Location, one_line

_log = get_logger(__name__)

_DECODED = 2_000
"""Records that are turned into Python's objects at once: a batch may have a million."""

_LOOK_MS = 3
"""How often it is looked for new records while others are being returned."""


_Ready = tuple[AssignedPartition, Visible]


class _Failure(NamedTuple):
    """The error of a partition that cannot be read, and the position at which it occurred."""

    partition: AssignedPartition
    position: int | None
    error: ProtocolError

    def is_current(self, read: Iterable[AssignedPartition]) -> bool:
        """Return whether the partition is among those to be read, and still at this position."""
        return any(one is self.partition and one.position == self.position for one in read)


class Fetcher:
    """Fetches for one consumer; it keeps no position, those are in the `AssignedPartition`s."""

    def __init__(
        self,
        logs: CommittedLogs,
        config: ConsumerConfig,
        clock: Clock,
        selector: RackAwareReplicaSelector | None = None,
    ) -> None:
        self._logs = logs
        self._positions = Positions(logs, config.auto_offset_reset)
        self._config = config
        self._clock = clock
        self._selector = selector
        self._looked_ms: int | None = None
        self._waiting_since_ms: int | None = None
        self._last_served: AssignedPartition | None = None
        self._sound = SoundReplicas(logs)
        # The partition that cannot be read, its position and the error, which is raised when there
        # are no records to return and the partition is still to be read there.
        self._failure: _Failure | None = None
        self._has_failed = False

    def look(self, assigned: Iterable[AssignedPartition], *, is_assigned_by_user: bool) -> None:
        """Look for committed records of the partitions that have none fetched.

        Raises what no later look would mend: OFFSET_OUT_OF_RANGE (`LogTruncationError` after an
        unclean election) and `NoOffsetForPartitionError` where auto.offset.reset is none, and
        UNKNOWN_TOPIC_OR_PARTITION for a partition that the user has assigned and that is gone.
        """
        partitions = [one for one in assigned if not one.is_paused]
        hungry = [one for one in partitions if not one.has_records]
        if not hungry:
            return
        now_ms = self._clock.monotonic_ms()
        is_busy = len(hungry) < len(partitions)
        if is_busy and self._looked_ms is not None and now_ms - self._looked_ms < _LOOK_MS:
            return
        self._looked_ms = now_ms
        seen = self._logs.visible(one.key for one in hungry)
        ready: list[_Ready] = []
        for one in hungry:
            what = seen[one.key]
            if isinstance(what, Visible):
                ready.append((one, what))
            elif is_assigned_by_user and _is_gone(what):
                raise what
        self._fetch(self._with_positions(ready), now_ms)

    def take(
        self, assigned: Iterable[AssignedPartition], max_records: int
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return records that were fetched, and move the positions past them.

        One partition after the other is emptied, beginning with the one that was served last.
        Raises CORRUPT_MESSAGE or KAFKA_STORAGE_ERROR where a partition is damaged in every in-sync
        replica. The call after that serves the other partitions first.
        """
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
            while max_records > 0 and one.has_records:
                if not one.records:
                    try:
                        self._decode(one)
                    except ProtocolError as error:
                        failure = _Failure(one, one.position, error)
                        if may_fail and not taken:
                            break
                    continue
                count = min(max_records, len(one.records))
                records = [one.records.popleft() for _ in range(count)]
                taken.setdefault(one.name, []).extend(records)
                one.position = records[-1].offset + 1
                one.offset_epoch = records[-1].leader_epoch
                max_records -= count
                self._last_served = one
            if failure is not None and may_fail and not taken:
                break
        if failure is not None and not taken:
            self._has_failed = True
            raise failure.error
        self._failure = failure
        return taken

    def find_positions(self, assigned: Iterable[AssignedPartition]) -> None:
        """Find the positions that are missing, where the leaders are there; raises as `look`."""
        wanted = {one.key: one for one in assigned if one.position is None}
        seen = self._logs.visible(wanted)
        self._with_positions(
            [(wanted[key], what) for key, what in seen.items() if isinstance(what, Visible)]
        )

    # --- the parts ------------------------------------------------------------------------------

    def _with_positions(self, ready: list[_Ready]) -> list[_Ready]:
        """Find positions that are missing, and compare the others with a new leader's log.

        Returns those partitions that have a position and whose logs could be read.
        """
        found = []
        for one, visible in ready:
            try:
                self._find(one, visible)
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

        A position is compared with another in-sync replica's log where the leader's is damaged.
        The leader's log is read only for that: a consumer may fetch from a follower.
        """
        position = one.position
        if (
            position is not None
            and self._is_compared(one, position, visible)
            and visible.state.key in self._logs.log(visible).damaged
        ):
            if position > visible.high_watermark:
                # The end of the log is unknown until it is repaired.
                return
            sound = self._sound.with_sound_log(visible, position - 1, position)
            visible = visible._replace(location=sound.location, log_version=sound.log_version)
        self._positions.find(one, visible)

    def _is_compared(self, one: AssignedPartition, position: int, visible: Visible) -> bool:
        is_new_leader = one.leader_epoch != visible.state.leader_epoch
        return position > visible.high_watermark or (is_new_leader and one.offset_epoch >= 0)

    def _fetch(self, ready: list[_Ready], now_ms: int) -> None:
        """Name the batches to be read next: in bytes what is allowed, one at least."""
        left = self._config.fetch_max_bytes
        found = []
        # A partition that many bytes are waiting for must not always come first.
        for one, visible in _rotated(ready, self._last_served):
            source = self._source(one, visible)
            try:
                members, size = self._members(one, source, left)
            except ProtocolError as error:
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
        for one, members in found:
            one.fetched.extend(members)

    def _source(self, one: AssignedPartition, leader: Visible) -> Visible:
        """Return the replica to be read, as it is seen."""
        if self._selector is None or one.position is None:
            return leader
        source = self._selector.select(leader, self._logs.metadata())
        # A follower that has deleted more than its leader is no place for this position.
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
        """Make records of a part of what was fetched; reading a batch first where that is due."""
        fetched = one.fetched.popleft()
        try:
            table = fetched.records if fetched.records is not None else self._read(fetched)
        except UNREADABLE as error:
            # It is looked for again: merged batches are replaced, and brokers come back.
            one.fetched.clear()
            self._not_readable(one, fetched.location, error)
            self._read_elsewhere(one, fetched)
            return
        if table.num_rows > _DECODED:
            one.fetched.appendleft(fetched._replace(records=table.slice(_DECODED)))
        one.records.extend(_records(one.name, fetched.batch, table.slice(0, _DECODED)))
        if not one.records:
            # Compaction may leave nothing of a batch but its range of offsets.
            one.position = min(fetched.batch.next_offset, fetched.below_offset)
            one.offset_epoch = fetched.batch.leader_epoch

    def _read_elsewhere(self, one: AssignedPartition, fetched: FetchedBatch) -> None:
        """Fetch the batch at a partition's position from any in-sync replica that can be read.

        Raises CORRUPT_MESSAGE where none can, and the file is damaged. Else the partition is
        polled again: its root may come back.
        """
        assert one.position is not None, "a batch is fetched at a position"
        found = self._sound.read_at(one.key, one.position)
        if found is not None:
            seen, batch, records = found
            again = FetchedBatch(seen.location, batch, one.position, seen.high_watermark)
            one.fetched.append(again._replace(records=_wanted(again, records)))
            return
        damage = self._sound.damage(fetched.location, fetched.batch)
        if damage is not None:
            raise ProtocolError(
                "CORRUPT_MESSAGE",
                f"{damage}; no other replica in sync can be read there: restore the file, or seek "
                f"to offset {fetched.batch.next_offset} to go on without these records",
            )

    def _read(self, fetched: FetchedBatch) -> pa.Table:
        return _wanted(fetched, self._logs.read(fetched.location, fetched.batch))

    def _not_readable(self, one: AssignedPartition, location: Location, error: Exception) -> None:
        _log.warning("not readable", partition=str(one), error=one_line(error))
        self._logs.let_go(location)


def _wanted(fetched: FetchedBatch, table: pa.Table) -> pa.Table:
    """Return the records of a batch whose offsets are wanted."""
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
    """Return the partitions in order, those first that come after the one served last."""
    after = next((index + 1 for index, (one, _) in enumerate(ready) if one is last), 0)
    return ready[after:] + ready[:after]


def _is_gone(error: SparklogError) -> bool:
    return isinstance(error, ProtocolError) and error.code.name == "UNKNOWN_TOPIC_OR_PARTITION"
