"""Bytes that producers have appended to each topic lately, for the quotas."""

from __future__ import annotations

from collections import defaultdict, deque


class ByteRates:
    """Bytes by topic within a sliding window of `window_ms`, on the broker's clock.

    A query costs O(entries that have left the window since the last one), whatever the window has.
    """

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._windows: dict[str, _Window] = defaultdict(_Window)

    def note(self, topic_id: str, size_bytes: int, now_ms: int) -> None:
        """Note bytes that were appended to a topic."""
        self._windows[topic_id].add(size_bytes, now_ms)

    def recent_bytes(self, topic_id: str, now_ms: int) -> int:
        """Return the bytes that were appended to a topic within the window that ends now."""
        window = self._windows.get(topic_id)
        if window is None:
            return 0
        window.leave_behind(now_ms - self.window_ms)
        if not window.noted:
            del self._windows[topic_id]
        return window.total


class _Window:
    """The noted bytes with their times, and their sum."""

    def __init__(self) -> None:
        self.noted: deque[tuple[int, int]] = deque()
        self.total = 0

    def add(self, size_bytes: int, now_ms: int) -> None:
        self.total += size_bytes
        if self.noted and self.noted[-1][0] == now_ms:
            size_bytes += self.noted.pop()[1]
        self.noted.append((now_ms, size_bytes))

    def leave_behind(self, until_ms: int) -> None:
        while self.noted and self.noted[0][0] <= until_ms:
            self.total -= self.noted.popleft()[1]
