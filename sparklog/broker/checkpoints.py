"""The checkpoints of one broker root: tables that lag behind its journal, as Kafka's do (rule 1.5).

They are for recovery, for people and for SQL. A checkpoint names the version of the journal that it
describes. Invariant: commits of the journal are cleaned up only when all checkpoints describe later
ones. The empty commits of heartbeats change no checkpoint: `DeltaLog.progress` counts five of them
as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
from deltalake.exceptions import DeltaError

from sparklog.clock import Clock, Interval
from sparklog.cluster.roots import BrokerRoot
from sparklog.errors import CommitConflictError, DamagedError, FencedError, StorageError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import TRUNCATIONS, Row
from sparklog.storage.commits import LOG_VERSION, Cause
from sparklog.storage.control_table import ControlTable
from sparklog.storage.control_table_damage import CREATED_AGAIN
from sparklog.storage.fence import Fence
from sparklog.storage.journal import inbox_transaction
from sparklog.storage.location import one_line
from sparklog.storage.parallel import background_thread

_log = get_logger(__name__)

MOST_COMMITS = 100
"""Maximum number of commits after the checkpoints that a reader of the journal finds at opening.

Five empty commits count as one.
"""

MOST_TRUNCATIONS = 100_000
"""The number of truncations that a root keeps, the newest ones."""

VERIFY_INTERVAL_MS = 10_000
"""Time in ms between two checks for damage of the tables that other processes depend on."""


_CHECKPOINT = Cause("CHECKPOINT")


class _State(NamedTuple):
    """The content of the journal at a version, as the rows of the three tables."""

    version: int
    progress: int
    operations: pa.Table
    epochs: pa.Table
    rows: pa.Table
    inbox_positions: Mapping[str, int]
    truncations: Sequence[Row]


class CheckpointWriter:
    """Writes the checkpoints of one root; on an object store in parallel to the ticks."""

    def __init__(self, root: BrokerRoot, interval_ms: int, clock: Clock) -> None:
        self._root = root
        self._failures = RepeatedFailures(_log)
        self._journal = root.log
        self._interval_ms = interval_ms
        self._interval = Interval(clock)
        self._verifications = Interval(clock)
        self._has_changed = False
        # The rows of each table, as far as this process has written it.
        self._written: dict[str, pa.Table] = {}
        self._described_version = min(map(self._described, root.checkpoints))
        # The journal's progress that each table describes. Until a table is written, the commits
        # after the version that it names count as commits with content.
        self._described_progress = {
            table.schema.name: self._described(table) for table in root.checkpoints
        } | {root.high_watermark_checkpoint.schema.name: self._described_version}
        self._beside = None if root.location.is_local else background_thread("checkpoints")
        self._writing: Future[None] | None = None
        is_unnamed = any(table.held_by(LOG_VERSION) is None for table in root.checkpoints)
        if root.is_rebuilt or is_unnamed or root.log.lacks_described:
            # The tables are a new root's or an earlier release's, or were damaged. Readers take
            # them to describe the newest version until the journal has a further commit. Of a
            # journal that has lost commits, readers would take the next ones for described.
            self.describe_newest()
            # The first change is written at once.
            self._interval = Interval(clock)

    def note_change(self) -> None:
        """Note that a replica has changed in more than the time of its report."""
        self._has_changed = True

    def keep(self) -> None:
        """Write the checkpoints if they are due; a failure is logged, and the write is retried.

        They are due `Settings.checkpoint_interval_ms` after the last write if a replica has
        changed, and after `MOST_COMMITS` commits in any case.
        """
        described = self._described_progress[self._root.high_watermark_checkpoint.schema.name]
        behind = self._journal.progress - described
        is_due = self._has_changed and self._interval.is_over
        if not (is_due or behind >= MOST_COMMITS):
            return
        if self._beside is None:
            self._attempt()
        elif self._writing is None or self._writing.done():
            self._writing = self._beside.submit(self._attempt, self._begin())

    def write(self) -> bool:
        """Write the checkpoints now; return whether they were behind the journal's content.

        Raises the errors of writing a table.
        """
        if self._writing is not None:
            self._writing.result()
        if self._described_version >= self._journal.content_version and not self._root.is_rebuilt:
            return False
        self.describe_newest()
        return True

    def describe_newest(self) -> None:
        """Let each checkpoint describe the loaded version, so that no earlier commit is read.

        `write` leaves the version of rows that have not changed, and commits without content.
        Raises the errors of writing a table.
        """
        if self._writing is not None:
            self._writing.result()
        self._write(self._begin(), is_last=True)

    def write_last(self) -> None:
        """Write the checkpoints at a clean stop; a failure is only logged."""
        try:
            self.write()
        except (StorageError, DeltaError, OSError, FencedError) as error:
            self._warn(error)

    def verify(self, *, is_requested: bool = False) -> None:
        """Verify the checkpoints if that is due, and write damaged ones again.

        Only on local file systems, unless it is requested: an object store verifies its objects
        itself, and reads cost requests.
        """
        if is_requested:
            if self._writing is not None:
                self._writing.result()
        elif self._beside or not self._verifications.is_over:
            return
        self._verifications.begin(VERIFY_INTERVAL_MS)
        for table in self._root.checkpoints:
            try:
                table.verify()
                if is_requested:
                    # As others open it: this process has the table's log in memory.
                    ControlTable(self._root.location, table.schema).verify()
                    table.verify_log_files()
            except DamagedError as error:
                _log.error("checkpoint written again", error=str(error))
                table.mend_log(self._root.fence)
                self._described_version = -1
                self._written.clear()
        if self._described_version < 0:
            self._attempt()

    def _attempt(self, state: _State | None = None) -> None:
        try:
            self._write(state or self._begin())
        except (StorageError, DeltaError, OSError) as error:
            self._has_changed = True
            self._warn(error)
        except FencedError as error:
            if self._beside is None:
                raise
            # The next commit to the journal is fenced as well.
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        # The journal has all of it; meanwhile it takes longer to open.
        root = self._root.location.uri
        self._failures.warning("write", "checkpoints not written", root=root, error=one_line(error))

    def _begin(self) -> _State:
        self._has_changed = False
        self._interval.begin(self._interval_ms)
        journal = self._journal
        # A concurrent heartbeat changes only the version.
        version, progress = journal.version, journal.progress
        return _State(
            version,
            progress,
            journal.operation_table(),
            journal.epoch_table(),
            journal.row_table(version),
            {
                inbox_transaction(table_id): one.version
                for table_id, one in journal.inbox_positions.items()
            },
            tuple(journal.truncations),
        )

    def _write(self, state: _State, *, is_last: bool = False) -> None:
        root = self._root
        # All tables must name a version before the commits up to it are cleaned up.
        is_clean_up_due = self._journal.is_checkpoint_due
        is_named = is_last or is_clean_up_due
        # Delayed operations are short-lived, and each write costs two requests on an object store.
        operations = root.delayed_operations
        name = operations.schema.name
        behind = state.progress - self._described_progress[name] if name in self._written else None
        if self._beside is None or is_named or behind is None or behind >= MOST_COMMITS:
            self._write_table(operations, state.operations, state, is_named)
        if state.truncations:
            # Written before the rows: the commits with the truncations are cleaned up after that.
            self._keep_truncations(state.truncations)
        # Written before the rows, which name the version of the histories.
        epochs = root.leader_epoch_checkpoint
        self._write_table(epochs, state.epochs, state, is_named)
        versions = pa.repeat(pa.scalar(epochs.version, pa.int64()), state.rows.num_rows)
        index = state.rows.column_names.index("epochs_version")
        rows = state.rows.set_column(index, state.rows.schema.field(index), versions)
        described = {LOG_VERSION: state.version, **state.inbox_positions}
        overwrite(root.high_watermark_checkpoint, rows, root.fence, described)
        self._described_version = state.version
        for row in state.truncations:
            # Missing if the journal was opened again meanwhile.
            with suppress(ValueError):
                self._journal.truncations.remove(row)
        self._described_progress[root.high_watermark_checkpoint.schema.name] = state.progress
        if is_clean_up_due:
            self._journal.write_due_checkpoint()
        self._failures.over("write")

    def _keep_truncations(self, truncations: Sequence[Row]) -> None:
        """Add rows to `truncations`, each once: an earlier attempt may have added them."""
        table = self._root.truncations
        try:
            rows = table.rows().to_pylist()
        except DamagedError as error:
            # Checkpoints go on; the table is for people alone.
            _log.error("table recreated", error=str(error))
            table.recreate(self._root.fence)
            rows = []
        known = {tuple(row[name] for name in TRUNCATIONS.key) for row in rows}
        new = [dict(row) for row in truncations]
        new = [row for row in new if tuple(row[name] for name in TRUNCATIONS.key) not in known]
        if new:
            overwrite(table, TRUNCATIONS.rows([*rows, *new][-MOST_TRUNCATIONS:]), self._root.fence)

    def _write_table(
        self, table: ControlTable, rows: pa.Table, state: _State, is_named: bool
    ) -> None:
        """Write a checkpoint if its rows have changed; otherwise only its version, now and then.

        `is_named`: write the version in any case.
        """
        name = table.schema.name
        written = self._written.get(name)
        if written is None or not written.equals(rows):
            overwrite(table, rows, self._root.fence, {LOG_VERSION: state.version})
            self._written[name] = rows
        elif is_named or state.progress - self._described_progress[name] >= MOST_COMMITS:
            table.set_transactions({LOG_VERSION: state.version}, self._root.fence)
        else:
            return
        self._described_progress[name] = state.progress

    @staticmethod
    def _described(table: ControlTable) -> int:
        return table.held_by(LOG_VERSION) or 0


def notice_creation(table: ControlTable) -> None:
    """Reload a table that a repair has created again: it may have the version of the lost one.

    Commits to an object store do not name the table, so that one with that version is continued.
    """
    if table.location.is_local and table.schema.name in CREATED_AGAIN:
        table.refresh()


def overwrite(
    table: ControlTable,
    rows: pa.Table,
    fence: Fence,
    transactions: Mapping[str, int] | None = None,
    cause: Cause = _CHECKPOINT,
) -> None:
    """Overwrite one of the broker's own tables with its rows in memory.

    Only this broker writes there. If the table has a newer version, either a newer process has
    taken its fence (`FencedError`), or the broker's own maintenance has committed and the rows in
    memory are still current.
    """
    try:
        notice_creation(table)
        table.compare_and_set(rows, fence, transactions, cause)
    except CommitConflictError:
        table.refresh()
        table.compare_and_set(rows, fence, transactions, cause)
    except DamagedError as error:
        # The table was removed or its log damaged while the broker ran.
        _log.error("table recreated", error=str(error))
        table.recreate(fence)
        table.compare_and_set(rows, fence, transactions, cause)
