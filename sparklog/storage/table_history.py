"""Earlier versions of control tables, by the times of their commits, as Delta's time travel."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable

import pyarrow as pa

from sparklog.errors import StorageError
from sparklog.model import TableSchema
from sparklog.storage.commits import read_commit
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log_files import LOG_FOLDER, commit_path, is_checkpoint
from sparklog.storage.delta_snapshots import open_table
from sparklog.storage.location import Location


class NoVersionError(StorageError):
    """A table has no version as of a time: it was created later, or that version was removed.

    `earliest_ms` is the time of its earliest version that can be read, in ms since 1970.
    """

    def __init__(self, uri: str, earliest_ms: int, *, is_created_later: bool) -> None:
        reason = "was created later" if is_created_later else "no longer has that version"
        super().__init__(f"the table at {uri} {reason}: its earliest is of {earliest_ms}")
        self.uri = uri
        self.earliest_ms = earliest_ms
        self.is_created_later = is_created_later


def rows_as_of(root: Location, schema: TableSchema, time_ms: int) -> pa.Table:
    """Return the rows of a control table as they were at a time, in ms since 1970.

    They are those of the newest version that is not younger, by the times that writers give their
    commits. These ascend, apart from differences between the writers' clocks.

    Raises `NoVersionError` if there is no such version, or clean-up has removed its files.
    """
    table = ControlTable(root, schema)
    versions = _versions(table.location, table.version)

    def made_at_ms(version: int) -> int:
        return _made_at_ms(table.location, version)

    number = bisect_right(versions, time_ms, key=made_at_ms) - 1
    if number < 0 and versions[0] == 0:
        raise NoVersionError(table.location.uri, made_at_ms(0), is_created_later=True)
    if number >= 0:
        try:
            return table.rows_at(versions[number])
        except StorageError:
            if _is_readable(table.location, versions[number]):
                raise
    earliest = _earliest(versions[number + 1 :], lambda one: _is_readable(table.location, one))
    raise NoVersionError(table.location.uri, made_at_ms(earliest), is_created_later=False)


def _versions(table: Location, newest: int) -> list[int]:
    """Return the versions whose state the log still has, ascending: from a checkpoint or 0 on."""
    names = table.names(LOG_FOLDER)
    commits = {name for name in names if name.endswith(".json")}
    first = newest
    while first > 0 and commit_path(first - 1).rpartition("/")[2] in commits:
        first -= 1
    if first > 0:
        checkpoints = (int(name[:20]) for name in names if is_checkpoint(name))
        # Clean-up may leave commits from before the oldest checkpoint.
        first = min((one for one in checkpoints if one >= first), default=newest)
    return list(range(first, newest + 1))


def _made_at_ms(table: Location, version: int) -> int:
    commit = read_commit(table, version)
    if commit is None or commit.made_at_ms is None:
        raise StorageError(f"commit {version} of the table at {table.uri} has no time")
    return commit.made_at_ms


def _is_readable(table: Location, version: int) -> bool:
    """Return whether all files of a version are there."""
    try:
        actions = pa.table(open_table(table, version).snapshot.get_add_actions(flatten=True))
    except StorageError:
        return False
    return all(table.exists(path) for path in actions["path"].to_pylist())


def _earliest(versions: list[int], is_readable: Callable[[int], bool]) -> int:
    """Return the first readable version; clean-up removes versions from the first one on."""
    return versions[min(bisect_left(versions, True, key=is_readable), len(versions) - 1)]
