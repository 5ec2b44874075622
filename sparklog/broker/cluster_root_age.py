"""Detection of a cluster root restored to an older state, before anything is written to it.

A broker's own roots carry epochs that the cluster root has given out. Invariant: the broker epoch
of a root's fence and the leader epochs of its replicas are at most those in the cluster root. An
older cluster root would give the same epochs out again, to other processes and leaders.

A topic that the cluster root does not know was created after its state, unless it is recorded as
deleted. An older root has no such record, since a deletion is final and a topic's id is not used
again. The version of `topics` by which a broker has removed replicas shows a root that is older
than the deletion: it would make the topic live again, without its records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparklog.cluster.metadata import deleted_topics
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.errors import StorageError
from sparklog.model import Row, TopicIdPartition
from sparklog.storage.commits import TOPICS_VERSION


def check_not_older(cluster: ClusterRoot, broker_id: int, roots: Sequence[BrokerRoot]) -> None:
    """Raise `StorageError` if an epoch or a topic of the broker's `roots` is ahead of `cluster`.

    `cluster` may have been opened before `roots`, and another process may have registered as the
    broker in between. So a cluster root that seems older is loaded again, now after the roots, and
    compared a second time.
    """
    if _evidence(cluster, broker_id, roots) is None:
        return
    cluster.brokers.refresh()
    cluster.partition_state.refresh()
    # After the partitions: a topic is recorded as deleted before its partitions are removed.
    cluster.topics.refresh()
    if evidence := _evidence(cluster, broker_id, roots):
        root, fact = evidence
        raise StorageError(
            f"the cluster root {cluster.location.uri} is older than {root.location.uri}: {fact}: "
            "restore the newest state of the cluster root"
        )


def _evidence(
    cluster: ClusterRoot, broker_id: int, roots: Sequence[BrokerRoot]
) -> tuple[BrokerRoot, str] | None:
    """Return the first root that is ahead of the loaded `cluster`, and in what, or None."""
    brokers = {row["broker_id"]: row for row in cluster.brokers.rows().to_pylist()}
    broker_epoch = brokers[broker_id]["broker_epoch"] if broker_id in brokers else 0
    leader_epochs = {
        TopicIdPartition(row["topic_id"], row["partition"]): row["leader_epoch"]
        for row in cluster.partition_state.rows().to_pylist()
    }
    deleted = deleted_topics(cluster.topics.rows())
    for root in roots:
        topics_version = root.log.held_by(TOPICS_VERSION) or 0
        if topics_version > cluster.topics.version:
            return root, (
                f"the root knows version {cluster.topics.version} of the table topics, and the "
                f"broker has removed replicas of deleted topics by version {topics_version}"
            )
        held = root.broker_epoch
        if held > broker_epoch:
            return root, (
                f"the root knows broker epoch {broker_epoch} of broker {broker_id}, and the broker "
                f"had {held}"
            )
        for row in _rows(root):
            key = TopicIdPartition(row["topic_id"], row["partition"])
            name = f"{row['topic']}-{row['partition']}"
            if key.topic_id in deleted:
                continue
            if key in leader_epochs and row["leader_epoch"] > leader_epochs[key]:
                return root, (
                    f"the root knows leader epoch {leader_epochs[key]} of {name}, and the broker "
                    f"had {row['leader_epoch']}"
                )
            if key not in leader_epochs and row["log_end_offset"] > row["log_start_offset"]:
                return root, (
                    f"the root knows no topic {row['topic']} with id {key.topic_id}, and the "
                    f"broker has records of {name}"
                )
    return None


def _rows(root: BrokerRoot) -> Iterable[Row]:
    """Return the rows of the replicas; none if they are damaged and therefore derived again."""
    return () if root.is_rebuilt else root.log.rows.values()
