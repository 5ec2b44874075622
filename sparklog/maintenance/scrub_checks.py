"""The checks of a scrub: each reads some items and returns findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from deltalake.exceptions import DeltaError

from sparklog.cluster.metadata import PartitionState
from sparklog.cluster.repairs import Repair, finding, merged, place_of
from sparklog.cluster.restore_candidates import restore_candidates
from sparklog.errors import DamagedError, StorageError
from sparklog.maintenance.record_comparison import (
    Difference,
    LastOffsets,
    Slice,
    UncomparedError,
    first_difference,
)
from sparklog.maintenance.scrub_reading import (
    FileItem,
    RecordItem,
    ScrubReading,
    TableItem,
    refresh,
)
from sparklog.model import (
    DELAYED_OPERATIONS,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    PRODUCE_REQUESTS,
    REQUEST_TABLES,
    Batch,
    TopicIdPartition,
)
from sparklog.storage.control_table import ControlTable
from sparklog.storage.control_table_damage import is_in_place, missing_remedy, remedy
from sparklog.storage.damaged_commits import COMMIT_REMEDY
from sparklog.storage.delta_log_check import DamagedLogFile, LogCheck, check_log
from sparklog.storage.delta_log_files import commit_path, has_commit, newest_version
from sparklog.storage.execution import Execution
from sparklog.storage.file_states import FileFault, FileState, NamedFile, find_fault
from sparklog.storage.journal_check import check_journal
from sparklog.storage.location import one_line
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.restoring import covers, has_same_file

MENDED_BY_BROKER = frozenset(
    schema.name
    for schema in (
        HIGH_WATERMARK_CHECKPOINT,
        LEADER_EPOCH_CHECKPOINT,
        DELAYED_OPERATIONS,
        *REQUEST_TABLES,
    )
)
"""The tables of a broker root that their running broker writes again: from its journal, or without
requests, which their producers send again.
"""

_REPAIR = "run sparklog repair"


class Checked(NamedTuple):
    """The outcome of reading some items.

    `found` are the findings, `places` the objects that were checked, `unreadable` the objects that
    could not be read, each with the reason.
    """

    found: list[Repair]
    places: list[tuple[str, str, str]]
    unreadable: list[tuple[str, str]]
    files: int
    size_bytes: int


class Checks:
    """Checks items of one reading of a cluster.

    Parameters: `execution`, the place where batch files are read.
    """

    def __init__(self, reading: ScrubReading, execution: Execution) -> None:
        self._reading = reading
        self._execution = execution
        self._keys: dict[tuple[int, TopicIdPartition], LastOffsets] = {}

    # --- tables ---------------------------------------------------------------------------------

    def tables(self, items: Sequence[TableItem], now_ms: int) -> Checked:
        """Check the logs and the files of tables."""
        result = Checked([], [], [], 0, 0)
        files = size_bytes = 0
        is_local = all(item.root.is_local for item in items)
        outcomes = map_in_parallel(
            lambda item: self._table_or_reason(item, now_ms), items, 0, is_local=is_local
        )
        for item, outcome in zip(items, outcomes, strict=True):
            if isinstance(outcome, str):
                result.unreadable.append((f"{item.root.uri}/{item.schema.name}", outcome))
                continue
            found, check = outcome
            result.found.extend(found)
            result.places.append(place_of(item.root.uri, item.schema.name, None))
            files += check.files
            size_bytes += check.size_bytes
        return result._replace(files=files, size_bytes=size_bytes)

    def _table_or_reason(self, item: TableItem, now_ms: int) -> tuple[list[Repair], LogCheck] | str:
        """Check a table; return the findings, or the reason why it cannot be read."""
        try:
            return self._table(item, now_ms)
        except (StorageError, DeltaError, OSError, pa.ArrowException) as error:
            return one_line(error)

    def _table(self, item: TableItem, now_ms: int) -> tuple[list[Repair], LogCheck]:
        name = item.schema.name
        nothing = LogCheck([], 0, 0)
        try:
            check = self._check_log(item)
        except FileNotFoundError:
            if not is_in_place(item.root, name):
                raise StorageError(f"there is no root at {item.root.uri}") from None
            missing = finding(
                "missing_table",
                "the table is missing",
                item.root.uri,
                name,
                broker_id=item.broker_id,
                remedy=missing_remedy(name),
                now_ms=now_ms,
            )
            return [missing], nothing
        damaged = check.damaged
        if damaged:
            # A log may change while it is read: damage shows in each reading.
            again = {(one.kind, one.path) for one in self._check_log(item).damaged}
            damaged = [one for one in damaged if (one.kind, one.path) in again]
        damaged = [*damaged, *self._lost_commits(item, {one.path for one in damaged})]
        found = [self._log_file(item, one, now_ms) for one in damaged]
        if item.schema is LOG:
            return [*found, *self._headers(item, now_ms)], check
        if not found:
            found = self._table_files(item, now_ms)
        return found, check

    def _check_log(self, item: TableItem) -> LogCheck:
        """Check the log of a table, and what the state of a broker's replicas needs besides."""
        lacks_state = any(
            one.lacks_state for one in self._reading.roots.values() if one.location == item.root
        )
        if item.schema is LOG and lacks_state:
            return check_journal(item.root)
        return check_log(item.root.child(item.schema.name))

    def _lost_commits(self, item: TableItem, known: set[str]) -> Iterator[DamagedLogFile]:
        """Yield the newest commits of a cluster root's table that are gone on an object store.

        Without them the table is a sound one of an earlier version. Journals carry the versions of
        the tables that their brokers follow. In a local folder second copies show the same.
        """
        if item.broker_id is not None or item.root.is_local:
            return
        seen, broker_id = self._reading.seen_version(item.schema.name)
        table = item.root.child(item.schema.name)
        newest = newest_version(table) if seen >= 0 else seen
        for version in range(newest + 1, seen + 1):
            path = commit_path(version)
            # A list may lag.
            if path not in known and not has_commit(table, version):
                fault = f"it is missing: broker {broker_id} has seen version {seen}"
                yield DamagedLogFile("missing_commit", path, fault)

    def _table_files(self, item: TableItem, now_ms: int) -> list[Repair]:
        """Read the live files of a control table; clients write those of request tables."""
        table = f"{item.root.uri}/{item.schema.name}/"
        try:
            opened = ControlTable(item.root, item.schema)
            if item.schema is not PRODUCE_REQUESTS:
                opened.verify()
                opened.verify_copies()
        except DamagedError as error:
            return [
                finding(
                    "damaged_table_file",
                    error.fault,
                    item.root.uri,
                    item.schema.name,
                    broker_id=item.broker_id,
                    path=error.path.removeprefix(table),
                    remedy=self._table_remedy(item, "damaged_table_file"),
                    now_ms=now_ms,
                )
            ]
        return []

    def _log_file(self, item: TableItem, damage: DamagedLogFile, now_ms: int) -> Repair:
        means = self._table_remedy(item, damage.kind)
        if damage.is_dispensable:
            means = f"{_REPAIR}: the table can be opened without it, and a new one is written"
        return finding(
            damage.kind,
            damage.fault,
            item.root.uri,
            item.schema.name,
            broker_id=item.broker_id,
            path=damage.path,
            remedy=means,
            now_ms=now_ms,
        )

    def _table_remedy(self, item: TableItem, fault: str) -> str:
        if item.schema is LOG:
            return (
                f"{_REPAIR} while its broker runs, which writes a checkpoint of the table from "
                f"memory; otherwise {COMMIT_REMEDY}"
                if fault in ("damaged_commit", "missing_commit")
                else COMMIT_REMEDY
            )
        if item.broker_id is not None and item.schema.name in MENDED_BY_BROKER:
            return f"{_REPAIR}: its broker writes the table again"
        return remedy(item.schema.name)

    def _headers(self, item: TableItem, now_ms: int) -> list[Repair]:
        """Return the replicas whose headers are damaged, from the log as it was opened."""
        root = next(
            (one for one in self._reading.roots.values() if one.location == item.root), None
        )
        if root is None or root.log is None or item.broker_id is None:
            return []
        found = []
        for key, error in root.log.damaged.items():
            state = self._reading.metadata.partitions.get(key)
            unsound = root.log.unsound_batches(key)
            found.append(
                finding(
                    "damaged_header",
                    error.fault,
                    item.root.uri,
                    LOG.name,
                    broker_id=item.broker_id,
                    key=key,
                    topic=state.topic if state else None,
                    offsets=(
                        root.log.log_end_offset(key),
                        max((batch.next_offset for batch in unsound), default=0) - 1,
                    ),
                    source_broker_id=_other_leader(state, item.broker_id),
                    remedy=f"start broker {item.broker_id}: it leaves the ISR, removes the "
                    "damaged batches and is refilled from the leader",
                    now_ms=now_ms,
                )
            )
        return found

    # --- batch files ----------------------------------------------------------------------------

    def files(self, items: Sequence[FileItem], now_ms: int) -> Checked:
        """Compare the files of batches with their headers."""
        names = [
            NamedFile(item.root.child(LOG.name), item.batch.path, item.batch.size_bytes)
            for item in items
        ]
        states = self._execution.read(names)
        found: list[Repair] = []
        unreadable: list[tuple[str, str]] = []
        places = []
        for item, state in zip(items, states, strict=True):
            place = place_of(item.root.uri, LOG.name, item.batch.path)
            try:
                fault = find_fault(item.batch, state, self._reading.batches_by_checksum)
                if fault is not None and self._is_live(item):
                    found.append(self._file(item, *fault, now_ms))
            except (StorageError, DeltaError, OSError) as error:
                unreadable.append((f"{item.root.uri}/log/{item.batch.path}", one_line(error)))
                continue
            places.append(place)
        return Checked(found, places, unreadable, len(items), sum(one.size_bytes for one in states))

    def _is_live(self, item: FileItem) -> bool:
        for root in self._reading.roots.values():
            if root.location == item.root and root.log is not None:
                refresh(root.log)
                return root.log.is_live(item.batch)
        return False

    def _file(self, item: FileItem, fault: FileFault, detail: str, now_ms: int) -> Repair:
        batch = item.batch
        state = self._reading.metadata.partitions.get(batch.topic_id_partition)
        source, means = self._source(state, item.broker_id, batch)
        return finding(
            fault,
            detail,
            item.root.uri,
            LOG.name,
            broker_id=item.broker_id,
            path=batch.path,
            key=batch.topic_id_partition,
            topic=batch.topic,
            offsets=(batch.base_offset, batch.next_offset - 1),
            source_broker_id=source,
            remedy=means,
            now_ms=now_ms,
        )

    def _source(
        self, state: PartitionState | None, broker_id: int, batch: Batch
    ) -> tuple[int | None, str]:
        """Return the broker with the best copy of a batch, and the remedy."""
        nobody = "no other replica has these offsets: restore the file from a copy of the root"
        if state is None:
            return None, nobody
        committed = self._reading.committed(state)
        candidates = list(
            restore_candidates(state, broker_id, batch, committed, self._reading.log_of)
        )
        for one in candidates:
            if any(has_same_file(other, batch) for other in one.batches):
                return one.broker_id, f"{_REPAIR}: broker {one.broker_id} has the same file"
        for one in candidates:
            if one.is_in_sync and covers(one.batches, batch):
                return one.broker_id, (
                    f"{_REPAIR}: broker {one.broker_id} has the records in other batches, from "
                    "which the file is rebuilt"
                )
        return None, nobody

    # --- records --------------------------------------------------------------------------------

    def records(self, items: Sequence[RecordItem], now_ms: int) -> Checked:
        """Compare the records of replicas that have different batches (rule 9.2)."""
        result = Checked([], [], [], 0, 0)
        files = size_bytes = 0
        for item in items:
            files += len(item.batches) + len(item.other_batches)
            size_bytes += item.size_bytes
            try:
                different = self._compare(item, now_ms)
            except (StorageError, DeltaError, OSError) as error:
                what = f"{item.state.topic}-{item.state.partition}, broker {item.broker_id}"
                if not self._is_known_damage(item):
                    result.unreadable.append((what, one_line(error)))
                continue
            if different is not None:
                result.found.append(different)
        # A replica is sound only if all of its stretches are: see `Scrub._gone`.
        found = list(merged(result.found))
        return result._replace(found=found, files=files, size_bytes=size_bytes)

    def difference(self, item: RecordItem) -> Difference | None:
        """Return the first difference of the records of two replicas, as they were read.

        Raises `UncomparedError` if a file cannot be read or is damaged.
        """
        own = self._slice(item, item.broker_id, item.batches)
        other = self._slice(item, item.other_id, item.other_batches)
        return first_difference(own, other, item.first, item.below)

    def has_equal_records(self, one: Repair) -> bool:
        """Return whether a replica has the records of the leader at the offsets of a finding.

        False also if they cannot be compared. Records that both have deleted are equal.
        """
        state = self._reading.metadata.partitions.get(one.key) if one.key is not None else None
        if state is None or one.broker_id is None:
            return False
        leads = state.leader == one.broker_id
        other_id = one.source_broker_id if leads else state.leader
        if other_id is None:
            return False
        bounds = self._reading.bounds(state, one.broker_id, other_id)
        first, last = one.first_offset or 0, one.last_offset or 0
        if bounds is None or bounds[1] <= last:
            return False
        try:
            return not any(
                self.difference(item) is not None
                for item in self._reading.differing(state, one.broker_id, other_id)
                if item.below > first and item.first <= last
            )
        except UncomparedError:
            return False

    def _confirmed(
        self, item: RecordItem, attempts: int = 2
    ) -> tuple[RecordItem, Difference] | None:
        """Return the first difference that both replicas have at one time, and its item.

        If a log has changed since it was read, its present batches are compared.
        """
        difference = self.difference(item)
        if difference is None:
            return None
        if self._reading.has_both_slices(item):
            return item, difference
        if attempts == 1:
            return None
        self._keys.clear()
        present = self._reading.differing(item.state, item.broker_id, item.other_id)
        for each in present:
            if each.below > item.first and each.first < item.below:
                found = self._confirmed(each, attempts - 1)
                if found is not None:
                    return found
        return None

    def _compare(self, item: RecordItem, now_ms: int) -> Repair | None:
        confirmed = self._confirmed(item)
        if confirmed is None:
            return None
        item, difference = confirmed
        root = self._reading.root_of(item.state, item.broker_id)
        assert root is not None, "the root of a compared replica is readable"
        return finding(
            "records_differ",
            f"records from offset {difference.offset} on have digest {difference.digest}, those "
            f"of broker {item.other_id} have {difference.other_digest}",
            root.location.uri,
            LOG.name,
            broker_id=item.broker_id,
            key=item.state.key,
            topic=item.state.topic,
            offsets=(difference.offset, item.below - 1),
            source_broker_id=item.other_id,
            remedy=f"{_REPAIR}: broker {item.broker_id} leaves the ISR and is refilled from broker "
            f"{item.other_id}, whose records count as the leader's do",
            now_ms=now_ms,
        )

    def _slice(self, item: RecordItem, broker_id: int, batches: Sequence[Batch]) -> Slice:
        log = self._reading.log_of(item.state, broker_id)
        assert log is not None, "the log of a compared replica is readable"
        of = (broker_id, item.state.key)
        if of not in self._keys:
            # Of the partitions that are compared now: the items of a partition are adjacent.
            self._keys = {one: keys for one, keys in self._keys.items() if one[1] == of[1]}
            committed = self._reading.committed(item.state)
            self._keys[of] = LastOffsets(log.location, log.batches(item.state.key), committed)
        return Slice(log.location, batches, self._keys[of])

    def _is_known_damage(self, item: RecordItem) -> bool:
        """Return whether a file of the item is damaged, or no longer live.

        The files of all batches are verified by another phase.
        """
        for broker_id, batches in (
            (item.broker_id, item.batches),
            (item.other_id, item.other_batches),
        ):
            log = self._reading.log_of(item.state, broker_id)
            if log is None:
                continue
            names = [NamedFile(log.location, one.path, one.size_bytes) for one in batches]
            states: list[FileState] = self._execution.read(names)
            for batch, state in zip(batches, states, strict=True):
                try:
                    if find_fault(batch, state, {}) is not None:
                        return True
                except OSError:
                    return False
        return False


def _other_leader(state: PartitionState | None, broker_id: int) -> int | None:
    """Return the leader of a partition, if it is another broker."""
    if state is None or state.leader == broker_id:
        return None
    return state.leader
