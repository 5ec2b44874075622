"""What a cluster agrees on: its brokers, topics and partitions, as loaded from the cluster root."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from sparklog.config import TopicConfig, parse
from sparklog.errors import ProtocolError, StorageError
from sparklog.model import TopicIdPartition
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.roots import ClusterRoot


class BrokerInfo(NamedTuple):
    """A registered broker; `roots` are the URIs of its log directories, in order."""

    broker_id: int
    broker_epoch: int
    roots: tuple[str, ...]
    rack: str | None
    state: str
    log_table_ids: tuple[str, ...]

    @property
    def is_alive(self) -> bool:
        """Whether the broker may lead and be in sync; one between two scheduled runs may."""
        return self.state in ("alive", "parked", "stopping")

    @property
    def is_stopping(self) -> bool:
        """Whether the broker hands over what it leads, because it is about to stop."""
        return self.state == "stopping"

    @property
    def can_take_over(self) -> bool:
        """Whether the broker may be elected rather than one that is stopping."""
        return self.is_alive and not self.is_stopping


class TopicInfo(NamedTuple):
    """A topic and what it configures for itself."""

    topic_id: str
    topic: str
    partitions: int
    replication_factor: int
    config: TopicConfig


class AssignedReplica(NamedTuple):
    """One replica of a partition: the broker, which of its roots, and its standing."""

    broker_id: int
    root: int
    replica_index: int
    in_isr: bool
    in_elr: bool
    adding: bool
    removing: bool


class PartitionState(NamedTuple):
    """A partition as the controller published it; `leader` is `None` while it is offline."""

    topic_id: str
    topic: str
    partition: int
    leader: int | None
    leader_broker_epoch: int
    leader_epoch: int
    partition_epoch: int
    controller_epoch: int
    replicas: tuple[AssignedReplica, ...]

    @property
    def key(self) -> TopicIdPartition:
        """The partition, by its topic's id."""
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def isr(self) -> list[int]:
        """The ids of the in-sync replicas, sorted."""
        return sorted(replica.broker_id for replica in self.replicas if replica.in_isr)

    def replica(self, broker_id: int) -> AssignedReplica | None:
        """Return the replica that `broker_id` has of this partition."""
        return next((one for one in self.replicas if one.broker_id == broker_id), None)


class Metadata(NamedTuple):
    """A consistent enough look at the cluster: each part is one version of its table."""

    brokers: Mapping[int, BrokerInfo]
    topics: Mapping[str, TopicInfo]
    partitions: Mapping[TopicIdPartition, PartitionState]

    def topic(self, name: str) -> TopicInfo:
        """Return the topic called `name`; UNKNOWN_TOPIC_OR_PARTITION where there is none."""
        for topic in self.topics.values():
            if topic.topic == name:
                return topic
        known = sorted(topic.topic for topic in self.topics.values())
        raise ProtocolError(
            "UNKNOWN_TOPIC_OR_PARTITION",
            f"there is no topic {name!r}; the topics are: {', '.join(known) or 'none yet'}",
        )

    def partition(self, topic: str, partition: int) -> PartitionState:
        """Return a partition's state; UNKNOWN_TOPIC_OR_PARTITION where there is none."""
        of_topic = self.topic(topic)
        state = self.partitions.get(TopicIdPartition(of_topic.topic_id, partition))
        if state is None:
            raise ProtocolError(
                "UNKNOWN_TOPIC_OR_PARTITION",
                f"topic {topic!r} has the partitions 0 to {of_topic.partitions - 1}, "
                f"not {partition}",
            )
        return state


class MetadataReader:
    """Loads `Metadata`, and again only what has changed."""

    def __init__(self, cluster: ClusterRoot, storage_options: StorageOptions) -> None:
        self._cluster = cluster
        self._storage_options = storage_options
        self._loaded: tuple[int, int, int] | None = None
        self._versions: tuple[int, int, int] | None = None
        self._brokers_version = -1
        self._metadata = Metadata({}, {}, {})

    @property
    def versions(self) -> tuple[int, int, int] | None:
        """What changes whenever the metadata do; heartbeats alone change nothing."""
        return self._versions

    def load(self) -> Metadata:
        """Return the newest metadata; a part of which nothing is new is the same object."""
        cluster = self._cluster
        # Topics before partitions: a topic's row is written after them, and makes them visible.
        # Brokers last: one that lost its log registers first and raises the partition epochs then,
        # so that whoever sees those does not believe what it reported before (5.2).
        tables = (cluster.topics, cluster.partition_state, cluster.brokers)
        for table in tables:
            table.refresh()
        loaded = (tables[0].version, tables[1].version, tables[2].version)
        if loaded == self._loaded:
            return self._metadata
        before = self._loaded or (None, None, None)
        brokers, topics, partitions = self._metadata
        if loaded[2] != before[2]:
            found = _brokers(cluster.brokers.rows().to_pylist())
            brokers = brokers if found == brokers else found
        if loaded[0] != before[0]:
            topics = _topics(cluster.topics.rows().to_pylist())
        if loaded[:2] != before[:2]:
            states = _partitions(cluster.partition_state.rows().to_pylist())
            partitions = {key: state for key, state in states.items() if key.topic_id in topics}
        if brokers is not self._metadata.brokers or self._versions is None:
            self._brokers_version = loaded[2]
        self._metadata = Metadata(brokers, topics, partitions)
        self._loaded = loaded
        self._versions = (self._brokers_version, *loaded[:2])
        return self._metadata

    @property
    def metadata(self) -> Metadata:
        """What was loaded last."""
        return self._metadata

    def location(self, broker_id: int, root: int) -> Location:
        """Return where the log directory number `root` of a broker lies.

        Raises `StorageError` where the broker is not registered, or has come back without it.
        """
        broker = self._metadata.brokers.get(broker_id)
        if broker is None or root >= len(broker.roots):
            raise StorageError(
                f"broker {broker_id} is not registered with log directory number {root}: start it "
                "with all of its log.dirs, in their order"
            )
        return Location.of(broker.roots[root], self._storage_options)


def _brokers(rows: list[dict[str, Any]]) -> dict[int, BrokerInfo]:
    return {
        row["broker_id"]: BrokerInfo(
            row["broker_id"],
            row["broker_epoch"],
            tuple(json.loads(row["roots"])),
            row["rack"],
            row["state"],
            tuple(json.loads(row["log_table_id"] or "[]")),
        )
        for row in rows
    }


def _topics(rows: list[dict[str, Any]]) -> dict[str, TopicInfo]:
    return {
        row["topic_id"]: TopicInfo(
            row["topic_id"],
            row["topic"],
            row["partitions"],
            row["replication_factor"],
            parse(TopicConfig, json.loads(row["configs"]), f"topic {row['topic']}"),
        )
        for row in rows
        if row["state"] == "live"
    }


def _partitions(rows: list[dict[str, Any]]) -> dict[TopicIdPartition, PartitionState]:
    grouped: dict[TopicIdPartition, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        grouped[TopicIdPartition(row["topic_id"], row["partition"])].append(row)
    states = {}
    for key, members in grouped.items():
        members.sort(key=lambda row: row["replica_index"])
        first = members[0]
        replicas = tuple(
            AssignedReplica(*(row[name] for name in AssignedReplica._fields)) for row in members
        )
        states[key] = PartitionState._make(
            [*(first[name] for name in PartitionState._fields[:-1]), replicas]
        )
    return states
