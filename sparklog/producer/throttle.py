"""Throttle times in the answers of leaders, to which a producer sends nothing meanwhile (3.9)."""

from __future__ import annotations

import threading
from collections.abc import Iterable


class Throttle:
    """Until when a producer sends nothing to which broker, in ms of one clock. Thread-safe.

    >>> throttle = Throttle()
    >>> throttle.note([1, 2], 500, now_ms=1_000)
    >>> throttle.note([1], 100, now_ms=1_000)
    >>> throttle.left_ms([0], 1_000), throttle.left_ms([0, 1], 1_200), throttle.left_ms([1], 1_500)
    (0, 300, 0)
    """

    def __init__(self) -> None:
        self._until_ms: dict[int, int] = {}
        self._lock = threading.Lock()

    def note(self, leaders: Iterable[int | None], time_ms: int, now_ms: int) -> None:
        """Note a throttle time of some brokers; it never shortens an earlier one."""
        if time_ms <= 0:
            return
        with self._lock:
            for of in leaders:
                if of is not None:
                    self._until_ms[of] = max(self._until_ms.get(of, 0), now_ms + time_ms)

    def left_ms(self, leaders: Iterable[int | None], now_ms: int) -> int:
        """Return the time in ms until all of these brokers may be sent requests."""
        if not self._until_ms:
            return 0
        with self._lock:
            self._until_ms = {of: ms for of, ms in self._until_ms.items() if ms > now_ms}
            left = (self._until_ms.get(of, now_ms) - now_ms for of in leaders if of is not None)
            return max(left, default=0)
