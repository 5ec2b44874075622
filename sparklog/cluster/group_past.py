"""The past of consumer groups, from the commits of `consumer_groups`, which say their cause."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparklog.cluster.partition_changes import commits_between
from sparklog.cluster.root_format import read_format
from sparklog.model import CONSUMER_GROUPS
from sparklog.storage.commits import Commit
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location

GROUP_HISTORY = pa.schema(
    [
        ("at_ms", pa.int64()),
        ("group_id", pa.string()),
        ("generation", pa.int32()),
        ("state", pa.string()),
        ("cause", pa.string()),
        ("members", pa.string()),
        ("member_count", pa.int32()),
        ("version", pa.int64()),
    ]
)
"""The columns of `group_history`."""

_MOST_DIGITS = 9
"""The digits of the largest number that is read; a client may have written any text."""


def group_past(root: Location) -> pa.Table:
    """Return the changes of consumer groups in the commits that are kept, oldest first.

    The rows of the table are not read: each commit names its change.
    """
    found = read_format(root)
    if found is None or CONSUMER_GROUPS.name not in found.tables:
        return GROUP_HISTORY.empty_table()
    table = ControlTable(root, CONSUMER_GROUPS)
    rows = [
        _change(commit)
        for commit in commits_between(table, 0, table.version)
        if "groupId" in commit.cause.parameters
    ]
    return pa.Table.from_pylist(rows, schema=GROUP_HISTORY)


def _change(commit: Commit) -> dict[str, Any]:
    told = commit.cause.parameters
    return {
        "at_ms": commit.made_at_ms,
        "group_id": told["groupId"],
        "generation": _number(told.get("generation")),
        "state": told.get("state"),
        "cause": told.get("cause"),
        "members": told.get("members"),
        "member_count": _number(told.get("memberCount")),
        "version": commit.version,
    }


def _number(text: str | None) -> int | None:
    if text is None or len(text) > _MOST_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text)
