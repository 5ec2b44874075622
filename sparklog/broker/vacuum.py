"""Removal of files that no table of a broker's roots names any more, in the background.

Every broker cleans its own roots, after it has copied the past of their replicas. The controller
also cleans the cluster root, after it has copied the history of leaders. Ticks go on meanwhile: a
file is removed only if its table does not name it, and long after the table did (`storage.vacuum`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from deltalake.exceptions import DeltaError

from sparklog.broker.controller import Controller
from sparklog.broker.leadership_history import LeadershipHistory
from sparklog.broker.replica_history import ReplicaHistory
from sparklog.broker.tick import Effects
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.cluster.vacuum import HISTORY_TABLES, TableVacuum, Vacuum, delays_of
from sparklog.config import Settings
from sparklog.errors import CommitConflictError, FencedError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import BROKER_TABLES, CLUSTER_TABLES, PRODUCE_REQUESTS
from sparklog.storage.control_table import ControlTable
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.fence import Fence
from sparklog.storage.location import Location
from sparklog.storage.vacuum import VacuumReport, set_retention

_log = get_logger(__name__)

VACUUMED_AT = "vacuumed_at_ms"
"""The app transaction with the time at which a root was last vacuumed, in ms since 1970.

`producer_state` has it for a broker root, `leadership_history` for the cluster root. So processes
that run for a short time only share one interval.
"""

_DAY_MS = 86_400_000


class Vacuuming:
    """Vacuums a broker's roots when that is due, and the cluster root as the controller.

    Parameters: `roots`, the broker's roots by number; `lock`, which excludes the broker's ticks;
    `now_ms`, the system's time in ms since 1970, by which files and removals are dated.
    """

    def __init__(
        self,
        broker_id: int,
        cluster: ClusterRoot,
        roots: Mapping[int, BrokerRoot],
        controller: Controller,
        settings: Settings,
        lock: AbstractContextManager[Any],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._broker_id = broker_id
        self._cluster = cluster
        self._roots = roots
        self._controller = controller
        self._settings = settings
        self._lock = lock
        self._now_ms = now_ms
        self._history = LeadershipHistory(cluster)
        self._histories: dict[int, ReplicaHistory] = {}
        self._failures = RepeatedFailures(_log)
        # The tables whose retention was checked in this process.
        self._checked: set[str] = set()

    def run(
        self, effects: Effects, is_stopping: Callable[[], bool], after_ms: int | None = None
    ) -> VacuumReport:
        """Vacuum the roots for which it is due; return what was removed.

        Parameters: `effects`, where the run may be stopped; `is_stopping`, whether the process
        ends, so that the rest is left to the next run; `after_ms`, ms by which the clock is set
        forward, for tests: every root is due then.

        A table that cannot be read is logged, and the others are vacuumed. Raises `FencedError` if
        a newer process runs this broker, and the errors of noting the run.
        """
        report = VacuumReport()
        for number, root in list(self._roots.items()):
            if not is_stopping():
                self._extend_history(number, root, effects, after_ms)
            report = report.plus(self._broker_root(root, effects, is_stopping, after_ms))
        fence = self._controller.fence
        if fence is not None:
            report = report.plus(self._cluster_root(fence, effects, is_stopping, after_ms))
        return report

    def _extend_history(
        self, number: int, root: BrokerRoot, effects: Effects, after_ms: int | None
    ) -> None:
        history = self._histories.get(number)
        if history is None or history.root is not root:
            retention_ms = self._settings.metadata_history_retention_ms
            history = ReplicaHistory(root, retention_ms, self._lock)
            self._histories[number] = history
        try:
            is_due = self._is_due(root.producer_state, root.location, after_ms)
            if history.extend(self._now_ms() + (after_ms or 0), is_due=is_due):
                effects.done("replica_history")
                self._failures.over(("history", number))
        except (*UNREADABLE, DeltaError, CommitConflictError) as error:
            uri = root.location.uri
            self._failures.warning(
                ("history", number), "history of replicas not extended", root=uri, error=str(error)
            )

    def _broker_root(
        self,
        root: BrokerRoot,
        effects: Effects,
        is_stopping: Callable[[], bool],
        after_ms: int | None,
    ) -> VacuumReport:
        noted = root.producer_state
        if not self._is_due(noted, root.location, after_ms):
            return VacuumReport()
        now_ms = self._now_ms() + (after_ms or 0)
        with self._lock:
            # The request tables are their clients' as well, and have no data files of their own.
            names = [one.name for one in BROKER_TABLES if one.name != PRODUCE_REQUESTS.name]
            if sum(self._keep_known(root.location, name) for name in names):
                root.refresh()
        effects.done("retention")
        vacuum = Vacuum(self._cluster, self._settings, now_ms, is_stopping)
        report = self._told(vacuum.broker_root(root.location))
        effects.done("files")
        if not is_stopping():
            noted.set_transactions({VACUUMED_AT: now_ms}, root.fence)
        return report

    def _cluster_root(
        self,
        fence: Fence,
        effects: Effects,
        is_stopping: Callable[[], bool],
        after_ms: int | None,
    ) -> VacuumReport:
        location = self._cluster.location
        noted = self._cluster.leadership_history
        if not self._is_due(noted, location, after_ms):
            return VacuumReport()
        noted.refresh()
        if not self._is_due(noted, location, after_ms):
            # Another controller has done it.
            return VacuumReport()
        now_ms = self._now_ms() + (after_ms or 0)
        try:
            added = self._history.extend(fence, now_ms)
            effects.done("history")
            self._history.extend_past(fence, now_ms)
            effects.done("past")
            if added:
                _log.info("history of leaders extended", leader_epochs=added)
            names = [one.name for one in CLUSTER_TABLES if one.name in self._cluster.format.tables]
            if sum(self._keep_known(location, name) for name in names):
                noted.refresh()
            effects.done("cluster_retention")
            vacuum = Vacuum(self._cluster, self._settings, now_ms, is_stopping)
            report = self._told(vacuum.cluster_root())
            effects.done("cluster_files")
            if not is_stopping():
                noted.set_transactions({VACUUMED_AT: now_ms}, fence)
        except (FencedError, CommitConflictError) as error:
            # Another controller has taken over, and vacuums the cluster root.
            _log.info("cluster root not vacuumed", reason=str(error))
            return VacuumReport()
        return report

    def _is_due(self, noted: ControlTable, location: Location, after_ms: int | None) -> bool:
        last_ms = noted.transaction(VACUUMED_AT)
        interval_ms = self._settings.vacuum_interval_ms(is_local=location.is_local)
        # A time in the future is that of a clock that was wrong.
        passed_ms = self._now_ms() - (last_ms or 0)
        return after_ms is not None or not 0 <= passed_ms < interval_ms

    def _keep_known(self, root: Location, name: str) -> bool:
        """Set how long a table's checkpoints name removed files, once in a process.

        A file whose removal was forgotten before its delay has passed would stay much longer.
        Returns whether the table got a commit.
        """
        table = root.child(name)
        if table.uri in self._checked:
            return False
        delay_ms = delays_of(name, self._settings).removed_ms
        commits_ms = (
            self._settings.metadata_history_retention_ms if name in HISTORY_TABLES else None
        )
        try:
            is_set = set_retention(table, delay_ms + min(delay_ms, _DAY_MS), commits_ms)
        except (*UNREADABLE, DeltaError) as error:
            self._failures.warning(("retention", name), "retention not set", error=str(error))
            return False
        self._checked.add(table.uri)
        return is_set

    def _told(self, tables: list[TableVacuum]) -> VacuumReport:
        """Log what failed; return the sum of what was removed."""
        report = VacuumReport()
        for one in tables:
            if one.error:
                self._failures.warning(
                    ("vacuum", one.uri), "table not vacuumed", table=one.uri, error=one.error
                )
            report = report.plus(one.report)
        if report.files:
            _log.info("files removed", broker=self._broker_id, **report._asdict())
        return report
