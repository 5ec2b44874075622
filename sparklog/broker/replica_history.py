"""The past of the replicas of a root that outlives the commits of its journal.

The owner of a root copies it to `replica_history` in the background, before the journal's commits
are cleaned up an hour later. The table names the version of the journal up to which it is complete.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from sparklog.broker.checkpoints import notice_creation, overwrite
from sparklog.clock import Interval, SystemClock
from sparklog.cluster.replica_past import covered_by, journal_commits, kept, rows_of
from sparklog.cluster.roots import BrokerRoot
from sparklog.errors import DamagedError
from sparklog.logger import get_logger
from sparklog.model import REPLICA_HISTORY
from sparklog.storage.commits import LOG_VERSION, Cause
from sparklog.storage.control_table import ControlTable

_log = get_logger(__name__)

EXTENSION_INTERVAL_MS = 1_200_000
"""Time in ms between two extensions of a root's history."""


class ReplicaHistory:
    """Extends `replica_history` of one root.

    Parameters: `root`, the broker's root; `retention_ms`, metadata.history.retention.ms; `lock`,
    which excludes the broker's ticks.
    """

    def __init__(
        self, root: BrokerRoot, retention_ms: int, lock: AbstractContextManager[Any]
    ) -> None:
        self.root = root
        self._retention_ms = retention_ms
        self._lock = lock
        self._interval: Interval | None = None

    def extend(self, now_ms: int, *, is_due: bool = False) -> bool:
        """Add the journal's commits since the last call, if that is due; return whether it was.

        It is due `EXTENSION_INTERVAL_MS` after the first call of a process, so a process that runs
        for a short time only leaves it to those that find the vacuum due. May run during a tick of
        the broker. Parameters: `now_ms`, the system's time in ms since 1970; `is_due`, whether it
        is due in any case. Raises `FencedError` if a newer process runs the broker, and the errors
        of reading and writing the table.
        """
        if self._interval is None:
            self._interval = Interval(SystemClock())
            self._interval.begin(EXTENSION_INTERVAL_MS)
        if not (is_due or self._interval.is_over):
            return False
        root = self.root
        with self._lock:
            # Opened between two ticks: a damaged table is replaced among the root's tables.
            table = root.replica_history
            notice_creation(table)
            newest = root.log.version
            topics = {
                (key.topic_id, key.partition): str(row["topic"])
                for key, row in root.log.rows.items()
            }
        rows, covered = self._stored(table)
        if covered < newest:
            commits = journal_commits(root.location, covered + 1, newest)
            newer = rows_of(commits, dict(topics))
            described = {LOG_VERSION: newest}
            if newer.num_rows:
                both = pa.concat_tables([rows, newer])
                after = kept(both, now_ms, self._retention_ms, topics.keys())
                overwrite(table, after, root.fence, described, Cause("EXTEND HISTORY"))
            else:
                table.set_transactions(described, root.fence)
        self._interval.begin(EXTENSION_INTERVAL_MS)
        return True

    def _stored(self, table: ControlTable) -> tuple[pa.Table, int]:
        """Return the rows of the table, and the version of the journal that it covers."""
        try:
            rows = table.rows()
        except DamagedError as error:
            _log.error("table recreated", error=str(error))
            table.recreate(self.root.fence)
            return table.rows(), -1
        if not rows.num_rows and REPLICA_HISTORY.name in self.root.damage:
            # Recreated when it was opened, which keeps the noted version.
            return rows, -1
        return rows, covered_by(table)
