"""A client's connection to a cluster: who leads what, where it lies, what may be seen."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from sparklog.config import is_configuration_file, load_either
from sparklog.errors import ProtocolError, SparklogError, StorageError, TableReplacedError
from sparklog.model import EpochEntry, TopicIdPartition
from sparklog.protocol.driver_rules import DriverRules
from sparklog.protocol.rules import Rules
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log import table_identity
from sparklog.storage.journal import Journal
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.metadata import Metadata, MetadataReader, PartitionState
from sparklog.storage.roots import ClusterRoot


class Visible(NamedTuple):
    """What a consumer may see of a partition: log_start_offset <= offset < high_watermark.

    `location` and `log_version` say where: the log table of the leader, at that version; `epochs`
    is its leader-epoch history, oldest first, empty for a partition that it has yet to write down.
    `is_latest_known` is false while a new leader's high watermark is below the start of its epoch:
    records up to `high_watermark` are committed, and more may have been shown before (rule 10.2).
    """

    state: PartitionState
    location: Location
    log_version: int
    log_start_offset: int
    high_watermark: int
    epochs: tuple[EpochEntry, ...] = ()
    is_latest_known: bool = True

    def check_latest(self) -> None:
        """Raise OFFSET_NOT_AVAILABLE unless the high watermark is the latest offset (KIP-207)."""
        if not self.is_latest_known:
            raise _not_caught_up(self.state, "OFFSET_NOT_AVAILABLE")


class Connection:
    """A connection to the cluster whose root is at `cluster` (a path or URI).

    Clients of one process may share one. Raises `StorageError` where there is no cluster.
    """

    def __init__(
        self,
        cluster: str | os.PathLike[str],
        *,
        storage_options: StorageOptions | None = None,
        rules: Rules | None = None,
    ) -> None:
        if not isinstance(cluster, str | os.PathLike):
            raise SparklogError(
                f"a cluster is named by its root, a path or URI, not by {cluster!r}: give a "
                "Connection or the root"
            )
        self.cluster = os.fspath(cluster)
        self.storage_options = storage_options
        self.root = ClusterRoot(Location.of(self.cluster, storage_options), reopens=True)
        self.rules = rules or DriverRules()
        self._reader = MetadataReader(self.root, storage_options or {})
        self._looked_at = float("-inf")
        self._asked_at: float | None = None
        self._journals: dict[tuple[str, int | None], Journal] = {}
        self._tables: dict[tuple[str, str, int | None], ControlTable] = {}

    def metadata(self, max_age_ms: int = 0) -> Metadata:
        """Return the newest metadata, or on an object store what was looked up `max_age_ms` ago.

        Raises `StorageError` where the cluster's root is gone, or another cluster's by now.
        """
        now = time.monotonic()
        if not self.root.location.is_local and self._is_within(max_age_ms, self._looked_at):
            if self._asked_at is None and not self._is_within(max_age_ms / 2, self._looked_at):
                # The next caller does not wait for the newer ones.
                self._asked_at = now
                self._reader.look_ahead()
            return self._reader.metadata
        asked_at, self._asked_at = self._asked_at, None
        try:
            if asked_at is None or not self._is_within(max_age_ms, asked_at):
                asked_at = now
                self._reader.look_ahead()
            metadata = self._reader.load()
        except StorageError:
            self.root.check_in_place()
            raise
        self._looked_at = asked_at
        return metadata

    @staticmethod
    def _is_within(max_age_ms: float, since: float) -> bool:
        return (time.monotonic() - since) * 1000 < max_age_ms

    def leader_location(self, state: PartitionState) -> Location:
        """Return the root in which the partition's leader keeps it.

        Raises LEADER_NOT_AVAILABLE where the partition is offline.
        """
        leader = state.replica(state.leader) if state.leader is not None else None
        if leader is None:
            raise ProtocolError(
                "LEADER_NOT_AVAILABLE",
                f"partition {state.partition} of topic {state.topic} is offline: bring back one "
                f"of its in-sync replicas ({', '.join(map(str, state.isr))}), or elect uncleanly",
            )
        return self._reader.location(leader.broker_id, leader.root)

    def replica_location(self, state: PartitionState, broker_id: int) -> Location:
        """Return the root in which a broker keeps its replica of a partition.

        Raises `StorageError` where the broker is not registered with it.
        """
        replica = state.replica(broker_id)
        if replica is None:
            raise StorageError(
                f"broker {broker_id} has no replica of partition {state.partition} of topic "
                f"{state.topic}: its replicas are on {[one.broker_id for one in state.replicas]}"
            )
        return self._reader.location(broker_id, replica.root)

    def visible(self, partitions: Iterable[PartitionState]) -> list[Visible]:
        """Return the offsets to read of each partition up to the latest (rules 2.6, 7.7).

        Raises LEADER_NOT_AVAILABLE for an offline partition, OFFSET_NOT_AVAILABLE for one whose
        new leader has not caught up with what was shown.
        """
        found = self.fetchable(partitions)
        for one in found:
            one.check_latest()
        return found

    def fetchable(self, partitions: Iterable[PartitionState]) -> list[Visible]:
        """Return the offsets that a fetch is served of each partition (rules 2.6, 10.2).

        The high watermark of a partition whose new leader has not caught up may be below what was
        shown before: `Visible.is_latest_known` is false. Raises LEADER_NOT_AVAILABLE for an offline
        partition, OFFSET_NOT_AVAILABLE for one whose leader has not run in the current epoch.
        """
        states = {state.key: state for state in partitions}
        locations = {key: self.leader_location(state) for key, state in states.items()}
        journals = {location: self.journal(location) for location in set(locations.values())}
        rows = {key: journals[locations[key]].rows.get(key, {}) for key in states}
        # A row of another process than the one that was elected tells of the past.
        is_elected = {
            key: bool(rows[key]) and rows[key]["broker_epoch"] == state.leader_broker_epoch
            for key, state in states.items()
        }
        epochs = {key: journals[locations[key]].epochs.get(key, ()) for key in states}
        judged = self.rules.run(
            "visible_offsets",
            partitions=[
                {
                    "topic_id": key.topic_id,
                    "partition": key.partition,
                    "leader": state.leader,
                    "leader_epoch": state.leader_epoch,
                    "is_as_elected": is_elected[key] or self._is_as_elected(state, locations[key]),
                    "reported_leader_epoch": rows[key]["leader_epoch"] if is_elected[key] else None,
                    "high_watermark": rows[key].get("high_watermark"),
                    "log_start_offset": rows[key].get("log_start_offset"),
                    "epoch_start_offset": dict(epochs[key]).get(state.leader_epoch),
                }
                for key, state in states.items()
            ],
        )
        visible = {}
        for row in judged:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            if row["error"] is not None:
                raise _not_caught_up(states[key], row["error"])
            visible[key] = Visible(
                states[key],
                locations[key],
                journals[locations[key]].version,
                row["log_start_offset"],
                row["high_watermark"],
                epochs[key],
                row["latest_error"] is None,
            )
        return [visible[key] for key in states]

    def journal(self, location: Location) -> Journal:
        """Return the journal of a broker root, at its newest version.

        Raises `StorageError` where it cannot be read.
        """
        journal = self._journals.get((location.uri, self.registered_epoch(location)))
        if journal is None:
            return self.opened_journal(location)
        journal.refresh()
        return journal

    def opened_journal(self, location: Location) -> Journal:
        """Return the journal of a broker root at the version to which it was last brought."""
        of = (location.uri, self.registered_epoch(location))
        journal = self._journals.get(of)
        if journal is None:
            self._journals = {key: one for key, one in self._journals.items() if key[0] != of[0]}
            journal = self._journals[of] = Journal(location)
        return journal

    def let_go(self, location: Location) -> None:
        """Open a root's journal anew when it is read again: this one could not be read."""
        self._journals = {of: one for of, one in self._journals.items() if of[0] != location.uri}

    def table(self, location: Location, schema: Any) -> ControlTable:
        """Return a table of a broker root, at its newest version."""
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
        """Return the epoch of the broker that is registered with this root, as last loaded.

        Handles of its tables belong to it: a broker that registers anew may have new tables under
        the old names.
        """
        epochs = {
            root: broker.broker_epoch
            for broker in self._reader.metadata.brokers.values()
            for root in broker.roots
        }
        return epochs.get(location.uri)

    def _is_as_elected(self, state: PartitionState, location: Location) -> bool:
        """Say whether the leader is the process that was elected, over the tables it had."""
        assert state.leader is not None, "an offline partition was refused before"
        leader = self._reader.metadata.brokers[state.leader]
        is_same_process = leader.broker_epoch == state.leader_broker_epoch
        return is_same_process and table_identity(location.child("log"))[0] in leader.log_table_ids


def connection_of(given: Connection | str | os.PathLike[str]) -> Connection:
    """Return `given` if it is a connection, else one to the cluster root that it names."""
    return given if isinstance(given, Connection) else Connection(given)


def connect(cluster: str) -> Connection:
    """Connect to the cluster whose root (a path or URI) or configuration file is `cluster`.

    The configuration file, *.yaml, says which options the stores need. Raises `ConfigError` where
    it is not usable, `StorageError` where there is no cluster.
    """
    root, storage_options = named_cluster(cluster)
    return Connection(root, storage_options=storage_options)


def named_cluster(cluster: str) -> tuple[str, StorageOptions]:
    """Return the root (a path or URI) and the stores' options of the cluster that is named.

    Raises `ConfigError` where it is named by a configuration file that is not usable.
    """
    if not is_configuration_file(cluster):
        return cluster, {}
    config = load_either(cluster)
    return config.cluster_root, config.storage_options


def _not_caught_up(state: PartitionState, error: str) -> ProtocolError:
    return ProtocolError(
        error,
        f"the leader {state.leader} of partition {state.partition} of topic {state.topic} has yet "
        "to catch up with what was shown: try again",
    )
