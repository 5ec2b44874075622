"""Counters and histograms in memory, which threads may change and read at any time.

They depend on no metrics library: brokers count in any case, and `sparklog.broker.metrics` reports
the counts under Kafka's names if a configuration asks for it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Counts:
    """Totals by label; they only rise."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, label: str, count: int = 1) -> None:
        """Add to the total of a label."""
        with self._lock:
            self._totals[label] += count

    def totals(self) -> Mapping[str, int]:
        """Return a copy of the totals."""
        with self._lock:
            return dict(self._totals)


class HistogramState(NamedTuple):
    """The values that a histogram has observed.

    `cumulative` are the numbers of values up to each bound, and of all values; `total` is the sum
    of the values.
    """

    bounds: Sequence[float]
    cumulative: Sequence[int]
    total: float


class Histogram:
    """Numbers of observed values by ascending upper bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._numbers = [0] * (len(self._bounds) + 1)
        self._total = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Add one value."""
        with self._lock:
            self._numbers[bisect_left(self._bounds, value)] += 1
            self._total += value

    def state(self) -> HistogramState:
        """Return the observed values so far."""
        with self._lock:
            numbers, total = list(self._numbers), self._total
        for at in range(1, len(numbers)):
            numbers[at] += numbers[at - 1]
        return HistogramState(self._bounds, numbers, total)


STORE_REQUESTS = Counts()
"""Requests of this process to object stores by kind: get, head, put, put_new, delete, list, and
multipart for an upload in parts. A repetition within the client of the store is not counted."""

FAILURES = Counts()
"""Failures of this process by the event that logs them, repetitions included."""
