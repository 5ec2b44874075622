"""Opening Delta tables with delta-rs.

delta-rs opens a table on an object store by four requests in sequence, in which it reads each
commit twice. It reads all commits again for each app transaction that is requested. Here the log is
listed, the necessary objects are read once each and in parallel into a local folder, and delta-rs
opens that folder. Starting a broker opens a dozen tables, and each scheduled run starts a broker.
delta-rs opens a local table in place; its app transactions are read here, once for all of them.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from sparklog.errors import AccessDeniedError, DamagedError, StorageError, UnreachableError
from sparklog.storage.checkpoint_copies import check_checkpoint, newest_checkpoint_of
from sparklog.storage.commits import check_commits
from sparklog.storage.control_table_damage import log_damage
from sparklog.storage.damaged_commits import COMMIT_REMEDY
from sparklog.storage.delta_log_files import (
    LOG_FOLDER,
    commit_path,
    fetch_log,
    is_checkpoint,
    names_to_open,
    newest_checkpoint,
    newest_in,
    write_log,
)
from sparklog.storage.errors import STORE_ERRORS
from sparklog.storage.exhausted import is_exhausted
from sparklog.storage.file_copies import SecondCopy, copy_path, has_copies, parsed_copy
from sparklog.storage.json_text import json_value
from sparklog.storage.location import Location, one_line

_TRANSACTION = b'"txn"'


class OpenedTable(NamedTuple):
    """A table when it was opened: its snapshot, and its app transactions if they were read.

    The snapshot of a table on an object store describes the table but cannot read further data: it
    belongs to a temporary copy of the log.
    """

    snapshot: DeltaTable
    transactions: Mapping[str, int] | None = None
    contents: Mapping[str, bytes] | None = None
    """The files of the log that were read, by name, if the table is on an object store."""
    later_copy: SecondCopy | None = None
    """The second copy of the commit after the newest one, if the table is on an object store."""

    def transaction(self, name: str) -> int | None:
        """Return the version of an app transaction, or `None` if the table does not have it."""
        if self.transactions is None:
            return self.snapshot.transaction_version(name)
        return self.transactions.get(name)


_Opened = TypeVar("_Opened", OpenedTable, DeltaTable)


def open_delta_table(table: Location, version: int | None = None) -> DeltaTable:
    """Return the Delta table at `table` for writing by delta-rs; raises as `open_table` does."""
    return _opened(_open_checked, table, version)


def open_table(table: Location, version: int | None = None) -> OpenedTable:
    """Open the Delta table at `table`, at its newest version or at `version`.

    Raises `StorageError` if the table or the version does not exist or cannot be read, and
    `DamagedError` if a commit is damaged.
    """
    return _opened(open_snapshot, table, version)


def table_identity(table: Location) -> tuple[str, int]:
    """Return the id that Delta gave a table when it was created, and its newest version."""
    opened = open_table(table).snapshot
    return str(opened.metadata().id), opened.version()


def _opened(
    open_at: Callable[[Location, int | None], _Opened], table: Location, version: int | None
) -> _Opened:
    try:
        return open_at(table, version)
    except (AccessDeniedError, DamagedError):
        raise
    except STORE_ERRORS as error:
        if version is not None:
            raise StorageError(
                f"the table at {table.uri} has no version {version} that can be read: it was "
                f"cleaned up, or the root was lost or restored ({one_line(error)})"
            ) from error
        if isinstance(error, TableNotFoundError):
            if table.is_local:
                # Raises if it may not be read: delta-rs finds no table there.
                table.names()
            raise StorageError(
                f"there is no table at {table.uri}: check the root, or create the cluster first"
            ) from None
        raise _unopened(table, error) from error


def _unopened(table: Location, error: Exception) -> StorageError:
    """Return the reason why a table cannot be opened: a refusal, damage, a limit, or `error`.

    A process without a free descriptor would otherwise take a sound table for a damaged one.
    """
    if not is_exhausted(error):
        try:
            check_commits(table)
        except (AccessDeniedError, DamagedError) as found:
            return found
        except OSError as unread:
            error = unread
        if not table.is_local and (damage := log_damage(table)) is not None:
            return DamagedError(damage.path, damage.fault, COMMIT_REMEDY)
    message = f"the table at {table.uri} cannot be opened: {one_line(error)}"
    return UnreachableError(message) if is_exhausted(error) else StorageError(message)


def open_snapshot(table: Location, version: int | None = None) -> OpenedTable:
    """Open a table at its newest version, or at `version`.

    Raises the errors of delta-rs, `DeltaError` or `OSError`, `DamagedError` if the table's
    checkpoint is another one than was written, and `UnreachableError` if the object store cannot be
    read.
    """
    copied = None if table.is_local else _open_copy(table, version)
    if copied is not None:
        return copied
    opened = open_in_place(table, version)
    # Clean-up may remove a file meanwhile, and the content may be anything: delta-rs decides then.
    contents = None
    with suppress(Exception):
        if table.is_local:
            contents = fetch_log(table, opened.version())
    if contents is not None:
        check_checkpoint(table, contents)
        with suppress(Exception):
            return OpenedTable(opened, _transactions(contents))
    return OpenedTable(opened)


def _open_checked(table: Location, version: int | None = None) -> DeltaTable:
    """Open a table as `open_in_place` does; raises `DamagedError` as `open_snapshot` does."""
    opened = open_in_place(table, version)
    if table.is_local:
        with suppress(FileNotFoundError):
            check_checkpoint(table, newest_checkpoint_of(table, opened.version()))
    return opened


def open_in_place(table: Location, version: int | None = None) -> DeltaTable:
    """Open a table with delta-rs, without a copy of its log; raises as `open_snapshot` does."""
    try:
        return DeltaTable(table.uri, version=version, storage_options=table.store_options)
    except BaseException as error:
        # Without descriptors for its threads delta-rs panics, with an exception of its own.
        if type(error).__name__ == "PanicException" and is_exhausted(error):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), table.uri) from error
        raise


def _open_copy(table: Location, version: int | None) -> OpenedTable | None:
    """Open a table on an object store from a local copy of its log.

    Returns `None` if that is not possible: clean-up has removed a listed file, the local disk is
    full, or the log has content that this module does not read. delta-rs decides then.
    """
    try:
        contents, copies = _fetch_compared(table, version)
    except FileNotFoundError:
        return None
    except AccessDeniedError:
        raise
    except OSError as error:
        raise UnreachableError(
            f"the table at {table.uri} cannot be opened: {one_line(error)}"
        ) from error
    check_checkpoint(table, contents, copies)
    # Clients commit to request tables: their content may be anything.
    with suppress(Exception), TemporaryDirectory(prefix="sparklog-") as folder:
        write_log(Path(folder), contents)
        opened = DeltaTable(folder, version=version)
        later = copies.get(commit_path(opened.version() + 1))
        return OpenedTable(opened, _transactions(contents), contents, later)
    return None


def _fetch_compared(
    table: Location, version: int | None
) -> tuple[dict[str, bytes], dict[str, SecondCopy]]:
    """Read a table's log as `fetch_log` does, and in parallel the copies that opening it compares.

    These are the copies of the checkpoint, and of the commit after the newest one, by their paths.
    """
    if version is not None or not has_copies(table):
        return fetch_log(table, version), {}
    names = names_to_open(table)
    paths = [f"{LOG_FOLDER}/{name}" for name in names]
    compared = [path for path in paths if is_checkpoint(path.rsplit("/", 1)[-1])]
    compared.append(commit_path(newest_in(names) + 1))
    try:
        found = table.read_present([*paths, *map(copy_path, compared)])
    except AccessDeniedError:
        # Those who may not read copies learn nothing from them.
        return fetch_log(table), {}
    contents = {
        name: content for name, content in zip(names, found, strict=False) if content is not None
    }
    if len(contents) < len(names):
        raise FileNotFoundError(f"a file of the log of {table.uri} was removed meanwhile")
    copies = [
        parsed_copy(path, text)
        for path, text in zip(compared, found[len(paths) :], strict=True)
        if text is not None
    ]
    return contents, {copy.path: copy for copy in copies if copy is not None}


def _transactions(contents: Mapping[str, bytes]) -> dict[str, int]:
    """Return the app transactions in the files of a log: a checkpoint and the commits after it."""
    found: dict[Any, Any] = {}
    newest = newest_checkpoint(contents)
    for name in sorted(contents, key=lambda name: (not is_checkpoint(name), name)):
        if is_checkpoint(name):
            found |= _of_checkpoint(contents[name])
        elif int(name[:20]) > newest and _TRANSACTION in contents[name]:
            for line in contents[name].splitlines():
                transaction = json_value(line).get("txn") if _TRANSACTION in line else None
                if transaction is not None:
                    found[transaction["appId"]] = transaction["version"]
    if not all(isinstance(name, str) and type(version) is int for name, version in found.items()):
        raise ValueError("an app transaction is malformed")
    return found


def _of_checkpoint(content: bytes) -> dict[str, int]:
    file = pq.ParquetFile(io.BytesIO(content))
    if "txn" not in file.schema_arrow.names:
        return {}
    rows = file.read(["txn"])["txn"].drop_null().to_pylist()
    return {row["appId"]: row["version"] for row in rows}
