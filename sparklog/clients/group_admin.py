"""Looking after consumer groups from outside: listing, deleting, setting their offsets."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Literal, NamedTuple

import pyarrow as pa

from sparklog.clients.committed_logs import CommittedLogs
from sparklog.clients.committed_offsets import (
    CommittedOffsets,
    OffsetAndMetadata,
    commit_as_no_member,
)
from sparklog.clients.connection import Connection
from sparklog.clients.consumer_group import ConsumerGroups, Group, deleted, expired, require_empty
from sparklog.clients.offsets import Offsets
from sparklog.clock import Clock, SystemClock
from sparklog.errors import ProtocolError, SparklogError
from sparklog.model import CONSUMER_GROUP_HEARTBEATS, TopicPartition

_LOOK_SECONDS = 0.1
"""Between two looks at heartbeats, of which there is one every three seconds as a rule."""


class ResetTo(NamedTuple):
    """Where a group's offsets are set to; `value` is an offset, a number of records, or a time."""

    kind: Literal["earliest", "latest", "offset", "shift", "time_ms"]
    value: int = 0


class OffsetReset(NamedTuple):
    """What a reset changes in one partition; `committed_offset` is `None` where there is none."""

    topic: str
    partition: int
    committed_offset: int | None
    new_offset: int


class GroupAdmin:
    """Looks after the groups of the cluster that `connection` is of, as no member of any."""

    def __init__(self, connection: Connection, clock: Clock | None = None) -> None:
        self._connection = connection
        self._clock = clock or SystemClock()
        self._groups = ConsumerGroups(connection.root.consumer_groups)
        self._committed = CommittedOffsets(connection.root.consumer_offsets, self._clock)

    def list_groups(self) -> list[Group]:
        """Return all groups by name, also those that have committed offsets and never a member."""
        groups = {one.group_id: one for one in self._groups.all()}
        for name in self._committed.group_ids() - groups.keys():
            groups[name] = Group(name)
        return [groups[name] for name in sorted(groups)]

    def delete(self, group_id: str) -> None:
        """Delete a group and its committed offsets.

        Raises GROUP_ID_NOT_FOUND, and NON_EMPTY_GROUP where a member lives; that is waited for
        where there are members, at most for their session.timeout.ms.
        """
        if group_id not in {one.group_id for one in self.list_groups()}:
            raise ProtocolError(
                "GROUP_ID_NOT_FOUND", f"there is no group {group_id!r}: name another"
            )
        self._remove_silent(group_id)
        group = self._groups.change(group_id, deleted)
        if group.generation:
            self._forget_heartbeats(group_id)
        self._committed.delete(group_id, group.fence)

    def plan_reset(self, group_id: str, topic: str, to: ResetTo) -> list[OffsetReset]:
        """Return what setting a group's offsets in all partitions of a topic would change.

        Offsets outside of a partition's log become its nearest end; a time after its last record,
        its latest offset. Raises UNKNOWN_TOPIC_OR_PARTITION, and `SparklogError` where there is
        no committed offset to shift.
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
            resets.append(OffsetReset(*name, now.offset if now else None, new))
        return resets

    def reset(self, group_id: str, resets: Collection[OffsetReset]) -> None:
        """Set a group's offsets as planned; one that is not there is created.

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
        """Remove the members of a group that do not live any more.

        Nobody else does where all have died, since members watch each other. Silence is measured
        on this process's own clock (rule 7.1). Raises NON_EMPTY_GROUP as soon as one shows a sign
        of life.
        """
        first = self._groups.find(group_id)
        if not first.members:
            return
        heartbeats, began_ms = self._heartbeats(group_id), self._clock.monotonic_ms()
        patience_ms = max(one.session_timeout_ms for one in first.members)
        while self._clock.monotonic_ms() - began_ms <= patience_ms:
            time.sleep(_LOOK_SECONDS)
            group = self._groups.find(group_id)
            if self._heartbeats(group_id) != heartbeats or group != first:
                require_empty(group)
                return
        silent = [one.member_id for one in first.members]
        self._groups.change(group_id, lambda group: expired(group, first, silent))

    def _heartbeats(self, group_id: str) -> dict[str, int]:
        table = self._connection.root.consumer_group_heartbeats
        table.refresh()
        rows = table.rows().to_pylist()
        return {row["member_id"]: row["heartbeat"] for row in rows if row["group_id"] == group_id}

    def _forget_heartbeats(self, group_id: str) -> None:
        def change(table: pa.Table) -> tuple[pa.Table | None, None]:
            rows = table.to_pylist()
            kept = [row for row in rows if row["group_id"] != group_id]
            changed = CONSUMER_GROUP_HEARTBEATS.rows(kept) if len(kept) < len(rows) else None
            return changed, None

        self._connection.root.consumer_group_heartbeats.update(change)
