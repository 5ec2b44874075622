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
    number = _number_as_of(table.location, versions, time_ms)
    if number >= 0:
        try:
            return table.rows_at(versions[number])
        except StorageError:
            if _is_readable(table.location, versions[number]):
                raise
    earliest = _earliest(versions[number + 1 :], lambda one: _is_readable(table.location, one))
    earliest_ms = _made_at_ms(table.location, earliest)
    raise NoVersionError(table.location.uri, earliest_ms, is_created_later=False)


def version_as_of(table: Location, time_ms: int) -> int:
    """Return the newest version of a table that is not younger than a time, in ms since 1970.

    Its data files may be gone. Raises `NoVersionError` if there is no such version, or its commits
    were cleaned up.
    """
    versions = _versions(table, open_table(table).snapshot.version())
    number = _number_as_of(table, versions, time_ms)
    if number < 0:
        earliest_ms = _made_at_ms(table, versions[0])
        raise NoVersionError(table.uri, earliest_ms, is_created_later=False)
    return versions[number]


def _number_as_of(table: Location, versions: list[int], time_ms: int) -> int:
    """Return the place of the newest version that is not younger; -1 if all are.

    Raises `NoVersionError` if the table was created later.
    """
    number = bisect_right(versions, time_ms, key=lambda one: _made_at_ms(table, one)) - 1
    if number < 0 and versions[0] == 0:
        raise NoVersionError(table.uri, _made_at_ms(table, 0), is_created_later=True)
    return number


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
