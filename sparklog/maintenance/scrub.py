"""The scrub: all files of a cluster are read again and verified, in slices, while brokers run.

It finds damage before a reader does: in tables, in the files of batches, and in replicas whose
records differ from those of their in-sync peers. Findings are recorded in the table `repairs`, and
the position in `scrubs`, so that a scrub that was ended or killed continues with the next run. A
broker verifies the files of its own local roots continuously as well, without a stored position
(`log.scrub.bytes.per.second`).
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.clock import Clock, SystemClock
from sparklog.cluster.connection import Connection
from sparklog.cluster.repairs import Repair, record, repairs_of
from sparklog.errors import StorageError
from sparklog.maintenance.scrub_checks import Checked, Checks
from sparklog.maintenance.scrub_reading import (
    FileItem,
    Item,
    RecordItem,
    ScrubPosition,
    ScrubReading,
    TableItem,
)
from sparklog.model import SCRUBS
from sparklog.storage.commits import Cause
from sparklog.storage.execution import DriverExecution, Execution

_SLICE_BYTES = 64 << 20
"""Bytes of a slice without a rate; with a rate it has those of a second at most."""

_SLICE_FILES = 1_000
"""The number of files of a slice at most."""

_TABLES_IN_SLICE = 8
"""Tables of a slice; those of object stores are read in parallel."""

_STORED_EVERY_MS, _STORED_EVERY_MS_ON_STORE = 5_000, 30_000
"""Time in ms after which the position is stored again; each time is a commit."""

_KEPT = 20
"""The number of scrubs whose rows are kept."""


class ScrubProgress(NamedTuple):
    """The progress of a scrub after a slice.

    Attributes
    ----------
    phase : str
        tables, files or records.
    files : int
        The files that the scrub has read, in all of its runs.
    bytes : int
        The bytes that it has read.
    findings : int
        The damaged objects that it has found.
    done : int
        The steps of the phase that are done: tables, batch files, or ranges of records that two
        replicas have in different batches.
    total : int
        All steps of the phase, as the cluster was when the run began.

    Examples
    --------
    >>> from sparklog.maintenance.scrub import ScrubProgress
    >>> progress = ScrubProgress("files", 120, 5_000_000, 0, done=80, total=200)
    >>> progress.done / progress.total
    0.4
    """

    phase: str
    files: int
    bytes: int
    findings: int
    done: int
    total: int


class ScrubReport(NamedTuple):
    """The outcome of a run of a scrub.

    Attributes
    ----------
    scrub_id : str
        The id of the scrub, which may have several runs.
    is_complete : bool
        Whether the scrub has reached its end; otherwise the next run continues it.
    files : int
        The files that this run has read.
    bytes : int
        The bytes that this run has read.
    findings : list of Repair
        All findings that are not repaired yet, also of earlier runs.
    unreadable : list of tuple of str
        The roots, tables and files that could not be read, each with the reason.
    progress : ScrubProgress
        The progress of the scrub in all of its runs.

    Examples
    --------
    >>> from sparklog import Connection
    >>> from sparklog.maintenance.scrub import scrub
    >>> report = scrub(Connection("sparklog-data/cluster"))
    >>> report.is_complete, report.findings, report.unreadable
    (True, [], [])
    """

    scrub_id: str
    is_complete: bool
    files: int
    bytes: int
    findings: list[Repair]
    unreadable: list[tuple[str, str]]
    progress: ScrubProgress


def scrub(
    connection: Connection,
    *,
    execution: Execution | None = None,
    bytes_per_second: int | None = None,
    max_bytes: int | None = None,
    until_ms: int | None = None,
    restart: bool = False,
    clock: Clock | None = None,
    sleep: Callable[[float], object] = time.sleep,
    on_progress: Callable[[ScrubProgress], object] | None = None,
    done: Callable[[str], object] | None = None,
) -> ScrubReport:
    """Verify the files of a cluster, from the position at which the last run has ended.

    Brokers and clients may run. Nothing is changed except for the tables `scrubs` and `repairs`.

    Parameters
    ----------
    connection : Connection
        The cluster.
    execution : Execution, optional
        The place where batch files are read; the threads of this process by default.
    bytes_per_second : int, optional
        The rate of reading; unlimited by default.
    max_bytes : int, optional
        The bytes after which the run ends; it ends after the slice that reaches them.
    until_ms : int, optional
        The time at which the run ends, in ms since 1970.
    restart : bool, default False
        Whether a scrub that was not completed is given up for a new one.
    clock : Clock, optional
        The clock; the system's by default.
    sleep : callable, optional
        Waits for a time in s, to keep the rate.
    on_progress : callable, optional
        Called after each slice.
    done : callable, optional
        Called with the name of each effect after it: findings, position.

    Returns
    -------
    ScrubReport
        The open findings, and the progress.

    Raises
    ------
    StorageError
        The cluster root cannot be read, or another run has taken the scrub over.

    Examples
    --------
    >>> from sparklog import Connection
    >>> from sparklog.maintenance.scrub import scrub
    >>> report = scrub(Connection("sparklog-data/cluster"), bytes_per_second=50_000_000)
    >>> report.is_complete
    True
    """
    run = _Run(connection, execution or DriverExecution(), clock or SystemClock(), restart)
    run.done = done or run.done
    pace = _Pace(bytes_per_second, run.clock, sleep)
    limit = min(_SLICE_BYTES, bytes_per_second or _SLICE_BYTES)
    for items in _slices(run.reading.items(run.position), limit):
        run.check(items)
        if on_progress is not None:
            on_progress(run.progress)
        pace.keep(run.bytes)
        is_over = max_bytes is not None and run.bytes >= max_bytes
        if is_over or (until_ms is not None and run.clock.now_ms() >= until_ms):
            break
    else:
        run.is_complete = True
    return run.end()


class _Run:
    """One run of a scrub: its position, its counts, and the rows that it writes."""

    def __init__(
        self, connection: Connection, execution: Execution, clock: Clock, restart: bool
    ) -> None:
        self.clock = clock
        self.done: Callable[[str], object] = lambda _: None
        self._root = connection.root
        self._run_id = uuid.uuid4().hex
        self._row = self._begin(restart)
        self.position = ScrubPosition(*(self._row[name] for name in _POSITION))
        self.reading = ScrubReading(connection)
        self._checks = Checks(self.reading, execution)
        self.files = self.bytes = 0
        self._steps: Counter[str] = Counter()
        self.is_complete = False
        self.unreadable = [
            (one.location.uri, one.failure)
            for one in self.reading.roots.values()
            if one.failure is not None
        ]
        self._open = {one.repair_id: one for one in repairs_of(self._root) if one.is_open}
        is_local = connection.root.location.is_local
        self._stored_every_ms = _STORED_EVERY_MS if is_local else _STORED_EVERY_MS_ON_STORE
        self._stored_at_ms = clock.monotonic_ms()
        self._differing: set[tuple[str, str, str]] = set()

    @property
    def progress(self) -> ScrubProgress:
        """The progress of the scrub, with its earlier runs."""
        row, phase = self._row, self.position.phase
        done = self.reading.passed[phase] + self._steps[phase]
        total = self.reading.total(phase)
        return ScrubProgress(phase, row["files"], row["bytes"], row["findings"], done, total)

    def check(self, items: list[Item]) -> None:
        """Check a slice; record the findings, and after them the position."""
        now_ms = self.clock.now_ms()
        checked = self._check(items, now_ms)
        gone = self._gone(checked)
        record(self._root.repairs, checked.found, gone, now_ms)
        for one in checked.found:
            self._open[one.repair_id] = one
        for repair_id in gone:
            del self._open[repair_id]
        if checked.found or gone:
            self.done("findings")
        self.files += checked.files
        self.bytes += checked.size_bytes
        self.unreadable += checked.unreadable
        self.position = items[-1].after
        self._steps[self.position.phase] += len(items)
        self._row = {
            **self._row,
            **self.position._asdict(),
            "files": self._row["files"] + checked.files,
            "bytes": self._row["bytes"] + checked.size_bytes,
            "findings": self._row["findings"] + len(checked.found),
        }
        is_due = self.clock.monotonic_ms() - self._stored_at_ms >= self._stored_every_ms
        if checked.found or is_due:
            self._store("running")

    def end(self) -> ScrubReport:
        """Store the position, close what is gone, and return the report."""
        if self.is_complete:
            self._close_missing()
        self._store("done" if self.is_complete else "paused")
        findings = [one for one in repairs_of(self._root) if one.is_open]
        return ScrubReport(
            self._row["scrub_id"],
            self.is_complete,
            self.files,
            self.bytes,
            findings,
            self.unreadable,
            self.progress,
        )

    def _check(self, items: list[Item], now_ms: int) -> Checked:
        tables = [one for one in items if isinstance(one, TableItem)]
        if tables:
            return self._checks.tables(tables, now_ms)
        files = [one for one in items if isinstance(one, FileItem)]
        if files:
            return self._checks.files(files, now_ms)
        records = [one for one in items if isinstance(one, RecordItem)]
        checked = self._checks.records(records, now_ms)
        self._differing |= {one.place for one in checked.found}
        return checked

    def _gone(self, checked: Checked) -> dict[str, str]:
        """Return the open findings about checked objects that the check did not confirm."""
        confirmed = {one.repair_id for one in checked.found}
        whole = {place[:2] for place in checked.places if not place[2]}
        places = set(checked.places)
        gone = {}
        for repair_id, one in self._open.items():
            if repair_id in confirmed or one.fault == "records_differ":
                continue
            is_of_table = one.path is None or not one.path.startswith("_inbox/")
            if one.place in places or (is_of_table and one.place[:2] in whole):
                gone[repair_id] = "a later scrub found it sound"
        return gone

    def _close_missing(self) -> None:
        """Close findings about batches and replicas that the complete scrub did not confirm."""
        gone = {}
        for repair_id, one in self._open.items():
            if one.fault == "records_differ":
                if self._is_removed(one):
                    gone[repair_id] = "the replica is no longer part of the cluster"
                # A difference may not be found again since it could not be compared or confirmed.
                elif one.place not in self._differing and self._checks.has_equal_records(one):
                    gone[repair_id] = "a later scrub found equal records"
            elif one.path is not None and one.path.startswith("_inbox/"):
                roots = [
                    root
                    for root in self.reading.roots.values()
                    if root.location.uri == one.root and root.log is not None
                ]
                is_live = any(
                    one.path == batch.path
                    for root in roots
                    if root.log is not None and one.key is not None
                    for batch in root.log.batches(one.key, -1)
                )
                if roots and not is_live:
                    gone[repair_id] = "the batch is no longer part of its log"
        record(self._root.repairs, [], gone, self.clock.now_ms())

    def _is_removed(self, one: Repair) -> bool:
        """Return whether the replica of a finding was removed, perhaps with its topic."""
        state = self.reading.metadata.partitions.get(one.key) if one.key is not None else None
        return state is None or one.broker_id is None or state.replica(one.broker_id) is None

    def _begin(self, restart: bool) -> dict[str, Any]:
        now_ms = self.clock.now_ms()

        def change(rows: pa.Table) -> tuple[pa.Table, dict[str, Any]]:
            known = sorted(
                rows.to_pylist(), key=lambda row: (row["started_at_ms"], row["scrub_id"])
            )
            last = known[-1] if known else None
            if last is None or last["state"] == "done" or restart:
                last = {
                    "scrub_id": uuid.uuid4().hex,
                    **ScrubPosition()._asdict(),
                    "files": 0,
                    "bytes": 0,
                    "findings": 0,
                    # Later than every other scrub, also if the clock went back.
                    "started_at_ms": max([now_ms, *(row["started_at_ms"] + 1 for row in known)]),
                }
            mine = {**last, "run_id": self._run_id, "state": "running", "changed_at_ms": now_ms}
            others = [row for row in known if row["scrub_id"] != mine["scrub_id"]]
            return SCRUBS.rows([*others, mine][-_KEPT:]), mine

        return self._root.scrubs.update(change, cause=Cause("BEGIN SCRUB"))

    def _store(self, state: str) -> None:
        """Store the position; raises `StorageError` if another run has taken the scrub over."""
        now_ms = self.clock.now_ms()

        def change(rows: pa.Table) -> tuple[pa.Table, None]:
            found = rows.to_pylist()
            mine = next((row for row in found if row["run_id"] == self._run_id), None)
            if mine is None:
                raise StorageError(
                    "another run has taken over this scrub: let one run at a time verify a cluster"
                )
            mine |= self._row | {"state": state, "changed_at_ms": now_ms}
            return SCRUBS.rows(found), None

        self._root.scrubs.update(change, cause=Cause("NOTE SCRUB POSITION"))
        self._stored_at_ms = self.clock.monotonic_ms()
        self.done("position")


_POSITION = ScrubPosition._fields


class _Pace:
    """Keeps the rate of reading, from the beginning of a run on."""

    def __init__(
        self, bytes_per_second: int | None, clock: Clock, sleep: Callable[[float], object]
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._began_ms = clock.monotonic_ms()

    def keep(self, size_bytes: int) -> None:
        """Wait until the bytes that were read are within the rate."""
        if not self._rate:
            return
        ahead_ms = size_bytes * 1000 / self._rate - (self._clock.monotonic_ms() - self._began_ms)
        if ahead_ms > 0:
            self._sleep(ahead_ms / 1000)


def _slices(items: Iterable[Item], limit_bytes: int) -> Iterator[list[Item]]:
    """Yield the items in slices, each of one phase, and of `limit_bytes` or a single item."""
    for _, phase in itertools.groupby(items, key=type):
        members: list[Item] = []
        size_bytes = 0
        for item in phase:
            most = _TABLES_IN_SLICE if isinstance(item, TableItem) else _SLICE_FILES
            if members and (size_bytes + item.size_bytes > limit_bytes or len(members) >= most):
                yield members
                members, size_bytes = [], 0
            members.append(item)
            size_bytes += item.size_bytes
        if members:
            yield members
