"""Silence, as an observer measures it: since when a row has not changed (rule 7.1)."""

from __future__ import annotations

from collections.abc import Hashable


class Observations:
    """What was last seen of some rows, and when on the observer's own monotonic clock.

    Nobody's clock is compared with anybody else's: a row that keeps changing is alive.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[object, int]] = {}

    def observe(self, key: Hashable, row: object, now_ms: int) -> int:
        """Note what the row is now and return when it was first seen to be so."""
        seen = self._seen.get(key)
        if seen is None or seen[0] != row:
            seen = row, now_ms
            self._seen[key] = seen
        return seen[1]
