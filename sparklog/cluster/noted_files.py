"""The files that a row of `stream_writes` names: batches that a micro-batch may send again.

Every client may write to the table, so a row may have any content.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sparklog.model import Row
from sparklog.storage.json_text import json_value


class NotedFile(NamedTuple):
    """A noted batch file: the URI of the log whose inbox has it, and its path in the log."""

    log_uri: str
    path: str


def noted_files(row: Row) -> list[NotedFile]:
    """Return the noted files of a row; a malformed row or entry names none, as its query's runs
    cannot read it either.
    """
    try:
        entries: Any = json_value(row["files"])
    except (TypeError, ValueError):
        return []
    found = []
    for entry in entries if isinstance(entries, list) else ():
        match entry:
            case [_, str(log_uri), str(path), *_]:
                found.append(NotedFile(log_uri, path))
    return found
