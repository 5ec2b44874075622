"""Reading a Delta table's log commit by commit: what changed since a version, and only that."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import unquote

from deltalake import DeltaTable

from sparklog.storage.location import Location


class AddedFile(NamedTuple):
    """A file that a commit added: its path in the table, size, partition values, statistics."""

    path: str
    size_bytes: int
    partition_values: dict[str, str | None]
    statistics: dict[str, Any]


class Commit(NamedTuple):
    """What one commit did."""

    version: int
    added: list[AddedFile]
    removed: list[str]
    transactions: dict[str, int]


def read_commit(table: Location, version: int) -> Commit | None:
    """Return commit `version` of the table at `table`, or `None` where there is none (any more)."""
    try:
        text = table.read_bytes(f"_delta_log/{version:020}.json")
    except FileNotFoundError:
        return None
    commit = Commit(version, [], [], {})
    for line in text.splitlines():
        action = json.loads(line)
        if add := action.get("add"):
            statistics = json.loads(add.get("stats") or "{}")
            values = add["partitionValues"]
            commit.added.append(AddedFile(unquote(add["path"]), add["size"], values, statistics))
        elif remove := action.get("remove"):
            commit.removed.append(unquote(remove["path"]))
        elif transaction := action.get("txn"):
            commit.transactions[transaction["appId"]] = transaction["version"]
    return commit


def table_identity(table: Location) -> tuple[str, int]:
    """Return the id that Delta gave a table when it was created, and its newest version."""
    opened = DeltaTable(table.uri, storage_options=dict(table.options) or None)
    return str(opened.metadata().id), opened.version()
