"""Cluster roots and broker roots, with their tables.

The cluster root has the tables that all brokers share. A broker root is one log directory of one
broker. Roots may be in different folders, buckets, regions or accounts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

from sparklog import model
from sparklog.cluster.formats import THIS_RELEASE, Formats
from sparklog.cluster.root_format import (
    RootFormat,
    add_tables,
    check_kind,
    check_new,
    create_root,
    read_format,
    read_formats,
)
from sparklog.errors import DamagedError, StorageError
from sparklog.logger import get_logger
from sparklog.storage.commits import BROKER_EPOCH, FORMAT_VERSION, first_commit
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.control_table_damage import set_aside
from sparklog.storage.errors import STORE_ERRORS
from sparklog.storage.fence import Fence
from sparklog.storage.journal import CHECKPOINTS, Journal
from sparklog.storage.local_files import make_folders
from sparklog.storage.location import Location
from sparklog.storage.parallel import in_parallel
from sparklog.storage.record_log import RecordLog
from sparklog.storage.request_tables import RequestTables
from sparklog.storage.sharded_table import ShardedTable

_log = get_logger(__name__)


def _opened_when_asked_for(schema: model.TableSchema) -> cached_property[ControlTable]:
    """Return a property for a table of a cluster root that is opened at its first use.

    Most clients need few of these tables. A root that is older than the table gets it at that time.
    """

    def open_table(root: ClusterRoot) -> ControlTable:
        _add_missing(root, schema)
        return root.open_table(schema)

    return cached_property(open_table)


def _sharded_when_asked_for(schema: model.TableSchema) -> cached_property[ShardedTable]:
    """Return a property for a sharded table; see `_opened_when_asked_for`."""

    def open_table(root: ClusterRoot) -> ShardedTable:
        _add_missing(root, schema)
        return root.open_sharded_table(schema)

    return cached_property(open_table)


def _add_missing(root: ClusterRoot, schema: model.TableSchema) -> None:
    if schema.name not in root.format.tables:
        add_tables(root.format, [schema])


class ClusterRoot:
    """The tables of a cluster root, opened.

    Parameters: `reopens`, whether tables that have lost commits are loaded again (see
    `ControlTable`); `found`, the current result of `read_format`; `formats`, those that the release
    knows. Raises `StorageError` if there is no root at `location`, another kind of root, or one
    with a format that the release does not know.
    """

    controller = _opened_when_asked_for(model.CONTROLLER)
    leadership_history = _opened_when_asked_for(model.LEADERSHIP_HISTORY)
    partition_history = _opened_when_asked_for(model.PARTITION_HISTORY)
    controller_history = _opened_when_asked_for(model.CONTROLLER_HISTORY)
    producer_ids = _opened_when_asked_for(model.PRODUCER_IDS)
    stream_writes = _opened_when_asked_for(model.STREAM_WRITES)
    scrubs = _opened_when_asked_for(model.SCRUBS)
    repairs = _opened_when_asked_for(model.REPAIRS)
    configs = _opened_when_asked_for(model.CONFIGS)
    consumer_groups = _sharded_when_asked_for(model.CONSUMER_GROUPS)
    consumer_group_heartbeats = _sharded_when_asked_for(model.CONSUMER_GROUP_HEARTBEATS)
    consumer_offsets = _sharded_when_asked_for(model.CONSUMER_OFFSETS)

    def __init__(
        self,
        location: Location,
        *,
        reopens: bool = False,
        found: RootFormat | None = None,
        formats: Formats = THIS_RELEASE,
    ) -> None:
        self.location = location
        self.formats = formats
        self._reopens = reopens
        self.format = check_kind(
            location, found or read_format(location), is_cluster=True, formats=formats
        )
        """The root's format when it was opened."""
        self.cluster_id = self.format.cluster_id
        self._announced: tuple[tuple[int, int], int] | None = None
        self.brokers: ControlTable
        self.topics: ControlTable
        self.partition_state: ShardedTable

        def open_first_commit() -> None:
            self._first_commit = first_commit(location.child(model.FORMAT.name))

        def open_brokers() -> None:
            self.brokers = self.open_table(model.BROKERS)

        def open_topics() -> None:
            self.topics = self.open_table(model.TOPICS)

        def open_partition_state() -> None:
            self.partition_state = self.open_sharded_table(model.PARTITION_STATE)

        in_parallel(
            [open_first_commit, open_brokers, open_topics, open_partition_state],
            is_local=location.is_local,
        )
        self.check_format()

    def open_table(self, schema: model.TableSchema) -> ControlTable:
        """Open one of the root's tables."""
        return ControlTable(self.location, schema, reopens=self._reopens)

    def open_sharded_table(self, schema: model.TableSchema) -> ShardedTable:
        """Open one of the root's tables that has a conflict key."""
        return ShardedTable(self.location, schema, reopens=self._reopens)

    def newest(self, schema: model.TableSchema) -> ControlTable:
        """Return one of the tables that are opened at their first use, at its newest version.

        Opening a table reads its newest version, so that no further request is made for it.
        """
        is_open = schema.name in vars(self)
        table: ControlTable = getattr(self, schema.name)
        if is_open:
            table.refresh()
        return table

    @property
    def format_version(self) -> int:
        """The newest format of the root that this process knows of.

        An upgrade announces it in `brokers`, as an app transaction; see `brokers.refresh`.
        """
        # Compared by each commit of a broker: the table is asked only when it has changed.
        if self._announced is None or self._announced[0] != self.brokers.state:
            announced = self.brokers.transaction(FORMAT_VERSION) or 0
            self._announced = self.brokers.state, announced
        return max(self.format.schema_version, self._announced[1])

    def check_format(self) -> None:
        """Raise `NewerFormatError` if the root was upgraded to a format unknown to this release.

        Costs no request: the announcement in `brokers` is read as it was loaded last.
        """
        self.formats.check(self.location, self.format_version)

    def check_in_place(self) -> None:
        """Raise `StorageError` if the root is gone, or belongs to another cluster."""
        if self.is_in_place():
            return
        found = read_format(self.location)
        if found is None:
            raise StorageError(
                f"there is no cluster root at {self.location.uri} any more: restore it"
            )
        if found.cluster_id != self.cluster_id:
            raise StorageError(
                f"{self.location.uri} holds cluster {found.cluster_id} now, and this process "
                f"was connected to cluster {self.cluster_id}: restore that one, or connect again"
            )

    def is_in_place(self) -> bool:
        """Return whether the root exists and is the one that was opened."""
        try:
            now = first_commit(self.location.child(model.FORMAT.name))
        except STORE_ERRORS:
            return False
        return now is not None and now == self._first_commit

    @classmethod
    def create(
        cls,
        location: Location,
        broker_roots: Sequence[Location] = (),
        formats: Formats = THIS_RELEASE,
    ) -> ClusterRoot:
        """Create a cluster root, or open the one at `location`.

        Of several processes that create it at the same time, each opens the same root: the one
        whose cluster id was written first. Tables that this release has added are created. Raises
        `DamagedError` if a table is missing that existed, and `StorageError` if there is no cluster
        root but one of `broker_roots` belongs to a cluster. Nothing is created in place of lost
        data.
        """
        found = read_format(location)
        if found is None:
            check_new(location, broker_roots, read_formats(broker_roots))
            cluster_id = model.new_id()
            found = create_root(location, model.CLUSTER_TABLES, cluster_id, None, formats.newest)
            if found is not None and found.cluster_id == cluster_id:
                _log.info("cluster created", cluster_id=cluster_id, root=location.uri)
        found = check_kind(location, found, is_cluster=True, formats=formats)
        add_tables(found, model.CLUSTER_TABLES)
        return cls(location, found=found, formats=formats)


class BrokerRoot:
    """The tables of one log directory of one broker, opened by that broker.

    They are opened once, before the broker is registered: their contents decide whether its
    replicas are unchanged. `take_fence` makes the tables its own.

    Raises `DamagedError` if the log is damaged. Damage to other tables is in `damage`.
    """

    request_tables: RequestTables
    log: Journal

    def __init__(self, location: Location) -> None:
        self.location = location
        self.damage: dict[str, DamagedError] = {}
        """Damage to the tables that the broker starts with, by table name.

        The log and `produce_requests` are not included; the latter repairs itself.
        """
        self._tables: dict[str, ControlTable] = {}
        in_parallel([partial(self._open, schema) for schema in _FENCED], is_local=location.is_local)
        try:
            self.log = self._open_log()
        except DamagedError as error:
            # Raises if the log itself cannot be opened.
            RecordLog(location)
            # The log is intact, but the state of the replicas cannot be derived from it.
            self.damage |= dict.fromkeys((schema.name for schema in CHECKPOINTS), error)
            self.log = self._open_log()

    def _open(self, schema: model.TableSchema) -> None:
        """Open a table and read its rows, or record its damage."""
        try:
            table = self._tables[schema.name] = ControlTable(self.location, schema)
            table.rows()
        except DamagedError as error:
            self.damage[schema.name] = error

    def _open_log(self) -> Journal:
        checkpoints = [self._tables.get(schema.name) for schema in CHECKPOINTS]
        return Journal(self.location, None, checkpoints, self.damage)

    def take_fence(self, broker_epoch: int) -> None:
        """Write `broker_epoch` to every table except the request tables, and open those.

        Afterwards no older process of the broker can write, and its earlier commits are loaded.
        Damaged tables are recreated without rows. Raises `FencedError` if a newer process has the
        root.
        """
        self.fence = Fence("broker_epoch", broker_epoch)

        def open_requests() -> None:
            # Clients write to these tables, so an epoch in them would prove nothing.
            self.request_tables = RequestTables(self.location)

        in_parallel(
            [*(partial(self._take, schema) for schema in _FENCED), open_requests],
            is_local=self.location.is_local,
        )
        self.log.take_over(self.fence, self.checkpoints)

    def _take(self, schema: model.TableSchema) -> None:
        """Take over a table under the fence; a damaged table is recreated without rows."""
        if schema.name not in self.damage:
            self._tables[schema.name].take_fence(self.fence)
            return
        try:
            table = ControlTable(self.location, schema)
        except DamagedError:
            set_aside(self.location.child(schema.name))
            create_table(self.location, schema)
            table = ControlTable(self.location, schema)
        table.recreate(self.fence)
        self._tables[schema.name] = table

    @property
    def is_rebuilt(self) -> bool:
        """Whether a checkpoint was damaged and is recreated without rows."""
        return any(schema.name in self.damage for schema in CHECKPOINTS)

    @property
    def broker_epoch(self) -> int:
        """The broker epoch that the log carries, 0 before the first one."""
        return self.log.held_by(BROKER_EPOCH) or 0

    @property
    def high_watermark_checkpoint(self) -> ControlTable:
        """The table of this name."""
        return self._tables[model.HIGH_WATERMARK_CHECKPOINT.name]

    @property
    def leader_epoch_checkpoint(self) -> ControlTable:
        """The table of this name."""
        return self._tables[model.LEADER_EPOCH_CHECKPOINT.name]

    @property
    def delayed_operations(self) -> ControlTable:
        """The table of this name."""
        return self._tables[model.DELAYED_OPERATIONS.name]

    @property
    def producer_state(self) -> ControlTable:
        """The table of this name."""
        return self._tables[model.PRODUCER_STATE.name]

    @cached_property
    def truncations(self) -> ControlTable:
        """The table of this name, fenced; it is opened when a replica is first truncated.

        A damaged table is recreated without rows: it is for people alone.
        """
        return self._opened_later(model.TRUNCATIONS)

    @cached_property
    def replica_history(self) -> ControlTable:
        """The table of this name, fenced; it is opened when the history is first extended.

        A damaged table is recreated without rows: it is for people alone.
        """
        return self._opened_later(model.REPLICA_HISTORY)

    @cached_property
    def cleaner_offset_checkpoint(self) -> ControlTable:
        """The table of this name, fenced; it is opened when a log is first to be cleaned.

        A damaged table is recreated without rows: logs are then cleaned from their start.
        """
        return self._opened_later(model.CLEANER_OFFSET_CHECKPOINT)

    def _opened_later(self, schema: model.TableSchema) -> ControlTable:
        """Open and fence a table that few roots use; a damaged one is recreated without rows."""
        try:
            table = ControlTable(self.location, schema)
            table.rows()
            table.take_fence(self.fence)
        except DamagedError as error:
            self.damage[schema.name] = error
            self._take(schema)
            return self._tables.pop(schema.name)
        return table

    @property
    def checkpoints(self) -> tuple[ControlTable, ...]:
        """The tables of `CHECKPOINTS`, in their order."""
        return tuple(self._tables[schema.name] for schema in CHECKPOINTS)

    @classmethod
    def create(
        cls,
        location: Location,
        cluster_id: str,
        broker_id: int,
        formats: Formats = THIS_RELEASE,
        format_version: int | None = None,
    ) -> BrokerRoot:
        """Create a broker root, or open the existing one after checking that it is this broker's.

        Parameters: `formats`, those that the release knows; `format_version`, the cluster's format,
        which the root gets if its own is lower, by default the newest.

        Tables that this release has added are created. Raises `StorageError` if the folder has
        other contents, or belongs to another cluster or broker. Raises `DamagedError` if a table is
        missing that existed; it is not recreated.
        """
        found = read_format(location)
        if found is None:
            version = formats.newest if format_version is None else format_version
            found = create_root(location, model.BROKER_TABLES, cluster_id, broker_id, version)
        found = check_kind(location, found, is_cluster=False, formats=formats)
        if (found.cluster_id, found.broker_id) != (cluster_id, broker_id):
            raise StorageError(
                f"{location.uri} belongs to broker {found.broker_id} of cluster "
                f"{found.cluster_id}, not to broker {broker_id} of cluster {cluster_id}: "
                "give every broker a log directory of its own"
            )
        add_tables(found, model.BROKER_TABLES, format_version)
        if location.is_local:
            # Producers write there, and may not create folders in the log.
            make_folders(f"{location.uri}/{model.LOG.name}/{model.INBOX_FOLDER}")
        return cls(location)

    def refresh(self) -> None:
        """Load the newest version of each table; must not run within a step of the broker."""
        for table in self._tables.values():
            table.refresh()
        self.log.refresh()

    def commits(self) -> int:
        """Return the number of commits that this process has made to the root's tables."""
        of_tables = sum(table.commits for table in self._tables.values())
        return of_tables + self.request_tables.commits + self.log.commits


_FENCED = (*CHECKPOINTS, model.PRODUCER_STATE)
"""The tables that carry the broker's epoch, except the log."""
