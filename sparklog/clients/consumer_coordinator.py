"""A consumer's part in its group: joining, sharing partitions, giving them up, staying alive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Literal

from sparklog.broker.leader_roots import UNREADABLE
from sparklog.clients.assignors import ASSIGNORS, MemberSubscription
from sparklog.clients.committed_logs import CommittedLogs
from sparklog.clients.committed_offsets import (
    CommittedOffsets,
    GroupChangedError,
    OffsetAndMetadata,
    commit_as,
    names_of,
)
from sparklog.clients.consumer_group import Group, Member
from sparklog.clients.group_heartbeats import ProcessHeartbeats
from sparklog.clients.group_member import GroupMember
from sparklog.clients.subscription import Topics
from sparklog.clock import Clock
from sparklog.config import ConsumerConfig
from sparklog.errors import ProtocolError
from sparklog.logger import get_logger
from sparklog.model import TopicIdPartition
from sparklog.storage.location import one_line

_log = get_logger(__name__)

_LOOK_MS = 100
"""How often a stable group is looked at: members learn of a rebalance as soon as that."""

_Phase = Literal["unjoined", "joining", "stable"]


class ConsumerCoordinator:
    """Takes the steps of one member as its consumer polls; `heartbeats` go on in the background.

    Parameters: `on_revoke`, called with whether the partitions are lost (somebody else may read
    them already) before they are given up; `on_assign`, called with the new ones. Both are
    called by `poll`, `leave` and `close` alone.
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
        # Whether it has replaced a static member, whose commits are refused before it reads on.
        self._is_successor = False
        self._looked_ms = 0
        self._polled_ms = 0
        self.heartbeat_interval_ms = config.heartbeat_interval_ms
        self._heartbeats = heartbeats
        self._lock = heartbeats.lock

    def poll(self, topics: Topics) -> None:
        """Take the steps that are due; `topics` are those subscribed to that are there.

        Where the group's tables cannot be read or written it is tried again by the next call.
        Raises FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL, and what the callbacks raise.
        """
        self._polled_ms = self._clock.monotonic_ms()
        while (consequence := self._attempt(topics)) is not None:
            consequence()

    def commit(self, offsets: Mapping[TopicIdPartition, tuple[str, OffsetAndMetadata]]) -> None:
        """Commit offsets as a member of the current generation; raises as `GroupMember.check`."""

        def check(group: Group) -> None:
            with self._lock:
                self._member.check(group)

        commit_as(self._member.groups, self._committed, self._member.group_id, check, offsets)

    def leave(self) -> None:
        """Give up what is assigned and leave the group; a static member stays until it expires."""
        try:
            if self._phase == "stable":
                self._on_revoke(False)
        finally:
            with self._lock:
                was_member, self._phase = self._phase != "unjoined", "unjoined"
                if was_member and self._config.group_instance_id is None:
                    self._member.leave()

    def close(self) -> None:
        """Leave, and end the heartbeats."""
        try:
            self.leave()
        finally:
            self._heartbeats.remove(self)

    # --- the consumer's thread ------------------------------------------------------------------

    def _attempt(self, topics: Topics) -> Callable[[], None] | None:
        """Take the next steps, up to one of which the consumer must be told; return that."""
        try:
            if self._phase == "stable":
                return self._stay(topics)
            if self._phase == "unjoined":
                self._join(topics)
            return self._await_assignment()
        except UNREADABLE as error:
            _log.warning("group not reachable", error=one_line(error))
            return None

    def _stay(self, topics: Topics) -> Callable[[], None] | None:
        """Look whether the group goes on as it is."""
        has_changed = topics != self._topics
        is_due = self._polled_ms - self._looked_ms >= _LOOK_MS or self._member.generation < 0
        if not has_changed and not is_due:
            return None
        group = self._look()
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
        """Look whether the generation that was joined is there; lead it where that is due."""
        group = self._look()
        mine = group.member(self._member.member_id)
        if mine is None:
            return partial(self._lose, self._member.removal(group))
        if mine in group.missing:
            # It has begun anew before this generation was stable.
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
        """Take what was assigned."""
        self._phase = "stable"
        _log.info("assigned", generation=self._member.generation, partitions=len(mine.assignment))
        self._on_assign(mine.assignment)

    def _revoke(self) -> None:
        """Give up what is assigned, to join the next generation."""
        self._on_revoke(False)
        self._phase = "unjoined"

    def _lose(self, removal: ProtocolError | None) -> None:
        """Go on as a new member, after the group has removed this one."""
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
        """Share the partitions among the members, as the leader of a new generation."""
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
        # Before anybody learns of the assignment: see `CommittedOffsets`.
        return self._member.assign(assignment) if self._fence(group, names) else self._look()

    def _fence(self, group: Group, partitions: Mapping[TopicIdPartition, str]) -> bool:
        """Refuse the commits of earlier members; return False where the group has gone on."""
        try:
            self._committed.fence(group.group_id, group.fence, partitions)
        except (ProtocolError, GroupChangedError):
            return False
        return True

    def _look(self) -> Group:
        self._looked_ms = self._polled_ms
        return self._member.look()

    # --- the heartbeats' thread -----------------------------------------------------------------

    def beating_id(self) -> str | None:
        """Return the member's id, `None` while it has no heartbeat to send; under the lock.

        A member that has not been polled for max.poll.interval.ms leaves the group.
        """
        if self._phase == "unjoined" or self._member.generation < 0:
            return None
        idle_ms = self._clock.monotonic_ms() - self._polled_ms
        if idle_ms <= self._config.max_poll_interval_ms:
            return self._member.member_id
        if self._config.group_instance_id is None:
            # Others shall read its partitions; of a static member its silence says the same.
            _log.warning("max.poll.interval.ms passed without a poll", idle_ms=idle_ms)
            self._member.leave()
        return None
