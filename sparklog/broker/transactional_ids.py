"""Expiry of transactional ids in `producer_ids`, by the active controller (rule 3.8)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparklog.clock import Clock, Interval
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import Settings
from sparklog.errors import CommitConflictError
from sparklog.logger import get_logger
from sparklog.model import PRODUCER_IDS
from sparklog.protocol.rules import Rules
from sparklog.storage.commits import Cause
from sparklog.storage.errors import UNREADABLE

_log = get_logger(__name__)

CHECK_INTERVAL_MS = 3_600_000
"""Kafka's transaction.remove.expired.transaction.cleanup.interval.ms."""


class TransactionalIds:
    """The transactional ids of a cluster, for its controller."""

    def __init__(
        self, cluster: ClusterRoot, rules: Rules, settings: Settings, clock: Clock
    ) -> None:
        self._cluster = cluster
        self._rules = rules
        self._settings = settings
        self._interval = Interval(clock)

    def expire(self, now_ms: int) -> None:
        """Remove the ids that are expired at `now_ms`; checks every `CHECK_INTERVAL_MS`.

        If the table cannot be read or written, that is logged, and it is checked an interval later.
        """
        if not self._interval.is_over:
            return
        self._interval.begin(CHECK_INTERVAL_MS)
        try:
            removed = self._cluster.producer_ids.update(
                lambda rows: self._without(rows, now_ms), cause=Cause("EXPIRE TRANSACTIONAL IDS")
            )
        except (*UNREADABLE, CommitConflictError, pa.ArrowException) as error:
            _log.warning("transactional ids not checked", error=str(error))
            return
        for transactional_id in removed:
            _log.info("transactional id expired", transactional_id=transactional_id)

    def _without(self, table: pa.Table, now_ms: int) -> tuple[pa.Table | None, list[str]]:
        """Return the rows without expired ids, `None` if nothing changes, and the expired ids."""
        rows: list[dict[str, Any]] = table.to_pylist()
        named = [row for row in rows if row["transactional_id"] is not None]
        if not named:
            return None, []
        undated = [row for row in named if row["used_at_ms"] is None]
        for row in undated:
            # The row is of a version without this column: the id counts as used now.
            row["used_at_ms"] = now_ms
        expiration_ms = self._settings.transactional_id_expiration_ms
        columns = {"now_ms": now_ms, "transactional_id_expiration_ms": expiration_ms}
        found = self._rules.run(
            "expired_transactional_ids", producers=[row | columns for row in named]
        )
        expired = sorted(row["transactional_id"] for row in found)
        if not expired and not undated:
            return None, []
        kept = [row for row in rows if row["transactional_id"] not in expired]
        return PRODUCER_IDS.rows(kept), expired
