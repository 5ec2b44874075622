"""Commits of a consumer, on request and automatic, and seeks to its group's committed offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

from sparklog.clock import Clock
from sparklog.cluster.client_metrics import ClientMetrics
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import ConsumerConfig
from sparklog.consumer.assigned_partition import AssignedPartition
from sparklog.consumer.async_commits import AsyncCommits, CommitCallback
from sparklog.errors import AccessDeniedError, ProtocolError, UnreachableError
from sparklog.groups.committed_offsets import (
    CommittedOffsets,
    OffsetAndMetadata,
    check_no_member,
    commit_as_no_member,
)
from sparklog.groups.group import ConsumerGroups
from sparklog.logger import get_logger
from sparklog.model import TopicIdPartition
from sparklog.storage.errors import STORE_ERRORS, UNREADABLE
from sparklog.storage.location import one_line

if TYPE_CHECKING:
    from sparklog.groups.coordinator import ConsumerCoordinator

_log = get_logger(__name__)

GroupOffsets = Mapping[TopicIdPartition, tuple[str, OffsetAndMetadata]]
"""The offsets to commit, with the name of each topic."""


class ConsumerCommits:
    """The commits of one consumer.

    Without a group, INVALID_GROUP_ID is raised. `coordinator` is set while the consumer is a member
    of its group. `committed` and `groups` open the group's tables at their first use: a consumer
    without a group may not read them. `open_root` opens the cluster root for the thread of
    background commits.
    """

    def __init__(
        self,
        group_id: str | None,
        committed: Callable[[], CommittedOffsets],
        groups: Callable[[], ConsumerGroups],
        config: ConsumerConfig,
        clock: Clock,
        open_root: Callable[[], ClusterRoot],
    ) -> None:
        self.metrics = ClientMetrics(("commit", "rebalance"), ())
        """The totals of Kafka's `consumer-coordinator-metrics`."""
        self.coordinator: ConsumerCoordinator | None = None
        self._group_id = group_id
        self._committed = committed
        self._groups = groups
        self._config = config
        self._clock = clock
        self._background = AsyncCommits(group_id or "", open_root, clock, self.metrics)
        self._committed_ms = clock.monotonic_ms()

    @property
    def group_id(self) -> str:
        """The id of the group; raises INVALID_GROUP_ID without a group."""
        if self._group_id is None:
            raise ProtocolError("INVALID_GROUP_ID", "offsets are a group's: give a group_id")
        return self._group_id

    def find(self, key: TopicIdPartition) -> OffsetAndMetadata | None:
        """Return the group's committed offset of a partition, or `None`."""
        return self._committed().fetch(self.group_id).get(key)

    def commit(self, offsets: GroupOffsets) -> None:
        """Commit offsets, all or none; raises as `GroupMember.check` and `CommittedOffsets`.

        The commits that were requested before are finished first. Raises `UnreachableError` if the
        disk or store of the cluster root fails: it may be full. A later commit may succeed.
        """
        self.finish()
        try:
            if self.coordinator is not None:
                self.coordinator.commit(offsets)
            else:
                commit_as_no_member(self._groups(), self._committed(), self.group_id, offsets)
        except AccessDeniedError:
            raise
        except STORE_ERRORS as error:
            raise UnreachableError(
                f"offsets of group {self.group_id} were not committed: {one_line(error)}"
            ) from error
        self.metrics.add("commit")

    def commit_async(self, offsets: GroupOffsets, callback: CommitCallback | None) -> Future[None]:
        """Request a commit in the background; its future has the errors of `commit`."""
        group_id = self.group_id
        if self.coordinator is None:
            return self._background.submit(offsets, group_id, check_no_member, callback)
        member, check = self.coordinator.commit_check()
        return self._background.submit(offsets, member, check, callback)

    def call_back(self) -> None:
        """Call the callbacks of the background commits that are done."""
        self._background.call_back()

    def finish(self) -> None:
        """Wait for the background commits, and call their callbacks."""
        self._background.finish()

    def close(self) -> None:
        """Finish the background commits, and end their thread."""
        self._background.close()

    def commit_positions(self, partitions: Iterable[AssignedPartition]) -> None:
        """Commit the positions of these partitions; raises as `commit`."""
        self.commit(positions(partitions))

    def commit_if_due(self, partitions: Iterable[AssignedPartition]) -> None:
        """Commit positions automatically, auto.commit.interval.ms after the last attempt."""
        idle_ms = self._clock.monotonic_ms() - self._committed_ms
        if idle_ms >= self._config.auto_commit_interval_ms:
            self.commit_by_itself(partitions)

    def commit_by_itself(self, partitions: Iterable[AssignedPartition]) -> None:
        """Commit the positions that have moved, if enable.auto.commit is set; log a failure."""
        self._committed_ms = self._clock.monotonic_ms()
        if self._group_id is None or not self._config.enable_auto_commit:
            return
        moved = [one for one in partitions if one.position not in (None, one.auto_committed)]
        if not moved:
            return
        try:
            self.commit_positions(moved)
        except (ProtocolError, *UNREADABLE) as error:
            _log.warning("auto-commit failed", group=self._group_id, error=one_line(error))
        else:
            for one in moved:
                one.auto_committed = one.position

    def use(self, partitions: Collection[AssignedPartition]) -> None:
        """Seek to the group's committed offsets in the partitions with `wants_committed`.

        If the committed offsets cannot be read, the next call tries again.
        """
        new = [one for one in partitions if one.wants_committed]
        if not new:
            return
        try:
            committed = self._committed().fetch(self.group_id)
        except AccessDeniedError:
            raise
        except UNREADABLE as error:
            _log.warning("committed offsets not readable", error=one_line(error))
            return
        for one in new:
            one.wants_committed = False
            if one.key in committed:
                found = committed[one.key]
                one.seek(found.offset, found.leader_epoch)
                one.auto_committed = found.offset


def positions(partitions: Iterable[AssignedPartition]) -> GroupOffsets:
    """Return the positions of partitions as the offsets to commit."""
    return {
        one.key: (one.name.topic, OffsetAndMetadata(one.position, "", one.offset_epoch))
        for one in partitions
        if one.position is not None
    }
