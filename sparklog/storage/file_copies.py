"""Second copies of the files of control tables and of logs, in local folders.

A disk or a person may damage any file, and no other replica has the tables of a cluster root, or a
broker's journal. So each file of such a table that is needed to open its newest version has a copy
in the table's folder `_second_copies`: commits after the newest checkpoint, that checkpoint, and
the live files of a control table. A copy is one unsynced write. It is needed only if the synced
original is damaged later, so a power loss costs at most copies. Object stores verify and keep what
they have acknowledged, so there are no copies.

A copy begins with a line of JSON: the id of its table, its path there, and a checksum of both and
of the content. A copy thus proves which file it is of. The originals are immutable, so an original
with other bytes than its copy is damaged.

Invariant: a copy is written after its original is committed. A copy of a later version than the
newest commit shows that commits were lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import xxhash

from sparklog.model import (
    DELAYED_OPERATIONS,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    REQUEST_TABLES,
)
from sparklog.storage import local_files
from sparklog.storage.delta_log_files import (
    LOG_FOLDER,
    commit_path,
    has_commit,
    has_version,
    is_checkpoint,
    newest_checkpoint,
)
from sparklog.storage.json_text import json_bytes, json_value
from sparklog.storage.location import Location

FOLDER = "_second_copies"
"""The folder of the copies, relative to the table. Delta and its VACUUM ignore such names."""

MISSING = "it is missing"
"""The fault of a file that is gone although it has a copy."""

WITHOUT_COPIES = frozenset(
    schema.name
    for schema in (
        *REQUEST_TABLES,
        HIGH_WATERMARK_CHECKPOINT,
        LEADER_EPOCH_CHECKPOINT,
        DELAYED_OPERATIONS,
    )
)
"""The tables without copies: their owners write them again, and some of them every few seconds."""


class SecondCopy(NamedTuple):
    """A copy of a file: the id of its table, its path relative to the table, and its content."""

    table_id: str
    path: str
    content: bytes


class CopyFault(NamedTuple):
    """A file that differs from its copy: its path, and the fault.

    `is_of_copy`: the copy is damaged, and not the file.
    """

    path: str
    fault: str
    is_of_copy: bool = False


def has_copies(table: Location) -> bool:
    """Return whether the files of a table have copies: where originals are synced before them.

    Of an unsynced root a power loss might leave the copy of a commit and not the commit.
    """
    return table.is_synced and table.uri.rsplit("/", 1)[-1] not in WITHOUT_COPIES


def copy_path(path: str) -> str:
    """Return the path of the copy of a file, both relative to the table."""
    return f"{FOLDER}/{path.rsplit('/', 1)[-1]}"


def write_copy(table: Location, table_id: str, path: str, content: bytes) -> None:
    """Store a copy of a committed file; a failure is ignored, since the original is in place."""
    header = {"table": table_id, "path": path, "checksum": _checksum(table_id, path, content)}
    target = f"{table.uri}/{copy_path(path)}"
    with suppress(OSError):
        try:
            file = _created(target)
        except FileExistsError:
            # Of an earlier checkpoint of this version, or damaged.
            local_files.FILES.remove(target)
            file = _created(target)
        with file:
            file.write(json_bytes(header) + b"\n" + content)


def copy_file(table: Location, table_id: str, path: str) -> None:
    """Store a copy of a committed file, which is read."""
    with suppress(OSError):
        write_copy(table, table_id, path, table.read_bytes(path))


def copy_first_commit(table: Location) -> None:
    """Store a copy of the commit that has created a table, which contains its id."""
    if not has_copies(table) or table.exists(copy_path(commit_path(0))):
        return
    with suppress(OSError, ValueError, LookupError, TypeError):
        content = table.read_bytes(commit_path(0))
        for line in content.splitlines():
            if b'"metaData"' in line:
                write_copy(table, str(json_value(line)["metaData"]["id"]), commit_path(0), content)
                return


def remove_copies(table: Location, paths: Iterable[str]) -> None:
    """Remove the copies of files that are no longer live; a failure is ignored."""
    for path in paths:
        with suppress(OSError):
            table.remove(copy_path(path))


def keep_copies_from(table: Location, version: int) -> None:
    """Remove the copies of commits and checkpoints that a checkpoint of `version` replaces."""
    for name in table.names(FOLDER):
        if has_version(name) and int(name[:20]) < version:
            with suppress(OSError):
                table.remove(f"{FOLDER}/{name}")


def differs_from_copy(table: Location, path: str, content: bytes) -> bool:
    """Return whether a file has a sound copy with another content.

    A copy of another table is sound for this function, too: `copies_of` recognises it.
    """
    copy = copy_of(table, path)
    return copy is not None and copy.content != content


def copy_of(table: Location, path: str) -> SecondCopy | None:
    """Return the copy of a file, or `None` if there is no sound one that this process may read.

    It may be of another table's file: `copies_of` recognises that.
    """
    if not has_copies(table):
        return None
    try:
        name = copy_path(path).removeprefix(f"{FOLDER}/")
        copy = _parsed(name, table.read_bytes(copy_path(path)))
    except OSError:
        return None
    return copy if copy is not None and copy.path == path else None


def is_commit_lost(table: Location, version: int) -> bool:
    """Return whether commit `version` existed and is gone, as its copy shows.

    Costs one call of the file system unless there is a copy.
    """
    try:
        if not has_copies(table) or not table.exists(copy_path(commit_path(version))):
            return False
    except OSError:
        # Those who may not read copies learn nothing from them.
        return False
    # The copy was written after its original.
    return not has_commit(table, version)


def copies_of(table: Location) -> tuple[list[SecondCopy], list[str]]:
    """Return the sound copies of a table's files, and the names of the damaged ones.

    A copy of another table is damaged: its table id is that of fewer copies than another one.
    """
    found: list[tuple[str, SecondCopy | None]] = []
    for name in table.names(FOLDER):
        with suppress(FileNotFoundError):
            found.append((name, _parsed(name, table.read_bytes(f"{FOLDER}/{name}"))))
    ids = Counter(copy.table_id for _, copy in found if copy is not None)
    table_id = ids.most_common(1)[0][0] if ids else None
    sound = [copy for _, copy in found if copy is not None and copy.table_id == table_id]
    names = {copy_path(copy.path) for copy in sound}
    return sound, [name for name, _ in found if f"{FOLDER}/{name}" not in names]


def find_faults(table: Location, live: Collection[str] = ()) -> list[CopyFault]:
    """Compare the files that opening a table needs with their copies.

    Parameters: `live`, the live files of a control table; without them only its log is compared.
    """
    if not has_copies(table):
        return []
    sound, damaged = copies_of(table)
    needed = _needed(table, sound, live)
    faults = [CopyFault(path, fault) for path, fault in _compared(table, needed)]
    return faults + [
        CopyFault(f"{FOLDER}/{name}", "the second copy is damaged", is_of_copy=True)
        for name in damaged
    ]


def restore_from_copies(table: Location, live: Collection[str] = ()) -> list[CopyFault]:
    """Restore damaged files from their copies, and write copies that are damaged; return both.

    Restored bytes are those that were written, so any process may do that, while others run.
    Parameters: `live`, see `find_faults`.
    """
    faults = find_faults(table, live)
    contents = {copy.path: copy.content for copy in copies_of(table)[0]}
    for one in faults:
        if one.is_of_copy:
            table.remove(one.path)
        else:
            table.replace(one.path, contents[one.path])
    return faults


def complete_copies(table: Location, table_id: str, live: Collection[str]) -> None:
    """Write the copies that a sound table lacks."""
    if not has_copies(table):
        return
    names = table.names(LOG_FOLDER)
    newest = newest_checkpoint(names)
    paths = [f"{LOG_FOLDER}/{name}" for name in names if _is_needed(name, newest)]
    for path in (*paths, *live):
        if not table.exists(copy_path(path)):
            copy_file(table, table_id, path)


def _needed(
    table: Location, sound: Sequence[SecondCopy], live: Collection[str]
) -> list[SecondCopy]:
    names = [copy.path.rsplit("/", 1)[-1] for copy in sound if copy.path.startswith(LOG_FOLDER)]
    newest = newest_checkpoint([*names, *table.names(LOG_FOLDER)])
    return [
        copy
        for copy in sound
        if (
            _is_needed(copy.path.rsplit("/", 1)[-1], newest)
            if copy.path.startswith(f"{LOG_FOLDER}/")
            else copy.path in live
        )
    ]


def _is_needed(name: str, checkpoint: int) -> bool:
    """Return whether opening a table needs a file of its log: the checkpoint, or a later commit."""
    if not has_version(name):
        return False
    if is_checkpoint(name):
        return int(name[:20]) == checkpoint
    return name[20:] == ".json" and int(name[:20]) > checkpoint


def _compared(table: Location, copies: Iterable[SecondCopy]) -> Iterator[tuple[str, str]]:
    for copy in copies:
        try:
            content = table.read_bytes(copy.path)
        except FileNotFoundError:
            if table.exists(copy_path(copy.path)):
                yield copy.path, MISSING
            continue
        if content != copy.content and table.exists(copy_path(copy.path)):
            yield copy.path, "it is changed" if content else "it is empty"


def _parsed(name: str, text: bytes) -> SecondCopy | None:
    """Return a copy from its text, or `None` if it is damaged."""
    first, _, content = text.partition(b"\n")
    try:
        header = json_value(first)
        copy = SecondCopy(header["table"], header["path"], content)
        is_sound = header["checksum"] == _checksum(*copy) and copy_path(copy.path).endswith(name)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return copy if is_sound else None


def _checksum(table_id: str, path: str, content: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(b"\0".join([table_id.encode(), path.encode(), content]))


def _created(target: str) -> IO[bytes]:
    try:
        return local_files.FILES.create(target)
    except FileNotFoundError:
        Path(target).parent.mkdir(exist_ok=True)
        return local_files.FILES.create(target)
