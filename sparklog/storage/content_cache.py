"""A cache of values parsed from bytes, shared by all readers of the same bytes in this process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class ContentCache(Generic[_Value]):
    """Keeps the most recently used values, by version and content.

    Each reader still reads the bytes itself and saves only the parsing. A cached value is therefore
    never older than the bytes that the reader has read. Values are shared between threads and must
    not be changed. Invariant: the cached contents have at most `most_bytes` in total.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept_bytes = 0
        self._values: OrderedDict[tuple[int, bytes], _Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, version: int, content: bytes) -> _Value | None:
        """Return the value of a content at a version, or `None` if it is not cached."""
        key = version, content
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, version: int, content: bytes, value: _Value) -> None:
        """Cache a value, and evict the least recently used values if necessary."""
        if len(content) > self._most_bytes:
            return
        with self._lock:
            if (version, content) not in self._values:
                self._kept_bytes += len(content)
            self._values[version, content] = value
            self._values.move_to_end((version, content))
            while self._kept_bytes > self._most_bytes:
                (_, oldest), _ = self._values.popitem(last=False)
                self._kept_bytes -= len(oldest)
