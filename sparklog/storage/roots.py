"""Roots: which tables live where.

The cluster root holds what the brokers agree on; a broker root holds one log directory of one
broker. Roots may be different folders, buckets, regions or accounts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.fs as pa_fs
from deltalake.exceptions import DeltaError

import sparklog
from sparklog import model
from sparklog.errors import CommitConflictError, StorageError
from sparklog.storage.control_table import ControlTable, Fence, create_table
from sparklog.storage.delta_log import first_commit, has_commit
from sparklog.storage.location import Location, one_line
from sparklog.storage.record_log import RecordLog


def _opened_when_asked_for(schema: model.TableSchema) -> cached_property[ControlTable]:
    """Return a table of a cluster root at which most of those who open the root never look."""
    return cached_property(lambda root: ControlTable(root.location, schema))


class ClusterRoot:
    """The tables of a cluster root, opened.

    Raises `StorageError` where there is none at `location`, or another kind of root.
    """

    controller = _opened_when_asked_for(model.CONTROLLER)
    producer_ids = _opened_when_asked_for(model.PRODUCER_IDS)
    stream_writes = _opened_when_asked_for(model.STREAM_WRITES)
    consumer_groups = _opened_when_asked_for(model.CONSUMER_GROUPS)
    consumer_offsets = _opened_when_asked_for(model.CONSUMER_OFFSETS)

    def __init__(self, location: Location) -> None:
        self.location = location
        self.cluster_id = str(_check_format(location, is_broker=False)["cluster_id"])
        self._first_commit = first_commit(location.child(model.FORMAT.name))
        self.brokers = ControlTable(location, model.BROKERS)
        self.topics = ControlTable(location, model.TOPICS)
        self.partition_state = ControlTable(location, model.PARTITION_STATE)

    def is_in_place(self) -> bool:
        """Say whether the root is still the one that was opened, and not another, or none."""
        try:
            now = first_commit(self.location.child(model.FORMAT.name))
        except (DeltaError, OSError):
            return False
        return now is not None and now == self._first_commit

    @cached_property
    def consumer_group_heartbeats(self) -> ControlTable:
        """The members' signs of life; a root that is older than the table gets it here."""
        create_table(self.location, model.CONSUMER_GROUP_HEARTBEATS)
        return ControlTable(self.location, model.CONSUMER_GROUP_HEARTBEATS)

    @classmethod
    def create(cls, location: Location) -> ClusterRoot:
        """Create a cluster root, or open the one that is there; tables it lacks are created."""
        check_usable(location, model.CLUSTER_TABLES)
        is_new = _format(location) is None
        if not is_new:
            _check_format(location, is_broker=False)
        for schema in model.CLUSTER_TABLES:
            create_table(location, schema)
        if is_new:
            _write_format(location, model.new_id(), broker_id=None)
        return cls(location)


class BrokerRoot:
    """The tables of one log directory of one broker, opened by that broker.

    Opening it takes the fence: it writes `broker_epoch` to every table before anything is read,
    so that an older process of the same broker can never write again.
    """

    def __init__(self, location: Location, broker_epoch: int) -> None:
        self.location = location
        self.fence = Fence("broker_epoch", broker_epoch)
        self.high_watermark_checkpoint = ControlTable(location, model.HIGH_WATERMARK_CHECKPOINT)
        self.leader_epoch_checkpoint = ControlTable(location, model.LEADER_EPOCH_CHECKPOINT)
        self.producer_state = ControlTable(location, model.PRODUCER_STATE)
        self.produce_requests = ControlTable(location, model.PRODUCE_REQUESTS)
        self.produce_responses = ControlTable(location, model.PRODUCE_RESPONSES)
        self.delayed_operations = ControlTable(location, model.DELAYED_OPERATIONS)
        for table in self._control_tables():
            table.take_fence(self.fence)
        self.log = RecordLog(location, self.fence)

    @staticmethod
    def create(location: Location, cluster_id: str, broker_id: int) -> None:
        """Create a broker root, or check that the one that is there is this broker's.

        Raises `StorageError` where the folder holds something else, or belongs to another
        cluster or broker.
        """
        check_usable(location, model.BROKER_TABLES)
        if _format(location) is None:
            for schema in model.BROKER_TABLES:
                create_table(location, schema)
            _write_format(location, cluster_id, broker_id)
        found = _check_format(location, is_broker=True)
        if (found["cluster_id"], found["broker_id"]) != (cluster_id, broker_id):
            raise StorageError(
                f"{location.uri} belongs to broker {found['broker_id']} of cluster "
                f"{found['cluster_id']}, not to broker {broker_id} of cluster {cluster_id}: "
                "give every broker a log directory of its own"
            )

    def _control_tables(self) -> tuple[ControlTable, ...]:
        return (
            self.high_watermark_checkpoint,
            self.leader_epoch_checkpoint,
            self.producer_state,
            self.produce_requests,
            self.produce_responses,
            self.delayed_operations,
        )

    def commits(self) -> int:
        """Return how many commits this process has made to the root's tables."""
        return self.log.commits + sum(table.commits for table in self._control_tables())


def check_usable(
    location: Location,
    tables: Sequence[model.TableSchema] = (*model.BROKER_TABLES, *model.CLUSTER_TABLES),
) -> None:
    """Refuse a folder in which no root can be: `StorageError`. Nothing is created.

    `tables` are those that a root may hold whose creation was interrupted.
    """
    if _format(location) is not None:
        return
    if location.is_local and Path(location.uri).is_file():
        raise StorageError(f"{location.uri} is a file: name a folder")
    known = {schema.name for schema in (*tables, model.FORMAT)}
    try:
        found = _entries(location)
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
    table = location.child(model.FORMAT.name)
    try:
        if not has_commit(table, 0):
            # A store says of a bucket that is not there what it says of a file.
            _entries(location)
            return None
    except (DeltaError, OSError) as error:
        raise _unreachable(location, error) from error
    # The row is written last, so it says that the root is whole.
    return next(iter(ControlTable(location, model.FORMAT).rows().to_pylist()), None)


def _entries(location: Location) -> list[str]:
    selector = pa_fs.FileSelector("", allow_not_found=True)
    return sorted(entry.base_name for entry in location.filesystem().get_file_info(selector))


def _unreachable(location: Location, error: Exception) -> StorageError:
    return StorageError(
        f"{location.uri} cannot be reached: check its name, the store's options and that this "
        f"process may use it ({one_line(error)})"
    )


def _write_format(location: Location, cluster_id: str, broker_id: int | None) -> None:
    create_table(location, model.FORMAT)
    row = {
        "schema_version": model.SCHEMA_VERSION,
        "cluster_id": cluster_id,
        "created_by": f"sparklog {sparklog.__version__}",
        "broker_id": broker_id,
    }
    table = ControlTable(location, model.FORMAT)
    try:
        if not table.rows().num_rows:
            table.compare_and_set(model.FORMAT.rows([row]))
    except CommitConflictError:
        # Another process has just created the root; the caller looks at what it wrote.
        return


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
