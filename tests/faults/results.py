"""Results of rounds as JSON lines, which add up over runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Result = dict[str, Any]

KILLS = (
    "kill broker",
    "kill brokers",
    "kill producer",
    "kill consumer",
    "kill stream",
    "kill repair",
    "kill JVM",
    "kill executor",
)


class Results:
    """A file with one result a line."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def load(self) -> list[Result]:
        """Return all results."""
        if not self._file.exists():
            return []
        return [json.loads(line) for line in self._file.read_text("utf-8").splitlines()]

    def append(self, result: Result) -> None:
        """Append one result, in one write, so that the end of the process cuts no line off."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("ab", buffering=0) as file:
            file.write(f"{json.dumps(result)}\n".encode())


def quantile(values: Sequence[int], share: float) -> int:
    """Return the least value that is not below `share` of the sorted values."""
    return values[min(int(share * len(values)), len(values) - 1)]


def summary(results: Sequence[Result]) -> str:
    """Return the sums over all results in one line."""
    deeds: Counter[str] = Counter()
    for one in results:
        deeds.update(one.get("deeds", {}))
    gaps = sorted(gap for one in results for gap in one.get("unavailable_ms", ()))
    faults = sum(sum(one.get("faults", {}).values()) for one in results)
    seeds = sum(one.get("seeds", 0) for one in results)
    if seeds:
        counts: Counter[str] = Counter()
        for one in results:
            counts.update(one["counts"])
        return (
            f"{seeds} seeds, {counts['operations']} operations, "
            f"{counts['acknowledged']} records acknowledged, {counts['killed']} kills, "
            f"{sum(one['anomalies'] for one in results)} anomalies"
        )
    text = (
        f"{len(results)} rounds, {sum(one.get('acknowledged', 0) for one in results)} records "
        f"acknowledged, {sum(deeds[kind] for kind in KILLS)} kills, "
        f"{sum(of for deed, of in deeds.items() if 'suspend' in deed)} suspensions, "
        f"{faults} faults of requests, "
        f"{sum(one['anomalies'] for one in results)} anomalies"
    )
    if gaps:
        of = ", ".join(
            f"{name} {quantile(gaps, share) / 1000:.1f} s"
            for name, share in (("median", 0.5), ("99%", 0.99), ("max", 1.0))
        )
        text += f"; unavailable after the kill of a leader ({len(gaps)} gaps): {of}"
    return text
