"""Creation of missing tables of a root that is in place, where an empty table is as good.

A table that cannot be opened is emptied in place where its rows are written again.

No decision about records, offsets or members depends on the rows of these tables: they are notes of
maintenance, and the past. Their creation needs no connection: no broker starts, and no scrub runs,
while a table of the cluster root is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, compress
from tempfile import TemporaryDirectory

from sparklog.cluster.connection import Connection
from sparklog.cluster.repairs import Repair, finding
from sparklog.cluster.root_format import read_format
from sparklog.errors import DamagedError
from sparklog.maintenance.table_work import online_broker_roots
from sparklog.model import BROKER_TABLES, CLUSTER_TABLES, LOG, TableSchema
from sparklog.storage.commits import BROKER_EPOCH
from sparklog.storage.control_table import create_table
from sparklog.storage.control_table_damage import CREATED_AGAIN, is_in_place
from sparklog.storage.delta_log_check import named_id
from sparklog.storage.delta_log_files import LOG_FOLDER, has_version
from sparklog.storage.delta_snapshots import open_delta_table, open_table
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.fence import Fence
from sparklog.storage.file_copies import remove_all_copies
from sparklog.storage.location import Location
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.recovered_checkpoint import write_recovered_checkpoint


def create_in_cluster_root(
    root: Location, *, is_dry_run: bool = False, now_ms: int = 0
) -> list[Repair]:
    """Create the missing tables of a cluster root that may be created again; return them.

    Parameters: `is_dry_run`, whether they are only found; `now_ms`, the time of the findings.
    """
    try:
        return list(_created(root, CLUSTER_TABLES, None, now_ms, is_dry_run=is_dry_run))
    except DamagedError:
        # Its format is damaged; no client can connect either.
        return []


def create_in_broker_roots(
    connection: Connection, *, is_dry_run: bool = False, now_ms: int = 0
) -> list[Repair]:
    """Create the missing tables of all broker roots that may be created again; return them.

    A table gets the fence that `log` has, so that its broker goes on if it runs.
    """

    def created(root: tuple[Location, int]) -> list[Repair]:
        repairs: list[Repair] = []
        # Its disk is away, perhaps; the findings of scrubs say so.
        with suppress(*UNREADABLE):
            repairs += _created(root[0], BROKER_TABLES, root[1], now_ms, is_dry_run=is_dry_run)
        return repairs

    roots = online_broker_roots(connection)
    is_local = all(root.is_local for root, _ in roots)
    return [*chain.from_iterable(map_in_parallel(created, roots, 0, is_local=is_local))]


def empty_in_place(table: Location, schema: TableSchema, now_ms: int) -> None:
    """Empty a table of the cluster root that cannot be opened, under its present version.

    Delta's checkpoint of an empty table takes the place of all files of the log. Processes that
    have the table in memory go on from that version, so it is for a table without a fence.
    Parameters: `now_ms`, the present time. Raises `OSError` or `DeltaError` if that fails.
    """
    names = [name for name in table.names(LOG_FOLDER) if has_version(name)]
    version = max((int(name[:20]) for name in names), default=0)
    with TemporaryDirectory(prefix="sparklog-") as folder:
        create_table(Location(folder), schema)
        described = open_delta_table(Location(folder).child(schema.name))
    # Processes that have the table in memory take commits of the same id only.
    write_recovered_checkpoint(table, described, version, {}, {}, now_ms, table_id=named_id(table))
    written = f"{version:020}.checkpoint.parquet"
    table.remove_all([f"{LOG_FOLDER}/{name}" for name in names if name != written])


def _created(
    root: Location,
    schemas: Sequence[TableSchema],
    broker_id: int | None,
    now_ms: int,
    *,
    is_dry_run: bool,
) -> Iterator[Repair]:
    found = read_format(root)
    listed = found.tables if found is not None else frozenset()
    may_be_missing = [one for one in schemas if one.name in CREATED_AGAIN and one.name in listed]
    are_missing = map_in_parallel(
        lambda schema: (
            not root.child(schema.name).names(LOG_FOLDER) and is_in_place(root, schema.name)
        ),
        may_be_missing,
        0,
        is_local=root.is_local,
    )
    for schema in compress(may_be_missing, are_missing):
        name = schema.name
        missing = finding(
            "missing_table",
            "the table is missing",
            root.uri,
            name,
            broker_id=broker_id,
            remedy="run sparklog repair: it creates the table again, empty",
            now_ms=now_ms,
        )
        if is_dry_run:
            yield missing._replace(outcome="")
            continue
        fence = None if broker_id is None else _fence_of_log(root)
        # Of the lost table, which they could not restore.
        remove_all_copies(root.child(name))
        create_table(root, schema, fence)
        outcome = f"the table was created again, empty: {CREATED_AGAIN[name]}"
        yield missing._replace(state="repaired", outcome=outcome)


def _fence_of_log(root: Location) -> Fence | None:
    held = open_table(root.child(LOG.name)).transaction(BROKER_EPOCH)
    return None if held is None else Fence(BROKER_EPOCH, held)
