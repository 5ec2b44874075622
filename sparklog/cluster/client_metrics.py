"""Counters of the plain clients, under the names of Kafka's metrics."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass
class Sizes:
    """The number, sum and maximum of recorded values."""

    count: int = 0
    total: float = 0
    most: float = 0

    def metrics(self, name: str) -> dict[str, float]:
        """Return the average and the maximum as `<name>-avg` and `<name>-max`."""
        average = self.total / self.count if self.count else 0.0
        return {f"{name}-avg": average, f"{name}-max": self.most}


class ClientMetrics:
    """Totals and sizes since the client was created; threads may share it."""

    def __init__(self, totals: tuple[str, ...], sizes: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, float] = {f"{name}-total": 0 for name in totals}
        self._sizes = {name: Sizes() for name in sizes}

    def add(self, name: str, amount: float = 1) -> None:
        """Add to the total `<name>-total`."""
        with self._lock:
            self._totals[f"{name}-total"] += amount

    def record(self, name: str, *values: float) -> None:
        """Record values of the size `name`."""
        with self._lock:
            sizes = self._sizes[name]
            sizes.count += len(values)
            sizes.total += sum(values)
            sizes.most = max(sizes.most, *values) if values else sizes.most

    def values(self) -> dict[str, float]:
        """Return all totals, averages and maxima by name."""
        with self._lock:
            found = dict(self._totals)
            for name, sizes in self._sizes.items():
                found |= sizes.metrics(name)
            return found
