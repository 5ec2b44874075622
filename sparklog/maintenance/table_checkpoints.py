"""Delta checkpoints of all tables of a cluster, so that readers open them with few requests.

Brokers write them every 100 commits. Tables that change rarely and are opened often, and tables of
brokers that run for a short time only, are read commit by commit in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from deltalake.exceptions import DeltaError

from sparklog.cluster.connection import Connection
from sparklog.errors import StorageError
from sparklog.maintenance.table_work import map_tables, online_broker_roots
from sparklog.model import BROKER_TABLES, CLUSTER_TABLES, FORMAT
from sparklog.storage.delta_checkpoints import write_checkpoint
from sparklog.storage.delta_log_files import last_checkpoint, newest_version
from sparklog.storage.location import Location, one_line
from sparklog.storage.progress import OnProgress, reporting


class TableCheckpoint(NamedTuple):
    """The outcome for one table.

    Attributes
    ----------
    uri : str
        The table.
    commits : int
        The commits since its last checkpoint, which the new one covers; 0 if there were none.
    error : str
        The reason why no checkpoint could be written, or an empty text.

    Examples
    --------
    >>> from sparklog.maintenance.table_checkpoints import TableCheckpoint
    >>> TableCheckpoint("sparklog-data/cluster/topics", 7, "").commits
    7
    """

    uri: str
    commits: int
    error: str


def checkpoint_tables(
    connection: Connection, on_progress: OnProgress | None = None
) -> list[TableCheckpoint]:
    """Write a Delta checkpoint of each table of a cluster that has commits since its last one.

    Brokers and clients may run at the same time: versions, rows and commits stay as they are.

    Parameters
    ----------
    connection : Connection
        The cluster.
    on_progress : callable, optional
        Called after each step with the name of the work, the steps done, and their number.

    Returns
    -------
    list of TableCheckpoint
        The outcome for each table of the cluster root and of the brokers' roots.

    Examples
    --------
    >>> from sparklog import Connection
    >>> from sparklog.maintenance.table_checkpoints import checkpoint_tables
    >>> written = checkpoint_tables(Connection("sparklog-data/cluster"))
    >>> {one.error for one in written}
    {''}
    """
    tables = [*_tables(connection)]
    act = reporting(_checkpointed, "checkpoints", len(tables), on_progress)
    return map_tables(act, tables, is_local=all(table.is_local for table in tables))


def _tables(connection: Connection) -> Iterator[Location]:
    cluster = connection.root.location
    # Roots of earlier releases may lack tables that a later release has added.
    listed = {FORMAT.name, *connection.root.format.tables}
    yield from (cluster.child(one.name) for one in (FORMAT, *CLUSTER_TABLES) if one.name in listed)
    for root, _ in online_broker_roots(connection):
        yield from (root.child(one.name) for one in (FORMAT, *BROKER_TABLES))


def _checkpointed(table: Location) -> TableCheckpoint:
    try:
        commits = newest_version(table) - max(last_checkpoint(table), 0)
        if commits > 0:
            write_checkpoint(table)
    except (StorageError, DeltaError, OSError) as error:
        return TableCheckpoint(table.uri, 0, one_line(error))
    return TableCheckpoint(table.uri, max(commits, 0), "")
