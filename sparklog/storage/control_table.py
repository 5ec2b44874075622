"""Control tables: small Delta tables that are overwritten whole, or appended to and trimmed.

Every overwrite is a compare-and-set: it lands as the version after the one that was loaded, or
it raises `CommitConflictError`. Appends and trims land behind whatever others have written, unless
that was a newer fence.
"""

from __future__ import annotations

import io
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import tenacity
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from sparklog.errors import CommitConflictError, FencedError, StorageError
from sparklog.model import TableSchema
from sparklog.storage.delta_log import (
    AddedFile,
    DeltaLog,
    RemovedFile,
    open_delta_table,
    read_commit,
)
from sparklog.storage.location import Location, one_line
from sparklog.storage.parquet import ParquetContent

_Result = TypeVar("_Result")


class Fence(NamedTuple):
    """The epoch under which one writes: `transaction` is one of the two names above."""

    transaction: str
    epoch: int


def create_table(root: Location, schema: TableSchema) -> None:
    """Create a table, empty, with its final schema; one that is there already stays as it is.

    Raises `StorageError` where that is not possible.
    """
    table = root.child(schema.name)
    try:
        DeltaTable.create(
            table.uri,
            schema=Schema.from_arrow(schema.columns),
            mode="ignore",
            partition_by=list(schema.partition_by) or None,
            configuration=dict(schema.properties),
            storage_options=dict(table.options) or None,
            # Else the second of two would commit its schema again, over the first one's rows.
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    except CommitFailedError:
        # Another process was faster, which is as good.
        return
    except (DeltaError, OSError) as error:
        raise StorageError(f"no table can be created at {table.uri}: {one_line(error)}") from error


def check_fence(log: DeltaLog, fence: Fence | None) -> None:
    """Raise `FencedError` unless the loaded version of a table bears `fence`'s epoch.

    Together with the compare-and-set on the next version no zombie can ever write.
    """
    if fence is None:
        return
    held = log.transactions.get(fence.transaction)
    if held != fence.epoch:
        raise FencedError(
            f"{log.location.uri} is held by {fence.transaction} {held}, this process has "
            f"{fence.epoch}: a newer process plays this role, so this one must stop"
        )


def take_fence(table: Location, fence: Fence, load: Callable[[], DeltaLog]) -> bool:
    """Write `fence`'s epoch to `table`, so that no writer of an older one can commit again.

    `load` brings what is known of the table's log up to date and returns it. Returns whether the
    epoch was written; where the table bears it already, nothing is to be done. Raises
    `FencedError` where it already bears a newer epoch.
    """

    def attempt() -> bool:
        log = load()
        held = log.transactions.get(fence.transaction)
        if held is not None and held > fence.epoch:
            raise FencedError(
                f"{log.location.uri} is held by {fence.transaction} {held}, newer than "
                f"{fence.epoch}: another process has taken this role over"
            )
        if held == fence.epoch:
            return False
        if not log.commit("FENCE", transactions={fence.transaction: fence.epoch}):
            raise _moved(log)
        return True

    return _until_it_lands(table, attempt)


class ControlTable:
    """One control table, with its rows cached at the version that was last loaded.

    Threads may share one.
    """

    def __init__(self, root: Location, schema: TableSchema) -> None:
        self.schema = schema
        self.location = root.child(schema.name)
        self.commits = 0
        """How many commits this handle has made."""
        self._log = DeltaLog(self.location)
        self._opened_version = self._log.version
        # The live files, each with the version that added it and its place there, where known.
        self._files: dict[str, tuple[int, int] | None] = _live_files(self._log.snapshot)
        self._rows: tuple[int, pa.Table] | None = None
        self._is_current = False
        self._lock = threading.RLock()

    @property
    def version(self) -> int:
        """The version that is loaded."""
        return self._log.version

    @property
    def table_id(self) -> str:
        """The id that Delta gave the table when it was created."""
        return self._log.table_id

    def held_by(self, transaction: str) -> int | None:
        """Return the epoch of a fence that the loaded version bears, or `None`."""
        return self._log.transactions.get(transaction)

    def refresh(self) -> bool:
        """Load the newest version; say whether it is another than before."""
        with self._lock:
            before = self._log.version
            self._load()
            return self._log.version != before

    def has_news(self) -> bool:
        """Say whether there is certainly a newer version; only told of tables in a folder."""
        return self._log.has_news()

    def _load(self, to_version: int | None = None) -> DeltaLog:
        for commit in self._log.follow(to_version):
            for path in commit.removed:
                self._files.pop(path, None)
            for position, file in enumerate(commit.added):
                self._files[file.path] = commit.version, position
        if not self._log.is_there():
            self._reopen()
        return self._log

    def _reopen(self) -> None:
        opened = DeltaLog(self.location)
        if opened.table_id != self._log.table_id or opened.version < self._log.version:
            raise StorageError(
                f"the table at {self.location.uri} is not the one that was opened: its root was "
                "lost or restored, so open it again"
            )
        self._log, self._opened_version = opened, opened.version
        self._files = _live_files(opened.snapshot)

    def rows(self) -> pa.Table:
        """Return all rows of the loaded version."""
        return self._loaded()[1]

    def _loaded(self) -> tuple[int, pa.Table]:
        with self._lock:
            version = self._log.version
            if self._rows is None or self._rows[0] != version:
                self._rows = version, self._read(self._files)
            return self._rows

    def rows_at(self, version: int) -> pa.Table:
        """Return all rows of `version`; `StorageError` where there is no such version."""
        if version == self._log.version:
            return self.rows()
        return self._read(_live_files(open_delta_table(self.location, version)))

    def _read(self, paths: Iterable[str]) -> pa.Table:
        # File by file, and not as a dataset through delta-rs's file system: its threads may
        # outlive a short process and abort it at the end, and it takes twice as long.
        files = [self.read_file(path) for path in paths]
        return pa.concat_tables(files) if files else self.schema.columns.empty_table()

    def take_fence(self, fence: Fence) -> None:
        """Fence the table: see the function of this name."""
        with self._lock:
            if take_fence(self.location, fence, self._load):
                self.commits += 1

    def compare_and_set(self, rows: pa.Table, fence: Fence | None = None) -> None:
        """Replace all rows by `rows`, as the version after the loaded one.

        Raises `CommitConflictError` where the table has moved, `FencedError` where `fence` is
        given and is no longer the one that holds the table.
        """
        self._replace(rows, self.version, fence)

    def _replace(self, rows: pa.Table, loaded: int, fence: Fence | None) -> None:
        rows = self._as_stored(rows)
        with self._lock:
            check_fence(self._log, fence)
            if self.version != loaded:
                raise _moved(self._log, loaded)
            self._add_columns()
            if not self._overwrite(rows):
                raise _moved(self._log, loaded)
            self.commits += 1
            self._rows = self.version, rows

    def _overwrite(self, rows: pa.Table) -> bool:
        if not self.location.is_local:
            return self._hand_over(rows, "overwrite")
        file = self._write(rows)
        removed = [RemovedFile(path, file.modified_at_ms) for path in self._files]
        if not self._log.commit("WRITE", [file], removed):
            return False
        self._files = {file.path: (self.version, 0)}
        return True

    def _hand_over(self, rows: pa.Table, mode: Literal["append", "overwrite"]) -> bool:
        committed = self._log.write(rows, mode)
        if committed:
            # Not further: what others wrote after it is not what the caller has seen.
            self._load(self.version + 1)
        return committed

    def _write(self, rows: pa.Table) -> AddedFile:
        """Write `rows` as a file that is no part of the table yet."""
        # By name, too, files come in the order in which a process wrote them.
        path = f"part-{time.time_ns()}-{uuid.uuid4().hex[:12]}.parquet"
        content = io.BytesIO()
        pq.write_table(rows, content, store_schema=False)
        with self.location.create(path) as target:
            target.write(content.getbuffer())
        now_ms = time.time_ns() // 1_000_000
        return AddedFile(path, content.tell(), now_ms, {}, {"numRecords": rows.num_rows})

    def _add_columns(self) -> None:
        """Give a table that an older version made the columns of today."""
        if self._is_current:
            return
        names = {field.name for field in self._log.snapshot.schema().fields}
        if not names.issuperset(self.schema.columns.names):
            write_deltalake(
                self.location.uri,
                self.schema.columns.empty_table(),
                mode="append",
                schema_mode="merge",
                storage_options=dict(self.location.options) or None,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        self._is_current = True

    def update(
        self,
        change: Callable[[pa.Table], tuple[pa.Table | None, _Result]],
        fence: Fence | None = None,
    ) -> _Result:
        """Load, change and compare-and-set until it lands.

        `change` takes the newest rows and returns the new rows (`None`: leave the table alone)
        and a result, which is returned. It is called again, after a jittered wait, when another
        writer was faster, and must decide anew each time.
        """

        def attempt() -> _Result:
            self.refresh()
            loaded, rows = self._loaded()
            new, result = change(rows)
            if new is not None:
                # Whoever loads the table within `change` must not make it pass for decided upon.
                self._replace(new, loaded, fence)
            return result

        return _retrying(CommitConflictError)(attempt)

    def append(self, rows: pa.Table, fence: Fence | None = None) -> None:
        """Append `rows` as one file; other writers may append or trim at the same time.

        Raises `FencedError` as `compare_and_set` does.
        """
        self._commit_append(self._as_stored(rows), [], fence)

    def prepare_append(self, rows: pa.Table) -> Callable[[], None]:
        """Write `rows` where they are to be, and return what appends them, as `append` does.

        So appends to several tables can follow each other closely. An object store is written to
        when they are appended.
        """
        rows = self._as_stored(rows)
        written = [self._write(rows)] if self.location.is_local else []
        return partial(self._commit_append, rows, written, None)

    def _as_stored(self, rows: pa.Table) -> pa.Table:
        return rows.select(self.schema.columns.names).cast(self.schema.columns)

    def _commit_append(self, rows: pa.Table, written: list[AddedFile], fence: Fence | None) -> None:
        def attempt() -> None:
            with self._lock:
                self._load()
                check_fence(self._log, fence)
                if not self._append(rows, written):
                    raise _moved(self._log)
                self.commits += 1

        _until_it_lands(self.location, attempt)

    def _append(self, rows: pa.Table, written: list[AddedFile]) -> bool:
        """Commit `rows`; `written` keeps their file from one attempt to the next."""
        if not self.location.is_local:
            return self._hand_over(rows, "append")
        if not written:
            written.append(self._write(rows))
        if not self._log.commit("WRITE", written):
            return False
        self._files[written[0].path] = self.version, 0
        return True

    def new_files(self, since: int) -> list[str]:
        """Return the paths of the live files that were added after version `since`, in order.

        A reader that follows an append-only table needs just these.
        """
        with self._lock:
            undated = self._date_files(since)
            dated = {path: at for path, at in self._files.items() if at is not None}
        times_ms = _times_ms(self._log.snapshot) if undated else {}
        return sorted(undated, key=lambda path: (times_ms.get(path, 0), path)) + sorted(
            (path for path, (version, _) in dated.items() if version > since),
            key=dated.__getitem__,
        )

    def _date_files(self, since: int) -> set[str]:
        """Find out which commits added the live files, as far back as version `since`.

        Returns the files that may have been added after it by commits that are no longer there.
        """
        undated = {path for path, at in self._files.items() if at is None}
        version = self._opened_version
        # Backwards, since what was added long ago is seldom live.
        while undated and version > since:
            commit = read_commit(self.location, version)
            if commit is None:
                return undated
            for position, file in enumerate(commit.added):
                if file.path in undated:
                    self._files[file.path] = version, position
                    undated.discard(file.path)
            version -= 1
        return set()

    def read_file(self, path: str) -> pa.Table:
        """Return the rows of one file of the table."""
        rows = ParquetContent(self.location.read_bytes(path)).read()
        if rows.schema.equals(self.schema.columns):
            return rows
        for column in self.schema.columns:
            # Delta lets a writer leave a column out; it counts as null.
            if column.name not in rows.column_names:
                rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
        return rows.select(self.schema.columns.names).cast(self.schema.columns)

    def trim(self, paths: Sequence[str], fence: Fence | None = None) -> None:
        """Remove whole files, which were named by `new_files`, while others go on appending."""

        def attempt() -> None:
            with self._lock:
                self._load()
                check_fence(self._log, fence)
                now_ms = time.time_ns() // 1_000_000
                gone = [path for path in paths if path in self._files]
                if not gone:
                    return
                if not self._log.commit("DELETE", (), [RemovedFile(p, now_ms) for p in gone]):
                    raise _moved(self._log)
                for path in gone:
                    del self._files[path]
                self.commits += 1

        _until_it_lands(self.location, attempt)


def _live_files(table: DeltaTable) -> dict[str, tuple[int, int] | None]:
    """Return the paths of a control table's files."""
    return dict.fromkeys(_times_ms(table))


def _times_ms(table: DeltaTable) -> dict[str, int]:
    """Return the time of each file of a table, in ms since 1970, by its path."""
    actions = pa.table(table.get_add_actions(flatten=True))
    times = actions["modification_time"].cast(pa.int64()).to_pylist()
    return dict(zip(map(unquote, actions["path"].to_pylist()), times, strict=True))


def _moved(log: DeltaLog, loaded: int | None = None) -> CommitConflictError:
    version = log.version if loaded is None else loaded
    return CommitConflictError(
        f"{log.location.uri} moved past version {version}: reload and try again"
    )


def _until_it_lands(table: Location, commit: Callable[[], _Result]) -> _Result:
    try:
        return _retrying(CommitConflictError)(commit)
    except CommitConflictError as error:
        raise CommitConflictError(
            f"{table.uri} moves too fast: others write to it without a pause"
        ) from error


def _retrying(lost: type[Exception]) -> tenacity.Retrying:
    """Try again, with jitter, after another writer was faster."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(lost),
        wait=tenacity.wait_random_exponential(multiplier=0.001, max=0.2),
        stop=tenacity.stop_after_attempt(50),
        reraise=True,
    )
