"""Abandoned creations of topics and partitions: claims, and partitions that are not visible.

An admin creates a topic, or further partitions of one, with three commits to two tables. An admin
that dies in between leaves a claim, and perhaps partitions that are not visible. The controller
removes both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cluster.metadata import CREATING, DELETED, GROWING, LIVE, Metadata
from sparklog.cluster.observations import Observations, is_silent
from sparklog.cluster.roots import ClusterRoot
from sparklog.logger import get_logger
from sparklog.model import PARTITION_STATE
from sparklog.storage.commits import Cause
from sparklog.storage.fence import Fence
from sparklog.storage.shard_rewrites import RowChanges
from sparklog.storage.shards import keys_of

_log = get_logger(__name__)

CREATION_TIMEOUT_MS = 60_000
"""Time limit for creating a topic, in ms: Kafka's default.api.timeout.ms of an admin client."""


def without_claims(topics: pa.Table, topic_ids: Collection[str]) -> pa.Table | None:
    """Return the rows of `topics` without these claims, or `None` if there are no such claims."""
    is_claim = pc.and_(_is_of(topics, topic_ids), _is_claim(topics))
    return _without(topics, is_claim)


def without_topics(partitions: pa.Table, topic_ids: Collection[str]) -> RowChanges:
    """Return the changes that remove the rows of these topics from `partition_state`."""
    removed = partitions.filter(_is_of(partitions, topic_ids))
    return RowChanges(
        PARTITION_STATE.columns.empty_table(), frozenset(keys_of(removed, PARTITION_STATE))
    )


def without_partitions_from(partitions: pa.Table, topic_id: str, first: int) -> RowChanges:
    """Return the changes that remove the rows of a topic's partitions from number `first` on."""
    is_removed = pc.and_(
        pc.equal(partitions["topic_id"], topic_id), pc.greater_equal(partitions["partition"], first)
    )
    removed = keys_of(partitions.filter(is_removed), PARTITION_STATE)
    return RowChanges(PARTITION_STATE.columns.empty_table(), frozenset(removed))


def with_known_topics(
    partitions: pa.Table,
    metadata: Metadata,
    elect: Callable[[pa.Table, Metadata], RowChanges | None],
) -> RowChanges | None:
    """Return the changes of an election over the partitions of the topics in `metadata`.

    Partitions that are being created are left out.
    """
    topics = list(metadata.topics.values())
    counts = _counts_of(partitions, {one.topic_id: one.partitions for one in topics})
    return elect(partitions.filter(pc.less(partitions["partition"], counts)), metadata)


class AbandonedTopics:
    """Finds and removes abandoned creations, timed on the controller's clock."""

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
        topics.update(
            lambda rows: (without_claims(rows, due), None),
            fence,
            Cause("REMOVE ABANDONED TOPICS", {"cause": "abandoned"}),
        )
        claimed = set(topics.rows()["topic_id"].to_pylist())
        left = [one for one in due if one not in claimed]

        def remove(rows: pa.Table) -> RowChanges:
            # Read after the rows: an admin stores partitions only while its claim is there.
            topics.refresh()
            removed = set(without_topics(rows, left).removed)
            for topic_id, first in _settled_topics(topics.rows(), due).items():
                removed |= without_partitions_from(rows, topic_id, first).removed
            return RowChanges(PARTITION_STATE.columns.empty_table(), frozenset(removed))

        self._cluster.partition_state.change_rows(
            remove, fence=fence, cause=Cause("REMOVE ABANDONED TOPICS", {"cause": "abandoned"})
        )
        _log.warning("abandoned topics removed", topic_ids=due)

    def _find(self) -> set[str]:
        """Return the ids of claims, and of topics with partitions that nobody sees.

        The partitions of a deleted topic count once the controller has cleaned up.
        """
        topics, partitions = self._cluster.topics, self._cluster.partition_state
        versions = topics.version, partitions.version
        if versions != self._versions:
            rows = topics.rows()
            claims = rows.filter(_is_claim(rows))["topic_id"].to_pylist()
            is_known = pc.not_equal(rows["state"], DELETED)
            known = set(rows.filter(is_known)["topic_id"].to_pylist())
            stored = partitions.rows()
            of_partitions = set(stored["topic_id"].unique().to_pylist())
            self._found = {*claims, *(of_partitions - known), *_with_surplus(rows, stored)}
            self._versions = versions
        return self._found

    def _is_abandoned(self, topic_id: str, now_ms: int) -> bool:
        since_ms = self._observations.observe(("abandoned", topic_id), True, now_ms)
        return is_silent(now_ms, since_ms=since_ms, timeout_ms=CREATION_TIMEOUT_MS)


def _is_claim(topics: pa.Table) -> pa.ChunkedArray[Any]:
    return pc.is_in(topics["state"], pa.array([CREATING, GROWING]))


def _with_surplus(topics: pa.Table, partitions: pa.Table) -> set[str]:
    """Return the ids of the topics with rows beyond their number of partitions, and no claim."""
    counts = _counts_of(partitions, _settled_topics(topics))
    surplus = partitions.filter(pc.greater_equal(partitions["partition"], counts))
    return set(surplus["topic_id"].to_pylist())


def _settled_topics(topics: pa.Table, topic_ids: Collection[str] | None = None) -> dict[str, int]:
    """Return the numbers of partitions of topics that no claim is about to raise, by id.

    Parameters: `topic_ids`, the topics to return; all by default.
    """
    claimed = topics.filter(pc.equal(topics["state"], GROWING))["topic"]
    settled = pc.and_(
        pc.equal(topics["state"], LIVE), pc.invert(pc.is_in(topics["topic"], claimed))
    )
    return {
        row["topic_id"]: row["partitions"]
        for row in topics.filter(settled).to_pylist()
        if topic_ids is None or row["topic_id"] in topic_ids
    }


def _counts_of(partitions: pa.Table, counts: Mapping[str, int]) -> pa.Array[Any]:
    """Return for each row the number in `counts` of its topic, or null."""
    found = pc.index_in(partitions["topic_id"], pa.array(list(counts), pa.string()))
    return pc.take(pa.array(list(counts.values()), pa.int32()), found)


def _is_of(rows: pa.Table, topic_ids: Collection[str]) -> pa.ChunkedArray:
    return pc.is_in(rows["topic_id"], pa.array(list(topic_ids), pa.string()))


def _without(rows: pa.Table, is_removed: pa.ChunkedArray) -> pa.Table | None:
    kept = rows.filter(pc.invert(is_removed))
    return kept if kept.num_rows < rows.num_rows else None
