"""Removal of files that no table of a cluster names any more, from outside of its brokers."""

from __future__ import annotations

import time
from collections.abc import Iterable

from sparklog.cluster.connection import Connection
from sparklog.cluster.vacuum import TableVacuum, Vacuum
from sparklog.config import Settings
from sparklog.storage.location import Location
from sparklog.storage.progress import OnProgress, counted
from sparklog.storage.vacuum import VacuumReport


def vacuum_cluster(
    connection: Connection,
    settings: Settings,
    *,
    is_dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> list[TableVacuum]:
    """Remove the files that no table of a cluster names any more, after their delays.

    Brokers and clients may run at the same time.

    Parameters
    ----------
    connection : Connection
        The cluster.
    settings : Settings
        The settings with the delays: file.delete.delay.ms, metadata.history.retention.ms and
        log.vacuum.unknown.file.retention.ms.
    is_dry_run : bool, default False
        Whether nothing is removed.
    on_progress : callable, optional
        Called after each step with the name of the work, the steps done, and their number.

    Returns
    -------
    list of TableVacuum
        The outcome for each table of the cluster root and of the brokers' roots.

    Examples
    --------
    >>> from sparklog import Connection
    >>> from sparklog.config import Settings
    >>> from sparklog.maintenance.vacuum import total, vacuum_cluster
    >>> tables = vacuum_cluster(Connection("sparklog-data/cluster"), Settings())
    >>> total(tables).files
    0
    """
    vacuum = Vacuum(
        connection.root,
        settings,
        time.time_ns() // 1_000_000,
        is_dry_run=is_dry_run,
        is_parallel=True,
    )
    brokers = connection.metadata().brokers.values()
    roots = [None, *(uri for broker in brokers for uri in broker.online_roots.values())]
    tables: list[TableVacuum] = []
    for uri in counted(roots, "roots cleaned up", on_progress):
        if uri is None:
            tables += vacuum.cluster_root()
        else:
            tables += vacuum.broker_root(Location.of(uri, connection.storage_options))
    return tables


def total(tables: Iterable[TableVacuum]) -> VacuumReport:
    """Return the sum of what was removed from some tables.

    Parameters
    ----------
    tables : iterable of TableVacuum
        The outcomes.

    Returns
    -------
    VacuumReport
        The sum.

    Examples
    --------
    >>> total([])
    VacuumReport(files=0, size_bytes=0, kept=0, kept_bytes=0)
    """
    report = VacuumReport()
    for one in tables:
        report = report.plus(one.report)
    return report
