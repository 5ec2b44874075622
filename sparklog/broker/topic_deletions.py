"""The controller's part in deleting topics: rows of the cluster root that are left of them.

An administrator's commit deletes a topic: its row becomes `deleting`. The controller then removes
its partitions and its committed offsets, and makes the row `deleted`: the record by which each
broker removes its replicas, also one that was away. After a crash another controller begins again.
"""

from __future__ import annotations

import json

import pyarrow.compute as pc

from sparklog.cluster.abandoned_topics import without_topics
from sparklog.cluster.metadata import DELETING
from sparklog.cluster.roots import ClusterRoot
from sparklog.cluster.topic_changes import cleaned_up
from sparklog.groups.committed_offsets import CommittedOffsets
from sparklog.logger import get_logger
from sparklog.storage.commits import Cause
from sparklog.storage.fence import Fence

_log = get_logger(__name__)


class TopicDeletions:
    """Finds deleted topics with rows in the cluster root, and removes these rows."""

    def __init__(self, cluster: ClusterRoot) -> None:
        self._cluster = cluster
        self._seen: tuple[int, int] | None = None

    def pending(self) -> frozenset[str]:
        """Return the ids of the topics whose rows are to be removed, as loaded last.

        Costs nothing if `topics` has not changed since the last call that returned none.
        """
        topics = self._cluster.topics
        state = topics.state
        if state == self._seen:
            return frozenset()
        rows = topics.rows()
        found = frozenset(rows.filter(pc.equal(rows["state"], DELETING))["topic_id"].to_pylist())
        if not found:
            self._seen = state
        return found

    def remove_partitions(self, topic_ids: frozenset[str], fence: Fence) -> None:
        """Remove the rows of `partition_state`."""
        self._cluster.partition_state.change_rows(
            lambda rows: without_topics(rows, topic_ids),
            fence=fence,
            cause=Cause("DELETE TOPICS", {"topicIds": json.dumps(sorted(topic_ids))}),
        )

    def remove_offsets(self, topic_ids: frozenset[str]) -> None:
        """Remove the committed offsets of all groups, as Kafka's coordinators do."""
        CommittedOffsets(self._cluster.consumer_offsets).remove_topics(topic_ids)

    def finish(self, topic_ids: frozenset[str], fence: Fence) -> None:
        """Make the rows of the topics records of their deletion."""
        topics = self._cluster.topics
        topics.take_fence(fence)
        topics.update(
            lambda rows: (cleaned_up(rows, topic_ids), None),
            fence,
            Cause("FINISH DELETIONS", {"topicIds": json.dumps(sorted(topic_ids))}),
        )
        _log.info("topics deleted", topic_ids=sorted(topic_ids))
