"""Clocks of brokers and clients, and waiting for conditions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

_Result = TypeVar("_Result")


class Clock(Protocol):
    """A source of time; tests replace it by `sparklog.testing.ManualClock`."""

    def now_ms(self) -> int:
        """Return the wall-clock time in ms since 1970, for timestamps and for display."""
        ...

    def monotonic_ms(self) -> int:
        """Return a time in ms that never decreases, for liveness, leases and deadlines (7.1)."""
        ...


class SystemClock:
    """The system's clocks."""

    def now_ms(self) -> int:
        """Return the wall-clock time in ms since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return the time in ms since an arbitrary start; it never decreases."""
        return time.monotonic_ns() // 1_000_000


def clocks() -> tuple[float, float]:
    """Return the system's time and its monotonic time, in s; each may miss a suspension."""
    return time.time(), time.monotonic()


def is_ago(at: tuple[float, float], seconds: float) -> bool:
    """Return whether more than `seconds` have passed since `at` on at least one of `clocks`."""
    return any(now - then > seconds for now, then in zip(clocks(), at, strict=True))


class Interval:
    """The time until recurring work is due again, on the monotonic clock (7.1).

    A wall clock that is set does not delay the work. It is due until `begin` is called.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end_ms: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the work is due."""
        return self._end_ms is None or self._clock.monotonic_ms() >= self._end_ms

    def begin(self, ms: int) -> None:
        """Let the work be due in `ms`."""
        self._end_ms = self._clock.monotonic_ms() + ms


def wait_until(
    poll: Callable[[], _Result],
    timeout_ms: float = math.inf,
    *,
    pause_ms: float | Callable[[float], float],
    until: Callable[[_Result], bool] = bool,
    clock: Clock | None = None,
) -> _Result:
    """Poll until a result is the awaited one, or until more than `timeout_ms` have passed.

    Parameters: `pause_ms`, the pause between two polls in ms, or a function of the ms since the
    first poll; `until`, returns whether a result is the awaited one, by default whether it is true;
    `clock`, measures the timeout.

    Returns the last result: a caller raises its own error if that is not the awaited one. Raises
    the errors of `poll` at once.
    """
    clock = clock or SystemClock()
    began_ms = clock.monotonic_ms()
    while not until(result := poll()):
        passed_ms = clock.monotonic_ms() - began_ms
        if passed_ms > timeout_ms:
            break
        time.sleep((pause_ms(passed_ms) if callable(pause_ms) else pause_ms) / 1000)
    return result
