"""The partitions of a mapping in the order of their last change, for readers at their own pace."""

from __future__ import annotations

from collections.abc import Collection

from sparklog.model import TopicIdPartition

REMEMBERED_CHANGES = 1_000
"""The number of changes after which one is forgotten."""


class ChangedPartitions:
    """The partitions that have changed, each with the number of its last change.

    A reader remembers `number` and asks for the partitions since then, at the cost of these alone.
    """

    def __init__(self) -> None:
        self.number = 0
        """The number of the last change."""
        # In the order of the numbers.
        self._numbers: dict[TopicIdPartition, int] = {}
        self._forgotten = 0

    def note(self, keys: Collection[TopicIdPartition]) -> None:
        """Note one change of these partitions."""
        if not keys:
            return
        self.number += 1
        for key in keys:
            self._numbers.pop(key, None)
            self._numbers[key] = self.number
        self._forget()

    def since(self, number: int) -> set[TopicIdPartition] | None:
        """Return the partitions that changed after change `number`; `None` if that is forgotten."""
        if number < self._forgotten:
            return None
        found = set()
        for key in reversed(self._numbers):
            if self._numbers[key] <= number:
                break
            found.add(key)
        return found

    def _forget(self) -> None:
        """Forget old changes, so that partitions of deleted topics do not stay."""
        last = self.number - REMEMBERED_CHANGES
        while self._numbers:
            oldest = next(iter(self._numbers))
            if self._numbers[oldest] > last:
                break
            self._forgotten = self._numbers.pop(oldest)
