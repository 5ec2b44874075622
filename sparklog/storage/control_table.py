"""Control tables: small Delta tables that are overwritten whole, or appended to and trimmed.

Every overwrite is a compare-and-set: it lands as the version after the one that was loaded, or
it raises `CommitConflictError`. delta-rs does it in milliseconds, on every store that has
put-if-absent.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import tenacity
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError
from deltalake.transaction import AddAction, RemoveAction, Transaction

from sparklog.errors import CommitConflictError, FencedError, StorageError
from sparklog.model import TableSchema
from sparklog.storage.delta_log import is_newest, open_delta_table, read_commit
from sparklog.storage.location import Location, one_line
from sparklog.storage.parquet import ParquetContent

BROKER_EPOCH = "broker_epoch"
"""The app transaction that fences the tables of a broker root."""

CONTROLLER_EPOCH = "controller_epoch"
"""The app transaction that fences the tables that the controller writes."""

_PLAIN_NAME = re.compile(r"[\w.-]+", re.ASCII)

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
            commit_properties=commit_properties(),
        )
    except CommitFailedError:
        # Another process was faster, which is as good.
        return
    except (DeltaError, OSError) as error:
        raise StorageError(f"no table can be created at {table.uri}: {one_line(error)}") from error


def check_fence(table: DeltaTable, fence: Fence | None) -> None:
    """Raise `FencedError` unless the loaded version of `table` bears `fence`'s epoch.

    Together with the compare-and-set on the next version no zombie can ever write.
    """
    if fence is None:
        return
    held = table.transaction_version(fence.transaction)
    if held != fence.epoch:
        raise FencedError(
            f"{table.table_uri} is held by {fence.transaction} {held}, this process has "
            f"{fence.epoch}: a newer process plays this role, so this one must stop"
        )


def take_fence(table: DeltaTable, fence: Fence) -> bool:
    """Write `fence`'s epoch to the table, so that no writer of an older one can commit again.

    Returns whether it was written; where the table bears it already, nothing is to be done.
    Raises `FencedError` where the table already bears a newer epoch.
    """

    def attempt() -> bool:
        table.update_incremental()
        held = table.transaction_version(fence.transaction)
        if held is not None and held > fence.epoch:
            raise FencedError(
                f"{table.table_uri} is held by {fence.transaction} {held}, newer than "
                f"{fence.epoch}: another process has taken this role over"
            )
        if held == fence.epoch:
            return False
        # It may land behind the appends of others, but not behind another fence.
        table.create_write_transaction(
            [],
            "append",
            table.schema(),
            table.metadata().partition_columns,
            commit_properties=_rebasing(fence),
        )
        return True

    written = _until_it_lands(table.table_uri, attempt)
    table.update_incremental()
    # Another process may have taken over meanwhile.
    check_fence(table, fence)
    return written


def commit_properties(fence: Fence | None = None) -> CommitProperties:
    """Return the properties of a compare-and-set: no retry, and the writer's epoch beside it."""
    return CommitProperties(max_commit_retries=0, app_transactions=_transactions(fence))


def _rebasing(fence: Fence | None) -> CommitProperties:
    """Return the properties of a commit that may land behind those of others.

    Under a fence it writes the epoch again: delta-rs refuses to let it land behind a commit that
    writes an epoch too, so it cannot get past a newer fence unseen.
    """
    return CommitProperties(app_transactions=_transactions(fence))


def _transactions(fence: Fence | None) -> list[Transaction] | None:
    return [Transaction(fence.transaction, fence.epoch)] if fence else None


class ControlTable:
    """One control table, with its rows cached at the version that was last loaded.

    Threads may share one.
    """

    def __init__(self, root: Location, schema: TableSchema) -> None:
        self.schema = schema
        self.location = root.child(schema.name)
        self.commits = 0
        """How many commits this handle has made."""
        self._table = open_delta_table(self.location)
        self._rows: tuple[int, pa.Table] | None = None
        # The version at which this handle is known to hold a fence: looking it up takes long.
        self._held: tuple[int, Fence] | None = None
        self._is_current = False
        self._lock = threading.RLock()

    @property
    def version(self) -> int:
        """The version that is loaded."""
        return self._table.version()

    @property
    def table_id(self) -> str:
        """The id that Delta gave the table when it was created."""
        return str(self._table.metadata().id)

    def refresh(self) -> bool:
        """Load the newest version; say whether it is another than before."""
        with self._lock:
            before = self._table.version()
            self._load()
            return self._table.version() != before

    def _load(self) -> None:
        # Two looks at single files; to be told by delta-rs that nothing is new takes long.
        if is_newest(self.location, self._table.version()):
            return
        try:
            self._table.update_incremental()
        except DeltaError as error:
            raise StorageError(
                f"the table at {self.location.uri} is not the one that was opened: its root was "
                f"lost or restored, so open it again ({one_line(error)})"
            ) from error

    def rows(self) -> pa.Table:
        """Return all rows of the loaded version."""
        return self._loaded()[1]

    def _loaded(self) -> tuple[int, pa.Table]:
        with self._lock:
            version = self._table.version()
            if self._rows is None or self._rows[0] != version:
                self._rows = version, self._read(self._table)
            return self._rows

    def rows_at(self, version: int) -> pa.Table:
        """Return all rows of `version`; `StorageError` where there is no such version."""
        if version == self._table.version():
            return self.rows()
        return self._read(open_delta_table(self.location, version))

    def _read(self, table: DeltaTable) -> pa.Table:
        # File by file, and not as a dataset through delta-rs's file system: its threads may
        # outlive a short process and abort it at the end, and it takes twice as long.
        files = [self.read_file(path) for path in _live_files(table)]
        return pa.concat_tables(files) if files else self.schema.columns.empty_table()

    def take_fence(self, fence: Fence) -> None:
        """Fence the table: see the function of this name."""
        with self._lock:
            if take_fence(self._table, fence):
                self.commits += 1

    def compare_and_set(self, rows: pa.Table, fence: Fence | None = None) -> None:
        """Replace all rows by `rows`, as the version after the loaded one.

        Raises `CommitConflictError` where the table has moved, `FencedError` where `fence` is
        given and is no longer the one that holds the table.
        """
        self._replace(rows, self.version, fence)

    def _replace(self, rows: pa.Table, loaded: int, fence: Fence | None) -> None:
        rows = rows.select(self.schema.columns.names).cast(self.schema.columns)
        moved = CommitConflictError(
            f"{self.location.uri} moved past version {loaded}: reload and try again"
        )
        with self._lock:
            self._check_fence(fence)
            if self.version != loaded:
                raise moved
            try:
                write_deltalake(
                    self._table,
                    rows,
                    mode="overwrite",
                    # A root that an older version made may lack columns of today.
                    schema_mode=None if self._has_columns() else "overwrite",
                    commit_properties=commit_properties(),
                )
            except CommitFailedError:
                raise moved from None
            self.commits += 1
            self._rows = loaded + 1, rows
            self._held = (loaded + 1, fence) if fence is not None else None

    def _has_columns(self) -> bool:
        if not self._is_current:
            names = [field.name for field in self._table.schema().fields]
            self._is_current = names == self.schema.columns.names
        return self._is_current

    def _check_fence(self, fence: Fence | None) -> None:
        if fence is not None and self._held != (self.version, fence):
            check_fence(self._table, fence)
            self._held = self.version, fence

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
        rows = rows.select(self.schema.columns.names).cast(self.schema.columns)

        def add() -> None:
            self._check_fence(fence)
            properties = _rebasing(fence)
            try:
                write_deltalake(self._table, rows, mode="append", commit_properties=properties)
            except SchemaMismatchError:
                # Somebody has added a column to the table, which must not keep the others out.
                write_deltalake(
                    self._table,
                    rows,
                    mode="append",
                    schema_mode="merge",
                    commit_properties=properties,
                )

        self._commit(add)

    def new_files(self, since: int) -> list[str]:
        """Return the paths of the live files that were added after version `since`, in order.

        A reader that follows an append-only table needs just these.
        """
        missing = set(_live_files(self._table))
        added: list[str] = []
        version = self.version
        # Backwards, since what was added long ago is seldom live.
        while missing and version > since:
            commit = read_commit(self.location, version)
            if commit is None:
                # Their commits are no longer there.
                return sorted(missing, key=_times_ms(self._table).__getitem__) + added
            found = [file.path for file in commit.added if file.path in missing]
            added = found + added
            missing.difference_update(found)
            version -= 1
        return added

    def read_file(self, path: str) -> pa.Table:
        """Return the rows of one file of the table."""
        rows = ParquetContent(self.location.read_bytes(path)).read()
        for column in self.schema.columns:
            # Delta lets a writer leave a column out; it counts as null.
            if column.name not in rows.column_names:
                rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
        return rows.select(self.schema.columns.names).cast(self.schema.columns)

    def trim(self, paths: Sequence[str], fence: Fence | None = None) -> None:
        """Remove whole files, which were named by `new_files`, while others go on appending."""

        def remove() -> None:
            self._check_fence(fence)
            live = set(_live_files(self._table))
            now = time.time_ns() // 1_000_000
            actions: list[AddAction | RemoveAction] = [
                RemoveAction(path, True, now) for path in paths if path in live
            ]
            if actions:
                self._table.create_write_transaction(
                    actions,
                    "append",
                    self._table.schema(),
                    commit_properties=_rebasing(fence),
                )

        self._commit(remove)

    def _commit(self, commit: Callable[[], None]) -> None:
        def attempt() -> None:
            with self._lock:
                self._load()
                commit()
                self._load()
                self.commits += 1

        _until_it_lands(self.location.uri, attempt)


def _live_files(table: DeltaTable) -> list[str]:
    """Return the paths of a control table's files."""
    root = table.table_uri.rstrip("/") + "/"
    paths = [uri.removeprefix(root) for uri in table.file_uris()]
    if all(_PLAIN_NAME.fullmatch(path) for path in paths):
        return paths
    # Others may name files as they like; this says what they wrote, but takes 50 times as long.
    return list(_times_ms(table))


def _times_ms(table: DeltaTable) -> dict[str, int]:
    """Return the time of each file of a table, in ms since 1970, by its path."""
    actions = pa.table(table.get_add_actions(flatten=True))
    times = actions["modification_time"].cast(pa.int64()).to_pylist()
    return dict(zip(map(unquote, actions["path"].to_pylist()), times, strict=True))


def _until_it_lands(uri: str, commit: Callable[[], _Result]) -> _Result:
    try:
        return _retrying(CommitFailedError)(commit)
    except CommitFailedError as error:
        raise CommitConflictError(
            f"{uri} moves too fast: others write to it without a pause ({one_line(error)})"
        ) from error


def _retrying(lost: type[Exception]) -> tenacity.Retrying:
    """Try again, with jitter, after another writer was faster."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(lost),
        wait=tenacity.wait_random_exponential(multiplier=0.005, max=0.2),
        stop=tenacity.stop_after_attempt(50),
        reraise=True,
    )
