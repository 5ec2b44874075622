"""A consumer's membership of its group: joining, sharing and revoking partitions, heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Literal

from sparklog.clock import Clock
from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.observations import is_silent
from sparklog.config import ConsumerConfig
from sparklog.errors import AccessDeniedError, ProtocolError
from sparklog.groups.assignors import ASSIGNORS, MemberSubscription
from sparklog.groups.committed_offsets import (
    CommittedOffsets,
    GroupChangedError,
    OffsetAndMetadata,
    commit_as,
    names_of,
)
from sparklog.groups.group import Group, Member
from sparklog.groups.heartbeats import ProcessHeartbeats
from sparklog.groups.member import GroupMember
from sparklog.groups.subscription import Topics
from sparklog.logger import get_logger
from sparklog.model import TopicIdPartition
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.location import one_line

_log = get_logger(__name__)

_POLL_MS = 100
"""Interval in ms between polls of a stable group; members notice a rebalance within it."""

_Phase = Literal["unjoined", "joining", "stable"]


class ConsumerCoordinator:
    """Takes the steps of one member as its consumer polls; `heartbeats` runs in the background.

    Parameters: `on_revoke`, called before partitions are given up, with whether they are lost
    (another member may read them already); `on_assign`, called with the new partitions. Both are
    called only by `poll`, `leave` and `close`.
    """

    def __init__(
        self,
        member: GroupMember,
        heartbeats: ProcessHeartbeats,
        committed: CommittedOffsets,
        logs: CommittedLogs,
        config: ConsumerConfig,
        clock: Clock,
        on_revoke: Callable[[bool], None],
        on_assign: Callable[[Collection[TopicIdPartition]], None],
    ) -> None:
        self._member = member
        self._committed = committed
        self._logs = logs
        self._config = config
        self._clock = clock
        self._on_revoke = on_revoke
        self._on_assign = on_assign
        self._phase: _Phase = "unjoined"
        self._topics: Topics = {}
        # Whether this member has replaced a static member, whose commits are refused before this
        # one reads.
        self._is_successor = False
        self._group_read_ms = 0
        self._polled_ms = 0
        self.heartbeat_interval_ms = config.heartbeat_interval_ms
        self.session_timeout_ms = config.session_timeout_ms
        self._heartbeats = heartbeats
        self._lock = heartbeats.lock

    def poll(self, topics: Topics) -> None:
        """Take the steps that are due; `topics` are the subscribed topics that exist.

        If the group's tables cannot be read or written, the next call tries again. Raises
        FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL, and the errors of the callbacks.
        """
        self._polled_ms = self._clock.monotonic_ms()
        while (consequence := self._attempt(topics)) is not None:
            consequence()

    def commit(self, offsets: Mapping[TopicIdPartition, tuple[str, OffsetAndMetadata]]) -> None:
        """Commit offsets as a member of the current generation; raises as `GroupMember.check`."""
        _, check = self.commit_check()
        commit_as(self._member.groups, self._committed, self._member.group_id, check, offsets)

    def commit_check(self) -> tuple[tuple[str, int], Callable[[Group], None]]:
        """Return the member's id and generation, and a check of commits requested under these.

        Any thread may call the check. It raises as `GroupMember.check`, and ILLEGAL_GENERATION
        after the member has joined another generation: others may read its partitions by then.
        """
        requested = self._member.member_id, self._member.generation

        def check(group: Group) -> None:
            with self._lock:
                self._member.check(group)
                if requested != (self._member.member_id, self._member.generation):
                    raise ProtocolError(
                        "ILLEGAL_GENERATION",
                        f"the commit was requested in generation {requested[1]} of group "
                        f"{group.group_id}, and generation {group.generation} has begun since: "
                        "commit the positions of the new assignment",
                    )

        return requested, check

    def leave(self) -> None:
        """Give up all partitions and leave the group; a static member stays until it expires.

        A member that cannot leave, because the disk of the cluster root is full for example,
        expires after session.timeout.ms.
        """
        try:
            if self._phase == "stable":
                self._on_revoke(False)
        finally:
            with self._lock:
                was_member, self._phase = self._phase != "unjoined", "unjoined"
                if was_member and self._config.group_instance_id is None:
                    try:
                        self._member.leave()
                    except UNREADABLE as error:
                        group_id = self._member.group_id
                        _log.warning("group not left", group=group_id, error=one_line(error))

    def close(self) -> None:
        """Leave, and stop the heartbeats."""
        try:
            self.leave()
        finally:
            self._heartbeats.remove(self)

    # --- the consumer's thread ------------------------------------------------------------------

    def _attempt(self, topics: Topics) -> Callable[[], None] | None:
        """Take the next steps, up to one that concerns the consumer; return that one, or `None`."""
        try:
            if self._phase == "stable":
                return self._stay(topics)
            if self._phase == "unjoined":
                self._join(topics)
            return self._await_assignment()
        except AccessDeniedError:
            raise
        except UNREADABLE as error:
            _log.warning("group not reachable", error=one_line(error))
            return None

    def _stay(self, topics: Topics) -> Callable[[], None] | None:
        """Check the group if that is due; return the step that a change requires, or `None`."""
        has_changed = topics != self._topics
        is_due = self._polled_ms - self._group_read_ms >= _POLL_MS or self._member.generation < 0
        if not has_changed and not is_due:
            return None
        group = self._poll()
        if group.member(self._member.member_id) is None:
            return partial(self._lose, self._member.removal(group))
        return self._revoke if has_changed or group.state != "Stable" else None

    def _join(self, topics: Topics) -> None:
        with self._lock:
            group = self._member.join(topics)
            self._topics = dict(topics)
            self._phase = "joining"
            self._is_successor = group.state == "Stable"
        _log.info("joined", group=group.group_id, member=self._member.member_id)
        self._heartbeats.add(self)

    def _await_assignment(self) -> Callable[[], None] | None:
        """Check whether the generation that was joined is stable; assign its partitions as leader.

        Returns the step that starts reading, or the step that follows a removal, or `None`.
        """
        group = self._poll()
        mine = group.member(self._member.member_id)
        if mine is None:
            return partial(self._lose, self._member.removal(group))
        if mine in group.missing:
            # Another rebalance has begun before this generation was stable.
            self._join(self._topics)
            return None
        if group.state == "CompletingRebalance" and group.leader == mine.member_id:
            group = self._lead(group)
            mine = group.member(self._member.member_id)
        if mine and group.state == "Stable" and self._is_successor:
            if not self._fence(group, {}):
                return None
            self._is_successor = False
        return partial(self._begin, mine) if mine and group.state == "Stable" else None

    def _begin(self, mine: Member) -> None:
        """Take over the assigned partitions."""
        self._phase = "stable"
        _log.info("assigned", generation=self._member.generation, partitions=len(mine.assignment))
        self._on_assign(mine.assignment)

    def _revoke(self) -> None:
        """Give up the assigned partitions, to join the next generation."""
        self._on_revoke(False)
        self._phase = "unjoined"

    def _lose(self, removal: ProtocolError | None) -> None:
        """Continue as a new member, after the group has removed this one."""
        _log.warning("removed from the group", error=str(removal))
        had_partitions = self._phase == "stable"
        with self._lock:
            self._phase = "unjoined"
            self._member.generation = -1
        if had_partitions:
            self._on_revoke(True)
        if removal is not None and removal.code.name == "FENCED_INSTANCE_ID":
            raise removal

    def _lead(self, group: Group) -> Group:
        """Assign the partitions to the members, as the leader of a new generation."""
        metadata = self._logs.metadata(max_age_ms=0)
        by_name = {topic.topic: topic for topic in metadata.topics.values()}
        wanted = {name for one in group.members for name in one.topics if name in by_name}
        owned = names_of(self._logs, [key for one in group.members for key in one.assignment])
        subscriptions = [
            MemberSubscription(
                one.member_id,
                frozenset(one.topics),
                tuple(owned[key] for key in one.assignment if key in owned),
                one.group_instance_id,
            )
            for one in group.members
        ]
        shares = ASSIGNORS[group.protocol or "range"](
            {name: by_name[name].partitions for name in wanted}, subscriptions
        )
        assignment = {
            member_id: [
                TopicIdPartition(by_name[topic].topic_id, number) for topic, number in partitions
            ]
            for member_id, partitions in shares.items()
        }
        names = {
            key: metadata.topics[key.topic_id].topic for one in assignment.values() for key in one
        }
        # The fence is written before the assignment is published: see `committed_offsets`.
        return self._member.assign(assignment) if self._fence(group, names) else self._poll()

    def _fence(self, group: Group, partitions: Mapping[TopicIdPartition, str]) -> bool:
        """Refuse the commits of earlier members; return False if the group has moved on."""
        try:
            self._committed.fence(group.group_id, group.fence, partitions)
        except (ProtocolError, GroupChangedError):
            return False
        return True

    def _poll(self) -> Group:
        self._group_read_ms = self._polled_ms
        return self._member.poll()

    # --- the heartbeats' thread -----------------------------------------------------------------

    def beating_id(self) -> str | None:
        """Return the member's id, or `None` while it has no heartbeat to send.

        Call it under the lock. A member that has not been polled for max.poll.interval.ms leaves
        the group.
        """
        if self._phase == "unjoined" or self._member.generation < 0:
            return None
        now_ms, timeout_ms = self._clock.monotonic_ms(), self._config.max_poll_interval_ms
        if not is_silent(now_ms, since_ms=self._polled_ms, timeout_ms=timeout_ms):
            return self._member.member_id
        if self._config.group_instance_id is None:
            # It leaves, so that others read its partitions. A static member stays and expires by
            # its silence.
            idle_ms = now_ms - self._polled_ms
            _log.warning("max.poll.interval.ms passed without a poll", idle_ms=idle_ms)
            self._member.leave("max_poll_interval")
        return None
