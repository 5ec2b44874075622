"""Second copies of the files of control tables and of logs.

A disk or a person may damage any file, and no other replica has the tables of a cluster root, or a
broker's journal. So each file of such a table that is needed to open its newest version has a copy
in the table's folder `_second_copies`: commits after the newest checkpoint, that checkpoint, and
the live files of a control table. In a local folder a copy is one unsynced write. It is needed only
if the synced original is damaged later, so a power loss costs at most copies.

On an object store, where objects are removed or replaced by persons and rules rather than by disks,
copies are written beside the commits: nobody waits for them. A process that is killed within that
time leaves a commit without a copy, which `sparklog repair` writes.

A copy begins with a line of JSON: the id of its table, its path there, and a checksum of both and
of the content. A copy thus proves which file it is of. The originals are immutable, so an original
with other bytes than its copy is damaged.

Invariant: a copy is written after its original is committed. A copy of a later version than the
newest commit shows that commits were lost.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import xxhash

from sparklog.logger import get_logger
from sparklog.model import (
    BROKER_TABLES,
    CLUSTER_TABLES,
    CONSUMER_GROUP_HEARTBEATS,
    DELAYED_OPERATIONS,
    FORMAT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
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
from sparklog.storage.location import SECOND_COPIES, Location
from sparklog.storage.parallel import copying_threads

_log = get_logger(__name__)

FOLDER = "_second_copies"
"""The folder of the copies, relative to the table. Delta and its VACUUM ignore such names."""

LOST_COMMITS = "_lost_commits"
"""The folder of commits that were lost, and whose version another commit has taken."""

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

WITHOUT_COPIES_ON_STORES = WITHOUT_COPIES | {
    LOG.name,
    CONSUMER_GROUP_HEARTBEATS.name,
}
"""The tables without copies on object stores, where a copy is a request to pay for.

The other replicas have what a log has, and members write their heartbeats again.
"""


_COLUMNS = {
    schema.name: frozenset(schema.columns.names)
    for schema in (FORMAT, *BROKER_TABLES, *CLUSTER_TABLES)
}
"""The columns of each table by its name."""


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
    """Return whether the files of a table have copies: where originals are durable before them.

    Of an unsynced root a power loss might leave the copy of a commit and not the commit.
    """
    name = table.uri.rsplit("/", 1)[-1]
    if table.is_local:
        return table.is_synced and name not in WITHOUT_COPIES
    return table.options.get(SECOND_COPIES) != "false" and name not in WITHOUT_COPIES_ON_STORES


def copy_path(path: str) -> str:
    """Return the path of the copy of a file, both relative to the table."""
    return f"{FOLDER}/{path.rsplit('/', 1)[-1]}"


def beside(table: Location, write: Callable[[], object]) -> None:
    """Write copies of a table's files: at once in a local folder, beside the caller on a store.

    On a store the copies of a table are written in the order of the calls.
    """
    if table.is_local:
        write()
    else:
        lanes = copying_threads()
        try:
            lanes[zlib.crc32(table.uri.encode()) % len(lanes)].submit(write)
        except RuntimeError:
            # The interpreter is ending, and its threads take no more work.
            write()


def await_copies() -> None:
    """Wait until the copies that this process writes to object stores are written."""
    for lane in copying_threads():
        lane.submit(int).result()


def write_copy(table: Location, table_id: str, path: str, content: bytes) -> None:
    """Store a copy of a committed file; a failure is ignored, since the original is in place."""
    header = {"table": table_id, "path": path, "checksum": _checksum(table_id, path, content)}
    target = f"{table.uri}/{copy_path(path)}"
    if not table.is_local:
        with suppress(OSError):
            _put_copy(table, SecondCopy(table_id, path, content), json_bytes(header))
        return
    with suppress(OSError):
        try:
            file = _created(target)
        except FileExistsError:
            # Of an earlier checkpoint of this version, or damaged.
            local_files.FILES.remove(target)
            file = _created(target)
        with file:
            file.write(json_bytes(header) + b"\n" + content)


def _put_copy(table: Location, copy: SecondCopy, header: bytes) -> None:
    """Put a copy to an object store, and report the commit of the same version that was lost."""
    path, text = copy_path(copy.path), header + b"\n" + copy.content
    if not copy.path.endswith(".json"):
        table.overwrite_object(path, text)
        return
    try:
        table.put_new(path, text)
    except FileExistsError:
        before = copy_of(table, copy.path)
        if before == copy:
            return
        if before is not None and before.table_id == copy.table_id:
            kept = f"{LOST_COMMITS}/{xxhash.xxh3_64_hexdigest(before.content)}-{path[-25:]}"
            table.overwrite_object(kept, before.content)
            _log.error(
                "a commit was lost, and another one has its version",
                path=f"{table.uri}/{copy.path}",
                lost=f"{table.uri}/{kept}",
                remedy="compare both commits, and repeat the change that was lost",
            )
        table.overwrite_object(path, text)


def copy_file(table: Location, table_id: str, path: str) -> None:
    """Store a copy of a committed file, which is read."""
    with suppress(OSError):
        write_copy(table, table_id, path, table.read_bytes(path))


def copy_first_commit(table: Location, content: bytes | None = None) -> None:
    """Store a copy of the commit that has created a table, which contains its id.

    Parameters: `content`, that of the commit; by default it is read, unless there is a copy.
    """
    if not has_copies(table):
        return
    with suppress(OSError, ValueError, LookupError, TypeError):
        if content is None:
            if table.exists(copy_path(commit_path(0))):
                return
            content = table.read_bytes(commit_path(0))
        for line in content.splitlines():
            if b'"metaData"' in line:
                write_copy(table, str(json_value(line)["metaData"]["id"]), commit_path(0), content)
                return


def remove_copies(table: Location, paths: Iterable[str]) -> None:
    """Remove the copies of files that are no longer live; a failure is ignored."""
    _remove(table, [copy_path(path) for path in paths])


def remove_all_copies(table: Location) -> None:
    """Remove all copies of a table that is set aside."""
    _remove(table, [f"{FOLDER}/{name}" for name in table.names(FOLDER)])


def keep_copies_from(table: Location, version: int) -> None:
    """Remove the copies of commits and checkpoints that a checkpoint of `version` replaces."""
    names = [name for name in table.names(FOLDER) if has_version(name)]
    _remove(table, [f"{FOLDER}/{name}" for name in names if int(name[:20]) < version])


def _remove(table: Location, paths: Sequence[str]) -> None:
    if not table.is_local:
        # One request for all of them.
        with suppress(OSError):
            table.remove_all(paths)
        return
    for path in paths:
        with suppress(OSError):
            table.remove(path)


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
        return parsed_copy(path, table.read_bytes(copy_path(path)))
    except OSError:
        return None


def parsed_copy(path: str, text: bytes) -> SecondCopy | None:
    """Return the copy of the file at `path` from the copy's text, or `None` if it is not sound."""
    copy = _parsed(copy_path(path).removeprefix(f"{FOLDER}/"), text)
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

    A copy of another table is damaged: it creates a table with other columns, or its table id is
    not that of the copies that equal their files, or, if none does, not that of most copies.
    """
    names = table.names(FOLDER)
    texts = table.read_present([f"{FOLDER}/{name}" for name in names])
    found = [
        (name, _parsed(name, text))
        for name, text in zip(names, texts, strict=True)
        if text is not None
    ]
    found = [
        (name, None if copy is None or _creates_another(table, copy) else copy)
        for name, copy in found
    ]
    table_id = _own_id(table, [copy for _, copy in found if copy is not None])
    sound = [copy for _, copy in found if copy is not None and copy.table_id == table_id]
    of_sound = {copy_path(copy.path) for copy in sound}
    return sound, [name for name, _ in found if f"{FOLDER}/{name}" not in of_sound]


def _creates_another(table: Location, copy: SecondCopy) -> bool:
    """Return whether a copy is of a commit that creates a table with other columns.

    Those of earlier and later releases have a part of the columns, or more.
    """
    known = _COLUMNS.get(table.uri.rsplit("/", 1)[-1])
    if known is None or not copy.path.endswith(".json"):
        return False
    for line in copy.content.splitlines():
        if line.startswith(b'{"metaData"'):
            with suppress(ValueError, LookupError, TypeError):
                fields = json_value(json_value(line)["metaData"]["schemaString"])["fields"]
                columns = {field["name"] for field in fields}
                return not (columns <= known or known <= columns)
    return False


def _own_id(table: Location, copies: Sequence[SecondCopy]) -> str | None:
    """Return the id of the table that copies are of; reads their files if they name several."""
    ids = Counter(copy.table_id for copy in copies)
    if len(ids) > 1:
        contents = table.read_present([copy.path for copy in copies])
        pairs = zip(copies, contents, strict=True)
        ids = Counter(copy.table_id for copy, content in pairs if content == copy.content) or ids
    return ids.most_common(1)[0][0] if ids else None


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
    contents = {copy.path: copy.content for copy in copies_of(table)[0]} if faults else {}
    for one in faults:
        if one.is_of_copy:
            table.remove(one.path)
        else:
            table.replace(one.path, contents[one.path])
    return faults


def missing_copies(table: Location, live: Collection[str]) -> list[str]:
    """Return the paths of the files of a sound table that should have a copy and lack it.

    Parameters: `live`, see `find_faults`.
    """
    if not has_copies(table):
        return []
    names = table.names(LOG_FOLDER)
    newest = newest_checkpoint(names)
    paths = [f"{LOG_FOLDER}/{name}" for name in names if _is_needed(name, newest)]
    copied = {f"{FOLDER}/{name}" for name in table.names(FOLDER)}
    return [path for path in (*paths, *live) if copy_path(path) not in copied]


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
    copies = list(copies)
    contents = table.read_present([copy.path for copy in copies])
    for copy, content in zip(copies, contents, strict=True):
        if content is None:
            if table.exists(copy_path(copy.path)):
                yield copy.path, MISSING
        elif content != copy.content and table.exists(copy_path(copy.path)):
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
