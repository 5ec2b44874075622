"""Creation of missing tables of a root that is in place, where an empty table is as good.

No decision about records, offsets or members depends on the rows of these tables: they are notes of
maintenance, and the past. Their creation needs no connection: no broker starts, and no scrub runs,
while a table of the cluster root is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sparklog.cluster.connection import Connection
from sparklog.cluster.repairs import Repair, finding
from sparklog.cluster.root_format import read_format
from sparklog.errors import DamagedError
from sparklog.model import BROKER_TABLES, CLUSTER_TABLES, LOG
from sparklog.storage.commits import BROKER_EPOCH
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.control_table_damage import CREATED_AGAIN, is_in_place
from sparklog.storage.delta_log_files import LOG_FOLDER
from sparklog.storage.delta_snapshots import open_table
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.fence import Fence
from sparklog.storage.location import Location


def create_in_cluster_root(
    root: Location, *, is_dry_run: bool = False, now_ms: int = 0
) -> list[Repair]:
    """Create the missing tables of a cluster root that may be created again; return them.

    Parameters: `is_dry_run`, whether they are only found; `now_ms`, the time of the findings.
    """
    try:
        found = read_format(root)
    except DamagedError:
        return []
    if found is None or not found.is_cluster:
        return []
    names = [one.name for one in CLUSTER_TABLES if one.name in found.tables]
    create = _nothing if is_dry_run else _create
    return list(_created(root, names, None, create, now_ms))


def create_in_broker_roots(
    connection: Connection, *, is_dry_run: bool = False, now_ms: int = 0
) -> list[Repair]:
    """Create the missing tables of all broker roots that may be created again; return them.

    A table gets the fence that `log` has, so that its broker goes on if it runs.
    """
    repairs: list[Repair] = []
    create = _nothing if is_dry_run else _create_fenced
    for broker in connection.metadata().brokers.values():
        for uri in broker.online_roots.values():
            root = Location.of(uri, connection.storage_options)
            try:
                found = read_format(root)
                if found is not None:
                    names = [one.name for one in BROKER_TABLES if one.name in found.tables]
                    repairs += _created(root, names, broker.broker_id, create, now_ms)
            except UNREADABLE:
                # Its disk is away, perhaps; the findings of scrubs say so.
                continue
    return repairs


def _created(
    root: Location,
    names: list[str],
    broker_id: int | None,
    create: Callable[[Location, str], bool],
    now_ms: int,
) -> Iterator[Repair]:
    for name in names:
        if (
            name not in CREATED_AGAIN
            or root.child(name).names(LOG_FOLDER)
            or not is_in_place(root, name)
        ):
            continue
        is_created = create(root, name)
        yield finding(
            "missing_table",
            "the table is missing",
            root.uri,
            name,
            broker_id=broker_id,
            remedy="run sparklog repair: it creates the table again, empty",
            now_ms=now_ms,
        )._replace(
            state="repaired" if is_created else "found",
            outcome=f"the table was created again, empty: {CREATED_AGAIN[name]}"
            if is_created
            else "",
        )


def _nothing(_root: Location, _name: str) -> bool:
    return False


def _create(root: Location, name: str) -> bool:
    create_table(root, next(one for one in CLUSTER_TABLES if one.name == name))
    return True


def _create_fenced(root: Location, name: str) -> bool:
    schema = next(one for one in BROKER_TABLES if one.name == name)
    held = open_table(root.child(LOG.name)).transaction(BROKER_EPOCH)
    create_table(root, schema)
    if held is not None:
        ControlTable(root, schema).take_fence(Fence(BROKER_EPOCH, held))
    return True
