"""When a broker looks at the cluster's tables on an object store, where each look is a request."""

from __future__ import annotations

from enum import Enum

from sparklog.broker.pace import SPARSE_MS

_PARTITIONS_MS, _SPARSE_PARTITIONS_MS, _ALL_MS = 500, 2_000, 4_000

_SLACK_MS = 200
"""How much earlier a look may be where ticks are far apart, since these are not on the ms."""


class Look(Enum):
    """Which of the cluster's tables are looked at in a round."""

    NONE = 0
    PARTITIONS = 1
    ALL = 2


class MetadataLooks:
    """Looks at `partition_state` every 500 ms, and at all tables every 4 s.

    Where ticks are far apart, every 2 s at the beginning of a tick. A change of the partitions
    follows a change of another table, or is followed by one: for 4 s after it all are looked at
    every 500 ms.
    """

    def __init__(self, tick_interval_ms: int = 0) -> None:
        is_sparse = tick_interval_ms >= SPARSE_MS
        self._partitions_ms = _SPARSE_PARTITIONS_MS - _SLACK_MS if is_sparse else _PARTITIONS_MS
        self._all_ms = _ALL_MS - _SLACK_MS if is_sparse else _ALL_MS
        self._looked_at_ms = self._all_at_ms = self._moved_at_ms = -_ALL_MS
        self._partitions: object = None

    def next(self, partitions: object, now_ms: int, *, is_between: bool = False) -> Look:
        """Return what is looked at now.

        Parameters: `partitions`, the state of `partition_state` as loaded; `now_ms`, the monotonic
        clock; `is_between`, whether the round is one between two ticks that are far apart, in which
        there is a look only after a change.

        >>> looks = MetadataLooks()
        >>> [looks.next((0, 1), ms).name for ms in (0, 100, 500, 4_500, 5_000, 8_500)]
        ['ALL', 'NONE', 'ALL', 'ALL', 'PARTITIONS', 'ALL']
        """
        if partitions != self._partitions:
            self._partitions, self._moved_at_ms = partitions, now_ms
        has_moved = now_ms - self._moved_at_ms < _ALL_MS
        interval_ms = _PARTITIONS_MS if has_moved else self._partitions_ms
        if now_ms - self._looked_at_ms < interval_ms or (is_between and not has_moved):
            return Look.NONE
        self._looked_at_ms = now_ms
        if not has_moved and now_ms - self._all_at_ms < self._all_ms:
            return Look.PARTITIONS
        self._all_at_ms = now_ms
        return Look.ALL
