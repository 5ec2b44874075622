"""Values that were parsed from bytes, shared by all readers of these bytes in this process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class ContentCache(Generic[_Value]):
    """Keeps the values that were used last, by version and content.

    A reader still reads the bytes itself and is only spared parsing them again, so a cached value
    is never older than what the reader has read. Values are shared between threads: nobody may
    change them. Invariant: the contents kept have at most `most_bytes` together.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept_bytes = 0
        self._values: OrderedDict[tuple[int, bytes], _Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, version: int, content: bytes) -> _Value | None:
        """Return the value of a content at a version, or `None` where it is not kept."""
        key = version, content
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, version: int, content: bytes, value: _Value) -> None:
        """Keep a value in the place of those that were not used for longest."""
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
