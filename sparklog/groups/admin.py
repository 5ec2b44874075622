"""Administration of consumer groups: listing, deleting, setting their offsets."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from sparklog.clock import Clock, SystemClock, wait_until
from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Connection, connection_of
from sparklog.cluster.naming import ClusterName
from sparklog.cluster.observations import is_silent
from sparklog.cluster.offsets import Offsets
from sparklog.errors import ProtocolError, SparklogError
from sparklog.groups.committed_offsets import (
    CommittedOffsets,
    OffsetAndMetadata,
    commit_as_no_member,
)
from sparklog.groups.group import ConsumerGroups, Group, deleted, expired, require_empty
from sparklog.groups.heartbeats import remove_heartbeats
from sparklog.model import TopicPartition

_POLL_MS = 100
"""Interval in ms between polls of heartbeats, which are usually sent every 3 seconds."""


class ResetTo(NamedTuple):
    """The target of an offset reset; `value` is an offset, a number of records, or a time in ms."""

    kind: Literal["earliest", "latest", "offset", "shift", "time_ms"]
    value: int = 0


class PlannedReset(NamedTuple):
    """The change of one partition by a reset; `committed_offset` is `None` before a commit."""

    topic: str
    partition: int
    committed_offset: int | None
    new_offset: int


class GroupAdmin:
    """Administers the consumer groups of a cluster, without being a member."""

    def __init__(self, connection: Connection | ClusterName, clock: Clock | None = None) -> None:
        connection = self._connection = connection_of(connection)
        self._clock = clock or SystemClock()
        self._groups = ConsumerGroups(connection.root.consumer_groups)
        self._committed = CommittedOffsets(connection.root.consumer_offsets, self._clock)

    def list_groups(self) -> list[Group]:
        """Return all groups by name, also those with committed offsets that never had a member."""
        groups = {one.group_id: one for one in self._groups.all()}
        for name in self._committed.group_ids() - groups.keys():
            groups[name] = Group(name)
        return [groups[name] for name in sorted(groups)]

    def delete(self, group_id: str) -> None:
        """Delete a group and its committed offsets.

        Raises GROUP_ID_NOT_FOUND, and NON_EMPTY_GROUP if a member is alive. If the group has
        members, waits for a sign of life, at most for their session.timeout.ms.
        """
        if group_id not in {one.group_id for one in self.list_groups()}:
            raise ProtocolError(
                "GROUP_ID_NOT_FOUND", f"there is no group {group_id!r}: name another"
            )
        self._remove_silent(group_id)
        group = self._groups.change(group_id, deleted)
        if group.generation:
            heartbeats = self._connection.root.consumer_group_heartbeats
            remove_heartbeats(heartbeats, group_id, lambda _: True)
        self._committed.delete(group_id, group.fence)

    def plan_reset(self, group_id: str, topic: str, to: ResetTo) -> list[PlannedReset]:
        """Return the changes that setting a group's offsets in all partitions of a topic makes.

        Offsets outside a partition's log become the nearest end of the log. A time after the last
        record becomes the latest offset. Raises UNKNOWN_TOPIC_OR_PARTITION, and `SparklogError` if
        there is no committed offset to shift.
        """
        logs = CommittedLogs(self._connection, self._clock)
        count = logs.metadata().topic(topic).partitions
        names = [TopicPartition(topic, number) for number in range(count)]
        committed = self._committed.fetch(group_id)
        offsets = Offsets(logs)
        seen = offsets.visible(names)
        wanted: dict[TopicPartition, int | None] = dict.fromkeys(names, to.value)
        before = {name: committed.get(seen[name].state.key) for name in names}
        if to.kind == "time_ms":
            found = offsets.for_times(dict.fromkeys(names, to.value))
            wanted = {name: one.offset if one else None for name, one in found.items()}
        elif to.kind == "shift":
            wanted = {name: one.offset + to.value if one else None for name, one in before.items()}
            if None in wanted.values():
                raise SparklogError(
                    f"group {group_id} has not committed an offset in every partition of {topic}, "
                    "so that there is nothing to shift by: name an offset or a time"
                )
        resets = []
        for name in names:
            start, end = seen[name].log_start_offset, seen[name].high_watermark
            ends = {"earliest": start, "latest": end}
            offset = ends.get(to.kind, wanted[name])
            new = end if offset is None else min(max(offset, start), end)
            now = before[name]
            resets.append(PlannedReset(*name, now.offset if now else None, new))
        return resets

    def reset(self, group_id: str, resets: Collection[PlannedReset]) -> None:
        """Set a group's offsets as planned; a group that does not exist is created.

        Raises NON_EMPTY_GROUP as `delete` does.
        """
        self._remove_silent(group_id)
        metadata = self._connection.metadata()
        offsets = {
            metadata.partition(one.topic, one.partition).key: (
                one.topic,
                OffsetAndMetadata(one.new_offset),
            )
            for one in resets
        }
        commit_as_no_member(self._groups, self._committed, group_id, offsets)

    def _remove_silent(self, group_id: str) -> None:
        """Remove the members of a group that are no longer alive.

        If all members have died, no other process removes them, since members watch each other.
        Silence is measured on this process's own clock (rule 7.1). Raises NON_EMPTY_GROUP at the
        first sign of life.
        """
        first = self._groups.find(group_id)
        if not first.members:
            return
        heartbeats, began_ms = self._heartbeats(group_id), self._clock.monotonic_ms()
        patience_ms = max(one.session_timeout_ms for one in first.members)

        def changed() -> Group | None:
            """Return the group if it or a heartbeat of its members has changed."""
            group = self._groups.find(group_id)
            has_changed = self._heartbeats(group_id) != heartbeats or group != first
            return group if has_changed else None

        def is_over(group: Group | None) -> bool:
            now_ms = self._clock.monotonic_ms()
            is_expired = is_silent(now_ms, since_ms=began_ms, timeout_ms=patience_ms)
            return group is not None or is_expired

        group = wait_until(changed, pause_ms=_POLL_MS, until=is_over)
        if group is not None:
            require_empty(group)
            return
        silent = [one.member_id for one in first.members]
        self._groups.change(group_id, lambda group: expired(group, first, silent))

    def _heartbeats(self, group_id: str) -> dict[str, int]:
        table = self._connection.root.consumer_group_heartbeats
        table.refresh()
        rows = table.rows_of([(group_id,)]).to_pylist()
        return {row["member_id"]: row["heartbeat"] for row in rows}
