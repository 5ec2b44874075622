"""Control tables: small Delta tables whose rows are replaced as a whole.

Each overwrite is a compare-and-set: it is committed as the version after the loaded one, or it
raises `CommitConflictError`.
"""

from __future__ import annotations

import io
import math
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from sparklog.errors import (
    AccessDeniedError,
    CommitConflictError,
    DamagedError,
    StorageError,
    TableReplacedError,
    UnreachableError,
)
from sparklog.model import CLIENT_TABLES, TableSchema
from sparklog.storage import local_files
from sparklog.storage.commit_retries import moved, retrying
from sparklog.storage.commits import (
    WRITE,
    AddedFile,
    Cause,
    Commit,
    RemovedFile,
    check_commits,
    read_commit,
)
from sparklog.storage.control_table_damage import (
    CREATED_AGAIN,
    content_fault,
    damaged_file,
    find_damage,
    remedy,
    set_aside,
)
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.delta_log_check import check_log
from sparklog.storage.delta_log_files import LOG_FOLDER, commit_path, has_commit
from sparklog.storage.delta_snapshots import open_table
from sparklog.storage.errors import STORE_ERRORS
from sparklog.storage.fence import Fence, check_fence, take_fence
from sparklog.storage.file_copies import beside, copy_first_commit, find_faults
from sparklog.storage.json_text import json_bytes
from sparklog.storage.location import Location, one_line
from sparklog.storage.new_file import check_present, discard_file, new_file
from sparklog.storage.parquet import ParquetContent, check_decoded_size
from sparklog.storage.unknown_columns import with_unknown_columns

AHEAD_AFTER_LOSS = 4
"""The number of commits requested in parallel from an object store after a lost race."""

_CHECKSUM_IN_NAME = re.compile(r"-[0-9a-f]{12}-([0-9a-f]{16})\.parquet$")
"""The end of a file's name. Files of earlier releases and of other writers have no checksum."""

_Result = TypeVar("_Result")

Causes: TypeAlias = "Cause | Callable[[], Cause]"
"""The cause of a commit, or a function that returns it once the change was decided."""


def given(cause: Causes) -> Cause:
    """Return the cause, for which a function is called."""
    return cause if isinstance(cause, Cause) else cause()


def create_table(root: Location, schema: TableSchema, fence: Fence | None = None) -> None:
    """Create an empty table with its final schema; an existing table stays as it is.

    Parameters: `fence`, that of a table whose owner may be running: it is part of the first commit.
    Raises `StorageError` if the table cannot be created.
    """
    table = root.child(schema.name)
    try:
        if table.is_local and fence is None:
            _create(table.uri, schema)
            copy_first_commit(table)
            local_files.share_below(table.uri)
        else:
            _create_by_put(table, schema, fence)
    except (CommitFailedError, FileExistsError):
        # Another process has created the table first.
        return
    except AccessDeniedError:
        raise
    except STORE_ERRORS as error:
        raise StorageError(f"no table can be created at {table.uri}: {one_line(error)}") from error


def _create(folder: str, schema: TableSchema) -> None:
    DeltaTable.create(
        folder,
        schema=Schema.from_arrow(schema.columns),
        mode="ignore",
        partition_by=list(schema.partition_by) or None,
        configuration=dict(schema.properties),
        # With retries, the second of two creators would commit its schema over the first one's
        # rows.
        commit_properties=CommitProperties(max_commit_retries=0),
    )


def _create_by_put(table: Location, schema: TableSchema, fence: Fence | None) -> None:
    """Create a table: delta-rs writes its first commit to a temporary folder.

    On an object store that takes one listing and one conditional PUT. delta-rs makes nine requests
    in sequence.
    """
    if table.names(LOG_FOLDER):
        return
    commit = first_commit(schema)
    if fence is not None:
        held = {"appId": fence.transaction, "version": fence.epoch}
        commit = commit.rstrip(b"\n") + b"\n" + json_bytes({"txn": held})
    if table.is_local:
        local_files.make_folders(f"{table.uri}/{LOG_FOLDER}")
    table.put_new(commit_path(0), commit)
    beside(table, partial(copy_first_commit, table, commit))
    if table.is_local:
        local_files.share_below(table.uri)


def first_commit(schema: TableSchema) -> bytes:
    """Return the commit that creates an empty table, with a new table id."""
    with TemporaryDirectory(prefix="sparklog-") as folder:
        _create(folder, schema)
        return Path(folder, commit_path(0)).read_bytes()


class ControlTable:
    """One control table, with its rows cached at the version that was last loaded.

    Threads may share an instance. Parameter `reopens`: whether a table that has lost commits, such
    as a restored one, is reloaded. Clients use True. Brokers use False and get a `StorageError`,
    because their state in memory is ahead of the table.
    """

    def __init__(self, root: Location, schema: TableSchema, *, reopens: bool = False) -> None:
        self.schema = schema
        self.root = root
        self._reopens = reopens
        self._reopened = 0
        self.location = root.child(schema.name)
        self.commits = 0
        """The number of commits made through this instance."""
        self._log = self._open_log()
        self._files = dict.fromkeys(_live_files(self._log.snapshot))
        self._rows: tuple[int, pa.Table] | None = None
        self._is_current = False
        self._has_unknown_columns = False
        self._stamp = self._log.stamp()
        self._lock = threading.RLock()

    @property
    def version(self) -> int:
        """The loaded version."""
        return self._log.version

    @property
    def state(self) -> tuple[int, int]:
        """The number of reopenings and the loaded version. Equal states have equal rows."""
        return self._reopened, self._log.version

    @property
    def table_id(self) -> str:
        """The id that Delta gave the table when it was created."""
        return self._log.table_id

    def held_by(self, transaction: str) -> int | None:
        """Return the epoch of a fence that the loaded version carries, or `None`."""
        return self._log.transactions.get(transaction)

    def transaction(self, name: str) -> int | None:
        """Return the version of an app transaction, as loaded, or `None` without one."""
        followed = self._log.transactions.get(name)
        return self._log.opened_transaction(name) if followed is None else followed

    def refresh(self) -> bool:
        """Load the newest version; return whether it differs from the one before."""
        with self._lock:
            before = self.state
            self._load()
            return self.state != before

    def poll_ahead(self, *, to_end: bool = False) -> None:
        """Request the next commits from an object store without waiting; `refresh` applies them."""
        with self._lock:
            self._log.poll_ahead(to_end=to_end)

    def has_news(self) -> bool:
        """Return True if a newer version exists. Always False on object stores (a request)."""
        return self._log.has_news()

    def _load(self, to_version: int | None = None) -> DeltaLog:
        try:
            self._follow(to_version)
        except DamagedError as error:
            self._raise_damage(error)
        if self._log.is_lost:
            self._reopen()
        return self._log

    def _follow(self, to_version: int | None) -> None:
        loaded, stamp = self._stamp, self._log.stamp()
        is_rewritten = loaded and stamp and loaded.version == stamp.version and loaded != stamp
        if is_rewritten and not self._log.has_loaded_commit():
            self._reopen(is_other_log=True)
        self._stamp = stamp
        for commit in self._log.follow(to_version):
            if any(path not in self._files for path in commit.removed):
                # The commit follows another one than the loaded one, so the loaded one was lost.
                self._reopen(is_other_log=True)
                break
            for path in commit.removed:
                del self._files[path]
            self._files |= dict.fromkeys(file.path for file in commit.added)
        if stamp is None or self._log.version != stamp.version:
            self._stamp = self._log.stamp()

    def _open_log(self) -> DeltaLog:
        """Open the table's log; raises `DamagedError` with the file that prevents opening it."""
        try:
            return self._checked(DeltaLog(self.location))
        except UnreachableError:
            raise
        except (StorageError, DeltaError) as error:
            self._raise_damage(error)
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"the table at {self.location.uri} cannot be opened: {one_line(error)}"
            ) from error

    def _checked(self, log: DeltaLog) -> DeltaLog:
        """Return `log`; raises `DamagedError` if the table lacks a column of the oldest format."""
        names = {field.name for field in log.snapshot.schema().fields}
        missing = [
            name
            for name in self.schema.columns.names
            if name not in names and name not in self.schema.added
        ]
        if missing:
            fault = f"its schema has no column {', '.join(missing)}"
            raise DamagedError(self.location.uri, fault, remedy(self.schema.name))
        return log

    def _raise_damage(self, error: Exception) -> None:
        if isinstance(error, DamagedError):
            raise DamagedError(error.path, error.fault, remedy(self.schema.name)) from error
        damage = find_damage(self.root, self.schema.name)
        if damage is not None:
            raise damage from error

    def recreate(self, fence: Fence) -> None:
        """Recreate the table, empty: remove its rows, or replace it if its log is damaged.

        A table with a damaged log is set aside. Only the broker that owns the table may call this.
        """
        with self._lock:
            self.mend_log(fence)
            self.compare_and_set(
                self.schema.columns.empty_table(), fence, cause=Cause("RECREATE TABLE")
            )

    def mend_log(self, fence: Fence) -> None:
        """Recreate the table, empty, if its log is damaged; the caller then writes its rows."""
        with self._lock:
            try:
                opened = self._open_log()
                self.verify_log_files()
            except DamagedError:
                set_aside(self.location)
                create_table(self.root, self.schema)
                opened = self._open_log()
            self._take(opened)
            self._rows = None
            self._is_current = False
            self.take_fence(fence)

    def verify(self) -> None:
        """Read the log and the live files again; raises `DamagedError` as `read_file` does."""
        with self._lock:
            self.verify_log()
            self._read(self._files)

    def verify_copies(self) -> None:
        """Compare the live files with their second copies; raises `DamagedError` if one differs."""
        with self._lock:
            self.refresh()
            for one in find_faults(self.location, self._files):
                if one.path in self._files:
                    raise damaged_file(self.location, one.path, one.fault)

    def verify_log_files(self) -> None:
        """Read the files that opening the table needs; raises `DamagedError` if one is damaged.

        delta-rs may open the table nevertheless, if it does not read the damaged part.
        """
        for file in check_log(self.location).damaged:
            raise damaged_file(self.location, file.path, file.fault)

    def verify_log(self) -> None:
        """Read the commits of the log again; raises `DamagedError` if one is damaged."""
        if not has_commit(self.location, self._log.version):
            self._open_log()
        try:
            check_commits(self.location, table_id=self._log.table_id)
        except DamagedError as error:
            self._raise_damage(error)

    def _reopen(self, *, is_other_log: bool = False) -> None:
        """Open the table again after the loaded version has disappeared from its log.

        Clean-up has removed it, or it was lost. With `is_other_log`, another commit has its place.
        """
        opened = self._open_log()
        is_later = opened.version >= self._log.version and not is_other_log
        is_equal = (opened.version, opened.transactions, set(_live_files(opened.snapshot))) == (
            self._log.version,
            self._log.transactions,
            set(self._files),
        )
        is_same = opened.table_id == self._log.table_id
        is_accepted = is_same and (is_later or is_equal or self._reopens)
        is_created_again = not is_same and self.schema.name in CREATED_AGAIN
        if not is_accepted and not is_created_again:
            raise TableReplacedError(
                f"the table at {self.location.uri} is not the one that was opened: its root was "
                "lost or restored; restore its newest state, or open it again"
            )
        self._take(opened)

    def _take(self, opened: DeltaLog) -> None:
        self._log = opened
        self._files = dict.fromkeys(_live_files(opened.snapshot))
        self._stamp = opened.stamp()
        self._rows = None
        self._reopened += 1

    def _read_commit(self, version: int) -> Commit | None:
        return read_commit(self.location, version)

    def rows(self) -> pa.Table:
        """Return all rows of the loaded version."""
        return self._loaded()[1]

    def _loaded(self) -> tuple[int, pa.Table]:
        with self._lock:
            version = self._log.version
            if self._rows is None or self._rows[0] != version:
                try:
                    self._rows = version, self._read(self._files)
                except DamagedError:
                    # A reader that was paused may find the files of its version removed.
                    if not self.refresh():
                        raise
                    self._rows = self._log.version, self._read(self._files)
            return self._rows

    def rows_at(self, version: int) -> pa.Table:
        """Return all rows of `version`; raises `StorageError` if this version does not exist."""
        if version == self._log.version:
            return self.rows()
        return self._read(_live_files(open_table(self.location, version).snapshot))

    def _read(self, paths: Iterable[str]) -> pa.Table:
        # One file at a time rather than as a dataset through delta-rs's file system. That takes
        # twice as long, and its threads may outlive a short process and abort it at exit.
        files = [self.read_file(path) for path in paths]
        return pa.concat_tables(files) if files else self.schema.columns.empty_table()

    def take_fence(self, fence: Fence, *, may_hold: bool = True) -> None:
        """Fence the table; see the function `take_fence`."""
        with self._lock:
            if take_fence(self.location, fence, self._load, may_hold=may_hold):
                self._note_commit()

    def compare_and_set(
        self,
        rows: pa.Table,
        fence: Fence | None = None,
        transactions: Mapping[str, int] | None = None,
        cause: Cause = WRITE,
    ) -> None:
        """Replace all rows by `rows`, as the version after the loaded one.

        `transactions` are the versions of app transactions to be set in the same commit; `cause` is
        shown in the table's history. Raises
        `CommitConflictError` if another writer has committed, and `FencedError` if the table no
        longer carries the epoch of `fence`.
        """
        self._replace(rows, self.version, fence, transactions, cause)

    def set_transactions(self, transactions: Mapping[str, int], fence: Fence) -> None:
        """Set the versions of app transactions only; raises as `compare_and_set` does."""
        with self._lock:
            check_fence(self._log, fence)
            if not self._log.commit("SET TRANSACTIONS", transactions=transactions):
                raise moved(self._log)
            self._note_commit()
            if self._rows is not None:
                self._rows = self.version, self._rows[1]

    def _replace(
        self,
        rows: pa.Table,
        loaded: int,
        fence: Fence | None,
        transactions: Mapping[str, int] | None = None,
        cause: Cause = WRITE,
    ) -> None:
        rows = self._as_stored(rows)
        with self._lock:
            check_fence(self._log, fence)
            if self.version != loaded:
                raise moved(self._log, loaded)
            self._add_columns()
            self._overwrite(self._with_unknown_columns(rows), transactions, cause)
            self._rows = self.version, rows

    def _with_unknown_columns(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with the columns that a later release has added to the table."""
        if not self._has_unknown_columns:
            return rows
        return self._with_unknown_columns_of(self._files, rows)

    def _with_unknown_columns_of(self, paths: Iterable[str], rows: pa.Table) -> pa.Table:
        declared = {field.name for field in open_table(self.location).snapshot.schema().fields}
        files = [ParquetContent(self.location.read_bytes(path)).read() for path in paths]
        return with_unknown_columns(rows, files, declared, self.schema)

    def _overwrite(
        self,
        rows: pa.Table,
        transactions: Mapping[str, int] | None = None,
        cause: Cause = WRITE,
    ) -> None:
        """Commit `rows` in the place of all rows, as the next version."""
        file = self._write(rows)
        removed = [RemovedFile(path, file.modified_at_ms) for path in self._files]
        with self._discarding(file):
            if not self._log.commit(cause, [file], removed, transactions):
                raise moved(self._log)
        self._files = dict.fromkeys([file.path])
        self._note_commit()

    def _note_commit(self) -> None:
        """Count a commit of this instance, and note its file, as `_follow` does for others'."""
        self.commits += 1
        self._stamp = self._log.stamp()

    @contextmanager
    def _discarding(self, *files: AddedFile) -> Iterator[None]:
        """Remove files whose commit fails within the block, unless the commit exists."""
        version = self._log.version + 1
        written_at = min((file.modified_at_ms / 1000 for file in files), default=math.inf)
        try:
            check_present(self.location, (file.path for file in files), (written_at, math.inf))
            yield
        except CommitConflictError:
            self._discard(files)
            raise
        except (OSError, StorageError, DeltaError) as error:
            # An existing commit may be this one, if only its response was lost: keep its files.
            if self.location.is_local and not has_commit(self.location, version):
                self._discard(files)
            self._raise_damage(error)
            raise

    def _discard(self, files: Iterable[AddedFile]) -> None:
        for file in files:
            discard_file(self.location, file.path)

    def _write(self, rows: pa.Table, name: str = "part") -> AddedFile:
        """Write `rows` as a file that is not yet part of the table; its path starts with `name`.

        The path ends with a checksum of the content, by which readers recognise it.
        """
        content = io.BytesIO()
        # Readers of whole files need no statistics, and no page checksum covers them.
        options = {"store_schema": False, "write_page_checksum": True, "write_statistics": False}
        pq.write_table(rows, content, **options)
        checksum = xxhash.xxh3_64_hexdigest(content.getbuffer())
        # The time in the name sorts the files of a process in the order of writing.
        path = f"{name}-{time.time_ns()}-{uuid.uuid4().hex[:12]}-{checksum}.parquet"
        with new_file(self.location, path) as target:
            target.write(content.getbuffer())
        now_ms = time.time_ns() // 1_000_000
        return AddedFile(path, content.tell(), now_ms, {}, {"numRecords": rows.num_rows})

    @property
    def missing_columns(self) -> list[str]:
        """The columns of the current schema that the table did not have when it was opened."""
        names = {field.name for field in self._log.snapshot.schema().fields}
        return [name for name in self.schema.columns.names if name not in names]

    def add_columns(self) -> None:
        """Add the columns that the table lacks; they are null in its rows. Any process may call it.

        Raises `StorageError` or `DeltaError` if the table cannot be written.
        """

        def attempt() -> None:
            with self._lock:
                self.refresh()
                try:
                    self._add_columns()
                except CommitFailedError as error:
                    raise moved(self._log) from error

        retrying(CommitConflictError)(attempt)

    def _add_columns(self) -> None:
        """Add the current schema's missing columns to a table that an older release created."""
        if self._is_current:
            return
        if self.missing_columns:
            write_deltalake(
                self.location.uri,
                self.schema.columns.empty_table(),
                mode="append",
                schema_mode="merge",
                storage_options=self.location.store_options,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        self._is_current = True

    def update(
        self,
        change: Callable[[pa.Table], tuple[pa.Table | None, _Result]],
        fence: Fence | None = None,
        cause: Causes = WRITE,
    ) -> _Result:
        """Load, change and compare-and-set until the commit succeeds.

        `change` takes the newest rows and returns the new rows (`None`: leave the table unchanged)
        and a result, which is returned. After a conflict it is called again with the then newest
        rows, after a jittered wait, and must decide on them alone. `cause` may be a function that
        returns it after `change` was called.
        """
        attempts = 0

        def attempt() -> _Result:
            nonlocal attempts
            attempts += 1
            if attempts > 1:
                with self._lock:
                    self._log.poll_ahead(to_end=True, least=AHEAD_AFTER_LOSS, counts=False)
            self.refresh()
            loaded, rows = self._loaded()
            new, result = change(rows)
            if new is not None:
                # The version from before `change`: if `change` loads a newer one, this commit must
                # fail.
                self._replace(new, loaded, fence, cause=given(cause))
            return result

        return retrying(CommitConflictError)(attempt)

    def _as_stored(self, rows: pa.Table) -> pa.Table:
        return rows.select(self.schema.columns.names).cast(self.schema.columns)

    def read_file(self, path: str) -> pa.Table:
        """Return the rows of one file of the table.

        Raises `DamagedError` if the file is missing or differs from what was written.
        """
        rows, has_unknown_columns = rows_in_file(self.location, path, self.schema)
        self._has_unknown_columns |= has_unknown_columns
        return rows


def rows_in_file(table: Location, path: str, schema: TableSchema) -> tuple[pa.Table, bool]:
    """Return the rows of one file of a table, and whether it has columns beyond the `schema`.

    Raises `DamagedError` if the file is missing or differs from what was written.
    """
    try:
        content = table.read_bytes(path)
    except FileNotFoundError as error:
        raise damaged_file(table, path, "it is missing") from error
    checksum = _CHECKSUM_IN_NAME.search(path)
    if content and checksum and checksum[1] != xxhash.xxh3_64_hexdigest(content):
        raise damaged_file(table, path, "it does not match the checksum in its name")
    try:
        if schema.name in CLIENT_TABLES:
            check_decoded_size(content)
        rows = ParquetContent(content).read()
        if rows.schema.equals(schema.columns):
            return rows, False
        has_unknown_columns = not set(rows.column_names) <= set(schema.columns.names)
        for column in schema.columns:
            # Delta allows a writer to omit a column; its values are null.
            if column.name not in rows.column_names:
                rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
        return rows.select(schema.columns.names).cast(schema.columns), has_unknown_columns
    except (OSError, pa.ArrowException, ValueError) as error:
        raise damaged_file(table, path, content_fault(content, error)) from error


def _live_files(table: DeltaTable) -> list[str]:
    """Return the paths of a control table's files."""
    actions = pa.table(table.get_add_actions(flatten=True))
    return [unquote(path) for path in actions["path"].to_pylist()]
