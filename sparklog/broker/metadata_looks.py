"""When a broker looks at the cluster's tables on an object store, where each look is a request."""

from __future__ import annotations

from enum import Enum

_PARTITIONS_MS, _ALL_MS = 500, 4_000


class Look(Enum):
    """Which of the cluster's tables are looked at in a round."""

    NONE = 0
    PARTITIONS = 1
    ALL = 2


class MetadataLooks:
    """Looks at `partition_state` every 500 ms, and at all tables every 4 s.

    A change of the partitions follows a change of another table, or is followed by one: for 4 s
    after it all are looked at every 500 ms.
    """

    def __init__(self) -> None:
        self._looked_at_ms = self._all_at_ms = self._moved_at_ms = -_ALL_MS
        self._partitions: object = None

    def next(self, partitions: object, now_ms: int) -> Look:
        """Return what is looked at now.

        Parameters: `partitions`, the state of `partition_state` as loaded; `now_ms`, the monotonic
        clock.

        >>> looks = MetadataLooks()
        >>> [looks.next((0, 1), ms).name for ms in (0, 100, 500, 4_500, 5_000, 8_500)]
        ['ALL', 'NONE', 'ALL', 'ALL', 'PARTITIONS', 'ALL']
        """
        if now_ms - self._looked_at_ms < _PARTITIONS_MS:
            return Look.NONE
        self._looked_at_ms = now_ms
        if partitions != self._partitions:
            self._partitions, self._moved_at_ms = partitions, now_ms
        has_moved = now_ms - self._moved_at_ms < _ALL_MS
        if not has_moved and now_ms - self._all_at_ms < _ALL_MS:
            return Look.PARTITIONS
        self._all_at_ms = now_ms
        return Look.ALL
