"""Restoration of the tables of a root from the second copies of their files.

The bytes that were written take the place of damaged ones under the same name, so neither a commit
nor the owner of the root is needed, and brokers and clients may run. It works without a connection:
a client cannot connect while a table of the cluster root is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa

from sparklog.cluster.connection import Connection
from sparklog.cluster.repairs import Fault, Repair, finding
from sparklog.maintenance.missing_tables import create_in_broker_roots, create_in_cluster_root
from sparklog.maintenance.table_work import online_broker_roots
from sparklog.model import BROKER_TABLES, CLUSTER_TABLES, FORMAT, LOG, TableSchema
from sparklog.storage.delta_log_check import check_log, hint_fault
from sparklog.storage.delta_log_files import (
    CHECKPOINT_HINT,
    LOG_FOLDER,
)
from sparklog.storage.delta_snapshots import table_identity
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.file_copies import (
    MISSING,
    CopyFault,
    copy_file,
    find_faults,
    has_copies,
    missing_copies,
    restore_from_copies,
)
from sparklog.storage.location import Location
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.vacuum import read_table_files

_UNREADABLE_LOG = (
    *UNREADABLE,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    pa.ArrowException,
)
"""The errors of reading the log of a table that has no sound copies."""

_REMEDY = "run sparklog repair: its second copy is sound"


def restore_cluster_root(
    root: Location, *, is_dry_run: bool = False, now_ms: int = 0
) -> list[Repair]:
    """Restore the damaged files of a cluster root that have copies; return them.

    A hint that names no checkpoint that is there is removed: Delta lists the log without it. A
    missing table that may be empty is created again.

    Parameters: `is_dry_run`, whether they are only found; `now_ms`, the time of the findings.
    """
    tables = FORMAT, *CLUSTER_TABLES
    return [
        *_restored(root, tables, None, now_ms, is_dry_run=is_dry_run),
        *_without_wrong_hints(root, tables, now_ms, is_dry_run=is_dry_run),
        *create_in_cluster_root(root, is_dry_run=is_dry_run, now_ms=now_ms),
    ]


def restore_broker_roots(
    connection: Connection, *, is_dry_run: bool = False, now_ms: int = 0
) -> list[Repair]:
    """Restore the damaged files of all broker roots that have copies; return them."""
    roots = online_broker_roots(connection)
    found = map_in_parallel(
        lambda root: _restored(
            root[0], (FORMAT, *BROKER_TABLES), root[1], now_ms, is_dry_run=is_dry_run
        ),
        roots,
        0,
        is_local=all(root.is_local for root, _ in roots),
    )
    created = create_in_broker_roots(connection, is_dry_run=is_dry_run, now_ms=now_ms)
    return [*chain.from_iterable(found), *created]


def _restored(
    root: Location,
    tables: Sequence[TableSchema],
    broker_id: int | None,
    now_ms: int,
    *,
    is_dry_run: bool,
) -> list[Repair]:
    present = set(root.names())
    found = map_in_parallel(
        lambda schema: [
            _finding(one, root, schema, broker_id, now_ms, is_dry_run=is_dry_run)
            for one in _restore_table(root.child(schema.name), schema, is_dry_run=is_dry_run)
        ],
        [schema for schema in tables if schema.name in present],
        0,
        is_local=root.is_local,
    )
    return [*chain.from_iterable(found)]


def _restore_table(table: Location, schema: TableSchema, *, is_dry_run: bool) -> list[CopyFault]:
    """Restore the damaged files of a table, and write the copies that it lacks."""
    if not has_copies(table):
        return []
    act = find_faults if is_dry_run else restore_from_copies
    faults = act(table)
    live = _live(table, schema)
    if live:
        faults += [one for one in act(table, live) if one not in faults]
    if not is_dry_run:
        _complete(table, live)
    return faults


def _finding(
    fault: CopyFault,
    root: Location,
    schema: TableSchema,
    broker_id: int | None,
    now_ms: int,
    *,
    is_dry_run: bool,
) -> Repair:
    outcome = "the second copy was written again"
    if not fault.is_of_copy:
        outcome = "the file was restored from its second copy"
    return finding(
        fault_of(fault),
        fault.fault,
        root.uri,
        schema.name,
        broker_id=broker_id,
        path=fault.path,
        remedy=_REMEDY,
        now_ms=now_ms,
    )._replace(state="found" if is_dry_run else "repaired", outcome="" if is_dry_run else outcome)


def _without_wrong_hints(
    root: Location, tables: Sequence[TableSchema], now_ms: int, *, is_dry_run: bool
) -> Iterator[Repair]:
    """Remove the hints with which tables cannot be opened; repairs write to one of these tables."""
    if not root.is_local:
        return
    present = set(root.names())
    for schema in tables:
        table = root.child(schema.name)
        if schema.name not in present:
            continue
        path = f"{LOG_FOLDER}/{CHECKPOINT_HINT}"
        fault = hint_fault(table) if table.exists(path) else None
        if fault is None:
            continue
        if not is_dry_run:
            table.remove_durably(path)
        yield finding(
            "damaged_checkpoint",
            fault,
            root.uri,
            schema.name,
            broker_id=None,
            path=path,
            remedy="run sparklog repair: it removes the hint",
            now_ms=now_ms,
        )._replace(
            state="found" if is_dry_run else "repaired",
            outcome="" if is_dry_run else "the hint was removed: the log is listed without it",
        )


def fault_of(fault: CopyFault) -> Fault:
    """Return the kind of a finding about a file that differs from its copy."""
    if fault.is_of_copy:
        return "damaged_copy"
    if not fault.path.startswith(f"{LOG_FOLDER}/"):
        return "damaged_table_file"
    if fault.path.endswith(".parquet"):
        return "damaged_checkpoint"
    return "missing_commit" if fault.fault == MISSING else "damaged_commit"


def _live(table: Location, schema: TableSchema) -> frozenset[str]:
    """Return the live files of a control table; none if its log cannot be read."""
    if schema is LOG:
        return frozenset()
    try:
        return read_table_files(table).live
    except _UNREADABLE_LOG:
        return frozenset()


def _complete(table: Location, live: frozenset[str]) -> None:
    """Write the copies that a table lacks: those of an earlier release, or lost ones."""
    try:
        missing = missing_copies(table, live)
        if not missing:
            return
        table_id = table_identity(table)[0]
        # A copy of a damaged file would count as what was written.
        damaged = {one.path for one in check_log(table).damaged}
    except _UNREADABLE_LOG:
        # A table that cannot be opened has no file that may be copied.
        return
    for path in missing:
        if path in damaged:
            continue
        copy_file(table, table_id, path)
