"""One member of a consumer group: joining, heartbeats, and the removal of those that are silent.

Every member watches the others, since nobody else does. Silence is measured on the watcher's own
clock from changes of a member's row: no two clocks are compared (as in rule 7.1).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from sparklog.broker.observations import Observations
from sparklog.clients.consumer_group import (
    ConsumerGroups,
    Group,
    Member,
    assigned,
    expired,
    joined,
    without,
)
from sparklog.clock import Clock
from sparklog.config import ConsumerConfig
from sparklog.errors import ProtocolError
from sparklog.logger import get_logger
from sparklog.model import CONSUMER_GROUP_HEARTBEATS, TopicIdPartition
from sparklog.storage.roots import ClusterRoot

_log = get_logger(__name__)


class GroupMember:
    """A member of the group `group_id`; one that has not joined, or is fenced, has generation -1.

    It does nothing by itself: somebody calls `beat` every heartbeat.interval.ms.
    """

    def __init__(
        self, root: ClusterRoot, group_id: str, config: ConsumerConfig, clock: Clock
    ) -> None:
        self.group_id = group_id
        self.generation = -1
        self.member_id = _new_member_id(config)
        self._config = config
        self._clock = clock
        self._groups = ConsumerGroups(root.consumer_groups)
        self._heartbeats = root.consumer_group_heartbeats
        self._observations = Observations()

    def look(self) -> Group:
        """Return the group as it is now."""
        return self._groups.find(self.group_id)

    def join(self, topics: Collection[str]) -> Group:
        """Join the group's next generation, to read these topics; return the group then.

        A member that was removed joins as a new one. Raises INCONSISTENT_GROUP_PROTOCOL.
        """
        if self.generation < 0:
            self.member_id = _new_member_id(self._config)
        wanted = Member(
            self.member_id,
            self._config.group_instance_id,
            self._config.client_id,
            0,
            tuple(sorted(topics)),
            tuple(self._config.partition_assignment_strategy),
            (),
            self._config.session_timeout_ms,
            self._config.max_poll_interval_ms,
        )
        group = self._groups.change(self.group_id, lambda group: joined(group, wanted))
        mine = group.member(self.member_id)
        assert mine is not None, "whoever has just joined is a member"
        self.generation = mine.joined_generation
        return group

    def assign(self, assignment: Mapping[str, Collection[TopicIdPartition]]) -> Group:
        """Give the members of this generation their partitions, as its leader.

        Nothing happens where the group has gone on meanwhile.
        """

        def step(group: Group) -> Group:
            is_due = group.state == "CompletingRebalance" and group.leader == self.member_id
            is_due = is_due and group.generation == self.generation
            return assigned(group, assignment) if is_due else group

        return self._groups.change(self.group_id, step)

    def leave(self) -> None:
        """Leave the group, so that the others need not wait for the session to expire."""
        self._groups.change(self.group_id, lambda group: without(group, [self.member_id]))
        self._write_heartbeats((), leaving=self.member_id)
        self.generation = -1

    def check(self, group: Group) -> None:
        """Refuse what a member of an older generation, or none, wants to do.

        Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, and REBALANCE_IN_PROGRESS
        while the generation that it has joined is not there yet.
        """
        if (removal := self.removal(group)) is not None:
            raise removal
        if self.generation < group.generation:
            raise ProtocolError(
                "ILLEGAL_GENERATION",
                f"group {self.group_id} is at generation {group.generation}, this member has "
                f"joined {self.generation}: poll, to join it anew",
            )
        if self.generation > group.generation or group.state == "CompletingRebalance":
            raise ProtocolError(
                "REBALANCE_IN_PROGRESS",
                f"group {self.group_id} is assigning its partitions anew, and this member has "
                "given up its own: poll until it has new ones",
            )

    def removal(self, group: Group) -> ProtocolError | None:
        """Return why this is no member of `group` (any more), or `None` where it is."""
        if self.generation >= 0 and group.member(self.member_id) is not None:
            return None
        instance = self._config.group_instance_id
        if instance is not None and any(one.group_instance_id == instance for one in group.members):
            return ProtocolError(
                "FENCED_INSTANCE_ID",
                f"another consumer of group {self.group_id} has group.instance.id={instance} by "
                "now: give each its own",
            )
        return ProtocolError(
            "UNKNOWN_MEMBER_ID",
            f"group {self.group_id} has removed this member, which was silent or did not poll "
            "for too long: poll, to join it anew",
        )

    def beat(self) -> Group:
        """Say that this member lives, and remove those that do not; return the group then."""
        group = self.look()
        if group.member(self.member_id) is None:
            return group
        heartbeats = self._write_heartbeats([one.member_id for one in group.members])
        gone = self._silent(group, heartbeats)
        if not gone:
            return group
        _log.warning("members removed", group=self.group_id, members=gone)
        return self._groups.change(self.group_id, lambda now: expired(now, group, gone))

    def _silent(self, group: Group, heartbeats: Mapping[str, int]) -> list[str]:
        """Return the other members that were silent, or did not join, for too long."""
        now_ms = self._clock.monotonic_ms()
        others = [one for one in group.members if one.member_id != self.member_id]
        gone = []
        for one in others:
            seen = heartbeats.get(one.member_id), one.joined_generation
            since_ms = self._observations.observe(one.member_id, seen, now_ms)
            if now_ms - since_ms > one.session_timeout_ms:
                gone.append(one.member_id)
        preparing_ms = self._observations.observe(
            "rebalance", (group.state, group.generation), now_ms
        )
        patience_ms = max((one.rebalance_timeout_ms for one in group.members), default=0)
        if now_ms - preparing_ms > patience_ms:
            late = [one.member_id for one in group.missing if one.member_id != self.member_id]
            gone += [member_id for member_id in late if member_id not in gone]
        return gone

    def _write_heartbeats(
        self, members: Sequence[str], leaving: str | None = None
    ) -> dict[str, int]:
        """Count this member's heartbeat on, and forget who is no member; return the group's."""

        def change(rows: pa.Table) -> tuple[pa.Table | None, dict[str, int]]:
            before = rows.to_pylist()
            others = [row for row in before if row["group_id"] != self.group_id]
            mine = {
                row["member_id"]: int(row["heartbeat"])
                for row in before
                if row["group_id"] == self.group_id
            }
            if leaving is not None:
                kept = {one: count for one, count in mine.items() if one != leaving}
            else:
                kept = {one: count for one, count in mine.items() if one in members}
                kept[self.member_id] = mine.get(self.member_id, 0) + 1
            after = [
                {"group_id": self.group_id, "member_id": one, "heartbeat": count}
                for one, count in kept.items()
            ]
            return CONSUMER_GROUP_HEARTBEATS.rows([*others, *after]), kept

        return self._heartbeats.update(change)


def _new_member_id(config: ConsumerConfig) -> str:
    return f"{config.client_id or 'consumer'}-{uuid.uuid4()}"
