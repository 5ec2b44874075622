"""Copies of a whole cluster at one point in time, made while it runs, and their restoration.

A copy of roots that change meanwhile would not be of one point in time: its roots would know of
later versions of each other, and brokers would treat the older ones as lost. The versions to be
copied are therefore chosen first, as a consistent cut: no root at its version has seen a later
version of another one than the cut has. The commits of the journals say what was seen
(`SeenVersions`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa

from sparklog.cluster.formats import FORMAT_WITH_SEEN_VERSIONS
from sparklog.cluster.root_format import read_format
from sparklog.cluster.roots import ClusterRoot
from sparklog.cluster.session_watch import online_roots
from sparklog.errors import SparklogError, StorageError
from sparklog.maintenance.table_work import map_tables
from sparklog.model import (
    BROKERS,
    FORMAT,
    LOG,
    PRODUCE_REQUESTS,
    REQUEST_TABLES,
    TOPICS,
    Row,
)
from sparklog.storage.commits import Cause
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.delta_log_files import (
    LOG_FOLDER,
    commit_path,
    fetch_log,
    has_version,
    is_checkpoint,
    newest_version,
)
from sparklog.storage.delta_snapshots import open_table
from sparklog.storage.journal import newest_seen
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.new_file import new_file
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.progress import OnProgress, reporting
from sparklog.storage.seen_versions import JournalOf, SeenVersions

MANIFEST = "manifest.json"
"""The file of a backup that names its roots. It is written last: a backup without it is incomplete.
"""

_CLUSTER = "cluster"
_REQUESTS = frozenset(one.name for one in REQUEST_TABLES)
_MOST_ROUNDS = 100

_Result = TypeVar("_Result")


class CopiedRoots(NamedTuple):
    """The result of a backup or a restoration.

    Attributes
    ----------
    roots : dict of str to str
        The URIs of the roots that were written, by their names in the backup.
    files : int
        The number of files that were copied; files that were there before are not counted.
    """

    roots: Mapping[str, str]
    files: int


_Files = list[tuple[str, int]]
"""Files of a table by their paths, with their sizes in bytes."""


class _Table(NamedTuple):
    """A table to be copied at a version."""

    source: Location
    target: Location
    version: int


def backup(
    cluster: Location,
    target: Location,
    storage_options: StorageOptions | None = None,
    on_progress: OnProgress | None = None,
) -> CopiedRoots:
    """Copy a cluster, which may run, as it is at one point in time.

    Pending requests of producers are not part of it: they are unanswered at that time. A repeated
    backup to the same target copies only new files.

    Parameters
    ----------
    cluster : Location
        The cluster root.
    target : Location
        A new folder or prefix, or one with an earlier backup of the cluster.
    storage_options : dict, optional
        The options of object stores by URI prefix.
    on_progress : callable, optional
        Called after each step with the name of the work, the steps done, and their number.

    Returns
    -------
    CopiedRoots
        The copies, by name, and the number of copied files.

    Raises
    ------
    StorageError
        A root cannot be read, a file was removed while it was to be copied, or the target has other
        contents.
    SparklogError
        The cluster has a format in which journals do not say what they have seen.
    """
    root = ClusterRoot(cluster)
    if root.format_version < FORMAT_WITH_SEEN_VERSIONS:
        raise SparklogError(
            f"{cluster.uri} has format {root.format_version}, in which no consistent copy can be "
            "made while brokers run: run `sparklog upgrade`"
        )
    journals = _journals(root.brokers.rows(), storage_options)
    names = {of: f"broker-{of.broker_id}-{of.root}" for of in journals}
    tables = [
        table
        for of, one in journals.items()
        for table in _tables_beside_log(one, target.child(names[of]))
    ]
    logs, of_cluster = _cut(root, journals)
    if _journals(root.brokers.rows_at(of_cluster[BROKERS.name]), storage_options) != journals:
        raise StorageError(f"log directories of {cluster.uri} have changed: repeat the backup")
    tables += [
        _Table(one.child(LOG.name), target.child(names[of]).child(LOG.name), logs[of])
        for of, one in journals.items()
    ]
    tables += [
        _Table(cluster.child(name), target.child(_CLUSTER).child(name), version)
        for name, version in of_cluster.items()
    ]
    target.remove(MANIFEST)
    # All logs before any batch: clean-up removes commits after ten minutes, and copying batches may
    # take hours.
    of_logs = _each(tables, lambda one: (_named_files(one), _copy_newest_log(one)))
    named = dict(zip(tables, (files for files, _ in of_logs), strict=True))
    files = sum(copied for _, copied in of_logs)
    files += sum(_each(tables, lambda one: _copy_files(one, named[one], on_progress)))
    files += sum(_each(tables, _copy_older_log))
    for of in journals:
        create_table(target.child(names[of]), PRODUCE_REQUESTS)
    roots = {_CLUSTER: cluster.uri, **{names[of]: one.uri for of, one in journals.items()}}
    manifest = {"cluster_id": root.cluster_id, "roots": roots}
    target.put_new(MANIFEST, json.dumps(manifest, indent=1).encode())
    return CopiedRoots({name: target.child(name).uri for name in roots}, files)


class _Root(NamedTuple):
    """A broker root: its broker, and the number of the log directory."""

    broker_id: int
    root: int


def _journals(brokers: pa.Table, options: StorageOptions | None) -> dict[_Root, Location]:
    """Return the online log directories in the rows of `brokers`."""
    return {
        _Root(row["broker_id"], number): Location.of(uri, options)
        for row in brokers.to_pylist()
        if row["state"] != "unregistered"
        for number, uri in online_roots(row).items()
    }


def _tables_beside_log(root: Location, target: Location) -> Iterator[_Table]:
    """Yield the tables of a broker root that describe its log, at their newest versions.

    They are chosen before the version of the log, so that they describe no later one.
    """
    found = read_format(root)
    if found is None:
        raise StorageError(f"there is no broker root at {root.uri}: start its broker first")
    names = [*sorted(found.tables - _REQUESTS - {LOG.name}), FORMAT.name]
    versions = map_in_parallel(
        lambda name: _version(root.child(name)), names, 0, is_local=root.is_local
    )
    for name, version in zip(names, versions, strict=True):
        if version is not None:
            yield _Table(root.child(name), target.child(name), version)


def _version(table: Location) -> int | None:
    """Return a table's newest version, or `None` if it is missing: an earlier release listed it."""
    try:
        return newest_version(table)
    except StorageError:
        return None


def _cut(
    root: ClusterRoot, journals: Mapping[_Root, Location]
) -> tuple[dict[_Root, int], dict[str, int]]:
    """Return the versions of the logs and of the cluster root's tables of a consistent cut.

    A version is raised to the highest one that another root of the cut has seen, until none is
    higher. Each version exists, since it was seen.
    """
    logs = {of: newest_version(one.child(LOG.name)) for of, one in journals.items()}
    # Topics before partitions: a topic's row is written after them.
    names = [TOPICS.name, *sorted(root.format.tables - {TOPICS.name}), FORMAT.name]
    tables = {name: newest_version(root.location.child(name)) for name in names}
    done: dict[object, int] = {}
    for _ in range(_MOST_ROUNDS):
        seen = SeenVersions()
        for of, version in logs.items():
            if done.get(of) != version:
                seen = seen.merged(newest_seen(journals[of].child(LOG.name), version))
                done[of] = version
        if done.get(BROKERS.name) != tables[BROKERS.name]:
            done[BROKERS.name] = tables[BROKERS.name]
            seen = seen.merged(_noted(root.brokers.rows_at(tables[BROKERS.name]).to_pylist()))
        # A broker that has restarted continues its log under another epoch.
        higher: dict[_Root, int] = {}
        for of_log, version in seen.journals.items():
            of_root = _Root(of_log.broker_id, of_log.root)
            if of_root in logs and version > max(logs[of_root], higher.get(of_root, -1)):
                higher[of_root] = version
        later = {name: version for name, version in seen.tables.items() if version > tables[name]}
        if not higher and not later:
            return logs, tables
        logs |= higher
        tables |= later
    raise StorageError(f"no consistent state of {root.location.uri} was found: try again later")


def _noted(rows: Iterable[Row]) -> SeenVersions:
    """Return the versions of the logs in the rows of `brokers`."""
    return SeenVersions(
        {
            JournalOf(row["broker_id"], number, row["broker_epoch"]): version
            for row in rows
            for number, version in enumerate(json.loads(row["log_version"]))
        }
    )


def restore(
    source: Location,
    storage_options: StorageOptions | None = None,
    target: Location | None = None,
    on_progress: OnProgress | None = None,
) -> CopiedRoots:
    """Create the roots of a cluster from a backup. An interrupted restoration is completed.

    Parameters
    ----------
    source : Location
        The backup.
    storage_options : dict, optional
        The options of object stores by URI prefix.
    target : Location, optional
        The folder or prefix below which the roots are created, under their names in the backup; by
        default they are created where they were.
    on_progress : callable, optional
        Called after each step with the name of the work, the steps done, and their number.

    Returns
    -------
    CopiedRoots
        The roots, by name, and the number of copied files.

    Raises
    ------
    StorageError
        There is no complete backup, or a root exists.
    """
    try:
        manifest: dict[str, Any] = json.loads(source.read_bytes(MANIFEST))
    except FileNotFoundError as error:
        raise StorageError(
            f"there is no complete backup at {source.uri}: repeat the backup, or name another one"
        ) from error
    roots = {
        name: Location.of(uri, storage_options) if target is None else target.child(name)
        for name, uri in manifest["roots"].items()
    }
    for name, root in roots.items():
        if read_format(root) is not None and not _is_restored(name, source, root):
            raise StorageError(f"{root.uri} holds a root: move it away, or name another target")
    files = 0
    # The cluster root is complete last: no broker starts before its own root is.
    for name in sorted(roots, key=lambda name: (name == _CLUSTER, name)):
        place = source.child(name)
        tables = [place.child(part) for part in sorted(place.names()) if part != FORMAT.name]
        copy = partial(_restore_table, target=roots[name], on_progress=on_progress)
        is_local = place.is_local and roots[name].is_local
        files += sum(map_tables(copy, tables, is_local=is_local))
        if name == _CLUSTER:
            _set_roots(roots)
        # The root is complete with its format.
        files += copy(place.child(FORMAT.name))
    return CopiedRoots({name: root.uri for name, root in roots.items()}, files)


def _restore_table(source: Location, target: Location, on_progress: OnProgress | None) -> int:
    """Copy a table into the root at `target`; return how many of its files were not there.

    A table that can be opened has its files, if the restoration is interrupted.
    """
    copy = _Table(source, target.child(source.uri.rsplit("/", 1)[-1]), newest_version(source))
    files = _copy_files(copy, _named_files(copy), on_progress)
    return files + _copy_newest_log(copy) + _copy_older_log(copy)


def _is_restored(name: str, source: Location, root: Location) -> bool:
    """Return whether an interrupted restoration has left this root; the cluster root comes last."""
    logs = (one.child(LOG.name) for one in (source.child(name), root))
    return name != _CLUSTER and len(set(map(newest_version, logs))) == 1


def _set_roots(roots: Mapping[str, Location]) -> None:
    """Set the log directories of the brokers to the restored ones.

    Otherwise the brokers would read the journals of the cluster that was backed up.
    """

    def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
        result = rows.to_pylist()
        for row in result:
            uris = json.loads(row["roots"])
            names = [f"broker-{row['broker_id']}-{number}" for number in range(len(uris))]
            restored = [roots[name].uri if name in roots else None for name in names]
            row["roots"] = json.dumps(restored)
        return BROKERS.rows(result), None

    ControlTable(roots[_CLUSTER], BROKERS).update(change, cause=Cause("RESTORE CLUSTER"))


def _each(tables: Sequence[_Table], act: Callable[[_Table], _Result]) -> list[_Result]:
    """Call `act` with each table, in parallel as `map_tables` does; return the results."""
    of_source = {one.source: one for one in tables}
    return map_tables(
        lambda source: act(of_source[source]),
        [one.source for one in tables],
        is_local=all(map(_is_local, tables)),
    )


def _copy_newest_log(copy: _Table) -> int:
    """Copy the part of a table's log that opening it at its version needs.

    Returns the number of files that were not there. Raises `StorageError` if the version cannot be
    read.
    """
    source, target, version = copy
    if target.is_local:
        Path(target.uri, LOG_FOLDER).mkdir(parents=True, exist_ok=True)
    try:
        contents = fetch_log(source, version)
    except FileNotFoundError as error:
        raise StorageError(
            f"version {version} of the table at {source.uri} cannot be copied: it was cleaned up "
            "since it was chosen, or is damaged; repeat the backup, and run `sparklog scrub` if "
            "that does not help"
        ) from error
    files = list(contents.items())
    copier = _copier(source, target)
    # The version can be opened as soon as its newest file is there.
    copied = map_in_parallel(copier, files[:-1], 0, is_local=_is_local(copy))
    return sum(copied) + sum(map(copier, files[-1:]))


def _named_files(copy: _Table) -> _Files:
    """Return the files that a table names at its version; raises as `open_table` does."""
    opened = open_table(copy.source, copy.version).snapshot
    files = pa.table(opened.get_add_actions(flatten=True))
    paths = map(unquote, files["path"].to_pylist())
    return [*zip(paths, files["size_bytes"].to_pylist(), strict=True)]


def _copy_files(copy: _Table, files: _Files, on_progress: OnProgress | None) -> int:
    """Copy files of a table; return how many were not there."""
    source, target, _ = copy
    name = "/".join(source.uri.split("/")[-2:])
    present = {one.path: one.size_bytes for one in target.files()} if files else {}

    def copied_file(file: tuple[str, int]) -> bool:
        path, size_bytes = file
        return _copy_file(source, target, path, size_bytes, present.get(path))

    copy_one = reporting(copied_file, name, len(files), on_progress)
    are_new = map_in_parallel(copy_one, files, 0, is_local=_is_local(copy))
    copied = [path for path, _ in compress(files, are_new)]
    target.sync(copied)
    return len(copied)


def _copy_older_log(copy: _Table) -> int:
    """Copy the commits and checkpoints up to the version that the target lacks; return how many."""
    copier = _copier(copy.source, copy.target)

    def copied(name: str) -> bool:
        try:
            content = copy.source.read_bytes(f"{LOG_FOLDER}/{name}")
        except FileNotFoundError:
            # A file that was listed may be cleaned up since.
            return False
        return copier((name, content))

    names = _older_log_files(copy)
    # A checkpoint may take a large part of the memory.
    checkpoints = [name for name in names if is_checkpoint(name)]
    commits = [name for name in names if not is_checkpoint(name)]
    of_commits = map_in_parallel(copied, commits, 0, is_local=_is_local(copy))
    return sum(of_commits) + sum(map(copied, checkpoints))


def _older_log_files(copy: _Table) -> list[str]:
    """Return the names of these commits and checkpoints."""
    source, target, version = copy
    existing = {*target.names(LOG_FOLDER)}
    return [
        name
        for name in source.names(LOG_FOLDER)
        if has_version(name)
        and int(name[:20]) <= version
        and name not in existing
        and (is_checkpoint(name) or name == commit_path(int(name[:20])).rpartition("/")[2])
    ]


def _is_local(copy: _Table) -> bool:
    return copy.source.is_local and copy.target.is_local


def _copier(source: Location, target: Location) -> Callable[[tuple[str, bytes]], bool]:
    def copy(file: tuple[str, bytes]) -> bool:
        """Write a file of a log; return whether it was not there."""
        path, content = f"{LOG_FOLDER}/{file[0]}", file[1]
        try:
            target.put_new(path, content)
        except FileExistsError:
            if target.read_bytes(path) != content and not is_checkpoint(file[0]):
                raise StorageError(
                    f"{target.uri}/{path} is not a copy of {source.uri}: name a new target"
                ) from None
            return False
        return True

    return copy


def _copy_file(
    source: Location, target: Location, path: str, size_bytes: int, present_bytes: int | None
) -> bool:
    """Copy a data file, whose content never changes; return whether it was not there.

    Parameters: `present_bytes`, the size of the file that the target has, if it has one.
    """
    if present_bytes == size_bytes:
        return False
    if present_bytes is not None:
        # Left by a process that has died.
        target.remove(path)
    try:
        with source.open(path) as data, new_file(target, path) as copy:
            shutil.copyfileobj(data, copy, source.chunk_bytes)
    except FileNotFoundError as error:
        raise StorageError(
            f"{source.uri}/{path} was removed before it was copied: repeat the backup, which "
            "continues with what is new, and set file.delete.delay.ms to more than the time that "
            "it takes; run `sparklog scrub` if the same file is missing again"
        ) from error
    return True
