"""Verification of a Delta table's log: the files that opening its newest version reads.

These are the newest complete checkpoint, the commits after it, and the hint that names it. Earlier
files are not read: they are kept for time travel for a short time, and no process depends on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import pyarrow as pa

from sparklog.storage.control_table_damage import checkpoint_fault, commit_fault, content_fault
from sparklog.storage.damaged_commits import MALFORMED, TABLE_ID, place_of
from sparklog.storage.delta_log_files import (
    CHECKPOINT_HINT,
    LOG_FOLDER,
    commit_path,
    complete_checkpoint,
    has_version,
    is_checkpoint,
    last_checkpoint,
)
from sparklog.storage.file_copies import MISSING, find_faults, has_copies
from sparklog.storage.json_text import json_value
from sparklog.storage.location import Location
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.parquet import ParquetContent

LogFileFault = Literal["damaged_commit", "missing_commit", "damaged_checkpoint", "damaged_copy"]
"""The kinds of damage to a table's log."""

LOG_FILE_FAULTS: tuple[LogFileFault, ...] = (
    "damaged_commit",
    "missing_commit",
    "damaged_checkpoint",
    "damaged_copy",
)


JOURNAL_FAULTS: tuple[LogFileFault, ...] = (
    "damaged_commit",
    "missing_commit",
    "damaged_checkpoint",
)
"""The kinds of damage with which a broker's journal cannot be opened."""


class DamagedLogFile(NamedTuple):
    """A damaged file of a table's log: the kind, its path in the table, and the description.

    `is_dispensable`: the table can be opened without the file, which is a checkpoint or its hint,
    from an earlier checkpoint or from the first commit on.
    """

    kind: LogFileFault
    path: str
    fault: str
    is_dispensable: bool = False


class LogCheck(NamedTuple):
    """The result of `check_log`: the damaged files, and the files and bytes that were read."""

    damaged: list[DamagedLogFile]
    files: int
    size_bytes: int


def check_log(table: Location) -> LogCheck:
    """Read the files that opening a table needs; return those that are damaged or missing.

    Raises `FileNotFoundError` if the table has no log, and `OSError` if it cannot be read.
    """
    names = table.names(LOG_FOLDER)
    if not names:
        raise FileNotFoundError(f"there is no table at {table.uri}")
    commits = {int(name[:20]) for name in names if has_version(name) and name[20:] == ".json"}
    damaged: list[DamagedLogFile] = []
    files = size_bytes = 0
    last = None
    checkpoint: list[bytes] = []
    while True:
        version, parts = complete_checkpoint(names, last)
        checkpoint = [table.read_bytes(f"{LOG_FOLDER}/{part}") for part in parts]
        files, size_bytes = files + len(parts), size_bytes + sum(map(len, checkpoint))
        faults = list(_checkpoint_faults(table, version, dict(zip(parts, checkpoint, strict=True))))
        if not faults:
            break
        damaged += [
            DamagedLogFile("damaged_checkpoint", f"{LOG_FOLDER}/{part}", fault)
            for part, fault in faults
        ]
        last = version - 1
    fault = hint_fault(table) if CHECKPOINT_HINT in names else None
    if fault is not None:
        path = f"{LOG_FOLDER}/{CHECKPOINT_HINT}"
        damaged.append(DamagedLogFile("damaged_checkpoint", path, fault))
    end = max(commits, default=version)
    wanted = range(version + 1, end + 1)
    contents = map_in_parallel(
        lambda number: _commit(table, number), wanted, 0, is_local=table.is_local
    )
    files += len(wanted)
    there = {
        number: commit
        for number, commit in zip(wanted, contents, strict=True)
        if commit is not None
    }
    of_others = dict(_of_other_tables(checkpoint, there))
    of_commits: list[DamagedLogFile] = []
    for number, commit in zip(wanted, contents, strict=True):
        path = commit_path(number)
        if commit is None:
            of_commits.append(DamagedLogFile("missing_commit", path, "it is missing"))
            continue
        size_bytes += len(commit)
        found = commit_fault(commit, place_of(table, number)) or of_others.get(number)
        if found is not None:
            of_commits.append(DamagedLogFile("damaged_commit", path, found))
    if not of_commits and (version >= 0 or 0 in commits):
        damaged = [one._replace(is_dispensable=True) for one in damaged]
    known = {one.path for one in (*damaged, *of_commits)}
    of_copies = [one for one in _differing(table) if one.path not in known]
    return LogCheck([*damaged, *of_commits, *of_copies], files, size_bytes)


def _differing(table: Location) -> Iterator[DamagedLogFile]:
    """Yield the files of a log that differ from their second copies, and damaged copies."""
    for one in find_faults(table):
        if one.is_of_copy:
            yield DamagedLogFile("damaged_copy", one.path, one.fault, is_dispensable=True)
        elif one.path.endswith(".parquet"):
            yield DamagedLogFile("damaged_checkpoint", one.path, one.fault)
        elif one.fault == MISSING:
            yield DamagedLogFile("missing_commit", one.path, one.fault)
        else:
            yield DamagedLogFile("damaged_commit", one.path, one.fault)


def hint_fault(table: Location) -> str | None:
    """Return the reason why the hint of a log names no checkpoint that is there, or `None`.

    The hint is read before the list, since a writer stores the checkpoint before the hint.
    """
    hinted = last_checkpoint(table)
    if hinted < 0:
        return "it is malformed"
    version, _ = complete_checkpoint(table.names(LOG_FOLDER), hinted)
    return None if version == hinted else f"it names checkpoint {hinted}, which is missing"


def named_id(table: Location) -> str | None:
    """Return the id that most files of a log name as that of their table, or `None` if none does.

    Raises `OSError` if the log cannot be read.
    """
    names = [name for name in table.names(LOG_FOLDER) if has_version(name)]
    found: Counter[str] = Counter()
    contents = table.read_present([f"{LOG_FOLDER}/{name}" for name in names])
    for name, content in zip(names, contents, strict=True):
        if content is not None:
            with suppress(OSError, ValueError, pa.ArrowException):
                found.update(_ids_in_checkpoint(content) if is_checkpoint(name) else _ids(content))
    return next((table_id for table_id, _ in found.most_common(1)), None)


def _ids(commit: bytes) -> Iterator[str]:
    """Yield the ids of tables that a commit names: in its first line, and where it creates one."""
    for line in commit.splitlines():
        if TABLE_ID.encode() in line or b'"metaData"' in line:
            with suppress(*MALFORMED):
                action = json_value(line)
                found = action.get("commitInfo", {}).get(TABLE_ID) or action["metaData"]["id"]
                yield str(found)


def _ids_in_checkpoint(content: bytes) -> Iterator[str]:
    read = ParquetContent(content).read()
    if "metaData" in read.column_names:
        for metadata in read["metaData"].drop_null().to_pylist():
            yield str(metadata["id"])


def _checkpoint_faults(
    table: Location, version: int, parts: Mapping[str, bytes]
) -> Iterator[tuple[str, str]]:
    """Yield the damaged files of a checkpoint with their faults; `parts` has all files by name."""
    faults = {part: _checkpoint_fault(content) for part, content in parts.items()}
    damaged = [(part, fault) for part, fault in faults.items() if fault is not None]
    if damaged or not parts or (table.is_local and has_copies(table)):
        # Bytes are compared with those of the second copies. On object stores clusters of earlier
        # releases have none.
        yield from damaged
        return
    fault = checkpoint_fault(parts) or _fault_by_commit(table, version, list(parts.values()))
    if fault is not None:
        yield next(iter(parts)), fault


def _fault_by_commit(table: Location, version: int, checkpoint: Sequence[bytes]) -> str | None:
    """Return the reason why a checkpoint is not of the table of its version's commit, or `None`.

    Clean-up may have removed that commit.
    """
    commit = _commit(table, version)
    if commit is None or commit_fault(commit, place_of(table, version)) is not None:
        return None
    named = set(_ids(commit))
    found = {one for content in checkpoint for one in _ids_in_checkpoint(content)}
    if not named or not found or named & found:
        return None
    return f"it is of another table than the commit of its version: not of {min(named)}"


def _of_other_tables(
    checkpoint: Sequence[bytes], commits: Mapping[int, bytes]
) -> Iterator[tuple[int, str]]:
    """Yield the versions of the commits that belong to another table than most of the log, and the
    descriptions.
    """
    named = {version: [*_ids(commit)] for version, commit in commits.items()}
    of_checkpoint = [one for content in checkpoint for one in _ids_in_checkpoint(content)]
    counts = Counter([*of_checkpoint, *(one for ids in named.values() for one in ids)])
    for table_id, _ in counts.most_common(1):
        for version, ids in named.items():
            if set(ids) - {table_id}:
                yield version, f"it is of another table than most of the log: not of {table_id}"


def _commit(table: Location, version: int) -> bytes | None:
    try:
        return table.read_bytes(commit_path(version))
    except FileNotFoundError:
        return None


def _checkpoint_fault(content: bytes) -> str | None:
    try:
        ParquetContent(content).read()
    except (OSError, pa.ArrowException) as error:
        return content_fault(content, error)
    return None
