"""The rows of a control table from its newest commits, without opening the table.

An overwrite replaces all rows, so the newest commit that adds a file names all live files. Opening
the table reads its newest checkpoint and up to a hundred commits after it.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from sparklog.errors import DamagedError
from sparklog.model import TableSchema
from sparklog.storage.commits import read_commit
from sparklog.storage.control_table import ControlTable, rows_in_file
from sparklog.storage.delta_log_files import newest_listed
from sparklog.storage.location import Location

_MOST_COMMITS = 4
"""The number of newest commits among which the last overwrite is searched for."""

_ATTEMPTS = 3
"""The number of attempts to read a file that a later overwrite may have removed."""


class NewestRows(NamedTuple):
    """The rows of a table, and the version of an app transaction; `None` without one."""

    rows: pa.Table
    transaction: int | None


def newest_rows(
    root: Location, schema: TableSchema, transaction: str | None = None
) -> NewestRows | None:
    """Return the newest rows of a table that is not sharded.

    Parameters: `transaction`, an app transaction that each overwrite sets. Costs a listing, one or
    two commits and the file with the rows; the table is opened if its newest commits are not
    overwrites of sparklog. Returns `None` if there is no such table. Raises `DamagedError` if its
    content is damaged, `StorageError` or `OSError` if it cannot be read.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        newest = newest_listed(root.child(schema.name))
        if newest < 0:
            return None
        try:
            found = _of_commits(root, schema, transaction, newest)
        except DamagedError:
            if attempt == _ATTEMPTS:
                raise
            continue
        if found is not None:
            return found
        break
    table = ControlTable(root, schema)
    held = None if transaction is None else table.transaction(transaction)
    return NewestRows(table.rows(), held)


def _of_commits(
    root: Location, schema: TableSchema, transaction: str | None, newest: int
) -> NewestRows | None:
    """Return the rows by the newest commits, or `None` if these do not suffice."""
    table = root.child(schema.name)
    held: int | None = None
    for version in range(newest, max(newest - _MOST_COMMITS, 0), -1):
        commit = read_commit(table, version)
        if commit is None or commit.commit_id is None or commit.protocol is not None:
            return None
        if held is None and transaction is not None:
            held = commit.transactions.get(transaction)
        if len(commit.added) == 1 and (held is not None or transaction is None):
            return NewestRows(rows_in_file(table, commit.added[0].path, schema)[0], held)
        if commit.added or commit.removed:
            return None
    # Commit 0 creates the table, without rows.
    return NewestRows(schema.columns.empty_table(), held) if newest <= _MOST_COMMITS else None
