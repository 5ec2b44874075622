"""How many bytes producers have lately appended to each topic: what quotas are measured by."""

from __future__ import annotations

from collections import defaultdict, deque


class ByteRates:
    """Bytes by topic within a sliding window of `window_ms`, on the broker's clock."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._noted: dict[str, deque[tuple[int, int]]] = defaultdict(deque)

    def note(self, topic_id: str, size_bytes: int, now_ms: int) -> None:
        """Note what was appended to a topic."""
        self._noted[topic_id].append((now_ms, size_bytes))

    def recent_bytes(self, topic_id: str, now_ms: int) -> int:
        """Return the bytes that were appended to a topic within the window that ends now."""
        noted = self._noted.get(topic_id)
        if noted is None:
            return 0
        while noted and now_ms - noted[0][0] >= self.window_ms:
            noted.popleft()
        if not noted:
            del self._noted[topic_id]
        return sum(size for _, size in noted)
