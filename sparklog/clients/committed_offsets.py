"""Committed offsets: how far a group has come, in the cluster's `consumer_offsets` (rule 8.1).

A commit is one compare-and-set. Before a new generation's assignment is published its number is
put into the group's rows, so that no commit of an older generation can land after it, however
long it was on its way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.clients.committed_logs import CommittedLogs
from sparklog.clients.connection import Connection
from sparklog.clients.consumer_group import ConsumerGroups
from sparklog.clients.offsets import Offsets
from sparklog.clock import Clock, SystemClock
from sparklog.errors import ProtocolError
from sparklog.model import CONSUMER_OFFSETS, TopicIdPartition, TopicPartition
from sparklog.storage.control_table import ControlTable

MAX_METADATA_BYTES = 4096
"""Kafka's offset.metadata.max.bytes."""


class OffsetAndMetadata(NamedTuple):
    """A committed offset: that of the record to be read next, and what its committer noted.

    `leader_epoch` is that of the record before it, -1 where it is not known.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class CommittedOffsets:
    """The committed offsets of all groups."""

    def __init__(self, table: ControlTable, clock: Clock | None = None) -> None:
        self._table = table
        self._clock = clock or SystemClock()

    def fetch(self, group_id: str) -> dict[TopicIdPartition, OffsetAndMetadata]:
        """Return what a group has committed, by partition."""
        self._table.refresh()
        return {
            _key(row): OffsetAndMetadata(
                row["committed_offset"], row["metadata"] or "", _epoch(row["leader_epoch"])
            )
            for row in self._table.rows().to_pylist()
            if row["group_id"] == group_id and row["committed_offset"] is not None
        }

    def commit(
        self,
        group_id: str,
        generation: int,
        offsets: Mapping[TopicIdPartition, tuple[str, OffsetAndMetadata]],
    ) -> None:
        """Commit offsets, each with its topic's name, in a group's generation; all or none.

        Raises ILLEGAL_GENERATION where the group has gone on to a newer generation, and
        OFFSET_METADATA_TOO_LARGE; nothing is changed then.
        """
        _check(offsets)
        now_ms = self._clock.now_ms()

        def change(table: pa.Table) -> tuple[pa.Table, None]:
            rows: list[dict[str, Any]] = table.to_pylist()
            newest = _generation(rows, group_id)
            if newest > generation:
                raise ProtocolError(
                    "ILLEGAL_GENERATION",
                    f"group {group_id} is at generation {newest}, the commit is of {generation}: "
                    "poll, to join it anew",
                )
            rows = [
                row for row in rows if not (row["group_id"] == group_id and _key(row) in offsets)
            ]
            for key, (topic, committed) in offsets.items():
                rows.append(
                    _unset(group_id, generation, key, topic)
                    | {
                        "committed_offset": committed.offset,
                        "leader_epoch": committed.leader_epoch,
                        "metadata": committed.metadata,
                        "committed_at_ms": now_ms,
                    }
                )
            return CONSUMER_OFFSETS.rows(rows), None

        self._table.update(change)

    def fence(
        self, group_id: str, generation: int, partitions: Mapping[TopicIdPartition, str]
    ) -> None:
        """Refuse the commits of older generations from now on.

        `partitions` are those of the generation's assignment, with their topics' names: each has
        a row from then on. Raises ILLEGAL_GENERATION where a newer generation has come so far.
        """

        def change(table: pa.Table) -> tuple[pa.Table | None, None]:
            rows: list[dict[str, Any]] = table.to_pylist()
            newest = _generation(rows, group_id)
            if newest > generation:
                raise ProtocolError("ILLEGAL_GENERATION", f"group {group_id} is at {newest}")
            mine = [row for row in rows if row["group_id"] == group_id]
            missing = partitions.keys() - {_key(row) for row in mine}
            if not missing and all(row["generation"] == generation for row in mine):
                return None, None
            for row in mine:
                row["generation"] = generation
            rows += [_unset(group_id, generation, key, partitions[key]) for key in sorted(missing)]
            return CONSUMER_OFFSETS.rows(rows), None

        self._table.update(change)

    def group_ids(self) -> set[str]:
        """Return the groups that have committed anything."""
        self._table.refresh()
        rows = self._table.rows().to_pylist()
        return {row["group_id"] for row in rows if row["committed_offset"] is not None}

    def delete(self, group_id: str, generation: int) -> None:
        """Forget what a group has committed, and refuse commits of older generations still."""

        def change(table: pa.Table) -> tuple[pa.Table | None, None]:
            rows: list[dict[str, Any]] = table.to_pylist()
            mine = [row for row in rows if row["group_id"] == group_id]
            if not mine:
                return None, None
            kept = [row for row in rows if row["group_id"] != group_id]
            if generation:
                # One row is enough to tell the generation.
                first = mine[0]
                kept.append(_unset(group_id, generation, _key(first), first["topic"]))
            return CONSUMER_OFFSETS.rows(kept), None

        self._table.update(change)


def commit_as_no_member(
    groups: ConsumerGroups,
    committed: CommittedOffsets,
    group_id: str,
    offsets: Mapping[TopicIdPartition, tuple[str, OffsetAndMetadata]],
) -> None:
    """Commit offsets of a group that has no members: its user assigns partitions by hand.

    Raises UNKNOWN_MEMBER_ID where it has some, and as `CommittedOffsets.commit`.
    """
    group = groups.find(group_id)
    if group.members:
        raise ProtocolError(
            "UNKNOWN_MEMBER_ID",
            f"group {group_id} has members that share its topics, and this consumer is none: "
            "subscribe, or use another group",
        )
    committed.commit(group_id, group.generation, offsets)


class PartitionLag(NamedTuple):
    """How far a group is behind in one partition; `None` where nothing was committed.

    `lag` is high watermark - committed offset; `member_id` is who reads it, `None` where nobody.
    """

    topic: str
    partition: int
    committed_offset: int | None
    high_watermark: int
    lag: int | None
    member_id: str | None


def lag(connection: Connection, group_id: str) -> list[PartitionLag]:
    """Return a group's lag in each partition that it reads or has committed, in order.

    Partitions of topics that were deleted are left out. Raises GROUP_ID_NOT_FOUND for a group
    that never was, and as `Offsets.end` does.
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
    """Return the partitions that are still there, with the names of their topics."""
    states = logs.metadata().partitions
    return {key: TopicPartition(states[key].topic, key.partition) for key in keys if key in states}


def _check(offsets: Mapping[TopicIdPartition, tuple[str, OffsetAndMetadata]]) -> None:
    for key, (topic, committed) in offsets.items():
        where = f"{topic}-{key.partition}"
        if committed.offset < 0:
            raise ProtocolError(
                "OFFSET_OUT_OF_RANGE", f"{committed.offset} is no offset to commit for {where}"
            )
        if len(committed.metadata.encode()) > MAX_METADATA_BYTES:
            raise ProtocolError(
                "OFFSET_METADATA_TOO_LARGE",
                f"the metadata for {where} has more than {MAX_METADATA_BYTES} bytes: shorten it",
            )


def _generation(rows: Collection[Mapping[str, Any]], group_id: str) -> int:
    return max((int(row["generation"]) for row in rows if row["group_id"] == group_id), default=-1)


def _unset(group_id: str, generation: int, key: TopicIdPartition, topic: str) -> dict[str, Any]:
    nothing: dict[str, Any] = dict.fromkeys(CONSUMER_OFFSETS.columns.names)
    return nothing | {
        "group_id": group_id,
        "topic": topic,
        "generation": generation,
        **key._asdict(),
    }


def _key(row: Mapping[str, Any]) -> TopicIdPartition:
    return TopicIdPartition(row["topic_id"], row["partition"])


def _epoch(stored: int | None) -> int:
    return -1 if stored is None else stored
