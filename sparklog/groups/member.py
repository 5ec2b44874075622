"""One member of a consumer group: joining, leaving, heartbeats, and checks of its commits."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping

from sparklog.clock import Clock
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import ConsumerConfig
from sparklog.errors import ProtocolError
from sparklog.groups.group import ConsumerGroups, Group, Member, assigned, joined, without
from sparklog.groups.heartbeats import GroupHeartbeats
from sparklog.model import TopicIdPartition


class GroupMember:
    """A member of the group `group_id`; its generation is -1 before it joins and when fenced.

    The caller sends its heartbeats: with `beat` every heartbeat.interval.ms, or with `beats`, which
    it shares with other members of this process.
    """

    def __init__(
        self,
        root: ClusterRoot,
        group_id: str,
        config: ConsumerConfig,
        clock: Clock,
        beats: GroupHeartbeats | None = None,
    ) -> None:
        self.group_id = group_id
        self.generation = -1
        self.member_id = _new_member_id(config)
        self._config = config
        self._groups = ConsumerGroups(root.consumer_groups)
        self._beats = beats or GroupHeartbeats(root, group_id, clock)

    @property
    def groups(self) -> ConsumerGroups:
        """The groups of the cluster."""
        return self._groups

    def poll(self) -> Group:
        """Return the newest state of the group."""
        return self._groups.find(self.group_id)

    def join(self, topics: Collection[str]) -> Group:
        """Join the group's next generation, to read these topics; return the group after that.

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
        assert mine is not None, "a member that has just joined is in the group"
        self.generation = mine.joined_generation
        return group

    def assign(self, assignment: Mapping[str, Collection[TopicIdPartition]]) -> Group:
        """Assign partitions to the members of this generation, as its leader.

        Nothing is changed if the group has moved on in the meantime.
        """

        def step(group: Group) -> Group:
            is_due = group.state == "CompletingRebalance" and group.leader == self.member_id
            is_due = is_due and group.generation == self.generation
            return assigned(group, assignment) if is_due else group

        return self._groups.change(self.group_id, step)

    def leave(self, cause: str = "member_left") -> None:
        """Leave the group, so that the others need not wait for the session to expire.

        `cause`: why, in the history of the table.
        If that fails, the member's heartbeats end nevertheless, and its session expires.
        """
        try:
            self._groups.change(
                self.group_id, lambda group: without(group, [self.member_id]), cause
            )
        finally:
            self._beats.forget(self.member_id)
            self.generation = -1

    def check(self, group: Group) -> None:
        """Raise an error unless this member may commit in the current state of the group.

        Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, and REBALANCE_IN_PROGRESS
        until the generation that it has joined has its assignment.
        """
        if (removal := self.removal(group)) is not None:
            raise removal
        if self.generation < group.generation:
            raise ProtocolError(
                "ILLEGAL_GENERATION",
                f"group {self.group_id} is at generation {group.generation}, this member has "
                f"joined {self.generation}: poll, to join it again",
            )
        if self.generation > group.generation or group.state == "CompletingRebalance":
            raise ProtocolError(
                "REBALANCE_IN_PROGRESS",
                f"group {self.group_id} is reassigning its partitions, and this member has "
                "given up its own: poll until it has new ones",
            )

    def removal(self, group: Group) -> ProtocolError | None:
        """Return the error if this is not, or no longer, a member of `group`; otherwise `None`."""
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
            "for too long: poll, to join it again",
        )

    def beat(self) -> Group:
        """Increment this member's heartbeat, remove silent members, and return the group."""
        return self._beats.beat([self.member_id])


def _new_member_id(config: ConsumerConfig) -> str:
    return f"{config.client_id or 'consumer'}-{uuid.uuid4()}"
