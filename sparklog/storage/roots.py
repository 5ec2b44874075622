"""Roots: which tables live where.

The cluster root holds what the brokers agree on; a broker root holds one log directory of one
broker. Roots may be different folders, buckets, regions or accounts.
"""

from __future__ import annotations

from pathlib import Path

import sparklog
from sparklog import model
from sparklog.errors import StorageError
from sparklog.storage.control_table import ControlTable, Fence, create_table
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog


class ClusterRoot:
    """The tables of a cluster root, opened.

    Raises `StorageError` where there is none at `location`, or another kind of root.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self.cluster_id = str(_check_format(location, is_broker=False)["cluster_id"])
        self.brokers = ControlTable(location, model.BROKERS)
        self.controller = ControlTable(location, model.CONTROLLER)
        self.topics = ControlTable(location, model.TOPICS)
        self.partition_state = ControlTable(location, model.PARTITION_STATE)
        self.producer_ids = ControlTable(location, model.PRODUCER_IDS)
        self.consumer_groups = ControlTable(location, model.CONSUMER_GROUPS)
        self.consumer_offsets = ControlTable(location, model.CONSUMER_OFFSETS)

    @classmethod
    def create(cls, location: Location) -> ClusterRoot:
        """Create a cluster root, or open the one that is there."""
        check_usable(location)
        if not _is_root(location):
            for schema in model.CLUSTER_TABLES:
                create_table(location, schema)
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
        check_usable(location)
        if not _is_root(location):
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


def check_usable(location: Location) -> None:
    """Refuse a folder in which no root can be: `StorageError`. Nothing is created."""
    if not _is_root(location):
        _check_empty(location)


def _is_root(location: Location) -> bool:
    # The format table is written last, so its presence says that the root is whole.
    try:
        location.child(model.FORMAT.name).read_bytes("_delta_log/00000000000000000001.json")
    except OSError:
        return False
    return True


def _check_empty(location: Location) -> None:
    """Refuse a folder with foreign files; a root whose creation was interrupted is completed."""
    if not location.is_local or not Path(location.uri).exists():
        return
    if not Path(location.uri).is_dir():
        raise StorageError(f"{location.uri} is a file: name a folder")
    known = {schema.name for schema in (*model.BROKER_TABLES, *model.CLUSTER_TABLES, model.FORMAT)}
    foreign = sorted(entry.name for entry in Path(location.uri).iterdir())
    foreign = [name for name in foreign if name not in known]
    if foreign:
        raise StorageError(
            f"{location.uri} is not a sparklog root and holds {foreign[0]!r}: name an empty or "
            "a new folder"
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
    if table.version == 0:
        table.compare_and_set(model.FORMAT.rows([row]))


def _check_format(location: Location, *, is_broker: bool) -> dict[str, object]:
    kind = "broker" if is_broker else "cluster"
    if not _is_root(location):
        raise StorageError(
            f"there is no {kind} root at {location.uri}: check the path, or create the cluster "
            "by starting its brokers"
        )
    [found] = ControlTable(location, model.FORMAT).rows().to_pylist()
    if (found["broker_id"] is not None) != is_broker:
        other = "cluster" if is_broker else "broker"
        raise StorageError(f"{location.uri} is a {other} root: name the {kind} root")
    if found["schema_version"] != model.SCHEMA_VERSION:
        raise StorageError(
            f"{location.uri} has table layout {found['schema_version']}, this sparklog knows "
            f"{model.SCHEMA_VERSION}: use the version that wrote it ({found['created_by']})"
        )
    return dict(found)
