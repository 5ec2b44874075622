"""The metadata of a cluster: its brokers, topics and partitions, loaded from the cluster root."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cluster.roots import ClusterRoot
from sparklog.config import TopicConfig, parse
from sparklog.errors import ProtocolError, StorageError
from sparklog.model import PARTITION_STATE, TopicIdPartition
from sparklog.states import LIVE_STATES
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.shards import ShardedRows, changed_units

LIVE: Final = "live"
CREATING: Final = "creating"
GROWING: Final = "growing"
DELETING: Final = "deleting"
DELETED: Final = "deleted"
"""The states of a topic's row; see `sparklog.states.TopicState`."""


class BrokerInfo(NamedTuple):
    """A broker as it is registered: a row of the table `brokers`.

    Attributes
    ----------
    broker_id : int
        The broker's id (broker.id).
    broker_epoch : int
        The number of its registration; it rises with each start of a broker (KIP-631).
    roots : tuple of str or None
        The URIs of its log directories (log.dirs), by number; `None` for a directory that log.dirs
        does not have now.
    rack : str or None
        Its rack (broker.rack).
    state : str
        alive, fenced, parked, stopping, stopped or unregistered.
    log_table_ids : tuple of str
        The ids of the `log` tables in its log directories.
    repair_requests : int
        The number of times that `sparklog repair` has given work in `repairs` to the broker.
    offline_log_dirs : tuple of str
        The ids of the log directories that have failed.
    heartbeat : int
        The number of changes that the broker has made to its row, its returns after a fencing
        among them.

    Examples
    --------
    >>> from sparklog import Connection
    >>> broker = Connection("sparklog-data/cluster").metadata().brokers[1]
    >>> broker.broker_id, broker.state, broker.rack
    (1, 'alive', None)
    """

    broker_id: int
    broker_epoch: int
    roots: tuple[str | None, ...]
    rack: str | None
    state: str
    log_table_ids: tuple[str, ...]
    repair_requests: int = 0
    offline_log_dirs: tuple[str, ...] = ()
    heartbeat: int = 0

    @property
    def online_roots(self) -> dict[int, str]:
        """The URIs of the log directories by number: those in log.dirs that have not failed."""
        return {
            number: uri
            for number, uri in enumerate(self.roots)
            if uri is not None and not self._has_failed(number)
        }

    def _has_failed(self, number: int) -> bool:
        return bool(self.offline_log_dirs) and self.log_table_ids[number] in self.offline_log_dirs

    def has_online(self, root: int) -> bool:
        """Return whether a log directory is in log.dirs and has not failed.

        Parameters
        ----------
        root : int
            The number of the log directory.

        Returns
        -------
        bool
            False also for a number that the broker never had.
        """
        return (
            root < len(self.roots) and self.roots[root] is not None and not self._has_failed(root)
        )

    @property
    def is_registered(self) -> bool:
        """Whether the broker is registered; an unregistered broker keeps its row and its epoch."""
        return self.state != "unregistered"

    @property
    def is_alive(self) -> bool:
        """Whether the broker may lead and be in sync; a parked broker may."""
        return self.state in LIVE_STATES

    @property
    def is_stopping(self) -> bool:
        """Whether the broker is about to stop and hands over the partitions that it leads."""
        return self.state == "stopping"

    @property
    def is_parked(self) -> bool:
        """Whether the broker is between two scheduled runs: it serves nothing before the next."""
        return self.state == "parked"

    @property
    def can_take_over(self) -> bool:
        """Whether the broker may be elected in place of one that is stopping."""
        return self.is_alive and not self.is_stopping and not self.is_parked


class TopicInfo(NamedTuple):
    """A topic and its own configuration.

    Attributes
    ----------
    topic_id : str
        The topic's id (KIP-516), which no later topic of the same name has.
    topic : str
        The name.
    partitions : int
        The number of partitions.
    replication_factor : int
        The number of replicas of each partition.
    config : TopicConfig
        The settings that the topic overrides.

    Examples
    --------
    >>> from sparklog import Connection
    >>> topic = Connection("sparklog-data/cluster").metadata().topic("clicks")
    >>> topic.partitions, topic.replication_factor
    (2, 3)
    """

    topic_id: str
    topic: str
    partitions: int
    replication_factor: int
    config: TopicConfig


class AssignedReplica(NamedTuple):
    """One replica of a partition, and its state.

    Attributes
    ----------
    broker_id : int
        The broker that has the replica.
    root : int
        The number of the broker's log directory with the replica.
    replica_index : int
        The position in the assignment; replica 0 is the preferred leader.
    in_isr : bool
        Whether it is in sync.
    in_elr : bool
        Whether it is an eligible leader (KIP-966).
    adding : bool
        Whether a reassignment is adding it (KIP-455).
    removing : bool
        Whether a reassignment is removing it (KIP-455).

    Examples
    --------
    >>> from sparklog import Connection
    >>> state = Connection("sparklog-data/cluster").metadata().partition("clicks", 0)
    >>> state.replicas[0].broker_id == state.leader, state.replicas[0].in_isr
    (True, True)
    """

    broker_id: int
    root: int
    replica_index: int
    in_isr: bool
    in_elr: bool
    adding: bool
    removing: bool


class RemovedReplica(NamedTuple):
    """The record of a replica that a reassignment has removed.

    Attributes
    ----------
    broker_id : int
        The broker that had the replica.
    root : int
        The number of the broker's log directory with the replica.
    leader_epoch : int
        The leader epoch that began with the removal; those of the replica are lower.

    Examples
    --------
    >>> from sparklog import Connection
    >>> Connection("sparklog-data/cluster").metadata().partition("clicks", 0).removed
    []
    """

    broker_id: int
    root: int
    leader_epoch: int


def removed_replicas(text: str | None) -> list[RemovedReplica]:
    """Return the records in `removed_replicas` of a row of `partition_state`."""
    return [RemovedReplica(*one) for one in json.loads(text)] if text else []


def with_removed(text: str | None, removed: Iterable[tuple[int, int, int]]) -> str | None:
    """Return `removed_replicas` with further records, one for each log directory of a broker."""
    records = {(one.broker_id, one.root): one for one in removed_replicas(text)}
    records |= {(one[0], one[1]): RemovedReplica(*one) for one in removed}
    return json.dumps(sorted(records.values())) if records else None


class PartitionState(NamedTuple):
    """The published state of a partition.

    Attributes
    ----------
    topic_id : str
        The id of the topic.
    topic : str
        The name of the topic.
    partition : int
        The number of the partition.
    leader : int or None
        The broker that leads it; `None` while it is offline.
    leader_broker_epoch : int
        The registration of the broker that was elected.
    leader_epoch : int
        The number of elections; it rises with each.
    partition_epoch : int
        The number of changes of this state; it rises with each.
    controller_epoch : int
        The epoch of the controller that made the last change.
    min_isr : int or None
        Its min.insync.replicas; `None` until a controller has published it.
    delete_records_offset : int or None
        The offset below which an administrator has requested to delete the records.
    delete_records_epoch : int or None
        The leader epoch of the record before that offset.
    removed_replicas : str or None
        The replicas that reassignments have removed, as JSON; see `removed`.
    replication_throttled_rate : int or None
        The bytes per second that a broker copies into adding replicas; `None` without a limit.
    replicas : tuple of AssignedReplica
        The replicas, in the order of the assignment.

    Examples
    --------
    >>> from sparklog import Connection
    >>> state = Connection("sparklog-data/cluster").metadata().partition("clicks", 0)
    >>> state.isr, state.min_isr
    ([0, 1, 2], 2)
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
    delete_records_offset: int | None
    delete_records_epoch: int | None
    removed_replicas: str | None
    replication_throttled_rate: int | None
    replicas: tuple[AssignedReplica, ...]

    @property
    def key(self) -> TopicIdPartition:
        """The key of the partition: its topic's id and its number."""
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def isr(self) -> list[int]:
        """The ids of the in-sync replicas, sorted."""
        return sorted(replica.broker_id for replica in self.replicas if replica.in_isr)

    @property
    def is_reassigning(self) -> bool:
        """Whether a reassignment of the partition is in progress (KIP-455)."""
        return any(one.adding or one.removing for one in self.replicas)

    @property
    def target(self) -> list[int]:
        """The ids of the brokers that keep or get a replica, in the order of the assignment."""
        return [one.broker_id for one in self.replicas if not one.removing]

    @property
    def removed(self) -> list[RemovedReplica]:
        """The replicas that reassignments have removed, as recorded for their brokers."""
        return removed_replicas(self.removed_replicas)

    def replica(self, broker_id: int) -> AssignedReplica | None:
        """Return the replica of this partition on a broker.

        Parameters
        ----------
        broker_id : int
            The id of the broker.

        Returns
        -------
        AssignedReplica or None
            `None` if the broker has no replica of it.
        """
        return next((one for one in self.replicas if one.broker_id == broker_id), None)


class Metadata(NamedTuple):
    """The metadata of a cluster; each part is one version of its table, loaded in turn.

    Attributes
    ----------
    brokers : mapping of int to BrokerInfo
        The brokers, by id.
    topics : mapping of str to TopicInfo
        The topics, by topic id.
    partitions : mapping of TopicIdPartition to PartitionState
        The partitions, by topic id and number.
    deleted : set of str
        The ids of deleted topics.

    Examples
    --------
    >>> from sparklog import Connection
    >>> metadata = Connection("sparklog-data/cluster").metadata()
    >>> sorted(metadata.brokers)
    [0, 1, 2]
    """

    brokers: Mapping[int, BrokerInfo]
    topics: Mapping[str, TopicInfo]
    partitions: Mapping[TopicIdPartition, PartitionState]
    deleted: AbstractSet[str] = frozenset()

    def is_live(self, replica: AssignedReplica) -> bool:
        """Return whether a replica may lead and be in sync.

        Parameters
        ----------
        replica : AssignedReplica
            A replica of a partition.

        Returns
        -------
        bool
            True if its broker is alive, and its log directory is online.
        """
        broker = self.brokers.get(replica.broker_id)
        return broker is not None and broker.is_alive and broker.has_online(replica.root)

    def topic(self, name: str) -> TopicInfo:
        """Return a topic by its name.

        Parameters
        ----------
        name : str
            The name of the topic.

        Returns
        -------
        TopicInfo
            The topic and its own configuration.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION if it does not exist.
        """
        for topic in self.topics.values():
            if topic.topic == name:
                return topic
        known = sorted(topic.topic for topic in self.topics.values())
        raise ProtocolError(
            "UNKNOWN_TOPIC_OR_PARTITION",
            f"there is no topic {name!r}; the topics are: {', '.join(known) or 'none yet'}",
        )

    def partition(self, topic: str, partition: int) -> PartitionState:
        """Return the state of a partition.

        Parameters
        ----------
        topic : str
            The name of the topic.
        partition : int
            The number of the partition.

        Returns
        -------
        PartitionState
            The state as the controller has published it.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION if it does not exist.
        """
        of_topic = self.topic(topic)
        state = self.partitions.get(TopicIdPartition(of_topic.topic_id, partition))
        if state is None:
            raise ProtocolError(
                "UNKNOWN_TOPIC_OR_PARTITION",
                f"topic {topic!r} has the partitions 0 to {of_topic.partitions - 1}, "
                f"not {partition}: name one of them",
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
            changed = {key: state for key, state in changed.items() if _is_visible(key, topics)}
            return _Partitions(rows, states, topics, _with_changed(self.visible, keys, changed))
        visible = {key: state for key, state in states.items() if _is_visible(key, topics)}
        return _Partitions(rows, states, topics, visible)


def _is_visible(key: TopicIdPartition, topics: Mapping[str, TopicInfo]) -> bool:
    """Whether a partition belongs to a topic: not while it, or the partition, is being created."""
    topic = topics.get(key.topic_id)
    return topic is not None and key.partition < topic.partitions


def _with_changed(states: _States, keys: Iterable[TopicIdPartition], changed: _States) -> _States:
    """Return `states` with the partitions in `keys` taken from `changed`, or else removed."""
    result = {**states, **changed}
    for key in keys:
        if key not in changed:
            result.pop(key, None)
    return result


class MetadataReader:
    """Loads `Metadata`, and reloads only the parts that have changed."""

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
        """The states of the metadata's tables; heartbeats, commits of journals, do not change them.

        Invariant: different metadata have different versions.
        """
        return self._versions

    def poll_ahead(self) -> None:
        """Request new commits from an object store without waiting; `load` applies them."""
        self.poll_ahead_at_partitions()
        for table in (self._cluster.topics, self._cluster.brokers):
            table.poll_ahead(to_end=True)

    def poll_ahead_at_partitions(self) -> None:
        """Request new commits of `partition_state` only; `load` requests those of other tables."""
        self._cluster.partition_state.poll_ahead(to_end=True)

    def load(self) -> Metadata:
        """Return the newest metadata; a part without changes is the same object as before.

        Raises `NewerFormatError` if the cluster was upgraded to a format that this process does not
        know.
        """
        cluster = self._cluster
        # Topics before partitions: a topic's row is written after them, and makes them visible.
        # Brokers last: a broker that lost its log registers before it raises the partition epochs.
        # A reader that sees those epochs ignores the broker's earlier reports (5.2).
        tables = (cluster.topics, cluster.partition_state, cluster.brokers)
        tables[0].refresh()
        if tables[1].refresh():
            # `brokers` may have been polled before this change.
            tables[2].poll_ahead(to_end=True)
        tables[2].refresh()
        loaded = (tables[0].state, tables[1].state, tables[2].state)
        if loaded == self._loaded:
            return self._metadata
        before = self._loaded or (None, None, None)
        brokers, topics, partitions, deleted = self._metadata
        if loaded[2] != before[2]:
            cluster.check_format()
            found = _brokers(cluster.brokers.rows().to_pylist())
            brokers = brokers if found == brokers else found
        if loaded[0] != before[0]:
            rows = cluster.topics.rows()
            topics, found_deleted = _topics(rows), deleted_topics(rows)
            deleted = deleted if found_deleted == deleted else found_deleted
        if loaded[:2] != before[:2]:
            # A single assignment, because threads may share a reader.
            self._partitions = self._partitions.at(cluster.partition_state.sharded_rows(), topics)
            partitions = self._partitions.visible
        if brokers is not self._metadata.brokers or self._versions is None:
            self._brokers_state = loaded[2]
        self._metadata = Metadata(brokers, topics, partitions, deleted)
        self._loaded = loaded
        self._versions = (self._brokers_state, *loaded[:2])
        return self._metadata

    @property
    def metadata(self) -> Metadata:
        """The metadata that was loaded last."""
        return self._metadata

    def location(self, broker_id: int, root: int) -> Location:
        """Return the location of the log directory number `root` of a broker.

        Raises `StorageError` if the broker is not registered, was restarted without the directory,
        or has announced its failure.
        """
        broker = self._metadata.brokers.get(broker_id)
        uri = broker.online_roots.get(root) if broker is not None else None
        if uri is None:
            if broker is not None and root < len(broker.roots) and broker.roots[root] is not None:
                raise StorageError(
                    f"log directory {broker.roots[root]} of broker {broker_id} has failed: repair "
                    "it, and restart the broker"
                )
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
            row.get("repair_requests") or 0,
            tuple(json.loads(row.get("offline_log_dirs") or "[]")),
            row["heartbeat"],
        )
        for row in rows
    }


def deleted_topics(topics: pa.Table) -> frozenset[str]:
    """Return the ids of the deleted topics in the rows of `topics`."""
    is_deleted = pc.is_in(topics["state"], pa.array([DELETING, DELETED]))
    return frozenset(topics.filter(is_deleted)["topic_id"].to_pylist())


def _topics(rows: pa.Table) -> dict[str, TopicInfo]:
    live = rows.filter(pc.equal(rows["state"], LIVE)).to_pylist()
    return {row["topic_id"]: topic_of(row) for row in live}


def topic_of(row: Mapping[str, Any]) -> TopicInfo:
    """Return the topic in a row of `topics`."""
    return TopicInfo(
        row["topic_id"],
        row["topic"],
        row["partitions"],
        row["replication_factor"],
        parse(TopicConfig, json.loads(row["configs"]), f"topic {row['topic']}"),
    )


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
