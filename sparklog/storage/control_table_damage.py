"""Damage to control tables: the damaged file, and its remedy.

A control table is damaged if a file that its log names is missing or differs from what was written.
It is also damaged if a commit or checkpoint of its log cannot be parsed, or if the whole table is
missing from a root that is in place. Damage is reported only if reading the bytes has shown it: an
unreachable store is not damage.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from deltalake import DeltaTable

from sparklog.errors import DamagedError
from sparklog.model import (
    CLEANER_OFFSET_CHECKPOINT,
    CONSUMER_GROUP_HEARTBEATS,
    CONTROLLER_HISTORY,
    DELAYED_OPERATIONS,
    FORMAT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LEADERSHIP_HISTORY,
    LOG,
    PARTITION_HISTORY,
    PRODUCER_STATE,
    REPAIRS,
    REPLICA_HISTORY,
    REQUEST_TABLES,
    SCRUBS,
    TOPICS,
    TRUNCATIONS,
)
from sparklog.storage.damaged_commits import (
    MALFORMED,
    check_commit_text,
    names_its_place,
    place_of,
)
from sparklog.storage.delta_log_files import LOG_FOLDER, commit_path, write_log
from sparklog.storage.errors import STORE_ERRORS
from sparklog.storage.exhausted import is_exhausted
from sparklog.storage.file_copies import remove_all_copies
from sparklog.storage.json_text import json_value
from sparklog.storage.location import Location, one_line
from sparklog.storage.parquet import ParquetContent

_RESTART = "restart the broker of this root, which recreates the table (docs/damaged-tables.md)"
_RESTORE = (
    "run sparklog repair, which has second copies of files, or restore it from a backup or an "
    "earlier version of the file (docs/damaged-tables.md)"
)

_MENDED_AT_START = {
    table.name
    for table in (
        HIGH_WATERMARK_CHECKPOINT,
        LEADER_EPOCH_CHECKPOINT,
        PRODUCER_STATE,
        *REQUEST_TABLES,
        DELAYED_OPERATIONS,
    )
}

_REMEDIES = {
    **dict.fromkeys(_MENDED_AT_START, _RESTART),
    FORMAT.name: (
        f"{_RESTORE}; a broker can also start with an empty root, which its leaders refill"
    ),
    CONSUMER_GROUP_HEARTBEATS.name: (
        "run sparklog repair: it restores the table from its second copies, or empties it, and the "
        "groups' members write their heartbeats again (docs/damaged-tables.md)"
    ),
}

CREATED_AGAIN = {
    CONSUMER_GROUP_HEARTBEATS.name: "nothing is lost: members write their heartbeats again",
    SCRUBS.name: "the next scrub begins at the start",
    REPAIRS.name: "the findings are lost: run sparklog scrub",
    LEADERSHIP_HISTORY.name: "the leaders before the commits of partition_state are lost",
    PARTITION_HISTORY.name: "the changes before the commits of partition_state are lost",
    CONTROLLER_HISTORY.name: "the controllers before the commits of controller are lost",
    CLEANER_OFFSET_CHECKPOINT.name: "the cleaner begins at the start of each log",
    REPLICA_HISTORY.name: "the past of the replicas before the commits of log is lost",
    TRUNCATIONS.name: "the truncations before the commits of log are no longer listed",
}
"""The tables that may be created again where they are missing, and what their loss costs.

No decision about records, offsets or members depends on their rows: they are notes of maintenance,
and the past.
"""

REBUILT_FROM_LOG = (HIGH_WATERMARK_CHECKPOINT, LEADER_EPOCH_CHECKPOINT, PRODUCER_STATE)
"""Tables of a broker root that are rebuilt from its log, which has only part of their content."""

_PROTOCOL = b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}\n'

_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")


def remedy(table: str) -> str:
    """Return the remedy for damage to the control table of this name, as a clause."""
    return _REMEDIES.get(table, _RESTORE)


def missing_remedy(table: str) -> str:
    """Return the remedy for a control table of this name that is missing, as a clause."""
    if table in CREATED_AGAIN:
        return "run sparklog repair, which creates it again, empty (docs/damaged-tables.md)"
    if table in _MENDED_AT_START:
        return _RESTART
    return (
        "restore it from a backup, or from earlier versions of its objects (docs/damaged-tables.md)"
    )


def damaged_file(table: Location, path: str, fault: str) -> DamagedError:
    """Return the error for the file at `path` of a control table."""
    return DamagedError(f"{table.uri}/{path}", fault, remedy(table.uri.rsplit("/", 1)[-1]))


def content_fault(content: bytes, error: Exception) -> str:
    """Return the reason why `content` cannot be read as Parquet.

    Raises `error` if it comes from a limit of this process: memory, for example.
    """
    if is_exhausted(error):
        raise error
    return f"it cannot be read as Parquet ({one_line(error)})" if content else "it is empty"


def checkpoint_fault(parts: Mapping[str, bytes]) -> str | None:
    """Return the reason why a checkpoint cannot be read, or `None`.

    pyarrow reads all of it. delta-rs, which opens tables, refuses some footers that pyarrow reads.
    Parameters: `parts`, the contents of its files by name. Raises the error of a limit of this
    process: memory, for example.
    """
    for content in parts.values():
        try:
            ParquetContent(content).read()
        except (OSError, pa.ArrowException) as error:
            return content_fault(content, error)
    return _opening_fault(parts)


def _opening_fault(files: Mapping[str, bytes]) -> str | None:
    """Return the reason why delta-rs cannot open a log of these files, by their names, or `None`.

    Raises the error of a limit of this process: memory, for example.
    """
    with TemporaryDirectory(prefix="sparklog-") as folder:
        write_log(Path(folder), files)
        try:
            DeltaTable(folder)
        except STORE_ERRORS as error:
            if is_exhausted(error):
                raise
            return f"delta-rs cannot read it ({one_line(error)})"
        except BaseException as error:
            # delta-rs panics at some contents, with an exception of its own.
            if is_exhausted(error) or type(error).__name__ != "PanicException":
                raise
            return "delta-rs panics when it reads it"
    return None


def find_damage(root: Location, name: str) -> DamagedError | None:
    """Return the damage that prevents opening the table `name` of `root`.

    Returns `None` if no damage is found: the table is readable, the store is not, or the root does
    not exist.
    """
    table = root.child(name)
    try:
        found = table.names(LOG_FOLDER)
        if not found:
            missing = DamagedError(table.uri, "the table is missing", missing_remedy(name))
            return missing if is_in_place(root, name) else None
        return _log_damage(table, found)
    except OSError:
        return None


def log_damage(table: Location) -> DamagedError | None:
    """Return the damage of a table's log that prevents opening it.

    Returns `None` if no damage is found, or if the store cannot be read.
    """
    try:
        return _log_damage(table, table.names(LOG_FOLDER))
    except OSError:
        return None


def is_in_place(root: Location, without: str) -> bool:
    """Return whether a root has control tables other than `without`.

    If it has no others, the root is lost or its file system is not mounted.
    """
    others = {FORMAT.name, LOG.name, TOPICS.name} - {without}
    return any(root.child(other).names("_delta_log") for other in others)


def set_aside(table: Location) -> None:
    """Rename a table's local folder; on an object store, which cannot rename, delete its log.

    The second copies are removed with the log, since they are not of the table in its place.
    """
    if not table.is_local:
        # The hint first: alone, it would name a version that does not exist.
        names = table.names("_delta_log")
        for name in sorted(names, key=lambda name: name != "_last_checkpoint"):
            table.remove(f"_delta_log/{name}")
        remove_all_copies(table)
    elif os.path.lexists(table.uri):
        Path(table.uri).rename(f"{table.uri}.damaged-{time.time_ns()}")


def _log_damage(table: Location, names: list[str]) -> DamagedError | None:
    checkpoints = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    commits = [int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))]
    if "_last_checkpoint" in names and (fault := _hint_fault(table, checkpoints)):
        return damaged_file(table, "_delta_log/_last_checkpoint", fault)
    newest = max(checkpoints, default=-1)
    if newest >= 0:
        path = f"_delta_log/{newest:020}.checkpoint.parquet"
        name = path.removeprefix("_delta_log/")
        fault = checkpoint_fault({name: table.read_bytes(path)})
        if fault is not None:
            return damaged_file(table, path, fault)
    expected = newest + 1
    for version in sorted(one for one in commits if one > newest):
        path = commit_path(version)
        if version != expected:
            missing = commit_path(expected)
            return damaged_file(table, missing, f"it is missing, and version {version} is there")
        expected += 1
        if fault := commit_fault(table.read_bytes(path), place_of(table, version)):
            return damaged_file(table, path, fault)
    return None


def _hint_fault(table: Location, checkpoints: list[int]) -> str | None:
    try:
        version = json_value(table.read_bytes("_delta_log/_last_checkpoint"))["version"]
    except (ValueError, LookupError, TypeError):
        version = None
    if type(version) is not int:
        # Delta reads a log without the hint if the hint is malformed.
        return None
    return None if version in checkpoints else f"it names checkpoint {version}, which is missing"


def commit_fault(
    content: bytes, place: str | None = None, table_id: str | None = None
) -> str | None:
    """Return the reason why `content` is not the commit that was written, or `None`.

    Parameters: `place`, that of the commit, see `place_of`; `table_id`, the id of its table.
    """
    try:
        actions = [json_value(line) for line in content.splitlines() if line.strip()]
    except ValueError as error:
        return f"it is cut or not a commit ({one_line(error)})"
    if not all(isinstance(action, dict) for action in actions):
        return "it has lines that are not actions"
    try:
        check_commit_text(content, place, table_id)
    except MALFORMED as error:
        return one_line(error)
    is_described = any("metaData" in action for action in actions)
    if not is_described or names_its_place(content):
        return None
    # delta-rs has written it, without checksums.
    if not any("protocol" in action for action in actions):
        content = _PROTOCOL + content
    return _opening_fault({f"{0:020}.json": content})
