"""Reads the status of a cluster from its tables; no broker has to run.

Load, then judge: `StatusReader.read` reads, `ClusterStatus.problems` says what is wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.clock import Clock, SystemClock
from sparklog.cluster.broker_admin import BrokerDescription, described_brokers
from sparklog.cluster.connection import Connection
from sparklog.cluster.isr import min_isr
from sparklog.cluster.metadata import BrokerInfo, Metadata, PartitionState
from sparklog.cluster.partition_changes import OF_PARTITIONS
from sparklog.config import Settings
from sparklog.groups.group import groups_in
from sparklog.maintenance.followed_past import FollowedPast
from sparklog.maintenance.losses import LossReader
from sparklog.maintenance.status import (
    BrokerStatus,
    ClusterStatus,
    GroupStatus,
    PartitionStatus,
    ReplicaStatus,
)
from sparklog.model import (
    CONSUMER_GROUPS,
    CONSUMER_OFFSETS,
    CONTROLLER,
    FORMAT,
    TableSchema,
    TopicIdPartition,
)
from sparklog.storage.commits import read_commit
from sparklog.storage.errors import UNREADABLE_CONTENT
from sparklog.storage.journal_tail import DatedCommit, JournalTail
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import map_in_parallel

_CHECKED_AFTER_MS = 10_000
"""The age in ms of a journal's newest commit from which on it is read again: brokers commit more
often, so that an older one is that of a broker that has ended, or of a root that was restored.
"""


class RootReading(NamedTuple):
    """One log directory as it was read: its journal, and the commits since the last reading.

    `tail` is `None` if it cannot be read, for the reason `fault`. At the first reading of a log
    directory there are no new commits.
    """

    broker_id: int
    number: int
    uri: str
    tail: JournalTail | None
    new: tuple[DatedCommit, ...] = ()
    fault: str | None = None


class StatusReader:
    """Reads the status of a cluster; a further `read` reads only what is new.

    Parameters: `connection`, the cluster; `settings`, its configuration, by default that of the
    connection or Kafka's defaults; `clock`, the source of `read_at_ms`.
    """

    def __init__(
        self,
        connection: Connection,
        settings: Settings | None = None,
        clock: Clock | None = None,
        max_parked_ms: int | None = None,
    ) -> None:
        self.connection = connection
        self._settings = settings or connection.settings or Settings()
        if max_parked_ms is None:
            max_parked_ms = self._settings.parked_session_timeout_ms
        self._max_parked_ms = max_parked_ms
        self._clock = clock or SystemClock()
        self._tails: dict[tuple[str, int], JournalTail] = {}
        self._past = FollowedPast(OF_PARTITIONS, ("topic_id", "partition"))
        self._losses = LossReader()
        self._created_ms: dict[tuple[str, int], int | None] = {}
        self.roots: tuple[RootReading, ...] = ()
        """The log directories at the last reading."""
        self.new_changes: pa.Table = OF_PARTITIONS.schema.columns.empty_table()
        """The rows of `partition_history` since the reading before the last one."""

    def read(self) -> ClusterStatus:
        """Return the status now.

        Raises `StorageError` if the cluster root cannot be read. A broker root that cannot be read
        is named in its broker's status.
        """
        root = self.connection.root
        metadata = self.connection.metadata()
        brokers = [one for one in metadata.brokers.values() if one.online_roots]

        def rows(schema: TableSchema) -> pa.Table:
            return root.newest(schema).rows()

        def past() -> pa.Table:
            return self._past.new_rows(root.location, root.partition_state, self._clock.now_ms())

        readings: list[Callable[[], Any]] = [
            *(lambda schema=schema: rows(schema) for schema in _FOLLOWED),
            past,
            lambda: self._read_roots(brokers),
        ]
        leases, offsets, groups, self.new_changes, self.roots = map_in_parallel(
            lambda read: read(), readings, 0, is_local=root.location.is_local
        )
        self._note_losses()
        now_ms = self._clock.now_ms()
        described = described_brokers(metadata, leases)
        tails = {
            (one.broker_id, one.number): one.tail for one in self.roots if one.tail is not None
        }
        partitions = tuple(
            self._partition(metadata, state, tails)
            for _, state in sorted(
                metadata.partitions.items(), key=lambda one: (one[1].topic, one[1].partition)
            )
        )
        stored_at_ms = max((one.newest.stored_at_ms for one in tails.values()), default=0)
        return ClusterStatus(
            root.location.uri,
            root.cluster_id,
            now_ms,
            self._settings.broker_session_timeout_ms,
            self._max_parked_ms,
            max(stored_at_ms - now_ms, 0),
            tuple(self._broker(one, now_ms) for one in described),
            partitions,
            _groups(offsets, groups, {one.state.key: one.high_watermark for one in partitions}),
            self._losses.losses(partial(self._has_kept_log, metadata)),
        )

    # --- loading --------------------------------------------------------------------------------

    def _read_roots(self, brokers: list[BrokerInfo]) -> tuple[RootReading, ...]:
        """Read the journals of all log directories; those on object stores in parallel."""
        roots = [
            (one, number, Location.of(uri, self.connection.storage_options))
            for one in brokers
            for number, uri in one.online_roots.items()
        ]
        # A broker that is registered again may have another root at the same place.
        current = {(location.uri, one.broker_epoch) for one, _, location in roots}
        self._tails = {of: tail for of, tail in self._tails.items() if of in current}
        is_local = all(location.is_local for _, _, location in roots)
        return tuple(
            map_in_parallel(lambda one: self._read_root(*one), roots, 0, is_local=is_local)
        )

    def _read_root(self, broker: BrokerInfo, number: int, location: Location) -> RootReading:
        of = location.uri, broker.broker_epoch
        tail, new = self._tails.get(of), []
        try:
            if tail is not None:
                new = tail.refresh()
                age_ms = self._clock.now_ms() - tail.newest.stored_at_ms
                if not new and age_ms > _CHECKED_AFTER_MS and not tail.is_in_place():
                    tail = None
            if tail is None:
                tail = self._tails[of] = JournalTail(location)
        except UNREADABLE_CONTENT as error:
            self._tails.pop(of, None)
            reason = one_line(error)
            return RootReading(broker.broker_id, number, location.uri, None, fault=reason)
        fault = tail.truncations_fault
        return RootReading(broker.broker_id, number, location.uri, tail, tuple(new), fault)

    def _note_losses(self) -> None:
        changes = self.new_changes
        self._losses.add_elections(changes.filter(changes["is_unclean"]).to_pylist())
        topic_ids = pa.array(self._losses.topic_ids, pa.string())
        self._losses.add_changes(
            changes.filter(pc.is_in(changes["topic_id"], topic_ids)).to_pylist()
        )
        for one in self.roots:
            if one.tail is not None:
                self._losses.add_truncations(one.broker_id, one.tail.truncations)

    def _has_kept_log(
        self, metadata: Metadata, key: TopicIdPartition, broker_id: int, at_ms: int
    ) -> bool:
        """Return whether the log directory of a replica was created before a time.

        A directory that replaces a lost one has no trace of the records that were in that one.
        """
        state, broker = metadata.partitions.get(key), metadata.brokers.get(broker_id)
        if state is None or broker is None:
            return False
        numbers = [one.root for one in state.replicas if one.broker_id == broker_id]
        uri = broker.online_roots.get(numbers[0]) if numbers else None
        if uri is None:
            return False
        of = uri, broker.broker_epoch
        if of not in self._created_ms:
            location = Location.of(uri, self.connection.storage_options)
            try:
                first = read_commit(location.child(FORMAT.name), 0)
            except UNREADABLE_CONTENT:
                return False
            self._created_ms[of] = None if first is None else first.made_at_ms
        created_ms = self._created_ms[of]
        return created_ms is not None and created_ms < at_ms

    # --- deciding -------------------------------------------------------------------------------

    def _broker(self, described: BrokerDescription, now_ms: int) -> BrokerStatus:
        """Return a broker's status by the newest commits of its log directories."""
        roots = [one for one in self.roots if one.broker_id == described.broker.broker_id]
        unreadable = {one.uri: one.fault for one in roots if one.fault is not None}
        read = [one.tail for one in roots if one.tail is not None]
        newest = max(read, key=lambda one: one.newest.stored_at_ms, default=None)
        if newest is None:
            return BrokerStatus(described, None, 0, None, unreadable)
        return BrokerStatus(
            described,
            max(now_ms - newest.newest.stored_at_ms, 0),
            newest.clock_offset_ms,
            newest.activity,
            unreadable,
        )

    def _partition(
        self,
        metadata: Metadata,
        state: PartitionState,
        tails: Mapping[tuple[int, int], JournalTail],
    ) -> PartitionStatus:
        rows = {
            one.broker_id: tail.rows.get(state.key, {})
            for one in state.replicas
            if (tail := tails.get((one.broker_id, one.root))) is not None
        }
        # A replica without a row has not been created yet.
        ends = {broker_id: row.get("log_end_offset", 0) for broker_id, row in rows.items()}
        leader_end = high_watermark = None
        if state.leader is not None:
            leader_end = ends.get(state.leader)
            high_watermark = rows.get(state.leader, {}).get("high_watermark")
        replicas = []
        for one in state.replicas:
            end = ends.get(one.broker_id)
            lag = None if end is None or leader_end is None else max(leader_end - end, 0)
            replicas.append(ReplicaStatus(one, end, lag))
        return PartitionStatus(
            state, min_isr(metadata, state, self._settings), high_watermark, tuple(replicas)
        )


_FOLLOWED = (CONTROLLER, CONSUMER_OFFSETS, CONSUMER_GROUPS)
"""The tables of the cluster root whose rows a status needs, beside those of the metadata."""


def _groups(
    offsets: pa.Table, groups: pa.Table, high_watermarks: Mapping[TopicIdPartition, int | None]
) -> tuple[GroupStatus, ...]:
    committed: dict[str, dict[TopicIdPartition, int]] = defaultdict(dict)
    for row in offsets.to_pylist():
        if row["committed_offset"] is not None:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            committed[row["group_id"]][key] = row["committed_offset"]
    by_id = {one.group_id: one for one in groups_in(groups)}
    found = []
    for group_id in sorted(committed.keys() | by_id.keys()):
        group, of_group = by_id.get(group_id), committed.get(group_id, {})
        lags = [
            max(end - offset, 0)
            for key, offset in of_group.items()
            if (end := high_watermarks.get(key)) is not None
        ]
        found.append(
            GroupStatus(
                group_id,
                group.state if group else "Empty",
                len(group.members) if group else 0,
                len(of_group),
                sum(lags),
            )
        )
    return tuple(found)
