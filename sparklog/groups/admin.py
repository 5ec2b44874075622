"""Administration of consumer groups: listing, deleting, setting and removing their offsets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    names_of,
)
from sparklog.groups.group import ConsumerGroups, Group, deleted, expired, require_empty
from sparklog.groups.heartbeats import remove_heartbeats
from sparklog.model import TopicPartition

_POLL_MS = 100
"""Interval in ms between polls of heartbeats, which are usually sent every 3 seconds."""


class ResetTo(NamedTuple):
    """The target of an offset reset.

    Parameters
    ----------
    kind : str
        `"earliest"` and `"latest"`, the ends of the log; `"current"`, the committed offset, or the
        latest one before a commit; `"offset"`; `"shift"`, relative to the committed offset;
        `"time_ms"`, the first record with this timestamp or a later one.
    value : int, optional
        The offset, the number of records to shift by, or the time in ms since 1970.

    Examples
    --------
    >>> from sparklog import ResetTo
    >>> ResetTo("earliest"), ResetTo("shift", -100)
    (ResetTo(kind='earliest', value=0), ResetTo(kind='shift', value=-100))
    """

    kind: Literal["earliest", "latest", "current", "offset", "shift", "time_ms"]
    value: int = 0


class PlannedReset(NamedTuple):
    """The change of one partition by a reset.

    Attributes
    ----------
    topic : str
        The topic.
    partition : int
        The partition.
    committed_offset : int or None
        The offset before the reset; `None` before a commit.
    new_offset : int
        The offset after the reset.

    Examples
    --------
    >>> from sparklog import GroupAdmin, ResetTo
    >>> GroupAdmin("sparklog-data/cluster").plan_reset("bills", "clicks", ResetTo("latest"))[0]
    PlannedReset(topic='clicks', partition=0, committed_offset=None, new_offset=3)
    """

    topic: str
    partition: int
    committed_offset: int | None
    new_offset: int


class GroupAdmin:
    """Administers the consumer groups of a cluster, without being a member.

    Parameters
    ----------
    connection : Connection, str or os.PathLike
        The cluster: a connection, the path or URI of its root, or its configuration file (*.yaml).
    clock : Clock, optional
        The source of time; the system's by default.

    Raises
    ------
    ConfigError
        The configuration file is not usable.
    StorageError
        There is no cluster at that root.

    Examples
    --------
    >>> from sparklog import GroupAdmin, ResetTo
    >>> group_admin = GroupAdmin("sparklog-data/cluster")
    >>> planned = group_admin.plan_reset("reports", "clicks", ResetTo("latest"))
    >>> [one.new_offset for one in planned]
    [3, 0]
    >>> group_admin.reset("reports", planned)
    >>> "reports" in [group.group_id for group in group_admin.list_groups()]
    True
    >>> group_admin.committed_partitions("reports")
    [TopicPartition(topic='clicks', partition=0), TopicPartition(topic='clicks', partition=1)]
    >>> group_admin.delete("reports")
    """

    def __init__(self, connection: Connection | ClusterName, clock: Clock | None = None) -> None:
        connection = self._connection = connection_of(connection)
        self._clock = clock or SystemClock()
        self._groups = ConsumerGroups(connection.root.consumer_groups)
        self._committed = CommittedOffsets(connection.root.consumer_offsets, self._clock)

    def list_groups(self) -> list[Group]:
        """Return all groups, also those with committed offsets that never had a member.

        Returns
        -------
        list of Group
            Sorted by name.
        """
        groups = {one.group_id: one for one in self._groups.all()}
        for name in self._committed.group_ids() - groups.keys():
            groups[name] = Group(name)
        return [groups[name] for name in sorted(groups)]

    def delete(self, group_id: str) -> None:
        """Delete a group and its committed offsets.

        If the group has members, waits for a sign of life, at most for their session.timeout.ms.

        Parameters
        ----------
        group_id : str
            The group.

        Raises
        ------
        ProtocolError
            GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP, a member is alive.
        """
        if group_id not in {one.group_id for one in self.list_groups()}:
            raise _not_found(group_id)
        self._remove_silent(group_id)
        group = self._groups.change(group_id, deleted, "deleted")
        if group.generation:
            heartbeats = self._connection.root.consumer_group_heartbeats
            remove_heartbeats(heartbeats, group_id, lambda _: True)
        self._committed.delete(group_id, group.fence)

    def plan_reset(self, group_id: str, topic: str, to: ResetTo) -> list[PlannedReset]:
        """Return the changes that setting a group's offsets in all partitions of a topic makes.

        Parameters
        ----------
        group_id : str
            The group; it need not exist.
        topic : str
            The topic.
        to : ResetTo
            The target.

        Returns
        -------
        list of PlannedReset
            For each partition. `reset` carries them out.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION.
        SparklogError
            There is no committed offset to shift.
        """
        return self.plan_resets(group_id, dict.fromkeys(self.partitions_of(topic), to))

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic.

        Parameters
        ----------
        topic : str
            The topic.

        Returns
        -------
        list of TopicPartition
            By number.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION.
        """
        count = self._connection.metadata().topic(topic).partitions
        return [TopicPartition(topic, number) for number in range(count)]

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        """Return the existing partitions in which a group has committed offsets.

        Parameters
        ----------
        group_id : str
            The group.

        Returns
        -------
        list of TopicPartition
            Sorted; empty without committed offsets.
        """
        committed = self._committed.fetch(group_id)
        return sorted(names_of(CommittedLogs(self._connection, self._clock), committed).values())

    def plan_resets(
        self, group_id: str, targets: Mapping[TopicPartition, ResetTo]
    ) -> list[PlannedReset]:
        """Return the changes that setting a group's offsets in some partitions makes.

        Offsets outside a partition's log become the nearest end of the log. A time after the last
        record becomes the latest offset.

        Parameters
        ----------
        group_id : str
            The group; it need not exist.
        targets : mapping of TopicPartition to ResetTo
            The target in each partition.

        Returns
        -------
        list of PlannedReset
            In the order of `targets`. `reset` carries them out.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION.
        SparklogError
            There is no committed offset to shift.
        """
        committed = self._committed.fetch(group_id)
        offsets = Offsets(CommittedLogs(self._connection, self._clock))
        seen = offsets.visible(targets)
        times_ms = {name: to.value for name, to in targets.items() if to.kind == "time_ms"}
        by_time = offsets.for_times(times_ms) if times_ms else {}
        resets = []
        for name, to in targets.items():
            start, end = seen[name].log_start_offset, seen[name].high_watermark
            before = committed.get(seen[name].state.key)
            now = before.offset if before else None
            if to.kind == "shift" and now is None:
                raise SparklogError(
                    f"group {group_id} has not committed an offset in every partition of "
                    f"{name.topic}, so that there is nothing to shift by: name an offset or a time"
                )
            found = by_time.get(name)
            wanted = {
                "earliest": start,
                "latest": end,
                "current": end if now is None else now,
                "offset": to.value,
                "shift": (now or 0) + to.value,
                "time_ms": end if found is None else found.offset,
            }
            resets.append(PlannedReset(*name, now, min(max(wanted[to.kind], start), end)))
        return resets

    def reset(self, group_id: str, resets: Collection[PlannedReset]) -> None:
        """Set a group's offsets as planned; a group that does not exist is created.

        Parameters
        ----------
        group_id : str
            The group.
        resets : collection of PlannedReset
            The changes, as `plan_reset` and `plan_resets` return them.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION; NON_EMPTY_GROUP, a member is alive, as in `delete`.
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

    def delete_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Remove a group's committed offsets in some partitions.

        Parameters
        ----------
        group_id : str
            The group.
        partitions : collection of TopicPartition
            The partitions.

        Raises
        ------
        ProtocolError
            GROUP_ID_NOT_FOUND; UNKNOWN_TOPIC_OR_PARTITION; NON_EMPTY_GROUP, a member is alive, as
            in `delete`.
        """
        if group_id not in {one.group_id for one in self.list_groups()}:
            raise _not_found(group_id)
        self._remove_silent(group_id)
        metadata = self._connection.metadata()
        removed = {metadata.partition(*one).key: (one.topic, None) for one in partitions}
        commit_as_no_member(self._groups, self._committed, group_id, removed)

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
        self._groups.change(
            group_id, lambda group: expired(group, first, silent), "session_timeout"
        )

    def _heartbeats(self, group_id: str) -> dict[str, int]:
        table = self._connection.root.consumer_group_heartbeats
        table.refresh()
        rows = table.rows_of([(group_id,)]).to_pylist()
        return {row["member_id"]: row["heartbeat"] for row in rows}


def _not_found(group_id: str) -> ProtocolError:
    return ProtocolError("GROUP_ID_NOT_FOUND", f"there is no group {group_id!r}: name another")
