"""What a cluster agrees on: its brokers, topics and partitions, as loaded from the cluster root."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparklog.config import TopicConfig, parse
from sparklog.errors import ProtocolError, StorageError
from sparklog.model import PARTITION_STATE, TopicIdPartition
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.roots import ClusterRoot
from sparklog.storage.shards import ShardedRows, changed_units

LIVE, CREATING = "live", "creating"
"""The states of a topic's row: a topic, or an admin's claim on the name of one to be created."""


class BrokerInfo(NamedTuple):
    """A registered broker; `roots` are the URIs of its log directories, by their numbers.

    A directory that log.dirs does not have now is `None` in `roots`.
    """

    broker_id: int
    broker_epoch: int
    roots: tuple[str | None, ...]
    rack: str | None
    state: str
    log_table_ids: tuple[str, ...]

    @property
    def online_roots(self) -> dict[int, str]:
        """The URIs of the log directories that the broker has now, by their numbers."""
        return {number: uri for number, uri in enumerate(self.roots) if uri is not None}

    @property
    def is_registered(self) -> bool:
        """Whether the broker was not unregistered; its row stays, with its epoch."""
        return self.state != "unregistered"

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
    """A partition as the controller published it; `leader` is `None` while it is offline.

    `min_isr` is its min.insync.replicas, `None` until a controller has published it.
    """

    topic_id: str
    topic: str
    partition: int
    leader: int | None
    leader_broker_epoch: int
    leader_epoch: int
    partition_epoch: int
    controller_epoch: int
    min_isr: int | None
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


Versions = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""The states of `brokers`, `topics` and `partition_state`; see `ControlTable.state`."""


_States = Mapping[TopicIdPartition, PartitionState]


class _Partitions(NamedTuple):
    """The states of all partitions in some rows; `visible` are those whose topic is in `topics`."""

    rows: ShardedRows
    states: _States
    topics: Mapping[str, TopicInfo]
    visible: _States

    def at(self, rows: ShardedRows, topics: Mapping[str, TopicInfo]) -> _Partitions:
        """Return the states in newer rows; an unchanged partition keeps its object.

        Only the rows of changed partitions are converted.
        """
        keys = {TopicIdPartition(*unit) for unit in changed_units(self.rows, rows)}
        changed = _partitions(rows.rows_of(keys).to_pylist())
        states = _with_changed(self.states, keys, changed)
        if topics is self.topics:
            changed = {key: state for key, state in changed.items() if key.topic_id in topics}
            return _Partitions(rows, states, topics, _with_changed(self.visible, keys, changed))
        visible = {key: state for key, state in states.items() if key.topic_id in topics}
        return _Partitions(rows, states, topics, visible)


def _with_changed(states: _States, keys: Iterable[TopicIdPartition], changed: _States) -> _States:
    """Return `states` with those of `keys` as in `changed`, without those that are not there."""
    result = {**states, **changed}
    for key in keys:
        if key not in changed:
            result.pop(key, None)
    return result


class MetadataReader:
    """Loads `Metadata`, and again only what has changed."""

    def __init__(self, cluster: ClusterRoot, storage_options: StorageOptions) -> None:
        self._cluster = cluster
        self._storage_options = storage_options
        self._loaded: Versions | None = None
        self._versions: Versions | None = None
        self._brokers_state = (0, -1)
        self._metadata = Metadata({}, {}, {})
        self._partitions = _Partitions(ShardedRows({}, PARTITION_STATE), {}, {}, {})

    @property
    def versions(self) -> Versions | None:
        """What changes whenever the metadata do; heartbeats alone change nothing."""
        return self._versions

    def look_ahead(self) -> None:
        """Ask an object store for what is new beside the caller; `load` takes it."""
        self.look_ahead_at_partitions()
        for table in (self._cluster.topics, self._cluster.brokers):
            table.look_ahead(to_end=True)

    def look_ahead_at_partitions(self) -> None:
        """Ask for what is new of the partitions only; `load` asks for the rest if there is any."""
        self._cluster.partition_state.look_ahead(to_end=True)

    def load(self) -> Metadata:
        """Return the newest metadata; a part of which nothing is new is the same object."""
        cluster = self._cluster
        # Topics before partitions: a topic's row is written after them, and makes them visible.
        # Brokers last: one that lost its log registers first and raises the partition epochs then,
        # so that whoever sees those does not believe what it reported before (5.2).
        tables = (cluster.topics, cluster.partition_state, cluster.brokers)
        tables[0].refresh()
        if tables[1].refresh():
            # The brokers may have been seen before this change.
            tables[2].look_ahead(to_end=True)
        tables[2].refresh()
        loaded = (tables[0].state, tables[1].state, tables[2].state)
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
            # One assignment: threads may share a reader.
            self._partitions = self._partitions.at(cluster.partition_state.sharded_rows(), topics)
            partitions = self._partitions.visible
        if brokers is not self._metadata.brokers or self._versions is None:
            self._brokers_state = loaded[2]
        self._metadata = Metadata(brokers, topics, partitions)
        self._loaded = loaded
        self._versions = (self._brokers_state, *loaded[:2])
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
        uri = broker.online_roots.get(root) if broker is not None else None
        if uri is None:
            raise StorageError(
                f"broker {broker_id} is not registered with log directory number {root}: start it "
                "with all of its log.dirs"
            )
        return Location.of(uri, self._storage_options)


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
        if row["state"] == LIVE
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
