"""The files in the log of a Delta table: commits and checkpoints by their names.

The newest version of a table is found by these names, without opening the table.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from sparklog.errors import StorageError
from sparklog.storage.json_text import json_value
from sparklog.storage.location import Location
from sparklog.storage.object_store import PAGE_NAMES
from sparklog.storage.parallel import reading_threads
from sparklog.storage.refusals import refused

LOG_FOLDER = "_delta_log"
"""The folder of a table's log, relative to the table."""

CHECKPOINT_HINT = "_last_checkpoint"
"""The file of the log that names the newest checkpoint."""

_DIGITS = 20
"""The digits of the version with which a file's name begins."""

_COMMIT = re.compile(r"[0-9]{20}\.json")
_CHECKPOINT = re.compile(
    r"(?P<version>[0-9]{20})\.checkpoint(?:\.[0-9]{10}\.(?P<count>[0-9]{10}))?\.parquet"
)

_PROBES = 8
"""The number of versions checked in parallel, and the factor by which their distance grows."""


def commit_path(version: int) -> str:
    """Return the path of a commit, relative to its table."""
    return f"{LOG_FOLDER}/{version:0{_DIGITS}}.json"


def has_commit(table: Location, version: int) -> bool:
    """Return whether commit `version` exists; clean-up removes old ones, a lost root all."""
    return table.exists(commit_path(version))


def has_version(name: str) -> bool:
    """Return whether the name of a file in `_delta_log` begins with a version.

    Only the digits 0 to 9 count: clients may write files of any names.
    """
    version = name[:_DIGITS]
    return len(version) == _DIGITS and version.isascii() and version.isdigit()


def is_checkpoint(name: str) -> bool:
    """Return whether a file in `_delta_log` is a checkpoint or a part of one."""
    return has_version(name) and name[_DIGITS:].startswith(".checkpoint")


def newest_checkpoint(names: Iterable[str], last: int | None = None) -> int:
    """Return the version of the newest checkpoint up to version `last`, or -1 without one.

    Parameters: `names`, the names of the files in `_delta_log`.
    """
    found = (int(name[:_DIGITS]) for name in names if is_checkpoint(name))
    return max((one for one in found if last is None or one <= last), default=-1)


def last_checkpoint(table: Location) -> int:
    """Return the version in the log's checkpoint hint, or -1 if there is no usable hint."""
    try:
        return int(json_value(table.read_bytes(f"{LOG_FOLDER}/{CHECKPOINT_HINT}"))["version"])
    except (FileNotFoundError, ValueError, LookupError, TypeError, OverflowError):
        return -1


def names_from(table: Location, version: int) -> list[str]:
    """Return the names of the log's files of `version` and later versions, on an object store."""
    pages = table.pages(LOG_FOLDER, f"{max(version, 0):0{_DIGITS}}")
    return [name for page in pages for name in page]


def log_names(table: Location) -> list[str]:
    """Return the names of the files in the log of a table in a local folder."""
    try:
        return [entry.name for entry in Path(table.uri, LOG_FOLDER).iterdir()]
    except FileNotFoundError:
        return []
    except PermissionError as error:
        raise refused(f"{table.uri}/{LOG_FOLDER}", "list", str(error.strerror)) from error


def newest_version(table: Location) -> int:
    """Return the newest version of a table, without opening it.

    Raises `StorageError` if the table does not exist, `OSError` if it cannot be read.
    """
    if table.is_local:
        known = newest_in(log_names(table))
    else:
        last = last_checkpoint(table)
        known = newest_in(names_from(table, last))
        if known < 0 <= last:
            # The hint names a checkpoint that does not exist.
            known = newest_in(table.names(LOG_FOLDER))
    if known < 0:
        raise StorageError(
            f"there is no table at {table.uri}: check the root, or create the cluster first"
        )
    return known


def newest_behind_lost(table: Location, version: int) -> int | None:
    """Return the newest version if the commit after `version` is gone and later ones are there.

    Without the list, a follower of the table would take the missing commit for the table's end.
    Returns `None` if no commit is lost. Costs a list on an object store.
    """
    newest = newest_version(table)
    return newest if newest > version and not has_commit(table, version + 1) else None


def newest_in(names: Sequence[str]) -> int:
    """Return the newest version that the names of a log's files show, -1 without one."""
    commits = (int(name[:_DIGITS]) for name in names if _COMMIT.fullmatch(name))
    return max([newest_checkpoint(names), *commits])


def newest_after(table: Location, version: int, likely: int = 0) -> int:
    """Return the newest version of a table, from an existing or just cleaned up `version` on.

    Invariant: versions have no gaps. A local folder is checked version by version. An object store
    is checked for `_PROBES` versions in parallel, around the version that is `likely` commits
    ahead. While all of them exist, the distance between the probes grows by the factor `_PROBES`;
    after that it shrinks until the last existing version is found.
    """
    if table.is_local:
        while has_commit(table, version + 1):
            version += 1
        return version
    readers = reading_threads()

    def count_from(first: int, step: int) -> int:
        """Return how many of `_PROBES` versions from `first` on exist before the first gap."""
        asked = [first + step * number for number in range(_PROBES)]
        found = [*readers.map(partial(has_commit, table), asked), False]
        return found.index(False)

    if likely > _PROBES // 2:
        guess = version + likely - _PROBES // 2
        count = count_from(guess, 1)
        if 0 < count < _PROBES:
            return guess + count - 1
        version = guess + count - 1 if count else version
    step = 1
    while True:
        count = count_from(version + step, step)
        version += step * count
        if count == _PROBES:
            step *= _PROBES
        elif step == 1:
            return version
        else:
            step //= _PROBES


def fetch_log(table: Location, version: int | None = None) -> dict[str, bytes]:
    """Read the part of a table's log that opening it needs; return the files by their names.

    Raises as `names_to_open` does, and `FileNotFoundError` if a file was removed meanwhile.
    """
    names = names_to_open(table, version)
    found = table.read_files([f"{LOG_FOLDER}/{name}" for name in names])
    return dict(zip(names, found, strict=True))


def names_to_open(table: Location, version: int | None = None) -> list[str]:
    """Return the names of the files of a log that opening the table needs.

    These are the newest complete checkpoint (up to `version`, if given) and the commits from its
    version on, or all commits. Raises `FileNotFoundError` if a commit is missing, and `OSError` if
    the store cannot be listed.
    """
    listed = _listed(table, version)
    try:
        return _needed(listed, version)
    except FileNotFoundError:
        # The hint may name a checkpoint that is gone.
        return _needed(table.names(LOG_FOLDER), version)


def write_log(folder: Path, contents: Mapping[str, bytes]) -> list[str]:
    """Write the files of a log below `folder`; return their names."""
    log = folder / LOG_FOLDER
    log.mkdir()
    for name, content in contents.items():
        (log / name).write_bytes(content)
    return list(contents)


def _listed(table: Location, version: int | None) -> list[str]:
    """Return the names of the files in the log: all, or those from the last checkpoint on.

    If one request lists all names of a log on an object store, the checkpoint hint is not read.
    """
    if table.is_local:
        return log_names(table)
    names = next(table.pages(LOG_FOLDER), [])
    if len(names) < PAGE_NAMES:
        return names
    last = last_checkpoint(table)
    if last < 0 or (version is not None and version < last):
        return table.names(LOG_FOLDER)
    return names_from(table, last)


def _needed(names: list[str], version: int | None) -> list[str]:
    """Return the files of the newest complete checkpoint, and the commits from its version on.

    Raises `FileNotFoundError` if a commit after it is missing.
    """
    newest, files = complete_checkpoint(names, version)
    commits = [name for name in names if _COMMIT.fullmatch(name)]
    commits = [
        name
        for name in commits
        if newest <= int(name[:_DIGITS]) and (version is None or int(name[:_DIGITS]) <= version)
    ]
    after = [int(name[:_DIGITS]) for name in commits if int(name[:_DIGITS]) > newest]
    if after != list(range(newest + 1, newest + 1 + len(after))) or not (files or commits):
        raise FileNotFoundError(f"commit {newest + 1} of the log or one after it is missing")
    return [*files, *commits]


def newest_listed(table: Location) -> int:
    """Return the newest version of a table by one listing of a log of up to `PAGE_NAMES` files.

    Returns -1 if the table does not exist. Raises `OSError` if it cannot be read.
    """
    names = _listed(table, None)
    return newest_in(names if names or table.is_local else table.names(LOG_FOLDER))


def complete_checkpoint(names: Iterable[str], last: int | None = None) -> tuple[int, list[str]]:
    """Return the version and the files of the newest checkpoint of which no part is missing.

    Parameters: `last`, the newest version that counts, by default any. The version is -1, and the
    list empty, if no checkpoint is complete.
    """
    parts: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is not None and (last is None or int(match["version"]) <= last):
            parts[int(match["version"]), int(match["count"] or 1)].append(name)
    complete = [of for of, files in parts.items() if len(files) == of[1]]
    if not complete:
        return -1, []
    newest = max(complete)
    return newest[0], sorted(parts[newest])
