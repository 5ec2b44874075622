"""The work of a scrub: tables, batch files and stretches of records, in a fixed order.

The order of an item does not depend on the state of the cluster, so a scrub that was interrupted
continues after its position although batches were appended, merged or truncated meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from sparklog.cluster.connection import Connection
from sparklog.cluster.metadata import Metadata, PartitionState
from sparklog.errors import DamagedError
from sparklog.maintenance.record_comparison import has_equal_batches, stretches
from sparklog.model import (
    BROKER_TABLES,
    CLUSTER_TABLES,
    FORMAT,
    LOG,
    Batch,
    Row,
    TableSchema,
    TopicIdPartition,
)
from sparklog.storage.control_table_damage import is_in_place
from sparklog.storage.errors import UNREADABLE_CONTENT
from sparklog.storage.journal import Journal, newest_seen
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.record_log import RecordLog
from sparklog.storage.seen_versions import SeenVersions

PHASES = ("tables", "files", "records")
"""The phases of a scrub, in their order."""


class ScrubPosition(NamedTuple):
    """A position in the order of the items; the columns of the table `scrubs`."""

    phase: str = PHASES[0]
    root: str = ""
    topic_id: str = ""
    partition: int = -1
    broker_id: int = -1
    next_offset: int = 0

    @property
    def order(self) -> tuple[int, str, str, int, int, int]:
        """The position as a value that can be compared."""
        return PHASES.index(self.phase), *self[1:]


class TableItem(NamedTuple):
    """A table of the cluster root (`broker_id` is `None`) or of a broker's root."""

    broker_id: int | None
    root: Location
    schema: TableSchema

    @property
    def position(self) -> ScrubPosition:
        """The position of the item."""
        return ScrubPosition("tables", f"{self.root.uri}/{self.schema.name}")

    @property
    def after(self) -> ScrubPosition:
        """The position after the item."""
        return self.position._replace(next_offset=1)

    @property
    def size_bytes(self) -> int:
        """Unknown before the table is read."""
        return 0


class FileItem(NamedTuple):
    """The file of a live batch in a broker's root."""

    broker_id: int
    root: Location
    batch: Batch

    @property
    def position(self) -> ScrubPosition:
        """The position of the item."""
        of = self.batch.topic_id_partition
        return ScrubPosition("files", self.root.uri, *of, self.broker_id, self.batch.base_offset)

    @property
    def after(self) -> ScrubPosition:
        """The position after the item."""
        return self.position._replace(next_offset=self.batch.next_offset)

    @property
    def size_bytes(self) -> int:
        """The size of the file in bytes."""
        return self.batch.size_bytes


class RecordItem(NamedTuple):
    """A range of committed offsets that two in-sync replicas have in different batches."""

    state: PartitionState
    broker_id: int
    other_id: int
    first: int
    below: int
    batches: Sequence[Batch]
    other_batches: Sequence[Batch]

    @property
    def position(self) -> ScrubPosition:
        """The position of the item."""
        return ScrubPosition("records", "", *self.state.key, self.broker_id, self.first)

    @property
    def after(self) -> ScrubPosition:
        """The position after the item."""
        return self.position._replace(next_offset=self.below)

    @property
    def size_bytes(self) -> int:
        """The size of the files that contain the offsets in both replicas, in bytes."""
        return sum(batch.size_bytes for batch in (*self.batches, *self.other_batches))


Item = TableItem | FileItem | RecordItem


@dataclass
class ScrubbedRoot:
    """A broker's root: its log, if that could be opened, and the rows of its replicas."""

    broker_id: int
    location: Location
    log: RecordLog | None = None
    rows: Mapping[TopicIdPartition, Row] = field(default_factory=dict)
    seen: SeenVersions = field(default_factory=SeenVersions)
    """The newest versions of other roots that the journal carries."""
    lacks_state: bool = False
    """Whether the state of the replicas cannot be derived: a checkpoint table or a commit is
    damaged.
    """
    failure: str | None = None
    """The reason why the root cannot be read; damage to its log is reported by the tables."""


class ScrubReading:
    """The cluster as it was when the run began.

    Attributes: `passed`, the numbers of items before the position of `items`, by phase.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.metadata: Metadata = connection.metadata()
        places = {
            (broker.broker_id, number): Location.of(uri, connection.storage_options)
            for broker in sorted(self.metadata.brokers.values())
            for number, uri in broker.online_roots.items()
        }
        read = map_in_parallel(
            lambda place: _read_root(place[0][0], place[1]),
            list(places.items()),
            0,
            is_local=all(location.is_local for location in places.values()),
        )
        self.roots: dict[tuple[int, int], ScrubbedRoot] = dict(zip(places, read, strict=True))
        self.passed: Counter[str] = Counter()

    def items(self, position: ScrubPosition) -> Iterator[Item]:
        """Yield the items at or after a position, in order."""
        for phase in (lambda: self._tables, self._files, lambda: self._records):
            for item in phase():
                if item.position.order >= position.order:
                    yield item
                else:
                    self.passed[item.position.phase] += 1

    def total(self, phase: str) -> int:
        """Return the number of all items of a phase, from what is in memory."""
        if phase == "files":
            logs = [root.log for root in self.roots.values() if root.log is not None]
            return sum(len(log.batches(key, -1)) for log in logs for key in log.partitions())
        return len(self._tables if phase == "tables" else self._records)

    def log_of(self, state: PartitionState, broker_id: int) -> RecordLog | None:
        """Return the log of a broker's replica of a partition, or `None` if it is not readable."""
        root = self.root_of(state, broker_id)
        return root.log if root is not None else None

    def root_of(self, state: PartitionState, broker_id: int) -> ScrubbedRoot | None:
        """Return the root with a broker's replica of a partition, if it is registered."""
        replica = state.replica(broker_id)
        return None if replica is None else self.roots.get((broker_id, replica.root))

    def has_both_slices(self, item: RecordItem) -> bool:
        """Return whether two replicas are in sync, and then still have the batches of an item.

        The logs of a reading are not of one time: a replica may have been truncated, and have
        copied records that were committed then, between the readings of two logs; and a list of an
        object store may be outdated. A replica that is in sync after the high watermark was read
        has the committed records.

        Raises `StorageError`, `DeltaError`, `OSError` if a log cannot be read, or is gone.
        """
        state = self._connection.metadata().partitions.get(item.state.key)
        for broker_id, batches in (
            (item.broker_id, item.batches),
            (item.other_id, item.other_batches),
        ):
            log = self.log_of(item.state, broker_id)
            if log is None or state is None or broker_id not in state.isr:
                return False
            refresh(log)
            if not all(map(log.is_live, batches)):
                return False
        return True

    def committed(self, state: PartitionState) -> int:
        """Return the highest high watermark that an in-sync replica of a partition knows."""
        rows = [self.row_of(state, broker_id) for broker_id in state.isr]
        return max((int(row["high_watermark"]) for row in rows if row is not None), default=0)

    @cached_property
    def batches_by_checksum(self) -> dict[str, Batch]:
        """The live batches of all roots, by the checksums of their files."""
        return {
            batch.checksum: batch
            for root in self.roots.values()
            if root.log is not None
            for key in root.log.partitions()
            for batch in root.log.batches(key, -1)
        }

    def seen_version(self, table_name: str) -> tuple[int, int]:
        """Return the newest version of a table of the cluster root that a journal carries, and its
        broker; -1 if none does.

        Invariant: that version existed before the reading began.
        """
        found = [
            (one.seen.tables.get(table_name, -1), one.broker_id) for one in self.roots.values()
        ]
        return max(found, default=(-1, -1))

    def row_of(self, state: PartitionState, broker_id: int) -> Row | None:
        """Return the row of a broker's replica of a partition, or `None` if it is not readable."""
        root = self.root_of(state, broker_id)
        return root.rows.get(state.key) if root is not None else None

    @cached_property
    def _tables(self) -> list[TableItem]:
        root = self._connection.root
        # Roots of earlier releases may lack tables that a later release has added.
        listed = {FORMAT.name, *root.format.tables}
        items = [
            TableItem(None, root.location, one)
            for one in (FORMAT, *CLUSTER_TABLES)
            if one.name in listed
        ]
        items += [
            TableItem(one.broker_id, one.location, schema)
            for one in self.roots.values()
            if one.failure is None
            for schema in (FORMAT, *BROKER_TABLES)
        ]
        return sorted(items, key=lambda item: item.position.order)

    def _files(self) -> Iterator[FileItem]:
        for root in sorted(self.roots.values(), key=lambda one: one.location.uri):
            if root.log is None:
                continue
            for key in sorted(root.log.partitions()):
                for batch in root.log.batches(key, -1):
                    yield FileItem(root.broker_id, root.location, batch)

    @cached_property
    def _records(self) -> list[RecordItem]:
        items: list[RecordItem] = []
        for state in sorted(self.metadata.partitions.values(), key=lambda one: one.key):
            in_sync = [one for one in state.isr if self.row_of(state, one) is not None]
            if len(in_sync) < 2:
                continue
            other = state.leader if state.leader in in_sync else in_sync[0]
            for broker_id in in_sync:
                if broker_id != other and other is not None:
                    items += self.differing(state, broker_id, other)
        return items

    def bounds(
        self, state: PartitionState, broker_id: int, other_id: int
    ) -> tuple[int, int] | None:
        """Return the first offset and the end of the records that two replicas can be compared by.

        `None` if one of them cannot be read. The audit reports committed records that one lacks.
        """
        logs = [self.log_of(state, one) for one in (broker_id, other_id)]
        rows = [self.row_of(state, one) for one in (broker_id, other_id)]
        if None in logs or None in rows:
            return None
        start = max(int(row["log_start_offset"]) for row in rows if row is not None)
        ends = [log.log_end_offset(state.key, start) for log in logs if log is not None]
        return start, min(self.committed(state), *ends)

    def differing(
        self, state: PartitionState, broker_id: int, other_id: int
    ) -> Iterator[RecordItem]:
        """Yield the ranges of committed offsets that two replicas have in different batches."""
        logs = self.log_of(state, broker_id), self.log_of(state, other_id)
        bounds = self.bounds(state, broker_id, other_id)
        if bounds is None:
            return
        start, end = bounds
        own, others = (
            [one for one in log.batches(state.key, start) if one.base_offset < end]
            for log in logs
            if log is not None
        )
        for mine, theirs in stretches(own, others):
            if has_equal_batches(mine, theirs):
                continue
            begins = [one.base_offset for one in (*mine[:1], *theirs[:1])]
            ends = [one.next_offset for one in (*mine[-1:], *theirs[-1:])]
            first, below = max(start, min(begins)), min(end, max(ends))
            if first < below:
                yield RecordItem(state, broker_id, other_id, first, below, mine, theirs)


def refresh(log: RecordLog) -> None:
    """Bring a log to its newest version: truncation and merging remove batches.

    Raises `StorageError`, `DeltaError`, `OSError` if it cannot be read, or is gone with its files:
    the root is not mounted.
    """
    # The commits that were loaded hours ago are cleaned up by now; it opens the log again.
    log.refresh()
    if not log.is_in_place():
        raise OSError(f"there is no log at {log.location.uri}")


def _read_root(broker_id: int, location: Location) -> ScrubbedRoot:
    root = ScrubbedRoot(broker_id, location)
    try:
        try:
            journal = Journal(location, with_operations=True)
        except DamagedError:
            root.lacks_state = True
            # The damage may be of the delayed operations alone.
            journal = Journal(location)
        root.log, root.rows = journal, dict(journal.rows)
        root.seen = newest_seen(journal.location, journal.version)
    except DamagedError:
        with suppress(*UNREADABLE_CONTENT):
            # A checkpoint is damaged; the log itself may be sound.
            root.log = RecordLog(location)
    except UNREADABLE_CONTENT as error:
        if not is_in_place(location, LOG.name):
            root.failure = one_line(error)
    return root
