"""Abandoned topic creations: claims on names, and partitions without a topic.

An admin creates a topic with three commits to two tables. An admin that dies in between leaves a
claim on the name, and perhaps partitions that are not visible. The controller removes both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cluster.metadata import CREATING, Metadata
from sparklog.cluster.observations import Observations, is_silent
from sparklog.cluster.roots import ClusterRoot
from sparklog.logger import get_logger
from sparklog.model import PARTITION_STATE
from sparklog.storage.fence import Fence
from sparklog.storage.shard_rewrites import RowChanges
from sparklog.storage.shards import keys_of

_log = get_logger(__name__)

CREATION_TIMEOUT_MS = 60_000
"""Time limit for creating a topic, in ms: Kafka's default.api.timeout.ms of an admin client."""


def without_claims(topics: pa.Table, topic_ids: Collection[str]) -> pa.Table | None:
    """Return the rows of `topics` without these claims, or `None` if there are no such claims."""
    is_claim = pc.and_(_is_of(topics, topic_ids), pc.equal(topics["state"], CREATING))
    return _without(topics, is_claim)


def without_topics(partitions: pa.Table, topic_ids: Collection[str]) -> RowChanges:
    """Return the changes that remove the rows of these topics from `partition_state`."""
    removed = partitions.filter(_is_of(partitions, topic_ids))
    return RowChanges(
        PARTITION_STATE.columns.empty_table(), frozenset(keys_of(removed, PARTITION_STATE))
    )


def with_known_topics(
    partitions: pa.Table,
    metadata: Metadata,
    elect: Callable[[pa.Table, Metadata], RowChanges | None],
) -> RowChanges | None:
    """Return the changes of an election over the partitions whose topics are in `metadata`."""
    return elect(partitions.filter(_is_of(partitions, metadata.topics)), metadata)


class AbandonedTopics:
    """Finds and removes abandoned topic creations, timed on the controller's clock."""

    def __init__(self, cluster: ClusterRoot, observations: Observations) -> None:
        self._cluster = cluster
        self._observations = observations
        self._versions: tuple[int, int] | None = None
        self._found: set[str] = set()

    def remove(self, now_ms: int, fence: Fence) -> None:
        """Remove creations that were unfinished for longer than `CREATION_TIMEOUT_MS` at `now_ms`.

        The claim is removed first: without it the admin cannot make its partitions visible.
        """
        due = [one for one in self._find() if self._is_abandoned(one, now_ms)]
        if not due:
            return
        topics = self._cluster.topics
        # The fence is taken here and not with the lease: removals are rare, and a failover is one
        # commit shorter.
        topics.take_fence(fence)
        topics.update(lambda rows: (without_claims(rows, due), None), fence)
        claimed = set(topics.rows()["topic_id"].to_pylist())
        left = [one for one in due if one not in claimed]
        self._cluster.partition_state.change_rows(
            lambda rows: without_topics(rows, left), fence=fence
        )
        _log.warning("abandoned topics removed", topic_ids=left)

    def _find(self) -> set[str]:
        """Return the ids of claims, and of partitions without a topic, in the loaded tables."""
        topics, partitions = self._cluster.topics, self._cluster.partition_state
        versions = topics.version, partitions.version
        if versions != self._versions:
            rows = topics.rows()
            claims = rows.filter(pc.equal(rows["state"], CREATING))["topic_id"].to_pylist()
            known = set(rows["topic_id"].to_pylist())
            of_partitions = set(partitions.rows()["topic_id"].unique().to_pylist())
            self._found = {*claims, *(of_partitions - known)}
            self._versions = versions
        return self._found

    def _is_abandoned(self, topic_id: str, now_ms: int) -> bool:
        since_ms = self._observations.observe(("abandoned", topic_id), True, now_ms)
        return is_silent(now_ms, since_ms=since_ms, timeout_ms=CREATION_TIMEOUT_MS)


def _is_of(rows: pa.Table, topic_ids: Collection[str]) -> pa.ChunkedArray:
    return pc.is_in(rows["topic_id"], pa.array(list(topic_ids), pa.string()))


def _without(rows: pa.Table, is_removed: pa.ChunkedArray) -> pa.Table | None:
    kept = rows.filter(pc.invert(is_removed))
    return kept if kept.num_rows < rows.num_rows else None
