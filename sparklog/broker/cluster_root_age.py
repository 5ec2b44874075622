"""Detection of a cluster root restored to an older state, before anything is written to it.

A broker's own roots carry epochs that the cluster root has given out. Invariant: the broker epoch
of a root's fence and the leader epochs of its replicas are at most those in the cluster root. An
older cluster root would give the same epochs out again, to other processes and leaders.

A topic that the cluster root does not know was created after its state, unless it is recorded as
deleted. An older root has no such record, since a deletion is final and a topic's id is not used
again. The version of `topics` by which a broker has removed replicas shows a root that is older
than the deletion: it would make the topic live again, without its records. The version of
`partition_state` shows the same of replicas that a reassignment has removed.

The journals of all brokers carry the versions of the cluster root's tables that were seen. A
cluster root without the newest commits may have the same epochs, but other in-sync sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparklog.broker.restored_roots import Witness
from sparklog.broker.unclean_start import may_have_lost_files
from sparklog.cluster.metadata import deleted_topics
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.errors import StorageError
from sparklog.model import Row, TopicIdPartition
from sparklog.storage.commits import PARTITIONS_VERSION, TOPICS_VERSION
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location


def check_not_older(
    cluster: ClusterRoot,
    broker_id: int,
    roots: Sequence[BrokerRoot],
    found: Sequence[Witness] = (),
) -> None:
    """Raise `StorageError` if an epoch or a topic of the broker's `roots` is ahead of `cluster`.

    Raises it also if a journal has seen a later version of one of its tables; `found` are the
    journals that were read.

    `cluster` may have been opened before `roots`, and another process may have registered as the
    broker in between. A table that seems older is therefore loaded again, after the roots, and
    compared a second time.
    """

    def evidence() -> tuple[Location, str] | None:
        return _evidence(cluster, broker_id, roots) or _later_versions(cluster, found)

    if evidence() is None:
        return
    for table in _followed(cluster).values():
        table.refresh()
    # After the partitions: a topic is recorded as deleted before its partitions are removed.
    cluster.topics.refresh()
    if of := evidence():
        root, fact = of
        raise StorageError(
            f"the cluster root {cluster.location.uri} is older than {root.uri}: {fact}: "
            "restore the newest state of the cluster root"
        )


def seen_tables(cluster: ClusterRoot) -> dict[str, int]:
    """Return the loaded versions of the tables that every broker follows, as it has seen them."""
    return {name: table.version for name, table in _followed(cluster).items()}


def _followed(cluster: ClusterRoot) -> dict[str, ControlTable]:
    tables = cluster.brokers, cluster.topics, cluster.partition_state
    return {table.schema.name: table for table in tables}


def _later_versions(cluster: ClusterRoot, found: Sequence[Witness]) -> tuple[Location, str] | None:
    """Return the first journal that has seen a later version of a table, and which, or `None`.

    After another boot of the machine the newest commit may be missing that others had read before
    it was synced.
    """
    for one in found:
        is_unsynced = may_have_lost_files(one.boot_id, cluster.location)
        for name, table in _followed(cluster).items():
            seen = one.seen.tables.get(name, -1)
            if table.version < seen - is_unsynced:
                return one.root, (
                    f"its table {name} has version {table.version}, and broker {one.broker_id} "
                    f"has seen version {seen}"
                )
    return None


def _evidence(
    cluster: ClusterRoot, broker_id: int, roots: Sequence[BrokerRoot]
) -> tuple[Location, str] | None:
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
            return root.location, (
                f"the root knows version {cluster.topics.version} of the table topics, and the "
                f"broker has removed replicas of deleted topics by version {topics_version}"
            )
        partitions_version = root.log.held_by(PARTITIONS_VERSION) or 0
        if partitions_version > cluster.partition_state.version:
            return root.location, (
                f"the root knows version {cluster.partition_state.version} of the table "
                "partition_state, and the broker has removed reassigned replicas by version "
                f"{partitions_version}"
            )
        held = root.broker_epoch
        if held > broker_epoch:
            return root.location, (
                f"the root knows broker epoch {broker_epoch} of broker {broker_id}, and the broker "
                f"had {held}"
            )
        for row in _rows(root):
            key = TopicIdPartition(row["topic_id"], row["partition"])
            name = f"{row['topic']}-{row['partition']}"
            if key.topic_id in deleted:
                continue
            if key in leader_epochs and row["leader_epoch"] > leader_epochs[key]:
                return root.location, (
                    f"the root knows leader epoch {leader_epochs[key]} of {name}, and the broker "
                    f"had {row['leader_epoch']}"
                )
            if key not in leader_epochs and row["log_end_offset"] > row["log_start_offset"]:
                return root.location, (
                    f"the root knows no topic {row['topic']} with id {key.topic_id}, and the "
                    f"broker has records of {name}"
                )
    return None


def _rows(root: BrokerRoot) -> Iterable[Row]:
    """Return the rows of the replicas; none if they are damaged and therefore derived again."""
    return () if root.is_rebuilt else root.log.rows.values()
