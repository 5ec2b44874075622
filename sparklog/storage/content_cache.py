"""A cache of values parsed from bytes, shared by all readers of the same bytes in this process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

_Value = TypeVar("_Value")

UNUSED_S = 60.0
"""Time in s without use after which a value is evicted. Readers of a commit read it within a round
of ticks, so that older commits would only occupy memory.
"""


class _Kept(NamedTuple, Generic[_Value]):
    """A value, and the time in s of its last use."""

    value: _Value
    used_s: float


class ContentCache(Generic[_Value]):
    """Keeps the most recently used values, by place and content.

    Each reader still reads the bytes itself and saves only the parsing. A cached value is therefore
    never older than the bytes that the reader has read. Values are shared between threads and must
    not be changed. Invariant: the cached contents have at most `most_bytes` in total, and each was
    used in the `UNUSED_S` seconds before the newest use of any. A parsed value takes several times
    as much memory as its content, so the second bound counts for a process at rest.
    """

    def __init__(self, most_bytes: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes = most_bytes
        self._clock_s = clock_s
        self._kept_bytes = 0
        # The least recently used first.
        self._values: OrderedDict[tuple[Hashable, bytes], _Kept[_Value]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, place: Hashable, content: bytes) -> _Value | None:
        """Return the value of a content at a place, or `None` if it is not cached."""
        key = place, content
        with self._lock:
            kept = self._values.get(key)
            if kept is None:
                return None
            self._use(key, kept.value)
            return kept.value

    def put(self, place: Hashable, content: bytes, value: _Value) -> None:
        """Cache a value, and evict the least recently used values if necessary."""
        if len(content) > self._most_bytes:
            return
        with self._lock:
            if (place, content) not in self._values:
                self._kept_bytes += len(content)
            self._use((place, content), value)

    def _use(self, key: tuple[Hashable, bytes], value: _Value) -> None:
        now_s = self._clock_s()
        self._values[key] = _Kept(value, now_s)
        self._values.move_to_end(key)
        while self._values:
            oldest = next(iter(self._values))
            is_unused = now_s - self._values[oldest].used_s > UNUSED_S
            if not is_unused and self._kept_bytes <= self._most_bytes:
                return
            del self._values[oldest]
            self._kept_bytes -= len(oldest[1])
