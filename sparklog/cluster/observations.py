"""Liveness on the observer's monotonic clock: how long a row or journal is unchanged (rule 7.1)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple


def is_silent(now_ms: int, *, since_ms: int, timeout_ms: int) -> bool:
    """Return whether more than `timeout_ms` have passed at `now_ms` since `since_ms`.

    Sessions of brokers and group members, leases and unfinished topic creations expire by this
    test. At exactly `timeout_ms` they have not expired. All times are in ms on the observer's
    monotonic clock. The rule `silent_brokers` compares in the same way.
    """
    return now_ms - since_ms > timeout_ms


FORGOTTEN_MS = 3_600_000
"""Time in ms without an observation after which a row or version is forgotten."""

_KEPT = 64
"""The number of entries up to which none is forgotten."""


class _Seen(NamedTuple):
    """A value, and the times in ms when it was first and last observed."""

    what: Any
    since_ms: int
    at_ms: int


class Observations:
    """The rows and versions that were seen last, and when, on the observer's monotonic clock.

    Clocks of different processes are not compared: a row or a journal that keeps changing is alive.
    What is not observed for `FORGOTTEN_MS`, such as an earlier registration or a lease of an
    earlier controller epoch, is forgotten. Observed again, it counts as new.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, _Seen] = {}
        self._versions: dict[Hashable, _Seen] = {}
        self._limit = _KEPT

    @property
    def count(self) -> int:
        """The number of rows and versions that are kept."""
        return len(self._seen) + len(self._versions)

    def observe(self, key: Hashable, row: object, now_ms: int) -> int:
        """Record the current row; return the time in ms at which it was first seen unchanged."""
        seen = self._seen.get(key)
        since_ms = now_ms if seen is None or seen.what != row else seen.since_ms
        self._seen[key] = _Seen(row, since_ms, now_ms)
        self._forget(now_ms)
        return since_ms

    def observe_version(self, key: Hashable, version: int, now_ms: int) -> int:
        """Record a version; return the time in ms at which the highest version was first seen.

        A lower version than before is no sign of life: it comes from a handle that has read less.
        """
        seen = self._versions.get(key)
        if seen is None or seen.what < version:
            seen = _Seen(version, now_ms, now_ms)
        self._versions[key] = seen._replace(at_ms=now_ms)
        self._forget(now_ms)
        return seen.since_ms

    def _forget(self, now_ms: int) -> None:
        """Forget old entries; the cost is O(1) per observation, spread over many."""
        if self.count <= self._limit:
            return
        since_ms = now_ms - FORGOTTEN_MS
        self._seen = {key: one for key, one in self._seen.items() if one.at_ms >= since_ms}
        self._versions = {key: one for key, one in self._versions.items() if one.at_ms >= since_ms}
        self._limit = max(_KEPT, 2 * self.count)
