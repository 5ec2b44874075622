"""Control tables whose rows are stored in several files, so that a commit contains only changes.

A change replaces the files that contain its rows, in one commit. A writer that loses the race for a
version follows the log. If the rows on which its decision is based are unchanged, it commits the
same files again. Files whose sources another writer has replaced are written again first. It
repeats the decision only for units (`sparklog.storage.shards`) whose rows have changed.

For readers it is a plain Delta table. A table with a single file is supported, too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import pyarrow as pa

from sparklog.errors import CommitConflictError, DamagedError
from sparklog.model import TableSchema
from sparklog.storage.commit_retries import moved, retrying
from sparklog.storage.commits import WRITE, AddedFile, Cause, RemovedFile
from sparklog.storage.control_table import AHEAD_AFTER_LOSS, Causes, ControlTable, given
from sparklog.storage.fence import Fence, check_fence
from sparklog.storage.location import Location
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.shard_rewrites import (
    DecidedChanges,
    Rewrite,
    RowChanges,
    rewrites,
    rewritten,
    split,
)
from sparklog.storage.shards import Shard, ShardedRows, Unit, changed_units

Decision: TypeAlias = Callable[[pa.Table], "RowChanges | None"]
"""Returns the changes to the rows that it receives, or `None` to change nothing."""

_NUMBERED = re.compile(r"part-(\d{5})-")


class ShardedTable(ControlTable):
    """A control table with a primary key and a conflict key; see `ControlTable`.

    Use `compare_and_set` and `update` for decisions that depend on all rows; they replace all rows.
    """

    def __init__(self, root: Location, schema: TableSchema, *, reopens: bool = False) -> None:
        if not schema.conflict_key or schema.key[: len(schema.conflict_key)] != schema.conflict_key:
            raise ValueError(f"the conflict key of {schema.name} does not begin its primary key")
        super().__init__(root, schema, reopens=reopens)
        self._shards: dict[str, Shard] = {}
        self._current: tuple[tuple[int, int], ShardedRows] | None = None

    def sharded_rows(self) -> ShardedRows:
        """Return all rows of the loaded version by file; only new files are read."""
        with self._lock:
            if self._current is None or self._current[0] != self.state:
                new = [path for path in sorted(self._files) if path not in self._shards]
                is_local = self.location.is_local
                try:
                    tables = map_in_parallel(self.read_file, new, 0, is_local=is_local)
                except DamagedError:
                    # A reader that was paused may find the files of its version removed.
                    if not self.refresh():
                        raise
                    return self.sharded_rows()
                self._shards |= {
                    path: Shard(rows, self.schema) for path, rows in zip(new, tables, strict=True)
                }
                self._shards = {path: self._shards[path] for path in self._files}
                self._current = self.state, ShardedRows(self._shards, self.schema)
            return self._current[1]

    def rows_of(self, units: Collection[Unit]) -> pa.Table:
        """Return the rows of some units in the loaded version."""
        return self.sharded_rows().rows_of(units)

    def change_rows(
        self,
        decide: Decision,
        units: Collection[Unit] | None = None,
        fence: Fence | None = None,
        *,
        is_unit_wise: bool = True,
        cause: Causes = WRITE,
    ) -> RowChanges:
        """Change rows, and commit the files that contain them; return the changes.

        Parameters: `decide` receives the rows of `units` (`None`: of all) in the newest version. If
        another writer has changed some of them before the commit, it is called again after a
        jittered wait. It then receives only the rows of the changed units, since it decides on each
        unit by that unit's rows; if `is_unit_wise` is false, it receives the rows of all `units`.
        It may change the units that it received, and add rows to those of `units` that have no
        rows. `fence` is checked at each attempt. `cause` is shown in the table's history; a
        function is called after `decide`.

        Raises `FencedError` as `compare_and_set` does, and `CommitConflictError` if 50 attempts
        have failed.
        """
        pending = _PendingChange(self.schema, decide, units, is_unit_wise=is_unit_wise)
        attempts = 0

        def attempt() -> None:
            nonlocal attempts
            attempts += 1
            with self._lock:
                if attempts > 1:
                    # In parallel, since others commit during each round trip to an object store.
                    least = min(attempts, AHEAD_AFTER_LOSS)
                    self._log.poll_ahead(to_end=True, least=least, counts=False)
                self._load()
            live = self.sharded_rows()
            undecided = pending.undecided(live)
            if undecided is None or undecided:
                pending.decide(live, undecided)
            with self._lock:
                # Another thread, or `decide` itself, may have loaded a newer version.
                if self.sharded_rows() is not live:
                    raise moved(self._log)
                if pending.changes:
                    self._commit_changes(live, pending, fence, cause)

        try:
            retrying(CommitConflictError)(attempt)
        except Exception:
            pending.drop_files()
            raise
        finally:
            # Done after the commit, since others may commit while a store removes a file.
            self._discard(pending.dropped)
        return pending.changes.as_changes()

    def _commit_changes(
        self, live: ShardedRows, pending: _PendingChange, fence: Fence | None, cause: Causes
    ) -> None:
        check_fence(self._log, fence)
        planned = rewrites(live, pending.changes)
        if not planned:
            return
        self._add_columns()
        self._write_pending(live, pending, planned)
        # No other attempt may use or discard these files while the outcome of this one is unknown.
        committing, pending.files = pending.files, {}
        try:
            self._commit_shards(
                [one for rewrite in planned for one in committing[rewrite]],
                [path for rewrite in planned for path in rewrite.sources],
                None,
                given(cause),
            )
        except CommitConflictError:
            pending.files = committing
            raise

    def _write_pending(
        self, live: ShardedRows, pending: _PendingChange, planned: Sequence[Rewrite]
    ) -> None:
        """Write the files of the rewrites that no earlier attempt has written."""
        pending.drop_files(except_for=planned)
        next_number = 1 + max(map(_number, live.shards), default=-1)
        new: list[tuple[Rewrite, int, pa.Table]] = []
        for rewrite in planned:
            if rewrite in pending.files:
                continue
            pending.files[rewrite] = []
            for place, rows in enumerate(rewritten(live, pending.changes, rewrite)):
                if rewrite.sources and not place:
                    new.append((rewrite, _number(rewrite.sources[0]), rows))
                else:
                    new.append((rewrite, next_number, rows))
                    next_number += 1

        def write(one: tuple[Rewrite, int, pa.Table]) -> tuple[Rewrite, _Written]:
            rewrite, number, rows = one
            stored = rows
            if self._has_unknown_columns:
                stored = self._with_unknown_columns_of(rewrite.sources, rows)
            written = self._write(stored, f"part-{number:05}"), Shard(rows, self.schema)
            found.append(written)
            return rewrite, written

        found: list[_Written] = []
        try:
            in_order = map_in_parallel(write, new, 0, is_local=self.location.is_local)
        except Exception:
            self._discard(file for file, _ in found)
            raise
        for rewrite, written in in_order:
            pending.files[rewrite].append(written)

    def _commit_shards(
        self,
        written: Sequence[_Written],
        removed: Sequence[str],
        transactions: Mapping[str, int] | None = None,
        cause: Cause = WRITE,
    ) -> None:
        files = [file for file, _ in written]
        now_ms = time.time_ns() // 1_000_000
        with self._discarding(*files):
            gone = [RemovedFile(path, now_ms) for path in removed]
            is_mine = self._log.commit(cause, files, gone, transactions)
        if not is_mine:
            raise moved(self._log)
        for path in removed:
            del self._files[path]
        for file, shard in written:
            self._files[file.path] = None
            self._shards[file.path] = shard
        self._note_commit()

    def _overwrite(
        self,
        rows: pa.Table,
        transactions: Mapping[str, int] | None = None,
        cause: Cause = WRITE,
    ) -> None:
        tables = split(rows, self.schema, rows.num_rows)
        written = [
            (self._write(one, f"part-{number:05}"), Shard(self._as_stored(one), self.schema))
            for number, one in enumerate(tables)
        ]
        try:
            self._commit_shards(written, list(self._files), transactions, cause)
        except CommitConflictError:
            self._discard(file for file, _ in written)
            raise

    def _loaded(self) -> tuple[int, pa.Table]:
        with self._lock:
            return self.version, self.sharded_rows().rows

    def _read(self, paths: Iterable[str]) -> pa.Table:
        return super()._read(sorted(paths))


_Written: TypeAlias = tuple[AddedFile, Shard]
"""A file and its rows."""


class _PendingChange:
    """Changes that are not committed yet, and the files that were written for them.

    Invariant: `changes` is the decision on the rows that `undecided` received last.
    """

    def __init__(
        self,
        schema: TableSchema,
        decide: Decision,
        units: Collection[Unit] | None,
        *,
        is_unit_wise: bool,
    ) -> None:
        self._schema = schema
        self._decide = decide
        self._units = None if units is None else frozenset(units)
        self._is_unit_wise = is_unit_wise
        self._decided: ShardedRows | None = None
        self.changes = DecidedChanges(schema)
        self.files: dict[Rewrite, list[_Written]] = {}
        self.dropped: list[AddedFile] = []
        """Files that were written and are no longer needed by the changes."""

    def undecided(self, live: ShardedRows) -> AbstractSet[Unit] | None:
        """Return the units of the `live` rows that need a decision, `None` for all."""
        if self._decided is None:
            return self._units
        changed: AbstractSet[Unit] = changed_units(self._decided, live)
        if self._units is not None:
            changed &= self._units
        if not changed:
            self._decided = live
        return changed if self._is_unit_wise or not changed else self._units

    def decide(self, live: ShardedRows, units: AbstractSet[Unit] | None) -> None:
        """Decide on the `live` rows of `units`, which `undecided` has returned."""
        rows = live.rows if units is None else live.rows_of(units)
        decided = self._decide(rows) or RowChanges(self._schema.columns.empty_table())
        stored = decided.rows.select(self._schema.columns.names).cast(self._schema.columns)
        self.changes.replace(RowChanges(stored, decided.removed), units)
        self._decided = live

    def drop_files(self, except_for: Collection[Rewrite] = ()) -> None:
        """Mark the written files that the changes no longer need as dropped."""
        for one in [one for one in self.files if one not in except_for]:
            self.dropped += [file for file, _ in self.files.pop(one)]


def _number(path: str) -> int:
    """Return the number in a file's name, which orders the files, or 0 without one."""
    numbered = _NUMBERED.match(path)
    return int(numbered[1]) if numbered else 0
