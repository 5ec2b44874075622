"""Removal of files that no version of a table refers to any more, as Delta's VACUUM does.

VACUUM itself leaves out hidden folders, in which the batch files of `log` are. It also keeps files
that it does not know for as long as those that a commit removed. Here a file is removed if it is
not live in the newest version, and

- a commit removed it longer than the table's delay ago: until then readers of older versions and
  time travel find it; or
- no commit is known that names it, and it is older than a longer delay: it was written by an
  attempt that failed, or its removal was forgotten with an old checkpoint.

The files are listed before the log is read, so a file that a commit adds in between is live.

Delta's clean-up keeps each checkpoint for as long as the commits beside it. A checkpoint names all
live files and all that were removed lately, and a log that takes ten batches a second gets one
every 20 seconds. Older ones are thinned out here: the commits between them stay, so every version
can still be read.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow.parquet as pq

from sparklog.storage.delta_log_files import (
    LOG_FOLDER,
    fetch_log,
    has_version,
    is_checkpoint,
    newest_checkpoint,
)
from sparklog.storage.delta_snapshots import open_delta_table, open_table
from sparklog.storage.file_copies import FOLDER as COPIES_FOLDER
from sparklog.storage.file_copies import copy_path
from sparklog.storage.json_text import json_value
from sparklog.storage.local_files import StoredFile
from sparklog.storage.location import Location

FILE_RETENTION = "delta.deletedFileRetentionDuration"
"""The table property with the time for which checkpoints name removed files (tombstones)."""

COMMIT_RETENTION = "delta.logRetentionDuration"
"""The table property with the time for which commits are kept."""

_UNFINISHED_MS = 86_400_000
"""The age in ms from which on an unfinished file of a log is removed: nobody completes it then."""

_CHECKPOINT_SPAN_MS = 600_000
"""The age in ms up to which every checkpoint stays, since a reader may have begun with it, and the
length of the spans of which one older checkpoint stays.
"""

_UNFINISHED = re.compile(r"(?:.*/)?(?:\.[^/]*\.tmp|_commit_[^/]*\.json\.tmp)")
_CHECKPOINT = re.compile(rf"{LOG_FOLDER}/\d{{20}}\.checkpoint\.parquet")
_AT_ONCE = 1_000


class VacuumReport(NamedTuple):
    """The files of one or more tables that were found and removed.

    Attributes
    ----------
    files : int
        The number of removed files.
    size_bytes : int
        Their bytes.
    kept : int
        The number of files that stay although they are not live: they are not old enough.
    kept_bytes : int
        Their bytes.

    Examples
    --------
    >>> from sparklog.storage.vacuum import VacuumReport
    >>> VacuumReport(2, 100, 0, 0).plus(VacuumReport(1, 50, 4, 400))
    VacuumReport(files=3, size_bytes=150, kept=4, kept_bytes=400)
    """

    files: int = 0
    size_bytes: int = 0
    kept: int = 0
    kept_bytes: int = 0

    def plus(self, other: VacuumReport) -> VacuumReport:
        """Return the sums of both reports.

        Parameters
        ----------
        other : VacuumReport
            The report to be added.

        Returns
        -------
        VacuumReport
            The sums of the files and of the bytes.
        """
        return VacuumReport(*(one + two for one, two in zip(self, other, strict=True)))


class Delays(NamedTuple):
    """The times in ms for which a table's files stay after they were removed, or are not known."""

    removed_ms: int
    unknown_ms: int


class TableFiles(NamedTuple):
    """The files that the log of a table names.

    `removed_at_ms` has the files that commits removed, as far as the log still names them, with the
    times of these commits in ms since 1970 on the system's clock.
    """

    live: frozenset[str]
    removed_at_ms: Mapping[str, int]
    properties: Mapping[str, str]


def vacuum_table(
    table: Location,
    delays: Delays,
    now_ms: int,
    named_elsewhere: Callable[[], Collection[str]] = frozenset,
    is_stopping: Callable[[], bool] = lambda: False,
    *,
    is_dry_run: bool = False,
) -> VacuumReport:
    """Remove the files of a table that are neither live nor young.

    Parameters: `now_ms`, the system's time; `named_elsewhere`, returns the files of this table that
    other tables name, and is called only if one of them might be removed; `is_stopping`, asked
    between two removals of up to 1,000 files; `is_dry_run`, whether nothing is removed.

    Raises `FileNotFoundError` if the log cannot be read because commits are cleaned up meanwhile,
    and the errors of reading it.
    """
    listed = list(table.files())
    checkpoints = _thinned_out(listed, now_ms)
    found = [file for file in listed if _may_be_removed(file.path)]
    if not found and not checkpoints:
        return VacuumReport()
    files = read_table_files(table)
    live = files.live | {copy_path(path) for path in files.live}
    dead = [file for file in found if file.path not in live]
    old = [file for file in dead if _is_old(file, files, delays, now_ms)]
    if any(file.path not in files.removed_at_ms for file in old):
        named = frozenset(named_elsewhere())
        old = [file for file in old if file.path not in named]
    old += checkpoints
    dead += checkpoints
    removed = old if is_dry_run else list(_removed(table, old, is_stopping))
    kept = len(dead) - len(removed), _bytes(dead) - _bytes(removed)
    return VacuumReport(len(removed), _bytes(removed), *kept)


def read_table_files(table: Location) -> TableFiles:
    """Return the files that the newest version of a table names, without opening the table.

    Raises `FileNotFoundError` if a commit is missing, `OSError` if the log cannot be read, and
    `ValueError`, `LookupError`, `TypeError`, `AttributeError` or `pa.ArrowException` if it is
    malformed.
    """
    live: set[str] = set()
    removed_at_ms: dict[str, int] = {}
    properties: dict[str, str] = {}
    for action in _actions(fetch_log(table)):
        if (added := action.get("add")) is not None:
            path = unquote(added["path"])
            live.add(path)
            removed_at_ms.pop(path, None)
        elif (removed := action.get("remove")) is not None:
            path = unquote(removed["path"])
            live.discard(path)
            removed_at_ms[path] = removed.get("deletionTimestamp") or 0
        elif (metadata := action.get("metaData")) is not None:
            properties = dict(metadata.get("configuration") or {})
    return TableFiles(frozenset(live), removed_at_ms, properties)


def set_retention(table: Location, files_ms: int, commits_ms: int | None = None) -> bool:
    """Set the properties of a table that say how long old files and commits are known.

    Parameters: `files_ms`, the least time in ms for which checkpoints name removed files;
    `commits_ms`, the exact time in ms for which commits are kept, unchanged by default. Returns
    whether there was anything to set, which is a commit by delta-rs. Raises its errors, and
    `StorageError` if the table cannot be read.
    """
    # On an object store a copy of the log takes half the requests of delta-rs, and in parallel.
    opened = open_delta_table(table) if table.is_local else open_table(table).snapshot
    properties = opened.metadata().configuration
    wanted = {}
    if interval_ms(properties.get(FILE_RETENTION, _DEFAULT_FILE_RETENTION)) < files_ms:
        wanted[FILE_RETENTION] = f"interval {files_ms} milliseconds"
    if commits_ms not in (None, interval_ms(properties.get(COMMIT_RETENTION))):
        wanted[COMMIT_RETENTION] = f"interval {commits_ms} milliseconds"
    if wanted:
        open_delta_table(table).alter.set_table_properties(wanted)
    return bool(wanted)


_INTERVAL = re.compile(r"interval (\d+) (millisecond|second|minute|hour|day|week)s?")
_MS = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}


_DEFAULT_FILE_RETENTION = "interval 1 week"
"""Delta's default of `FILE_RETENTION`."""


def interval_ms(text: str | None) -> int:
    """Return a Delta interval in ms, or -1 if there is none that can be read."""
    match = _INTERVAL.fullmatch(text or "")
    return int(match[1]) * _MS[match[2]] if match else -1


def _may_be_removed(path: str) -> bool:
    """Return whether a file is one that sparklog or Delta writes: a data or an unfinished file.

    Finished files of the log and their copies are left to clean-up, files of other kinds to their
    owner.
    """
    if _UNFINISHED.fullmatch(path):
        return True
    if path.startswith(f"{COPIES_FOLDER}/") and has_version(path.removeprefix(f"{COPIES_FOLDER}/")):
        return False
    return path.endswith(".parquet") and not path.startswith(f"{LOG_FOLDER}/")


def _thinned_out(files: Iterable[StoredFile], now_ms: int) -> list[StoredFile]:
    """Return the checkpoints that are neither the newest, nor young, nor the newest of a span."""
    by_version = sorted(
        (file for file in files if _CHECKPOINT.fullmatch(file.path)), key=lambda file: file.path
    )
    # Spans of the clock, so that each run keeps the same ones.
    newest_of_span = {file.modified_at_ms // _CHECKPOINT_SPAN_MS: file for file in by_version}
    kept = {file.path for file in (*newest_of_span.values(), *by_version[-1:])}
    return [
        file
        for file in by_version
        if file.path not in kept and now_ms - file.modified_at_ms >= _CHECKPOINT_SPAN_MS
    ]


def _is_old(file: StoredFile, files: TableFiles, delays: Delays, now_ms: int) -> bool:
    if _UNFINISHED.fullmatch(file.path):
        return now_ms - file.modified_at_ms >= _UNFINISHED_MS
    removed_at_ms = files.removed_at_ms.get(file.path)
    if removed_at_ms is not None:
        return now_ms - removed_at_ms >= delays.removed_ms
    return now_ms - file.modified_at_ms >= max(delays)


def _removed(
    table: Location, files: Iterable[StoredFile], is_stopping: Callable[[], bool]
) -> Iterator[StoredFile]:
    """Remove files and yield those that are removed."""
    left = iter(files)
    while not is_stopping() and (some := list(islice(left, _AT_ONCE))):
        table.remove_all([file.path for file in some])
        yield from some


def _bytes(files: Iterable[StoredFile]) -> int:
    return sum(file.size_bytes for file in files)


def _actions(contents: Mapping[str, bytes]) -> Iterator[Mapping[str, Any]]:
    """Yield the actions of a log in their order: those of the checkpoint, then the commits'."""
    newest = newest_checkpoint(contents)
    for name in sorted(contents, key=lambda name: (not is_checkpoint(name), name)):
        if is_checkpoint(name):
            yield from _of_checkpoint(contents[name])
        elif int(name[:20]) > newest:
            for line in contents[name].splitlines():
                if line.strip():
                    yield json_value(line)


def _of_checkpoint(content: bytes) -> Iterator[Mapping[str, Any]]:
    file = pq.ParquetFile(io.BytesIO(content))
    wanted = ["add.path", "remove.path", "remove.deletionTimestamp", "metaData.configuration"]
    names = set(file.schema_arrow.names)
    columns = [one for one in wanted if one.split(".")[0] in names]
    for row in file.read(columns).to_pylist():
        if (metadata := row.get("metaData")) is not None:
            metadata["configuration"] = dict(metadata["configuration"] or [])
        yield {name: value for name, value in row.items() if value is not None}
