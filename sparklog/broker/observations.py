"""Silence on an observer's own clock: how long a row or a journal has not changed (rule 7.1)."""

from __future__ import annotations

from collections.abc import Hashable


class Observations:
    """The rows and versions that were seen last, and when, on the observer's own monotonic clock.

    No clocks are compared with each other: a row or a journal that keeps changing is alive.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[object, int]] = {}
        self._versions: dict[Hashable, tuple[int, int]] = {}

    def observe(self, key: Hashable, row: object, now_ms: int) -> int:
        """Note what the row is now and return when it was first seen to be so."""
        seen = self._seen.get(key)
        if seen is None or seen[0] != row:
            seen = row, now_ms
            self._seen[key] = seen
        return seen[1]

    def observe_version(self, key: Hashable, version: int, now_ms: int) -> int:
        """Note a version; return when it was first seen, or a higher one of the same key.

        A lower version than before is no sign of life: another handle has read less.
        """
        seen = self._versions.get(key)
        if seen is None or seen[0] < version:
            seen = version, now_ms
            self._versions[key] = seen
        return seen[1]
