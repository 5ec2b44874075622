"""Liveness on the observer's monotonic clock: how long a row or journal is unchanged (rule 7.1)."""

from __future__ import annotations

from collections.abc import Hashable


def is_silent(now_ms: int, *, since_ms: int, timeout_ms: int) -> bool:
    """Return whether more than `timeout_ms` have passed at `now_ms` since `since_ms`.

    Sessions of brokers and group members, leases and unfinished topic creations expire by this
    test. At exactly `timeout_ms` they have not expired. All times are in ms on the observer's
    monotonic clock. The rule `silent_brokers` compares in the same way.
    """
    return now_ms - since_ms > timeout_ms


class Observations:
    """The rows and versions that were seen last, and when, on the observer's monotonic clock.

    Clocks of different processes are not compared: a row or a journal that keeps changing is alive.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[object, int]] = {}
        self._versions: dict[Hashable, tuple[int, int]] = {}

    def observe(self, key: Hashable, row: object, now_ms: int) -> int:
        """Record the current row; return the time in ms at which it was first seen unchanged."""
        seen = self._seen.get(key)
        if seen is None or seen[0] != row:
            seen = row, now_ms
            self._seen[key] = seen
        return seen[1]

    def observe_version(self, key: Hashable, version: int, now_ms: int) -> int:
        """Record a version; return the time in ms at which the highest version was first seen.

        A lower version than before is no sign of life: it comes from a handle that has read less.
        """
        seen = self._versions.get(key)
        if seen is None or seen[0] < version:
            seen = version, now_ms
            self._versions[key] = seen
        return seen[1]
