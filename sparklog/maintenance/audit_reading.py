"""The reading of a cluster for an audit, in an order that allows comparison during ticks.

Log end offsets and reports only increase, and an in-sync replica has all records below any high
watermark so far. The order is therefore: high watermarks, in-sync replicas, reports, logs, epoch
histories. A change during the reading makes a later value larger. Only a truncation makes a value
smaller, and it is short: apparent inconsistencies are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from sparklog.cluster.connection import Connection
from sparklog.cluster.metadata import PartitionState
from sparklog.errors import AccessDeniedError, DamagedError
from sparklog.maintenance.table_work import online_broker_roots
from sparklog.model import (
    BROKER_TABLES,
    CLUSTER_TABLES,
    FORMAT,
    LOG,
    PRODUCE_REQUESTS,
    Batch,
    EpochEntry,
    Row,
    TableSchema,
    TopicIdPartition,
)
from sparklog.storage.control_table import ControlTable
from sparklog.storage.errors import UNREADABLE_CONTENT
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.record_log import RecordLog

_Row = dict[str, Any]
_Rows = Mapping[TopicIdPartition, Row]
_Read = TypeVar("_Read")


class AuditedReplica(NamedTuple):
    """One assigned replica: its rows in both readings, its log and its epoch history.

    A row is `None` if the broker has not written one yet. `log_start_offset` was read after the
    log, because the records before it may be deleted at any time.
    """

    state: PartitionState
    broker_id: int
    in_isr: bool
    first_row: Row | None
    row: Row | None
    log: RecordLog
    epochs: Sequence[EpochEntry]
    log_start_offset: int

    @property
    def key(self) -> TopicIdPartition:
        """The partition."""
        return self.state.key

    @property
    def log_end_offset(self) -> int:
        """The end offset of the live batches, computed from the log and not from the row."""
        offered = self.log.log_end_offset(self.key, self.log_start_offset)
        unsound = (batch.next_offset for batch in self.log.unsound_batches(self.key))
        return max(offered, *unsound, offered)

    @property
    def checkpointed_high_watermark(self) -> int:
        """The high watermark in the first row."""
        return int(self.first_row["high_watermark"]) if self.first_row else 0

    @property
    def reported_log_end_offset(self) -> int | None:
        """The log end offset that the row reports for the current leader epoch, or `None`."""
        if self.row is None or self.row["leader_epoch"] != self.state.leader_epoch:
            return None
        return int(self.row["log_end_offset"])

    @property
    def batches(self) -> list[Batch]:
        """The replica's live batches by ascending offset, including those that are not sound."""
        batches = [*self.log.batches(self.key, -1), *self.log.unsound_batches(self.key)]
        return sorted(batches, key=lambda batch: batch.base_offset)

    @property
    def is_led(self) -> bool:
        """Whether the broker is the published leader, and leads by its first row.

        The row must have the partition's current leader epoch.
        """
        row = self.first_row
        return (
            row is not None
            and row["role"] == "leader"
            and (self.state.leader, self.state.leader_epoch)
            == (self.broker_id, row["leader_epoch"])
        )


class UnreadableRoot(NamedTuple):
    """A root of a broker that could not be read, and the reason."""

    broker_id: int
    uri: str
    reason: str


class DamagedTable(NamedTuple):
    """A damaged control table: the broker whose root contains it, `None` for the cluster root."""

    broker_id: int | None
    error: DamagedError


class Reading(NamedTuple):
    """One reading of a cluster."""

    partitions: Mapping[TopicIdPartition, PartitionState]
    replicas: list[AuditedReplica]
    unreadable: list[UnreadableRoot]
    damaged: list[DamagedTable]


def read_cluster(connection: Connection) -> Reading:
    """Read each assigned replica; the logs are opened again, without cached state."""
    roots = _Roots(connection)
    first_rows = roots.each(connection.metadata().partitions.values(), roots.rows)
    states = connection.metadata().partitions
    rows = roots.each(states.values(), roots.rows)
    logs = roots.each(states.values(), RecordLog)
    epochs = roots.each(states.values(), roots.epochs)
    last_rows = roots.each(states.values(), roots.rows)
    replicas = []
    for state in states.values():
        for one in state.replicas:
            location = roots.location(state, one.broker_id)
            if location is None or not (location in rows and location in logs):
                continue
            replica = AuditedReplica(
                state,
                one.broker_id,
                one.in_isr,
                first_rows.get(location, {}).get(state.key),
                rows[location].get(state.key),
                logs[location],
                epochs.get(location, {}).get(state.key, []),
                last_rows.get(location, {}).get(state.key, {}).get("log_start_offset", 0),
            )
            replicas.append(replica)
    return Reading(states, replicas, sorted(roots.unreadable.values()), _damaged(connection))


def _damaged(connection: Connection) -> list[DamagedTable]:
    """Read each control table of the cluster root and of the brokers' roots."""
    cluster = connection.root.location
    # Roots of earlier releases may lack tables that a later release has added.
    listed = {FORMAT.name, *connection.root.format.tables}
    tables: list[tuple[int | None, Location, TableSchema]] = [
        (None, cluster, schema) for schema in (FORMAT, *CLUSTER_TABLES) if schema.name in listed
    ]
    for root, broker_id in online_broker_roots(connection):
        tables += [(broker_id, root, one) for one in (FORMAT, *BROKER_TABLES)]
    is_local = all(root.is_local for _, root, _ in tables)
    damage = map_in_parallel(lambda one: _damage(*one[1:]), tables, 0, is_local=is_local)
    return [
        DamagedTable(broker_id, error)
        for (broker_id, _, _), error in zip(tables, damage, strict=True)
        if error is not None
    ]


def _damage(root: Location, schema: TableSchema) -> DamagedError | None:
    try:
        _verify(root, schema)
    except DamagedError as error:
        return error
    except AccessDeniedError:
        raise
    except UNREADABLE_CONTENT:
        # An unreachable root is reported as an unreadable root.
        pass
    return None


def _verify(root: Location, schema: TableSchema) -> None:
    if schema is LOG:
        # The files of a log are batches, which other checks read.
        return
    if schema is PRODUCE_REQUESTS:
        # The files of requests have any content that clients have written.
        ControlTable(root, schema)
        return
    ControlTable(root, schema).verify()


class _Roots:
    """Reads the roots of a cluster; a root that has failed once is not read again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.unreadable: dict[tuple[int, str], UnreadableRoot] = {}

    def each(
        self, states: Iterable[PartitionState], read: Callable[[Location], _Read]
    ) -> dict[Location, _Read]:
        """Return `read(root)` by root, for each root that has a replica of one of `states`."""
        brokers: dict[Location, int] = {}
        for state in states:
            for one in state.replicas:
                location = self.location(state, one.broker_id)
                if location is not None:
                    brokers.setdefault(location, one.broker_id)

        def read_or_note(location: Location) -> _Read | None:
            try:
                return read(location)
            except AccessDeniedError:
                # The auditor lacks a permission, which says nothing about the root.
                raise
            except UNREADABLE_CONTENT as error:
                self._note(brokers[location], location.uri, error)
                return None

        is_local = all(location.is_local for location in brokers)
        results = map_in_parallel(read_or_note, list(brokers), 0, is_local=is_local)
        return {
            location: result
            for location, result in zip(brokers, results, strict=True)
            if result is not None
        }

    def location(self, state: PartitionState, broker_id: int) -> Location | None:
        try:
            location = self._connection.replica_location(state, broker_id)
        except UNREADABLE_CONTENT as error:
            self._note(broker_id, "", error)
            return None
        return None if (broker_id, location.uri) in self.unreadable else location

    def rows(self, location: Location) -> _Rows:
        return dict(self._connection.journal(location).rows)

    def epochs(self, location: Location) -> Mapping[TopicIdPartition, Sequence[EpochEntry]]:
        return dict(self._connection.journal(location).epochs)

    def _note(self, broker_id: int, uri: str, error: Exception) -> None:
        self.unreadable[broker_id, uri] = UnreadableRoot(broker_id, uri, one_line(error))
