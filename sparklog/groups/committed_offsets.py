"""Committed offsets of groups, in the cluster's table `consumer_offsets` (rule 8.1).

A commit is one compare-and-set that includes its check. Each row of a group carries the newest
fence (generation and group epoch) that was written there. A commit whose membership was checked
under an older fence is refused.

A generation's leader writes its fence before it publishes the assignment. A static member that
replaces its predecessor writes its fence before it reads.

Invariant: a commit of a member whose partitions have gone to another member never follows a commit
of that other member, however long it was delayed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.clock import Clock, SystemClock
from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Connection
from sparklog.cluster.offsets import Offsets
from sparklog.errors import ProtocolError, SparklogError
from sparklog.groups.group import ConsumerGroups, Group, GroupFence
from sparklog.model import CONSUMER_OFFSETS, TopicIdPartition, TopicPartition
from sparklog.storage.commits import Cause
from sparklog.storage.shard_rewrites import RowChanges
from sparklog.storage.sharded_table import ShardedTable
from sparklog.storage.shards import keys_of

MAX_OFFSET = (1 << 63) - 1
MAX_METADATA_BYTES = 4096
"""Kafka's offset.metadata.max.bytes."""


class OffsetAndMetadata(NamedTuple):
    """The committed offset of a partition, that of the next record to read, with its metadata.

    Parameters
    ----------
    offset : int
        The offset.
    metadata : str, default ""
        A text of the committer's, of 4,096 bytes at most (offset.metadata.max.bytes).
    leader_epoch : int, default -1
        The leader epoch of the record before the offset; -1 if it is unknown (KIP-320).

    Examples
    --------
    >>> from sparklog import OffsetAndMetadata
    >>> OffsetAndMetadata(42).metadata
    ''
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupChangedError(SparklogError):
    """The group has changed since the membership was checked: check it again."""


class CommittedOffsets:
    """The committed offsets of all groups."""

    def __init__(self, table: ShardedTable, clock: Clock | None = None) -> None:
        self._table = table
        self._clock = clock or SystemClock()

    def fetch(self, group_id: str) -> dict[TopicIdPartition, OffsetAndMetadata]:
        """Return the offsets that a group has committed, by partition."""
        self._table.refresh()
        return {
            _key(row): OffsetAndMetadata(
                row["committed_offset"], row["metadata"] or "", _epoch(row["leader_epoch"])
            )
            for row in self._table.rows_of([(group_id,)]).to_pylist()
            if row["committed_offset"] is not None
        }

    def commit(
        self,
        group_id: str,
        fence: GroupFence,
        offsets: Mapping[TopicIdPartition, tuple[str, OffsetAndMetadata | None]],
    ) -> None:
        """Commit offsets, each with its topic's name, under a group's `fence`; all or none.

        `None` in place of an offset removes the committed one.

        Raises ILLEGAL_GENERATION if the group has a newer generation, `GroupChangedError` if it has
        a newer epoch in the same generation, OFFSET_OUT_OF_RANGE, and OFFSET_METADATA_TOO_LARGE.
        Nothing is changed in these cases.
        """
        _check(offsets)
        now_ms = self._clock.now_ms()
        new = CONSUMER_OFFSETS.rows(
            [
                _unset(group_id, fence, key, topic) | _committed(committed, now_ms)
                for key, (topic, committed) in offsets.items()
            ]
        )

        def decide(rows: pa.Table) -> RowChanges:
            newest = _newest_fence(rows)
            if newest.generation > fence.generation:
                raise ProtocolError(
                    "ILLEGAL_GENERATION",
                    f"group {group_id} is at generation {newest.generation}, the commit is of "
                    f"{fence.generation}: poll, to join it again",
                )
            _check_epoch(group_id, newest, fence)
            return RowChanges(new)

        cause = Cause("COMMIT OFFSETS", {"groupId": group_id})
        self._table.change_rows(decide, [(group_id,)], cause=cause)

    def fence(
        self, group_id: str, fence: GroupFence, partitions: Mapping[TopicIdPartition, str]
    ) -> None:
        """Refuse commits under older fences from now on.

        `partitions` are those of the generation's assignment, with their topics' names; each gets a
        row. Raises ILLEGAL_GENERATION if a newer generation has written its fence, and
        `GroupChangedError` if a newer epoch has.
        """

        def decide(table: pa.Table) -> RowChanges | None:
            newest = _newest_fence(table)
            if newest.generation > fence.generation:
                raise ProtocolError(
                    "ILLEGAL_GENERATION",
                    f"group {group_id} is at generation {newest.generation}, not "
                    f"{fence.generation}: poll, to join it again",
                )
            _check_epoch(group_id, newest, fence)
            mine: list[dict[str, Any]] = table.to_pylist()
            missing = partitions.keys() - {_key(row) for row in mine}
            if mine and not missing and all(_fence(row) == fence for row in mine):
                return None
            rows = [row | fence._asdict() for row in mine]
            rows += [_unset(group_id, fence, key, partitions[key]) for key in sorted(missing)]
            return RowChanges(CONSUMER_OFFSETS.rows(rows or [_without_partition(group_id, fence)]))

        cause = Cause("FENCE GROUP", {"groupId": group_id})
        self._table.change_rows(decide, [(group_id,)], cause=cause)

    def group_ids(self) -> set[str]:
        """Return the ids of the groups that have committed offsets."""
        self._table.refresh()
        rows = self._table.rows()
        return set(rows.filter(pc.is_valid(rows["committed_offset"]))["group_id"].to_pylist())

    def remove_topics(self, topic_ids: Collection[str]) -> None:
        """Remove the committed offsets of topics in all groups; fences of groups stay."""

        def decide(table: pa.Table) -> RowChanges | None:
            is_of = pc.is_in(table["topic_id"], pa.array(list(topic_ids), pa.string()))
            removed = table.filter(is_of)
            if not removed.num_rows:
                return None
            others = set(table.filter(pc.invert(is_of))["group_id"].to_pylist())
            left = []
            for group_id in pc.unique(removed["group_id"]).to_pylist():
                fence = _newest_fence(removed.filter(pc.equal(removed["group_id"], group_id)))
                if group_id not in others and fence.generation > 0:
                    left.append(_without_partition(group_id, fence))
            gone = frozenset(keys_of(removed, CONSUMER_OFFSETS))
            return RowChanges(CONSUMER_OFFSETS.rows(left), gone)

        self._table.change_rows(decide, cause=Cause("REMOVE OFFSETS OF TOPICS"))

    def delete(self, group_id: str, fence: GroupFence) -> None:
        """Remove a group's committed offsets; commits under older fences are still refused."""

        def decide(table: pa.Table) -> RowChanges | None:
            if not table.num_rows:
                return None
            kept = []
            if fence.generation:
                # One row is enough to keep the fence.
                [first] = table.slice(0, 1).to_pylist()
                kept = [_unset(group_id, fence, _key(first), first["topic"])]
            removed = frozenset(keys_of(table, CONSUMER_OFFSETS))
            return RowChanges(CONSUMER_OFFSETS.rows(kept), removed)

        cause = Cause("DELETE OFFSETS", {"groupId": group_id})
        self._table.change_rows(decide, [(group_id,)], cause=cause)


def commit_as(
    groups: ConsumerGroups,
    committed: CommittedOffsets,
    group_id: str,
    check: Callable[[Group], None],
    offsets: Mapping[TopicIdPartition, tuple[str, OffsetAndMetadata | None]],
) -> None:
    """Commit offsets if `check` accepts the state of the group at the commit.

    `check` raises the error that refuses the commit. It is called again after each change of the
    group in the meantime. Raises as `check` and `CommittedOffsets.commit` do.
    """
    refused: GroupFence | None = None
    while True:
        group = groups.find(group_id)
        check(group)
        try:
            committed.commit(group_id, group.fence, offsets)
        except GroupChangedError as error:
            if group.fence == refused:
                raise ProtocolError("ILLEGAL_GENERATION", str(error)) from error
            refused = group.fence
        else:
            return


def commit_as_no_member(
    groups: ConsumerGroups,
    committed: CommittedOffsets,
    group_id: str,
    offsets: Mapping[TopicIdPartition, tuple[str, OffsetAndMetadata | None]],
) -> None:
    """Commit offsets of a group without members: its user assigns partitions by hand.

    Raises UNKNOWN_MEMBER_ID if the group has members, and as `CommittedOffsets.commit`.
    """
    commit_as(groups, committed, group_id, check_no_member, offsets)


def check_no_member(group: Group) -> None:
    """Raise UNKNOWN_MEMBER_ID if a group has members: commits are theirs."""
    if group.members:
        raise ProtocolError(
            "UNKNOWN_MEMBER_ID",
            f"group {group.group_id} has members that share its topics, and this consumer is not "
            "one of them: subscribe, or use another group",
        )


class PartitionLag(NamedTuple):
    """The lag of a group in one partition, in offsets.

    `lag` is high watermark - committed offset, at least 0. `lag` and `committed_offset` are `None`
    if nothing was committed. `member_id` is the member that reads the partition, or `None`.
    """

    topic: str
    partition: int
    committed_offset: int | None
    high_watermark: int
    lag: int | None
    member_id: str | None


def lag(connection: Connection, group_id: str) -> list[PartitionLag]:
    """Return a group's lag in each partition that it reads or has committed, in order.

    Partitions of deleted topics are left out. Raises GROUP_ID_NOT_FOUND for a group that does not
    exist, and as `Offsets.end` does.
    """
    root = connection.root
    logs = CommittedLogs(connection)
    committed = CommittedOffsets(root.consumer_offsets).fetch(group_id)
    group = ConsumerGroups(root.consumer_groups).find(group_id)
    owners = {key: one.member_id for one in group.members for key in one.assignment}
    if not committed and not group.exists:
        raise ProtocolError("GROUP_ID_NOT_FOUND", f"there is no group {group_id!r}: name another")
    names = names_of(logs, committed.keys() | owners.keys())
    ends = Offsets(logs).end(names.values())
    lags = []
    for key, (topic, partition) in sorted(names.items(), key=lambda item: item[1]):
        offset = committed[key].offset if key in committed else None
        end = ends[TopicPartition(topic, partition)]
        behind = None if offset is None else max(end - offset, 0)
        lags.append(PartitionLag(topic, partition, offset, end, behind, owners.get(key)))
    return lags


def names_of(
    logs: CommittedLogs, keys: Iterable[TopicIdPartition]
) -> dict[TopicIdPartition, TopicPartition]:
    """Return those of the partitions that exist, with the names of their topics."""
    states = logs.metadata().partitions
    return {key: TopicPartition(states[key].topic, key.partition) for key in keys if key in states}


def _check(offsets: Mapping[TopicIdPartition, tuple[str, OffsetAndMetadata | None]]) -> None:
    for key, (topic, committed) in offsets.items():
        if committed is None:
            continue
        where = f"{topic}-{key.partition}"
        if not 0 <= committed.offset <= MAX_OFFSET:
            raise ProtocolError(
                "OFFSET_OUT_OF_RANGE",
                f"the offset {committed.offset} to commit for {where} is out of range: give 0 to "
                f"{MAX_OFFSET}",
            )
        if len(committed.metadata.encode()) > MAX_METADATA_BYTES:
            raise ProtocolError(
                "OFFSET_METADATA_TOO_LARGE",
                f"the metadata for {where} has more than {MAX_METADATA_BYTES} bytes: shorten it",
            )


def _committed(committed: OffsetAndMetadata | None, now_ms: int) -> dict[str, Any]:
    """Return the columns of a committed offset; none of them are set if it is removed."""
    if committed is None:
        return {}
    return {
        "committed_offset": committed.offset,
        "leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "committed_at_ms": now_ms,
    }


def _check_epoch(group_id: str, newest: GroupFence, fence: GroupFence) -> None:
    if newest.group_epoch > fence.group_epoch:
        raise GroupChangedError(
            f"the offsets of group {group_id} are at group epoch {newest.group_epoch}, newer than "
            f"{fence.group_epoch}, at which the membership was checked: poll, to join it again"
        )


def _newest_fence(rows: pa.Table) -> GroupFence:
    """Return the newest fence in the rows of a group."""
    generation = pc.max(rows["generation"]).as_py()
    if generation is None:
        return GroupFence(-1, -1)
    epochs = rows["group_epoch"].filter(pc.equal(rows["generation"], generation))
    # Older versions wrote no epoch.
    return GroupFence(generation, pc.max(epochs).as_py() or 0)


def _fence(row: Mapping[str, Any]) -> GroupFence:
    # Older versions wrote no epoch.
    return GroupFence(int(row["generation"]), int(row["group_epoch"] or 0))


def _unset(group_id: str, fence: GroupFence, key: TopicIdPartition, topic: str) -> dict[str, Any]:
    return _without_partition(group_id, fence) | {"topic": topic, **key._asdict()}


def _without_partition(group_id: str, fence: GroupFence) -> dict[str, Any]:
    """Return the row that stores the fence of a group without partitions."""
    nothing: dict[str, Any] = dict.fromkeys(CONSUMER_OFFSETS.columns.names)
    return nothing | {"group_id": group_id, **fence._asdict()}


def _key(row: Mapping[str, Any]) -> TopicIdPartition:
    return TopicIdPartition(row["topic_id"], row["partition"])


def _epoch(stored: int | None) -> int:
    return -1 if stored is None else stored
