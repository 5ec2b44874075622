"""Intervals at which a broker polls the cluster's tables on an object store."""

from __future__ import annotations

from enum import Enum

from sparklog.broker.pace import SPARSE_MS

_PARTITIONS_MS, _SPARSE_PARTITIONS_MS, _ALL_MS = 500, 2_000, 4_000

_SLACK_MS = 200
"""Time in ms that a poll may be early with sparse ticks, which are not exact to the ms."""


class MetadataPoll(Enum):
    """The cluster's tables that a round polls."""

    NONE = 0
    PARTITIONS = 1
    ALL = 2


class MetadataPolls:
    """Polls `partition_state` every 500 ms, and all tables every 4 s.

    With sparse ticks `partition_state` is polled every 2 s, at the beginning of a tick. A change of
    the partitions precedes or follows a change of another table, so for 4 s after it all tables
    are polled every 500 ms.
    """

    def __init__(self, tick_interval_ms: int = 0) -> None:
        is_sparse = tick_interval_ms >= SPARSE_MS
        self._partitions_ms = _SPARSE_PARTITIONS_MS - _SLACK_MS if is_sparse else _PARTITIONS_MS
        self._all_ms = _ALL_MS - _SLACK_MS if is_sparse else _ALL_MS
        self._polled_at_ms = self._all_at_ms = self._moved_at_ms = -_ALL_MS
        self._partitions: object = None

    def next(self, partitions: object, now_ms: int, *, is_between: bool = False) -> MetadataPoll:
        """Return the tables to poll now.

        Parameters: `partitions`, the loaded state of `partition_state`; `now_ms`, the monotonic
        clock; `is_between`, whether the round is between two sparse ticks, where tables are polled
        only after a change.

        , ms).name for ms in (0, 100, 500, 4_500, 5_000, 8_500)]
        ['ALL', 'NONE', 'ALL', 'ALL', 'PARTITIONS', 'ALL']
        """
        if partitions != self._partitions:
            self._partitions, self._moved_at_ms = partitions, now_ms
        has_moved = now_ms - self._moved_at_ms < _ALL_MS
        interval_ms = _PARTITIONS_MS if has_moved else self._partitions_ms
        if now_ms - self._polled_at_ms < interval_ms or (is_between and not has_moved):
            return MetadataPoll.NONE
        self._polled_at_ms = now_ms
        if not has_moved and now_ms - self._all_at_ms < self._all_ms:
            return MetadataPoll.PARTITIONS
        self._all_at_ms = now_ms
        return MetadataPoll.ALL
