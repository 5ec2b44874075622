"""Roots: which tables live where.

The cluster root holds what the brokers agree on; a broker root holds one log directory of one
broker. Roots may be different folders, buckets, regions or accounts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

import sparklog
from sparklog import model
from sparklog.errors import CommitConflictError, DamagedError, StorageError
from sparklog.storage.control_table import ControlTable, Fence, create_table
from sparklog.storage.damage import set_aside
from sparklog.storage.delta_log import commit_path, first_commit, has_commit
from sparklog.storage.journal import CHECKPOINTS, Journal
from sparklog.storage.location import Location, one_line
from sparklog.storage.record_log import RecordLog
from sparklog.storage.request_tables import RequestTables
from sparklog.storage.sharded_table import ShardedTable


def _opened_when_asked_for(schema: model.TableSchema) -> cached_property[ControlTable]:
    """Return a table of a cluster root that is opened at its first use; most clients need few.

    A root that is older than the table gets it then.
    """

    def open_table(root: ClusterRoot) -> ControlTable:
        _add_missing(root, schema)
        return root.open_table(schema)

    return cached_property(open_table)


def _sharded_when_asked_for(schema: model.TableSchema) -> cached_property[ShardedTable]:
    """Return a sharded table as `_opened_when_asked_for` returns a control table."""

    def open_table(root: ClusterRoot) -> ShardedTable:
        _add_missing(root, schema)
        return root.open_sharded_table(schema)

    return cached_property(open_table)


def _add_missing(root: ClusterRoot, schema: model.TableSchema) -> None:
    if schema.name not in root.tables:
        _add_tables(root.location, [schema])


class ClusterRoot:
    """The tables of a cluster root, opened.

    Parameter `reopens`: whether its tables are loaded again where they have lost commits; see
    `ControlTable`. Raises `StorageError` where there is none at `location`, or another kind of
    root.
    """

    controller = _opened_when_asked_for(model.CONTROLLER)
    producer_ids = _opened_when_asked_for(model.PRODUCER_IDS)
    stream_writes = _opened_when_asked_for(model.STREAM_WRITES)
    consumer_groups = _sharded_when_asked_for(model.CONSUMER_GROUPS)
    consumer_group_heartbeats = _opened_when_asked_for(model.CONSUMER_GROUP_HEARTBEATS)
    consumer_offsets = _sharded_when_asked_for(model.CONSUMER_OFFSETS)

    def __init__(self, location: Location, *, reopens: bool = False) -> None:
        self.location = location
        self._reopens = reopens
        found = _check_format(location, is_broker=False)
        self.cluster_id = str(found["cluster_id"])
        self.tables = _listed_tables(found)
        """The names of the tables that the root had when it was opened."""
        self._first_commit = first_commit(location.child(model.FORMAT.name))
        self.brokers = self.open_table(model.BROKERS)
        self.topics = self.open_table(model.TOPICS)
        self.partition_state = self.open_sharded_table(model.PARTITION_STATE)

    def open_table(self, schema: model.TableSchema) -> ControlTable:
        """Open one of the root's tables."""
        return ControlTable(self.location, schema, reopens=self._reopens)

    def open_sharded_table(self, schema: model.TableSchema) -> ShardedTable:
        """Open one of the root's tables that have a conflict key."""
        return ShardedTable(self.location, schema, reopens=self._reopens)

    def check_in_place(self) -> None:
        """Raise `StorageError` where the root is gone, or another cluster's."""
        if self.is_in_place():
            return
        found = _format(self.location)
        if found is None:
            raise StorageError(
                f"there is no cluster root at {self.location.uri} any more: restore it"
            )
        if found["cluster_id"] != self.cluster_id:
            raise StorageError(
                f"{self.location.uri} holds cluster {found['cluster_id']} now, and this process "
                f"was connected to cluster {self.cluster_id}: restore that one, or connect again"
            )

    def is_in_place(self) -> bool:
        """Say whether the root is still the one that was opened, and not another, or none."""
        try:
            now = first_commit(self.location.child(model.FORMAT.name))
        except (DeltaError, OSError):
            return False
        return now is not None and now == self._first_commit

    @classmethod
    def create(cls, location: Location, broker_roots: Sequence[Location] = ()) -> ClusterRoot:
        """Create a cluster root, or open the one at `location`.

        Tables that this release has added are created. Raises `DamagedError` where a table is
        missing that was there, and `StorageError` where there is no cluster root but one of
        `broker_roots` belongs to a cluster; nothing is created in place of what is lost.
        """
        if _format(location) is None:
            for root in broker_roots:
                _check_has_no_cluster(root, location)
        if not _create(location, model.CLUSTER_TABLES, model.new_id(), broker_id=None):
            _check_format(location, is_broker=False)
            _add_tables(location, model.CLUSTER_TABLES)
        return cls(location)


class BrokerRoot:
    """The tables of one log directory of one broker, opened by that broker.

    Opening it takes the fence: it writes `broker_epoch` to every table but those of requests
    before anything is read, so that an older process of the same broker can never write again.

    Parameters: `damaged`, the names of tables that are damaged (`damage`); they start again, empty.
    """

    def __init__(
        self, location: Location, broker_epoch: int, damaged: Collection[str] = ()
    ) -> None:
        self.location = location
        self.fence = Fence("broker_epoch", broker_epoch)
        self._damaged = damaged
        self.is_rebuilt = any(schema.name in damaged for schema in CHECKPOINTS)
        """Whether a checkpoint starts again empty."""
        self.high_watermark_checkpoint = self._opened(model.HIGH_WATERMARK_CHECKPOINT)
        self.leader_epoch_checkpoint = self._opened(model.LEADER_EPOCH_CHECKPOINT)
        self.producer_state = self._opened(model.PRODUCER_STATE)
        # Clients write to the request tables, so an epoch in them would prove nothing.
        self.request_tables = RequestTables(location)
        self.delayed_operations = self._opened(model.DELAYED_OPERATIONS)
        self.checkpoints = (
            self.high_watermark_checkpoint,
            self.leader_epoch_checkpoint,
            self.delayed_operations,
        )
        self.log = Journal(location, self.fence, self.checkpoints, damaged)

    def _opened(self, schema: model.TableSchema) -> ControlTable:
        """Open a table under the fence; one that is damaged starts again, empty."""
        if schema.name in self._damaged:
            try:
                table = ControlTable(self.location, schema)
            except DamagedError:
                set_aside(self.location.child(schema.name))
                create_table(self.location, schema)
                table = ControlTable(self.location, schema)
            table.recreate(self.fence)
            return table
        table = ControlTable(self.location, schema)
        table.take_fence(self.fence)
        return table

    @staticmethod
    def damage(location: Location) -> dict[str, DamagedError]:
        """Return the damage to the tables that the owner of a root starts with, by their names.

        `produce_requests` is not among them, which mends itself, nor is the log.
        """
        found: dict[str, DamagedError] = {}
        for schema in model.BROKER_TABLES:
            if schema in (model.LOG, model.PRODUCE_REQUESTS):
                continue
            try:
                table = ControlTable(location, schema)
                table.verify()
            except DamagedError as error:
                found[schema.name] = error
        try:
            Journal(location, damaged=found, with_operations=True)
        except DamagedError as error:
            # A log that cannot be opened itself is told of when the broker registers.
            with suppress(DamagedError):
                RecordLog(location)
                # The log is whole, but not what the state of the replicas follows from.
                found |= dict.fromkeys((schema.name for schema in CHECKPOINTS), error)
        return found

    @staticmethod
    def create(location: Location, cluster_id: str, broker_id: int) -> None:
        """Create a broker root, or check that the one that is there is this broker's.

        Tables that this release has added are created. Raises `StorageError` where the folder
        holds something else, or belongs to another cluster or broker, and `DamagedError` where a
        table is missing that was there; nothing is created in its place.
        """
        is_new = _create(location, model.BROKER_TABLES, cluster_id, broker_id)
        found = _check_format(location, is_broker=True)
        if (found["cluster_id"], found["broker_id"]) != (cluster_id, broker_id):
            raise StorageError(
                f"{location.uri} belongs to broker {found['broker_id']} of cluster "
                f"{found['cluster_id']}, not to broker {broker_id} of cluster {cluster_id}: "
                "give every broker a log directory of its own"
            )
        if not is_new:
            _add_tables(location, model.BROKER_TABLES)

    def commits(self) -> int:
        """Return how many commits this process has made to the root's tables."""
        tables = (*self.checkpoints, self.producer_state, self.request_tables, self.log)
        return sum(table.commits for table in tables)


def has_root(location: Location) -> bool:
    """Return True if there is a root at `location` whose creation was completed."""
    return _format(location) is not None


def _check_has_no_cluster(root: Location, cluster_root: Location) -> None:
    found = _format(root)
    if found is not None and found["broker_id"] is not None:
        raise StorageError(
            f"there is no cluster root at {cluster_root.uri}, but {root.uri} belongs to broker "
            f"{found['broker_id']} of cluster {found['cluster_id']}: restore the cluster root, or "
            "correct cluster.root or log.dirs"
        )


def check_distinct(locations: Sequence[Location]) -> None:
    """Refuse roots of which two are one folder, by whatever names: `StorageError`.

    Symbolic links are followed, and folders that exist are compared by their inodes.
    """
    first_at: dict[object, Location] = {}
    for location in locations:
        for identity in _identities(location):
            other = first_at.setdefault(identity, location)
            if other is not location:
                raise StorageError(
                    f"{other.uri} and {location.uri} are one folder: name each folder once in "
                    "cluster.root and log.dirs"
                )


def _identities(location: Location) -> Iterator[object]:
    if not location.is_local:
        yield location.uri
        return
    yield os.path.realpath(location.uri)
    with suppress(OSError):
        found = Path(location.uri).stat()
        yield found.st_dev, found.st_ino


def check_usable(
    location: Location,
    tables: Sequence[model.TableSchema] = (*model.BROKER_TABLES, *model.CLUSTER_TABLES),
) -> None:
    """Refuse a folder in which no root can be: `StorageError`. Nothing is created.

    `tables` are those that a root may hold whose creation was interrupted.
    """
    if _format(location) is not None:
        return
    known = {schema.name for schema in (*tables, model.FORMAT)}
    try:
        found = location.names()
    except (DeltaError, OSError) as error:
        raise _unreachable(location, error) from error
    foreign = [name for name in found if name not in known]
    if foreign:
        raise StorageError(
            f"{location.uri} is not a sparklog root and holds {foreign[0]!r}: name an empty or "
            "a new folder"
        )


def _format(location: Location) -> dict[str, Any] | None:
    """Return what a root says of itself, or `None` where there is none, or an unfinished one."""
    if location.is_local and Path(location.uri).is_file():
        raise StorageError(f"{location.uri} is a file: name a folder")
    table = location.child(model.FORMAT.name)
    try:
        if not has_commit(table, 0):
            # A store says of a bucket that is not there what it says of a file.
            location.names()
            return None
    except (DeltaError, OSError) as error:
        raise _unreachable(location, error) from error
    # The row is written last, so it says that the root is whole.
    return next(iter(ControlTable(location, model.FORMAT).rows().to_pylist()), None)


def _unreachable(location: Location, error: Exception) -> StorageError:
    return StorageError(
        f"{location.uri} cannot be reached: check its name, the store's options and that this "
        f"process may use it ({one_line(error)})"
    )


def _create(
    location: Location, tables: Sequence[model.TableSchema], cluster_id: str, broker_id: int | None
) -> bool:
    """Create a root with `tables`; return False where there is a root already.

    An interrupted creation is completed.
    """
    check_usable(location, tables)
    if _format(location) is not None:
        return False
    for schema in tables:
        if _has_been_written(location.child(schema.name)):
            raise DamagedError(
                location.child(model.FORMAT.name).uri,
                f"it is missing, and {schema.name} beside it has been written to",
                "restore the root from a copy, or name an empty folder",
            )
    for schema in (*tables, model.FORMAT):
        create_table(location, schema)
        location.child(schema.name).sync([commit_path(0), "_delta_log"])
    location.sync_folders()
    row = {
        "schema_version": model.SCHEMA_VERSION,
        "cluster_id": cluster_id,
        "created_by": f"sparklog {sparklog.__version__}",
        "broker_id": broker_id,
        "tables": json.dumps(sorted(schema.name for schema in tables)),
    }
    table = ControlTable(location, model.FORMAT)
    # Where another process has just created the root, the caller checks the row that it wrote.
    with suppress(CommitConflictError):
        if not table.rows().num_rows:
            table.compare_and_set(model.FORMAT.rows([row]))
    return True


def _has_been_written(table: Location) -> bool:
    """Return True if a table has commits after the one that created it."""
    names = table.names("_delta_log")
    return any(_COMMIT.match(name) is not None and int(name[:20]) > 0 for name in names)


_COMMIT = re.compile(r"\d{20}\.")


def _listed_tables(found: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the tables that a root has by its `format` row."""
    if found["tables"]:
        return frozenset(json.loads(found["tables"]))
    is_cluster = found["broker_id"] is None
    return model.UNLISTED_CLUSTER_TABLES if is_cluster else model.UNLISTED_BROKER_TABLES


def _add_tables(location: Location, tables: Sequence[model.TableSchema]) -> None:
    """Create those of `tables` that the root's release did not have, and list them in `format`.

    Raises `DamagedError` where one that is listed is missing.
    """
    format_table = ControlTable(location, model.FORMAT)
    [found] = format_table.rows().to_pylist()
    listed = _listed_tables(found)
    is_cluster = found["broker_id"] is None
    # A broker recreates its other tables itself, once it has registered them as damaged.
    needed = [schema for schema in tables if is_cluster or schema is model.LOG]
    _check_present(location, [schema for schema in needed if schema.name in listed], found)
    added = [schema for schema in tables if schema.name not in listed]
    if not added and found["tables"]:
        return
    for schema in added:
        create_table(location, schema)

    def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
        [row] = rows.to_pylist()
        names = json.dumps(sorted({schema.name for schema in tables} | _listed_tables(row)))
        is_listed, row["tables"] = names == row["tables"], names
        return (None if is_listed else model.FORMAT.rows([row])), None

    format_table.update(change)


def _check_present(
    location: Location, tables: Sequence[model.TableSchema], found: Mapping[str, Any]
) -> None:
    present = location.names()
    for schema in tables:
        if schema.name not in present:
            raise DamagedError(
                location.child(schema.name).uri,
                "it is missing",
                "restore the cluster root from a copy"
                if found["broker_id"] is None
                else f"restore it with all of {location.uri}, or delete that folder: the broker "
                "then copies its replicas from their leaders",
            )


def _check_format(location: Location, *, is_broker: bool) -> dict[str, Any]:
    kind = "broker" if is_broker else "cluster"
    found = _format(location)
    if found is None:
        raise StorageError(
            f"there is no {kind} root at {location.uri}: check the path, or create the cluster "
            "by starting its brokers"
        )
    if found["schema_version"] != model.SCHEMA_VERSION:
        raise StorageError(
            f"{location.uri} has table layout {found['schema_version']}, this sparklog knows "
            f"{model.SCHEMA_VERSION}: use the version that wrote it ({found['created_by']})"
        )
    if (found["broker_id"] is not None) != is_broker:
        other = "cluster" if is_broker else "broker"
        raise StorageError(f"{location.uri} is a {other} root: name the {kind} root")
    return found
