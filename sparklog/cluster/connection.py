"""A client's connection to a cluster: metadata, locations of replicas, visible offsets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparklog.cluster.metadata import Metadata, MetadataReader, PartitionState
from sparklog.cluster.naming import ClusterName, named_cluster
from sparklog.cluster.roots import ClusterRoot
from sparklog.errors import (
    DamagedError,
    ProtocolError,
    SparklogError,
    StorageError,
    TableReplacedError,
)
from sparklog.model import EpochEntry, TopicIdPartition
from sparklog.protocol.driver_rules import DriverRules
from sparklog.protocol.rules import Rules
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_snapshots import table_identity
from sparklog.storage.journal import Journal
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.parallel import map_in_parallel


class Visible(NamedTuple):
    """The offsets of a partition that a consumer may read.

    Invariant: log_start_offset <= visible offset < high_watermark.

    Attributes
    ----------
    state : PartitionState
        The state of the partition.
    location : Location
        The root of the replica that is read, the leader's by default.
    log_version : int
        The version of that root's log table.
    log_start_offset : int
        The earliest offset.
    high_watermark : int
        The offset after the last committed record.
    epochs : tuple of EpochEntry
        The leader's history of leader epochs, oldest first; empty until the leader has stored the
        partition.
    is_latest_known : bool
        False while a new leader's high watermark is below the start of its epoch. Records below
        `high_watermark` are committed then, but later ones may have been shown before (rule 10.2).

    Examples
    --------
    >>> from sparklog import Connection
    >>> connection = Connection("sparklog-data/cluster")
    >>> [visible] = connection.visible([connection.metadata().partition("clicks", 0)])
    >>> visible.log_start_offset, visible.high_watermark
    (0, 3)
    """

    state: PartitionState
    location: Location
    log_version: int
    log_start_offset: int
    high_watermark: int
    epochs: tuple[EpochEntry, ...] = ()
    is_latest_known: bool = True

    def check_latest(self) -> None:
        """Raise an error unless the high watermark is the latest offset (KIP-207).

        Raises
        ------
        ProtocolError
            OFFSET_NOT_AVAILABLE while a new leader has not caught up.
        """
        if not self.is_latest_known:
            raise _not_caught_up(self.state, "OFFSET_NOT_AVAILABLE")


class Connection:
    """A connection to a cluster, which reads its tables.

    Clients of one process may share a connection.

    Parameters
    ----------
    cluster : str or os.PathLike
        The path or URI of the cluster root, or the cluster's configuration file (*.yaml), which
        names the root and the storage options.
    storage_options : dict of str to dict, optional
        The options of object stores by URI prefix, in delta-rs's keys; the longest prefix applies.
        They take precedence over those of a configuration file. A value may refer to an environment
        variable, `${NAME}`, or to a file, `${file:/path}`, of the process that opens the store.
    rules : Rules, optional
        The engine of the rules; DuckDB in this process by default.

    Attributes
    ----------
    cluster : str
        The path or URI of the cluster root.
    storage_options : dict
        The options of object stores.
    settings : Settings or None
        The settings of the configuration file; `None` without one.

    Raises
    ------
    ConfigError
        The configuration file or a storage option is not usable, or the variable of a reference is
        not set.
    StorageError
        There is no cluster at that root.

    Examples
    --------
    >>> from sparklog import Connection
    >>> connection = Connection("sparklog-data/cluster")
    >>> state = connection.metadata().partition("clicks", 0)
    >>> state.replicas[0].broker_id in connection.metadata().brokers
    True
    """

    def __init__(
        self,
        cluster: ClusterName,
        *,
        storage_options: StorageOptions | None = None,
        rules: Rules | None = None,
    ) -> None:
        named = named_cluster(cluster, storage_options)
        self.cluster = named.root
        self.storage_options = named.storage_options
        self.settings = named.settings
        self.root = ClusterRoot(Location.of(self.cluster, self.storage_options), reopens=True)
        self.rules = rules or DriverRules()
        self._reader = MetadataReader(self.root, self.storage_options)
        self._polled_at = float("-inf")
        self._asked_at: float | None = None
        self._journals: dict[tuple[str, int | None], Journal] = {}
        self._tables: dict[tuple[str, str, int | None], ControlTable] = {}

    def metadata(self, max_age_ms: int = 0) -> Metadata:
        """Return the metadata: brokers, topics and the state of partitions.

        Parameters
        ----------
        max_age_ms : int, default 0
            The age in ms that the metadata may have on an object store. In a local folder they are
            always the newest.

        Returns
        -------
        Metadata
            The metadata as of one version of each table.

        Raises
        ------
        StorageError
            The cluster root is gone, or belongs to another cluster now.
        """
        now = time.monotonic()
        if not self.root.location.is_local and self._is_within(max_age_ms, self._polled_at):
            if self._asked_at is None and not self._is_within(max_age_ms / 2, self._polled_at):
                # Requested now, so that the next caller does not wait for the newer metadata.
                self._asked_at = now
                self._reader.poll_ahead()
            return self._reader.metadata
        asked_at, self._asked_at = self._asked_at, None
        try:
            if asked_at is None or not self._is_within(max_age_ms, asked_at):
                asked_at = now
                self._reader.poll_ahead()
            metadata = self._reader.load()
        except StorageError:
            self.root.check_in_place()
            raise
        self._polled_at = asked_at
        return metadata

    @staticmethod
    def _is_within(max_age_ms: float, since: float) -> bool:
        return (time.monotonic() - since) * 1000 < max_age_ms

    def leader_location(self, state: PartitionState) -> Location:
        """Return the root in which the partition's leader stores it.

        Parameters
        ----------
        state : PartitionState
            The state of the partition.

        Returns
        -------
        Location
            The log directory of the leader.

        Raises
        ------
        ProtocolError
            LEADER_NOT_AVAILABLE if the partition is offline, or if the log directory of its leader
            has failed and no other leader is elected yet.

        Examples
        --------
        >>> connection.leader_location(state).child("log").uri.endswith("/log")
        True
        """
        leader = state.replica(state.leader) if state.leader is not None else None
        if leader is None:
            raise ProtocolError(
                "LEADER_NOT_AVAILABLE",
                f"partition {state.partition} of topic {state.topic} is offline: bring back one "
                f"of its in-sync replicas ({', '.join(map(str, state.isr))}), or elect uncleanly",
            )
        broker = self._reader.metadata.brokers.get(leader.broker_id)
        if broker is not None and not broker.has_online(leader.root):
            raise ProtocolError(
                "LEADER_NOT_AVAILABLE",
                f"the log directory with partition {state.partition} of topic {state.topic} is "
                f"offline on its leader {leader.broker_id}: try again when another is elected",
            )
        return self._reader.location(leader.broker_id, leader.root)

    def replica_location(self, state: PartitionState, broker_id: int) -> Location:
        """Return the root in which a broker stores its replica of a partition.

        Parameters
        ----------
        state : PartitionState
            The state of the partition.
        broker_id : int
            The id of the broker.

        Returns
        -------
        Location
            The broker's log directory with the replica.

        Raises
        ------
        StorageError
            The broker has no replica of the partition, or is not registered with the root.
        """
        replica = state.replica(broker_id)
        if replica is None:
            raise StorageError(
                f"broker {broker_id} has no replica of partition {state.partition} of topic "
                f"{state.topic}: its replicas are on {[one.broker_id for one in state.replicas]}"
            )
        return self._reader.location(broker_id, replica.root)

    def visible(self, partitions: Iterable[PartitionState]) -> list[Visible]:
        """Return the readable offsets of each partition, up to the latest (rules 2.6, 7.7).

        Parameters
        ----------
        partitions : iterable of PartitionState
            The states of the partitions.

        Returns
        -------
        list of Visible
            One for each partition, in order.

        Raises
        ------
        ProtocolError
            The first error of a partition: LEADER_NOT_AVAILABLE if it is offline,
            OFFSET_NOT_AVAILABLE if its new leader has not caught up with the offsets that were
            shown before.

        Examples
        --------
        >>> [(one.log_start_offset, one.high_watermark) for one in connection.visible([state])]
        [(0, 3)]
        """
        found = []
        for one in self.fetchable(partitions).values():
            if isinstance(one, SparklogError):
                raise one
            one.check_latest()
            found.append(one)
        return found

    def fetchable(
        self,
        partitions: Iterable[PartitionState],
        refreshed: Mapping[Location, Journal] | None = None,
    ) -> dict[TopicIdPartition, Visible | SparklogError]:
        """Return the offsets that a fetch is served of each partition, or its error (2.6, 10.2).

        If a new leader has not caught up, the high watermark may be below offsets that were shown
        before, and `Visible.is_latest_known` is false.

        Parameters
        ----------
        partitions : iterable of PartitionState
            The states of the partitions.
        refreshed : mapping of Location to Journal, optional
            The journals of leaders that the caller has just refreshed; others are read.

        Returns
        -------
        dict of TopicIdPartition to Visible or SparklogError
            The errors are LEADER_NOT_AVAILABLE for an offline partition, OFFSET_NOT_AVAILABLE for
            one whose leader has not run in the current epoch, and `StorageError` for one whose
            leader is not registered.

        Raises
        ------
        StorageError, DeltaError, OSError
            The root of a leader cannot be read (`sparklog.storage.errors.UNREADABLE`).
        """
        found: dict[TopicIdPartition, Visible | SparklogError] = {}
        locations: dict[TopicIdPartition, Location] = {}
        asked = {state.key: state for state in partitions}
        for key, state in asked.items():
            try:
                locations[key] = self.leader_location(state)
            except SparklogError as error:
                found[key] = error
        states = {key: asked[key] for key in locations}
        if not states:
            return found
        journals = dict(refreshed or {})
        others = list(set(locations.values()) - journals.keys())
        is_local = all(location.is_local for location in others)
        read = map_in_parallel(self.journal, others, 0, is_local=is_local)
        journals |= zip(others, read, strict=True)
        rows = {key: journals[locations[key]].rows.get(key, {}) for key in states}
        # A row of another process than the elected one is outdated.
        is_elected = {
            key: bool(rows[key]) and rows[key]["broker_epoch"] == state.leader_broker_epoch
            for key, state in states.items()
        }
        epochs = {key: journals[locations[key]].epochs.get(key, ()) for key in states}
        are_first = self._are_first(
            {key: state for key, state in states.items() if not is_elected[key]}, locations
        )
        judged = self.rules.run(
            "visible_offsets",
            partitions=[
                {
                    "topic_id": key.topic_id,
                    "partition": key.partition,
                    "leader": state.leader,
                    "leader_epoch": state.leader_epoch,
                    "is_as_elected": is_elected[key] or key in are_first,
                    "reported_leader_epoch": _led_epoch(rows[key]) if is_elected[key] else None,
                    "high_watermark": rows[key].get("high_watermark"),
                    "log_start_offset": rows[key].get("log_start_offset"),
                    "epoch_start_offset": dict(epochs[key]).get(state.leader_epoch),
                }
                for key, state in states.items()
            ],
        )
        for row in judged:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            if row["error"] is not None:
                found[key] = _not_caught_up(states[key], row["error"])
                continue
            found[key] = Visible(
                states[key],
                locations[key],
                journals[locations[key]].version,
                row["log_start_offset"],
                row["high_watermark"],
                epochs[key],
                row["latest_error"] is None,
            )
        return {key: found[key] for key in asked}

    def journal(self, location: Location) -> Journal:
        """Return the journal of a broker root, at its newest version.

        Parameters
        ----------
        location : Location
            The broker root.

        Returns
        -------
        Journal
            The rows of its replicas, their batches and epochs.

        Raises
        ------
        StorageError
            The journal cannot be read.
        """
        is_open = (location.uri, self.registered_epoch(location)) in self._journals
        journal = self.opened_journal(location)
        if is_open or not location.is_local:
            # The list of a store by which it was opened may lag behind.
            try:
                journal.refresh()
            except DamagedError:
                # A checkpoint may have taken the place of the commit, as after a repair.
                self.release(location)
                journal = self.opened_journal(location)
        return journal

    def opened_journal(self, location: Location) -> Journal:
        """Return the journal of a broker root, at the version that was loaded last.

        Parameters
        ----------
        location : Location
            The broker root.

        Returns
        -------
        Journal
            The journal; it is opened at its newest version if it was not open.

        Raises
        ------
        StorageError
            The journal cannot be read.
        """
        of = (location.uri, self.registered_epoch(location))
        journal = self._journals.get(of)
        if journal is None:
            self.release(location)
            journal = self._journals[of] = Journal(location)
        return journal

    def release(self, location: Location) -> None:
        """Release the journal of a root that could not be read; the next read opens it again.

        Parameters
        ----------
        location : Location
            The broker root.
        """
        # Changed in place: threads that open the journals of other roots must not lose theirs.
        for of in [one for one in list(self._journals) if one[0] == location.uri]:
            self._journals.pop(of, None)

    def table(self, location: Location, schema: Any) -> ControlTable:
        """Return a table of a broker root, at its newest version.

        Parameters
        ----------
        location : Location
            The broker root.
        schema : TableSchema
            The schema of the table, from `sparklog.model`.

        Returns
        -------
        ControlTable
            The table, reloaded.

        Raises
        ------
        StorageError
            The table cannot be read.
        """
        of = (location.uri, schema.name, self.registered_epoch(location))
        if of not in self._tables:
            self._tables = {key: one for key, one in self._tables.items() if key[:2] != of[:2]}
            self._tables[of] = ControlTable(location, schema)
        try:
            self._tables[of].refresh()
        except TableReplacedError:
            # Its broker has recreated a table that was damaged.
            self._tables[of] = ControlTable(location, schema)
        return self._tables[of]

    def registered_epoch(self, location: Location) -> int | None:
        """Return the epoch of the broker that is registered with a root, as last loaded.

        Handles of the root's tables are valid for one broker epoch: a broker that registers again
        may have new tables under the old names.

        Parameters
        ----------
        location : Location
            The broker root.

        Returns
        -------
        int or None
            The broker epoch (KIP-631); `None` if no broker is registered with the root.
        """
        epochs = {
            root: broker.broker_epoch
            for broker in self._reader.metadata.brokers.values()
            for root in broker.roots
        }
        return epochs.get(location.uri)

    def _are_first(
        self,
        unreported: Mapping[TopicIdPartition, PartitionState],
        locations: Mapping[TopicIdPartition, Location],
    ) -> set[TopicIdPartition]:
        """Return the partitions, of which the leader has no row, that had no other leader so far.

        Their leaders have not run since. The metadata are loaded again, later than the journals: a
        leader that was deposed meanwhile may have removed its replica.
        """
        first = {key: one for key, one in unreported.items() if one.leader_epoch == 0}
        newest = self.metadata().partitions if first else {}
        return {
            key
            for key, state in first.items()
            if (found := newest.get(key)) is not None
            and (found.leader, found.leader_epoch) == (state.leader, 0)
            and self._is_as_elected(state, locations[key])
        }

    def _is_as_elected(self, state: PartitionState, location: Location) -> bool:
        """Return whether the leader is still the elected process and has the same log table."""
        assert state.leader is not None, "an offline partition was refused before"
        leader = self._reader.metadata.brokers[state.leader]
        is_same_process = leader.broker_epoch == state.leader_broker_epoch
        return is_same_process and table_identity(location.child("log"))[0] in leader.log_table_ids


def _led_epoch(row: Mapping[str, Any]) -> int:
    """Return the leader epoch in which a replica's row says that it leads, -1 if it follows.

    A leader that has to cut its log follows from then on, although its log is of the old epoch.
    """
    return int(row["leader_epoch"]) if row["role"] == "leader" else -1


def connection_of(
    given: Connection | ClusterName, storage_options: StorageOptions | None = None
) -> Connection:
    """Return the connection of a client: `given`, or a new one to the cluster that it names.

    Every client takes a cluster in these ways: a connection, a root, a configuration file, and
    storage options with the latter two. Raises `SparklogError` for any other, and as `Connection`
    does.
    """
    if not isinstance(given, Connection):
        return Connection(given, storage_options=storage_options)
    if storage_options is not None:
        raise SparklogError(
            "storage_options are given with a Connection, which has its own: give them to "
            "Connection, or name the cluster by its root or configuration file"
        )
    return given


def _not_caught_up(state: PartitionState, error: str) -> ProtocolError:
    return ProtocolError(
        error,
        f"the leader {state.leader} of partition {state.partition} of topic {state.topic} has yet "
        "to catch up with what was shown: try again",
    )
