"""Control tables: small Delta tables that are overwritten whole.

Every overwrite is a compare-and-set: it lands as the version after the one that was loaded, or
it raises `CommitConflictError`.
"""

from __future__ import annotations

import io
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import tenacity
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from sparklog.errors import (
    CommitConflictError,
    DamagedError,
    FencedError,
    StorageError,
    TableReplacedError,
)
from sparklog.model import TableSchema
from sparklog.storage.damage import (
    content_fault,
    damaged_file,
    find_damage,
    remedy,
    set_aside,
)
from sparklog.storage.delta_log import (
    AddedFile,
    Commit,
    DeltaLog,
    RemovedFile,
    check_commits,
    has_commit,
    open_delta_table,
    read_commit,
)
from sparklog.storage.location import Location, one_line
from sparklog.storage.new_file import discard_file, new_file
from sparklog.storage.parquet import ParquetContent
from sparklog.storage.unknown_columns import with_unknown_columns

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
            storage_options=table.store_options,
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
    if fence is not None:
        check_held(log.location, fence, log.transactions.get(fence.transaction))


def check_held(table: Location, fence: Fence, held: int | None) -> None:
    """Raise `FencedError` unless `held`, the epoch that a table bears, is the one of `fence`."""
    if held != fence.epoch:
        raise FencedError(
            f"{table.uri} is held by {fence.transaction} {held}, this process has "
            f"{fence.epoch}: a newer process plays this role, so this one must stop"
        )


def take_fence(
    table: Location, fence: Fence, load: Callable[[], DeltaLog], *, may_hold: bool = True
) -> bool:
    """Write `fence`'s epoch to `table`, so that no writer of an older one can commit again.

    Parameters: `load` brings the table's log up to date and returns it; `may_hold`, whether the
    table may carry the epoch already, as it does where a parked broker resumes. An epoch that was
    just taken is nobody else's (protocol rule 10.7).

    Returns whether the epoch was written. Raises `FencedError` where the table carries a newer
    epoch, or this one and `may_hold` is false.
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
            if not may_hold:
                raise FencedError(
                    f"{log.location.uri} is held by {fence.transaction} {held}, which another "
                    "process has taken: this one must stop"
                )
            return False
        if not log.commit("FENCE", transactions={fence.transaction: fence.epoch}):
            raise moved(log)
        return True

    return until_it_lands(table, attempt)


class ControlTable:
    """One control table, with its rows cached at the version that was last loaded.

    Threads may share one. Parameter `reopens`: whether a table that has lost commits, as a restored
    one has, is loaded again, as clients want it. Otherwise it raises `StorageError`, as brokers
    want it: their memory is ahead of the table.
    """

    def __init__(self, root: Location, schema: TableSchema, *, reopens: bool = False) -> None:
        self.schema = schema
        self.root = root
        self._reopens = reopens
        self._reopened = 0
        self.location = root.child(schema.name)
        self.commits = 0
        """How many commits this handle has made."""
        self._log = self._open_log()
        self._files = dict.fromkeys(_live_files(self._log.snapshot))
        self._rows: tuple[int, pa.Table] | None = None
        self._is_current = False
        self._has_unknown_columns = False
        self._stamp = self._log.stamp()
        self._lock = threading.RLock()

    @property
    def version(self) -> int:
        """The version that is loaded."""
        return self._log.version

    @property
    def state(self) -> tuple[int, int]:
        """The number of reopenings and the loaded version; other rows have another state."""
        return self._reopened, self._log.version

    @property
    def table_id(self) -> str:
        """The id that Delta gave the table when it was created."""
        return self._log.table_id

    def held_by(self, transaction: str) -> int | None:
        """Return the epoch of a fence that the loaded version bears, or `None`."""
        return self._log.transactions.get(transaction)

    def transaction(self, name: str) -> int | None:
        """Return the version of an app transaction in the table as it was opened."""
        return self._log.snapshot.transaction_version(name)

    def refresh(self) -> bool:
        """Load the newest version; say whether it is another than before."""
        with self._lock:
            before = self.state
            self._load()
            return self.state != before

    def look_ahead(self, *, to_end: bool = False) -> None:
        """Ask an object store for the next commits beside the caller; `refresh` takes them."""
        with self._lock:
            self._log.look_ahead(to_end=to_end)

    def has_news(self) -> bool:
        """Say whether there is certainly a newer version; only told of tables in a folder."""
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
        if loaded and stamp and loaded.version == stamp.version and loaded != stamp:
            self._reopen(is_other_log=True)
        self._stamp = stamp
        for commit in self._log.follow(to_version):
            if any(path not in self._files for path in commit.removed):
                # It follows another commit than the one that was loaded, which was lost.
                self._reopen(is_other_log=True)
                break
            for path in commit.removed:
                del self._files[path]
            self._files |= dict.fromkeys(file.path for file in commit.added)
        if stamp is None or self._log.version != stamp.version:
            self._stamp = self._log.stamp()

    def _open_log(self) -> DeltaLog:
        """Open the table's log; `DamagedError` names the file that does not let it be opened."""
        try:
            return DeltaLog(self.location)
        except (StorageError, DeltaError) as error:
            self._raise_damage(error)
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"the table at {self.location.uri} cannot be opened: {one_line(error)}"
            ) from error

    def _raise_damage(self, error: Exception) -> None:
        if isinstance(error, DamagedError):
            raise DamagedError(error.path, error.fault, remedy(self.schema.name)) from error
        damage = find_damage(self.root, self.schema.name)
        if damage is not None:
            raise damage from error

    def recreate(self, fence: Fence) -> None:
        """Start the table again, empty: replace its rows, or the table where its log is damaged.

        A table whose log is damaged is set aside. Only the broker that owns the table calls this.
        """
        with self._lock:
            self.mend_log(fence)
            self.compare_and_set(self.schema.columns.empty_table(), fence)

    def mend_log(self, fence: Fence) -> None:
        """Recreate the table, empty, where its log is damaged; the caller writes its rows then."""
        with self._lock:
            try:
                opened = self._open_log()
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

    def verify_log(self) -> None:
        """Read the commits again of which the log consists; `DamagedError` where one is damaged."""
        if not has_commit(self.location, self._log.version):
            self._open_log()
        try:
            check_commits(self.location)
        except DamagedError as error:
            self._raise_damage(error)

    def _reopen(self, *, is_other_log: bool = False) -> None:
        """Open the table again where the loaded version is no longer part of its log.

        Clean-up has taken it, or it was lost (`is_other_log`: and another one is in its place).
        """
        opened = self._open_log()
        is_later = opened.version >= self._log.version and not is_other_log
        is_equal = (opened.version, opened.transactions, set(_live_files(opened.snapshot))) == (
            self._log.version,
            self._log.transactions,
            set(self._files),
        )
        if opened.table_id != self._log.table_id or not (is_later or is_equal or self._reopens):
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

    def take_fence(self, fence: Fence, *, may_hold: bool = True) -> None:
        """Fence the table: see the function of this name."""
        with self._lock:
            if take_fence(self.location, fence, self._load, may_hold=may_hold):
                self.commits += 1

    def compare_and_set(
        self,
        rows: pa.Table,
        fence: Fence | None = None,
        transactions: Mapping[str, int] | None = None,
    ) -> None:
        """Replace all rows by `rows`, as the version after the loaded one.

        `transactions`: the versions of app transactions to be set along with it. Raises
        `CommitConflictError` where the table has moved, `FencedError` where `fence` is given and is
        no longer the one that holds the table.
        """
        self._replace(rows, self.version, fence, transactions)

    def set_transactions(self, transactions: Mapping[str, int], fence: Fence) -> None:
        """Set the versions of app transactions, and no rows; raises as `compare_and_set` does."""
        with self._lock:
            check_fence(self._log, fence)
            if not self._log.commit("SET TRANSACTIONS", transactions=transactions):
                raise moved(self._log)
            self.commits += 1
            if self._rows is not None:
                self._rows = self.version, self._rows[1]

    def _replace(
        self,
        rows: pa.Table,
        loaded: int,
        fence: Fence | None,
        transactions: Mapping[str, int] | None = None,
    ) -> None:
        rows = self._as_stored(rows)
        with self._lock:
            check_fence(self._log, fence)
            if self.version != loaded:
                raise moved(self._log, loaded)
            self._add_columns()
            self._overwrite(self._with_unknown_columns(rows), transactions)
            self._rows = self.version, rows

    def _with_unknown_columns(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with the columns of the table that a later release has added to it."""
        if not self._has_unknown_columns:
            return rows
        return self._with_unknown_columns_of(self._files, rows)

    def _with_unknown_columns_of(self, paths: Iterable[str], rows: pa.Table) -> pa.Table:
        declared = {field.name for field in open_delta_table(self.location).schema().fields}
        files = [ParquetContent(self.location.read_bytes(path)).read() for path in paths]
        return with_unknown_columns(rows, files, declared, self.schema)

    def _overwrite(self, rows: pa.Table, transactions: Mapping[str, int] | None = None) -> None:
        """Commit `rows` in place of all rows, as the next version."""
        file = self._write(rows)
        removed = [RemovedFile(path, file.modified_at_ms) for path in self._files]
        with self._discarding(file):
            if not self._log.commit("WRITE", [file], removed, transactions):
                raise moved(self._log)
        self._files = dict.fromkeys([file.path])
        self.commits += 1

    @contextmanager
    def _discarding(self, *files: AddedFile) -> Iterator[None]:
        """Remove files whose commit fails within the block, unless it has landed all the same."""
        version = self._log.version + 1
        try:
            yield
        except CommitConflictError:
            self._discard(files)
            raise
        except (OSError, StorageError, DeltaError) as error:
            # A commit that is there may be this one: its answer was lost.
            if self.location.is_local and not has_commit(self.location, version):
                self._discard(files)
            self._raise_damage(error)
            raise

    def _discard(self, files: Iterable[AddedFile]) -> None:
        for file in files:
            discard_file(self.location, file.path)

    def _write(self, rows: pa.Table, name: str = "part") -> AddedFile:
        """Write `rows` as a file that is no part of the table yet; `name` begins its path."""
        # By name, too, files come in the order in which a process wrote them.
        path = f"{name}-{time.time_ns()}-{uuid.uuid4().hex[:12]}.parquet"
        content = io.BytesIO()
        # Without statistics, which no reader of whole files needs and no checksum covers.
        options = {"store_schema": False, "write_page_checksum": True, "write_statistics": False}
        pq.write_table(rows, content, **options)
        with new_file(self.location, path) as target:
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
                storage_options=self.location.store_options,
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

        return retrying(CommitConflictError)(attempt)

    def _as_stored(self, rows: pa.Table) -> pa.Table:
        return rows.select(self.schema.columns.names).cast(self.schema.columns)

    def read_file(self, path: str) -> pa.Table:
        """Return the rows of one file of the table.

        Raises `DamagedError` where the file is missing, or is not what was written.
        """
        try:
            content = self.location.read_bytes(path)
        except FileNotFoundError as error:
            raise damaged_file(self.location, path, "it is missing") from error
        try:
            rows = ParquetContent(content).read()
            if rows.schema.equals(self.schema.columns):
                return rows
            names = set(self.schema.columns.names)
            self._has_unknown_columns |= not set(rows.column_names) <= names
            for column in self.schema.columns:
                # Delta lets a writer leave a column out; it counts as null.
                if column.name not in rows.column_names:
                    rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
            return rows.select(self.schema.columns.names).cast(self.schema.columns)
        except (OSError, pa.ArrowException) as error:
            raise damaged_file(self.location, path, content_fault(content, error)) from error


def _live_files(table: DeltaTable) -> list[str]:
    """Return the paths of a control table's files."""
    actions = pa.table(table.get_add_actions(flatten=True))
    return [unquote(path) for path in actions["path"].to_pylist()]


def moved(log: DeltaLog, loaded: int | None = None) -> CommitConflictError:
    """Return the error of a writer whose version was taken by another's commit."""
    version = log.version if loaded is None else loaded
    return CommitConflictError(
        f"{log.location.uri} moved past version {version}: reload and try again"
    )


def until_it_lands(table: Location, commit: Callable[[], _Result]) -> _Result:
    """Repeat a commit while others are faster; `CommitConflictError` after 50 attempts."""
    try:
        return retrying(CommitConflictError)(commit)
    except CommitConflictError as error:
        raise CommitConflictError(
            f"{table.uri} moves too fast: others write to it without a pause"
        ) from error


def retrying(lost: type[Exception]) -> tenacity.Retrying:
    """Try again, with jitter, after another writer was faster."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(lost),
        wait=tenacity.wait_random_exponential(multiplier=0.001, max=0.2),
        stop=tenacity.stop_after_attempt(50),
        reraise=True,
    )
