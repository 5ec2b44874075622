"""The `format` table of a root, and the creation of a root, which writes that table last.

A root whose `format` has a row is complete. The row names the cluster, the broker of a broker root,
and the root's tables.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

import sparklog
from sparklog import model
from sparklog.cluster.formats import THIS_RELEASE, Formats
from sparklog.errors import (
    AccessDeniedError,
    CommitConflictError,
    DamagedError,
    StorageError,
    UnreachableError,
)
from sparklog.storage.commits import Cause
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.control_table_damage import missing_remedy
from sparklog.storage.delta_log_files import commit_path, has_commit
from sparklog.storage.errors import STORE_ERRORS
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import map_in_parallel


class RootFormat(NamedTuple):
    """The row of a root's `format` table.

    `broker_id` is `None` in a cluster root. `listed` are the names of the root's tables, or `None`
    if its release did not write them.
    """

    location: Location
    schema_version: int
    cluster_id: str
    created_by: str
    broker_id: int | None
    listed: frozenset[str] | None

    @property
    def is_cluster(self) -> bool:
        """Whether the root is a cluster root."""
        return self.broker_id is None

    @property
    def tables(self) -> frozenset[str]:
        """The names of the tables that the root has."""
        if self.listed is not None:
            return self.listed
        return model.UNLISTED_CLUSTER_TABLES if self.is_cluster else model.UNLISTED_BROKER_TABLES


def read_format(location: Location) -> RootFormat | None:
    """Return the format of a root, or `None` if there is no root or an unfinished one.

    Raises `StorageError` if `location` is a file or cannot be reached, and `DamagedError` if the
    table is damaged.
    """
    if location.is_local and os.path.isfile(location.uri):  # noqa: PTH113 - never raises
        raise StorageError(f"{location.uri} is a file: name a folder")
    table = location.child(model.FORMAT.name)
    try:
        if not has_commit(table, 0):
            # Stores report a missing bucket like a missing file; listing a missing bucket fails.
            location.names()
            return None
    except AccessDeniedError:
        raise
    except STORE_ERRORS as error:
        raise _unreachable(location, error) from error
    # The row is written last: a root that has it is complete.
    row = next(iter(ControlTable(location, model.FORMAT).rows().to_pylist()), None)
    if row is None:
        return None
    listed = frozenset(json.loads(row.pop("tables") or "[]")) or None
    return RootFormat(location, listed=listed, **row)


def read_formats(locations: Sequence[Location]) -> list[RootFormat | None]:
    """Return the formats of several roots, read in parallel; raises as `read_format` does."""
    is_local = all(location.is_local for location in locations)
    return map_in_parallel(read_format, locations, 0, is_local=is_local)


def check_kind(
    location: Location,
    found: RootFormat | None,
    *,
    is_cluster: bool,
    formats: Formats = THIS_RELEASE,
) -> RootFormat:
    """Return `found` after checking the kind of root and its format; raises `StorageError`."""
    kind, other = ("cluster", "broker") if is_cluster else ("broker", "cluster")
    if found is None:
        table = location.child(model.FORMAT.name)
        if has_commit(table, 0):
            raise StorageError(
                f"the {kind} root at {location.uri} is not complete: its table {table.uri} has no "
                "row. Start its brokers, which complete a new root; if it was in use, restore the "
                "newest commit of that table from an earlier version of the file "
                "(docs/damaged-tables.md)"
            )
        raise StorageError(
            f"there is no {kind} root at {location.uri}: check the path, or create the cluster "
            "by starting its brokers"
        )
    formats.check(location, found.schema_version)
    if found.is_cluster != is_cluster:
        raise StorageError(f"{location.uri} is a {other} root: name the {kind} root")
    return found


def check_new(
    cluster_root: Location, broker_roots: Sequence[Location], found: Sequence[RootFormat | None]
) -> None:
    """Raise `StorageError` if the brokers of a missing cluster root have been part of a cluster.

    Their cluster root was lost, or another one was meant; a new one would not know their records.
    Parameters: `found`, the results of `read_format` for `broker_roots`.
    """
    try:
        for location, root in zip(broker_roots, found, strict=True):
            _check_unused(location, root, cluster_root)
    except StorageError:
        # A broker root is created after its cluster root, possibly since the latter was read.
        if read_format(cluster_root) is None:
            raise


def _check_unused(location: Location, root: RootFormat | None, cluster_root: Location) -> None:
    if root is None:
        check_unwritten(location, model.BROKER_TABLES)
    elif not root.is_cluster:
        raise StorageError(
            f"there is no cluster root at {cluster_root.uri}, but {location.uri} belongs to "
            f"broker {root.broker_id} of cluster {root.cluster_id}: restore the cluster root, or "
            "correct cluster.root or log.dirs"
        )


def check_distinct(locations: Sequence[Location]) -> None:
    """Raise `StorageError` if two roots are the same folder, under whatever names.

    Symbolic links are followed, and existing folders are compared by their inodes.
    """
    first_at: dict[object, Location] = {}
    for location in locations:
        for identity in _identities(location):
            other = first_at.setdefault(identity, location)
            if other is not location:
                raise StorageError(
                    f"{other.uri} and {location.uri} are one folder: name each folder once in "
                    "cluster.root and log.dirs"
                )


def _identities(location: Location) -> Iterator[object]:
    if not location.is_local:
        yield location.identity
        return
    yield os.path.realpath(location.uri)
    with suppress(OSError):
        found = Path(location.uri).stat()
        yield found.st_dev, found.st_ino


def check_empty(
    location: Location,
    tables: Sequence[model.TableSchema] = (*model.BROKER_TABLES, *model.CLUSTER_TABLES),
) -> None:
    """Raise `StorageError` if no root can be created at `location`. Nothing is created.

    `tables` are those that a root may contain whose creation was interrupted.
    """
    known = {schema.name for schema in (*tables, model.FORMAT)}
    try:
        found = location.names()
    except AccessDeniedError:
        raise
    except STORE_ERRORS as error:
        raise _unreachable(location, error) from error
    foreign = [name for name in found if name not in known]
    if foreign:
        raise StorageError(
            f"{location.uri} is not a sparklog root and holds {foreign[0]!r}: name an empty or "
            "a new folder"
        )


def _unreachable(location: Location, error: Exception) -> StorageError:
    return unusable(
        f"{location.uri} cannot be reached: check its name, the store's options and that this "
        f"process may use it ({one_line(error)})",
        error,
    )


def unusable(message: str, error: Exception) -> StorageError:
    """Return the error for roots that `error` makes unusable.

    It is an `UnreachableError` if they may be usable later, and a `StorageError` if a path or a
    permission has to be corrected.
    """
    is_to_be_corrected = isinstance(error, (NotADirectoryError, PermissionError))
    return StorageError(message) if is_to_be_corrected else UnreachableError(message)


# --- creating -----------------------------------------------------------------------------------


def create_root(
    location: Location,
    tables: Sequence[model.TableSchema],
    cluster_id: str,
    broker_id: int | None,
    schema_version: int = model.SCHEMA_VERSION,
) -> RootFormat | None:
    """Create a root with `tables` if `read_format` has found none; return the root's format.

    Parameters: `schema_version`, the format of a new root: the newest one for a cluster root, that
    of the cluster for a broker root.

    An interrupted creation is completed. If another process creates the root at the same time, the
    row of either process may remain. Raises `DamagedError` if `format` is missing from a root.
    """
    check_empty(location, tables)
    try:
        check_unwritten(location, tables)
    except DamagedError:
        created = read_format(location)
        if created is None:
            raise
        # Another process has created the root meanwhile.
        return created

    def create(schema: model.TableSchema) -> None:
        create_table(location, schema)
        location.child(schema.name).sync([commit_path(0), "_delta_log"])

    map_in_parallel(create, tables, 0, is_local=location.is_local)
    create(model.FORMAT)
    location.sync_folders()
    row = {
        "schema_version": schema_version,
        "cluster_id": cluster_id,
        "created_by": f"sparklog {sparklog.__version__}",
        "broker_id": broker_id,
        "tables": json.dumps(sorted(schema.name for schema in tables)),
    }
    table = ControlTable(location, model.FORMAT)
    with suppress(CommitConflictError):
        if not table.rows().num_rows:
            table.compare_and_set(model.FORMAT.rows([row]), cause=Cause("CREATE ROOT"))
    return read_format(location)


def check_unwritten(location: Location, tables: Sequence[model.TableSchema]) -> None:
    """Raise `DamagedError` if a root without a row in `format` has tables with rows.

    The creation of a root leaves its tables empty until it has written that row.
    """
    places = [location.child(schema.name) for schema in tables]
    written = map_in_parallel(_has_been_written, places, 0, is_local=location.is_local)
    for schema, is_written in zip(tables, written, strict=True):
        if is_written:
            raise DamagedError(
                location.child(model.FORMAT.name).uri,
                f"it is missing, and {schema.name} beside it has been written to",
                "restore the root from a copy, or name an empty folder",
            )


def _has_been_written(table: Location) -> bool:
    """Return True if a table has commits after the one that created it."""
    names = table.names("_delta_log")
    return any(_COMMIT.match(name) is not None and int(name[:20]) > 0 for name in names)


_COMMIT = re.compile(r"\d{20}\.")


def add_tables(
    found: RootFormat, tables: Sequence[model.TableSchema], schema_version: int | None = None
) -> None:
    """Create those of `tables` that the root's release did not have, and list them in `format`.

    With `schema_version`, the root's format becomes this one in the same commit if it is lower.
    Raises `DamagedError` if a listed table is missing.
    """
    # A broker recreates its other tables itself, after it has registered them as damaged.
    needed = [schema for schema in tables if found.is_cluster or schema is model.LOG]
    _check_present(found, [schema for schema in needed if schema.name in found.tables])
    added = [schema for schema in tables if schema.name not in found.tables]
    is_raised = schema_version is not None and schema_version > found.schema_version
    if not added and found.listed is not None and not is_raised:
        return
    for schema in added:
        create_table(found.location, schema)

    def change(rows: pa.Table) -> tuple[pa.Table | None, None]:
        [row] = rows.to_pylist()
        listed = frozenset(json.loads(row["tables"] or "[]")) or None
        known = found._replace(listed=listed).tables
        names = json.dumps(sorted({schema.name for schema in tables} | known))
        changed = row | {
            "tables": names,
            "schema_version": max(row["schema_version"], schema_version or 0),
        }
        return (None if changed == row else model.FORMAT.rows([changed])), None

    ControlTable(found.location, model.FORMAT).update(change, cause=Cause("ADD TABLES"))


def _check_present(found: RootFormat, tables: Sequence[model.TableSchema]) -> None:
    location = found.location
    present = location.names()
    for schema in tables:
        if schema.name not in present:
            raise DamagedError(
                location.child(schema.name).uri,
                "it is missing",
                missing_remedy(schema.name)
                if found.is_cluster
                else f"restore it with all of {location.uri}, or delete that folder: the broker "
                "then copies its replicas from their leaders",
            )
