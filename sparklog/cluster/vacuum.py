"""Removal of the files of a whole root that none of its tables names any more.

May run in any process at any time, also several times at once: a file is removed only if it is not
live and its delay has passed. What is not known as removed is kept much longer, since a client may
have uploaded it for a request that is still to come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from sparklog.cluster.noted_files import noted_files
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import Settings
from sparklog.errors import SparklogError
from sparklog.model import (
    BROKER_TABLES,
    CLUSTER_TABLES,
    CONFIGS,
    CONSUMER_GROUPS,
    FORMAT,
    LOG,
    PARTITION_STATE,
    REQUEST_TABLES,
    TOPICS,
)
from sparklog.storage.damaged_commits import MALFORMED
from sparklog.storage.errors import STORE_ERRORS
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.request_files import has_further_tables, read_requests
from sparklog.storage.vacuum import Delays, VacuumReport, vacuum_table

HISTORY_TABLES = (TOPICS.name, PARTITION_STATE.name, CONSUMER_GROUPS.name, CONFIGS.name)
"""The tables whose earlier versions can be read for metadata.history.retention.ms."""

_ERRORS = (SparklogError, *STORE_ERRORS, *MALFORMED, pa.ArrowException)


class TableVacuum(NamedTuple):
    """The outcome for one table.

    Attributes
    ----------
    uri : str
        The table.
    report : VacuumReport
        The files that were removed, or would be, and those that stay.
    error : str
        The reason why the table could not be searched, or an empty text.

    Examples
    --------
    >>> from sparklog.cluster.vacuum import TableVacuum
    >>> from sparklog.storage.vacuum import VacuumReport
    >>> TableVacuum("sparklog-data/cluster/topics", VacuumReport(files=3), "").report.files
    3
    """

    uri: str
    report: VacuumReport
    error: str


class Vacuum:
    """Removes files from roots of a cluster.

    Parameters: `cluster`, the cluster's root; `settings`, with the delays; `now_ms`, the system's
    time in ms since 1970; `is_stopping`, asked between two removals of up to 1,000 files, after
    which the rest stays; `is_dry_run`, whether nothing is removed; `is_parallel`, whether the
    tables of a root on an object store are vacuumed in parallel.
    """

    def __init__(
        self,
        cluster: ClusterRoot,
        settings: Settings,
        now_ms: int,
        is_stopping: Callable[[], bool] = lambda: False,
        *,
        is_dry_run: bool = False,
        is_parallel: bool = False,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._now_ms = now_ms
        self._is_stopping = is_stopping
        self._is_dry_run = is_dry_run
        self._is_parallel = is_parallel

    def broker_root(self, root: Location) -> list[TableVacuum]:
        """Vacuum the tables of one root of a broker; return the outcome for each."""
        requests = REQUEST_TABLES if has_further_tables(root) else REQUEST_TABLES[:1]
        names = {one.name: None for one in (FORMAT, *BROKER_TABLES, *requests)}
        return self._tables(root, list(names))

    def cluster_root(self) -> list[TableVacuum]:
        """Vacuum the tables of the cluster root; return the outcome for each."""
        listed = {FORMAT.name, *self._cluster.format.tables}
        names = [one.name for one in (FORMAT, *CLUSTER_TABLES) if one.name in listed]
        return self._tables(self._cluster.location, names)

    def _tables(self, root: Location, names: Sequence[str]) -> list[TableVacuum]:
        def vacuumed(name: str) -> TableVacuum | None:
            return None if self._is_stopping() else self._table(root, name)

        is_sequence = root.is_local or not self._is_parallel
        outcomes = map_in_parallel(vacuumed, names, 0, is_local=is_sequence)
        return [one for one in outcomes if one is not None]

    def _table(self, root: Location, name: str) -> TableVacuum:
        table = root.child(name)
        try:
            report = vacuum_table(
                table,
                delays_of(name, self._settings),
                self._now_ms,
                (lambda: self._named_elsewhere(root)) if name == LOG.name else frozenset,
                self._is_stopping,
                is_dry_run=self._is_dry_run,
            )
        except BaseException as error:
            # delta-rs panics on some content of request tables; that does not derive from
            # Exception.
            if not isinstance(error, _ERRORS) and type(error).__name__ != "PanicException":
                raise
            return TableVacuum(table.uri, VacuumReport(), one_line(Exception(str(error))))
        return TableVacuum(table.uri, report, "")

    def _named_elsewhere(self, root: Location) -> set[str]:
        """Return the batch files of a root's log that requests or micro-batches name."""
        pending = set(read_requests(root)["path"].to_pylist())
        return pending | self._of_micro_batches(root.child(LOG.name))

    def _of_micro_batches(self, log: Location) -> set[str]:
        """Return the files in a log that a micro-batch has noted and may send again at any age."""
        stream_writes = self._cluster.stream_writes
        stream_writes.refresh()
        return {
            noted.path
            for row in stream_writes.rows().to_pylist()
            for noted in noted_files(row)
            if _is_at(noted.log_uri, log)
        }


def _is_at(uri: str, log: Location) -> bool:
    """Return whether `uri` is that of `log`; a client may have noted any text."""
    try:
        return Location.of(uri).identity == log.identity
    except SparklogError:
        return False


def delays_of(table: str, settings: Settings) -> Delays:
    """Return the times for which files of the table of this name stay."""
    is_history = table in HISTORY_TABLES
    history_ms = settings.metadata_history_retention_ms if is_history else 0
    return Delays(
        max(settings.file_delete_delay_ms, history_ms),
        settings.log_vacuum_unknown_file_retention_ms,
    )
