"""Opening Delta tables, and reading their logs commit by commit: what changed since a version."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from sparklog.errors import StorageError
from sparklog.storage.location import Location, one_line


class AddedFile(NamedTuple):
    """A file that a commit added: its path in the table, size, partition values, statistics.

    `modified_at_ms` is what the writer gave as the file's time, in ms since 1970.
    """

    path: str
    size_bytes: int
    modified_at_ms: int
    partition_values: dict[str, str | None]
    statistics: dict[str, Any]


class Commit(NamedTuple):
    """What one commit did."""

    version: int
    added: list[AddedFile]
    removed: list[str]
    transactions: dict[str, int]


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
    """Return commit `version` of the table at `table`, or `None` where there is none (any more)."""
    try:
        text = table.read_bytes(_commit_path(version))
    except FileNotFoundError:
        return None
    commit = Commit(version, [], [], {})
    for line in text.splitlines():
        action = json.loads(line)
        if add := action.get("add"):
            statistics = _statistics(add.get("stats"))
            values = add["partitionValues"]
            path, size, modified_at_ms = unquote(add["path"]), add["size"], add["modificationTime"]
            commit.added.append(AddedFile(path, size, modified_at_ms, values, statistics))
        elif remove := action.get("remove"):
            commit.removed.append(unquote(remove["path"]))
        elif transaction := action.get("txn"):
            commit.transactions[transaction["appId"]] = transaction["version"]
    return commit


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


def is_newest(table: Location, version: int) -> bool:
    """Say whether `version` is certainly the newest, in two looks at single files.

    Where it is not there itself the commits after it may have been cleaned up as well, so nothing
    is certain.
    """
    return not has_commit(table, version + 1) and has_commit(table, version)


def table_identity(table: Location) -> tuple[str, int]:
    """Return the id that Delta gave a table when it was created, and its newest version."""
    opened = open_delta_table(table)
    return str(opened.metadata().id), opened.version()


def _commit_path(version: int) -> str:
    return f"_delta_log/{version:020}.json"
