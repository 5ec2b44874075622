"""The log of a Delta table: opened by delta-rs, followed commit by commit, written to by
compare-and-set.

What a table consists of is kept by who follows it, so that a look costs what changed and not what
is there, and a commit to a folder is one small file: a tenth of what it takes to load a snapshot
and check it for conflicts, which a compare-and-set does not have.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction, RemoveAction, Transaction

import sparklog
from sparklog.errors import StorageError
from sparklog.logger import get_logger
from sparklog.storage.location import Location, one_line

_log = get_logger(__name__)

BROKER_EPOCH = "broker_epoch"
"""The app transaction that fences the tables of a broker root."""

CONTROLLER_EPOCH = "controller_epoch"
"""The app transaction that fences the tables that the controller writes."""

_READER_VERSION, _WRITER_VERSION = 1, 2
"""The protocol that every table has; whoever raises it asks for what is not known here."""


class AddedFile(NamedTuple):
    """A file that a commit adds: its path in the table, size, partition values, statistics.

    `modified_at_ms` is what the writer gives as the file's time, in ms since 1970.
    """

    path: str
    size_bytes: int
    modified_at_ms: int
    partition_values: Mapping[str, str | None]
    statistics: Mapping[str, Any]


class RemovedFile(NamedTuple):
    """A file that a commit removes, at a time in ms since 1970 on the system's clock."""

    path: str
    removed_at_ms: int
    size_bytes: int | None = None
    partition_values: Mapping[str, str | None] = {}


class Commit(NamedTuple):
    """What one commit did."""

    version: int
    added: list[AddedFile]
    removed: list[str]
    transactions: dict[str, int]


class DeltaLog:
    """The log of one table, at one version; opening it raises what `open_delta_table` raises."""

    def __init__(self, table: Location, version: int | None = None) -> None:
        self.location = table
        self.snapshot = open_delta_table(table, version)
        """The table as delta-rs opened it: what there was before the first commit followed."""
        self.version = self.snapshot.version()
        self.transactions = {
            name: held
            for name in (BROKER_EPOCH, CONTROLLER_EPOCH)
            if (held := self.snapshot.transaction_version(name)) is not None
        }
        """The epochs that the table bears, by the name of their app transaction."""
        metadata = self.snapshot.metadata()
        self.table_id = str(metadata.id)
        """The id that Delta gave the table when it was created."""
        self._checkpoint_interval = int(
            metadata.configuration.get("delta.checkpointInterval") or 100
        )
        self._writes_itself = table.is_local

    def follow(self, to_version: int | None = None) -> Iterator[Commit]:
        """Go on to the newest version, or `to_version` at most, and yield each commit on the way.

        Raises `StorageError` where somebody has raised the table's protocol.
        """
        while to_version is None or self.version < to_version:
            commit = read_commit(self.location, self.version + 1)
            if commit is None:
                return
            self.version = commit.version
            self.transactions |= commit.transactions
            yield commit

    def is_there(self) -> bool:
        """Say whether the version's commit is there; else nothing says that none follows.

        It may have been cleaned up with those that followed, or the root was lost or restored.
        """
        return has_commit(self.location, self.version)

    def has_news(self) -> bool:
        """Say whether the next commit is there, where a look costs nothing: in a folder."""
        return self.location.is_local and has_commit(self.location, self.version + 1)

    def commit(
        self,
        operation: str,
        added: Sequence[AddedFile] = (),
        removed: Sequence[RemovedFile] = (),
        transactions: Mapping[str, int] | None = None,
    ) -> bool:
        """Commit as the version after this one, and go on to it; say whether it was still free.

        `operation` is Delta's name for it, which the table's history shows.
        """
        transactions = transactions or {}
        if self._writes_itself:
            is_mine = self._write(operation, added, removed, transactions)
        else:
            is_mine = self._hand_over(added, removed, transactions)
        if is_mine:
            self.version += 1
            self.transactions |= transactions
            if self._writes_itself and self.version % self._checkpoint_interval == 0:
                _checkpoints.submit(_write_checkpoint, self.location)
        return is_mine

    def write(self, rows: pa.Table, mode: Literal["append", "overwrite"]) -> bool:
        """Let delta-rs write `rows` and commit them as the version after this one.

        On an object store that takes fewer requests than to write a file and to commit it. Says
        whether the version was still free; whoever follows the log finds the commit in it.
        """
        self._load_snapshot()
        if self.snapshot.version() != self.version:
            return False
        properties = CommitProperties(max_commit_retries=0)
        try:
            write_deltalake(self.snapshot, rows, mode=mode, commit_properties=properties)
        except SchemaMismatchError:
            # Somebody has added a column to the table, which must not keep the others out.
            write_deltalake(
                self.snapshot, rows, mode=mode, schema_mode="merge", commit_properties=properties
            )
        except CommitFailedError:
            return False
        return True

    def _write(
        self,
        operation: str,
        added: Sequence[AddedFile],
        removed: Sequence[RemovedFile],
        transactions: Mapping[str, int],
    ) -> bool:
        now_ms = time.time_ns() // 1_000_000
        told = {"timestamp": now_ms, "operation": operation, "operationParameters": {}}
        actions: list[dict[str, Any]] = [
            {"commitInfo": told | {"engineInfo": f"sparklog {sparklog.__version__}"}},
            *(
                {"txn": {"appId": name, "version": epoch, "lastUpdated": now_ms}}
                for name, epoch in transactions.items()
            ),
            *({"remove": _remove(file)} for file in removed),
            *({"add": _add(file)} for file in added),
        ]
        text = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
        folder = Path(self.location.uri, "_delta_log")
        unfinished = folder / f".{uuid.uuid4().hex}.tmp"
        try:
            unfinished.write_text(text, encoding="utf-8")
            # Whole or not at all, and never over another's: that is the compare-and-set.
            os.link(unfinished, Path(self.location.uri, _commit_path(self.version + 1)))
        except FileExistsError:
            return False
        except OSError:
            # Not every folder can have hard links; delta-rs knows other ways.
            self._writes_itself = False
            return self._hand_over(added, removed, transactions)
        finally:
            unfinished.unlink(missing_ok=True)
        return True

    def _hand_over(
        self,
        added: Sequence[AddedFile],
        removed: Sequence[RemovedFile],
        transactions: Mapping[str, int],
    ) -> bool:
        """Let delta-rs commit: it knows how each store puts what must not be there yet."""
        self._load_snapshot()
        if self.snapshot.version() != self.version:
            return False
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                file.path,
                file.size_bytes,
                dict(file.partition_values),
                file.modified_at_ms,
                True,
                json.dumps(file.statistics),
            )
            for file in added
        ]
        actions += [
            RemoveAction(
                file.path, True, file.removed_at_ms, file.size_bytes, dict(file.partition_values)
            )
            for file in removed
        ]
        epochs = [Transaction(name, epoch) for name, epoch in transactions.items()]
        try:
            self.snapshot.create_write_transaction(
                actions,
                "append",
                self.snapshot.schema(),
                self.snapshot.metadata().partition_columns,
                commit_properties=CommitProperties(
                    max_commit_retries=0, app_transactions=epochs or None
                ),
            )
        except CommitFailedError:
            return False
        return True

    def _load_snapshot(self) -> None:
        try:
            self.snapshot.update_incremental()
        except DeltaError:
            # What it would have to read was cleaned up.
            self.snapshot = open_delta_table(self.location)


# One at a time, beside whoever commits: a checkpoint takes as long as a hundred commits.
_checkpoints = ThreadPoolExecutor(1, thread_name_prefix="delta-checkpoints")


def _write_checkpoint(table: Location) -> None:
    """Write a checkpoint, for whoever opens the table, and clean up old commits."""
    try:
        opened = open_delta_table(table)
        opened.create_checkpoint()
        opened.cleanup_metadata()
    except (StorageError, DeltaError, OSError) as error:
        # The commits hold without it; the next checkpoint makes up for this one.
        _log.warning("no checkpoint", table=table.uri, error=one_line(error))


def await_checkpoints() -> None:
    """Wait until the checkpoints are written that this process's commits have made due."""
    _checkpoints.submit(int).result()


def open_delta_table(table: Location, version: int | None = None) -> DeltaTable:
    """Open the Delta table at `table`, at its newest version or the one that is named.

    Raises a `StorageError` that says what is missing.
    """
    try:
        return DeltaTable(table.uri, version=version, storage_options=dict(table.options) or None)
    except (DeltaError, OSError) as error:
        if version is not None:
            raise StorageError(
                f"the table at {table.uri} has no version {version} that can be read: it was "
                f"cleaned up, or the root was lost or restored ({one_line(error)})"
            ) from error
        if isinstance(error, TableNotFoundError):
            raise StorageError(
                f"there is no table at {table.uri}: check the root, or create the cluster first"
            ) from None
        raise StorageError(
            f"the table at {table.uri} cannot be opened: {one_line(error)}"
        ) from error


def read_commit(table: Location, version: int) -> Commit | None:
    """Return commit `version` of the table at `table`, or `None` where there is none (any more).

    Raises `StorageError` where it raises the table's protocol.
    """
    try:
        text = table.read_bytes(_commit_path(version))
    except FileNotFoundError:
        return None
    commit = Commit(version, [], [], {})
    try:
        for line in text.splitlines():
            _read_action(table, commit, json.loads(line))
    except (ValueError, LookupError, TypeError) as error:
        raise StorageError(
            f"commit {version} of the table at {table.uri} is damaged: {one_line(error)}"
        ) from error
    return commit


def _read_action(table: Location, commit: Commit, action: Mapping[str, Any]) -> None:
    if add := action.get("add"):
        statistics = _statistics(add.get("stats"))
        values = add["partitionValues"]
        path, size, modified_at_ms = unquote(add["path"]), add["size"], add["modificationTime"]
        commit.added.append(AddedFile(path, size, modified_at_ms, values, statistics))
    elif remove := action.get("remove"):
        commit.removed.append(unquote(remove["path"]))
    elif transaction := action.get("txn"):
        commit.transactions[transaction["appId"]] = transaction["version"]
    elif protocol := action.get("protocol"):
        _check_protocol(table, protocol)


def _check_protocol(table: Location, protocol: Mapping[str, Any]) -> None:
    asked = protocol["minReaderVersion"], protocol["minWriterVersion"]
    if asked > (_READER_VERSION, _WRITER_VERSION) or asked[1] > _WRITER_VERSION:
        raise StorageError(
            f"somebody has raised the table at {table.uri} to reader version {asked[0]} and writer "
            f"version {asked[1]} of Delta's protocol, and sparklog knows {_READER_VERSION} and "
            f"{_WRITER_VERSION}: drop the features that were added"
        )


def _add(file: AddedFile) -> dict[str, Any]:
    return {
        "path": quote(file.path),
        "partitionValues": file.partition_values,
        "size": file.size_bytes,
        "modificationTime": file.modified_at_ms,
        "dataChange": True,
        "stats": json.dumps(file.statistics, separators=(",", ":")),
    }


def _remove(file: RemovedFile) -> dict[str, Any]:
    action: dict[str, Any] = {
        "path": quote(file.path),
        "deletionTimestamp": file.removed_at_ms,
        "dataChange": True,
    }
    if file.size_bytes is None:
        return action
    return action | {
        "extendedFileMetadata": True,
        "partitionValues": file.partition_values,
        "size": file.size_bytes,
    }


def _statistics(text: str | None) -> dict[str, Any]:
    """Read a file's statistics; whoever may append to a table may write there what it likes."""
    try:
        statistics = json.loads(text or "{}")
    except ValueError:
        return {}
    return statistics if isinstance(statistics, dict) else {}


def has_commit(table: Location, version: int) -> bool:
    """Say whether commit `version` is there; clean-up takes old ones, a lost root all of them."""
    return table.exists(_commit_path(version))


def first_commit(table: Location) -> bytes | None:
    """Return a table's first commit, in which its id is, or `None` where it is not there."""
    try:
        return table.read_bytes(_commit_path(0))
    except FileNotFoundError:
        return None


def table_identity(table: Location) -> tuple[str, int]:
    """Return the id that Delta gave a table when it was created, and its newest version."""
    opened = open_delta_table(table)
    return str(opened.metadata().id), opened.version()


def _commit_path(version: int) -> str:
    return f"_delta_log/{version:020}.json"
