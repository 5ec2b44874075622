"""Time, as the brokers and clients see it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time; tests replace it by `sparklog.testing.ManualClock`."""

    def now_ms(self) -> int:
        """Wall-clock time in ms since 1970: for people and for time stamps."""
        ...

    def monotonic_ms(self) -> int:
        """Time in ms that never goes back: for silence, leases and deadlines (7.1)."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Wall-clock time in ms since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Time in ms since an arbitrary start; it never goes back."""
        return time.monotonic_ns() // 1_000_000
