"""The figures of a work, and its targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class Figure:
    """One quantity of one system: a value per run, in `unit`."""

    what: str
    system: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the runs, which targets compare."""
        return statistics.median(self.values)


class Figures:
    """The figures of one work, in the order of measurement.

    `tables` has additional recorded lists, such as the requests of a round, by the name of the file
    that the report writes. Each is lines of CSV, with the names of columns first.
    """

    def __init__(
        self, figures: Iterable[Figure] = (), tables: Mapping[str, list[str]] | None = None
    ) -> None:
        self._figures = {(one.what, one.system): one for one in figures}
        self.tables: dict[str, list[str]] = dict(tables or {})

    def __iter__(self) -> Iterator[Figure]:
        return iter(self._figures.values())

    def add(self, what: str, system: str, unit: str, value: float) -> None:
        """Add the value of one run."""
        before = self.get(what, system)
        values = () if before is None else before.values
        # Five digits are more than a measurement has, and keep the stored results short.
        self._figures[what, system] = Figure(what, system, unit, (*values, float(f"{value:.5g}")))

    def add_latencies(self, what: str, system: str, seconds: Sequence[float], tail: int) -> None:
        """Add p50 and p`tail` of one run's latencies, in ms."""
        for percent in (50, tail):
            found = np.percentile(seconds, percent, method="higher")
            self.add(f"{what}, p{percent}", system, "ms", float(found) * 1000)

    def get(self, what: str, system: str) -> Figure | None:
        """Return a figure, or `None` if it was not measured."""
        return self._figures.get((what, system))

    def whats(self) -> list[str]:
        """Return the measured quantities, in order."""
        return list(dict.fromkeys(one.what for one in self))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the figures as plain values."""
        return [{**vars(one), "values": list(one.values)} for one in self]

    @classmethod
    def from_json(
        cls, rows: Iterable[dict[str, Any]], tables: Mapping[str, list[str]] | None = None
    ) -> Figures:
        """Return the figures from the values of `to_json`, with their tables."""
        return cls((Figure(**{**row, "values": tuple(row["values"])}) for row in rows), tables)


Held = Literal["aim held", "held", "not held", "not measured"]


@dataclass(frozen=True)
class Verdict:
    """The result of a target: the median, the compared figure, and their ratio."""

    held: Held
    median: float | None = None
    compared_with: str = ""
    ratio: float | None = None


@dataclass(frozen=True)
class Target:
    """The bounds of one figure.

    Parameters: `least`, the required bound; `aim`, the desired one. `against` names systems: both
    bounds are then ratios to the best of their medians. Without it, bounds are absolute, in the
    figure's unit. `against_what` compares with another quantity of the same system instead.
    `is_floor`: whether the bounds are minimums rather than maximums.
    """

    what: str
    system: str
    least: float
    aim: float | None = None
    against: tuple[str, ...] = ()
    against_what: str | None = None
    is_floor: bool = False

    def judge(self, figures: Figures) -> Verdict:
        """Return whether the target holds."""
        figure = figures.get(self.what, self.system)
        if figure is None:
            return Verdict("not measured")
        if not self.against and self.against_what is None:
            return Verdict(self._held(figure.median), figure.median)
        base = self._base(figures)
        if base is None:
            return Verdict("not measured", figure.median)
        ratio = figure.median / base.median
        name = base.what if self.against_what is not None else base.system
        return Verdict(self._held(ratio), figure.median, name, ratio)

    def words(self, unit: str) -> str:
        """Return the bounds in words."""
        is_ratio = bool(self.against) or self.against_what is not None
        kind = "x" if is_ratio else f" {unit}"
        word = "at least" if self.is_floor else "at most"
        least = f"{word} {self.least:g}{kind}"
        if is_ratio:
            least += f" of {self.against_what or self._measure()}"
        return least if self.aim is None else f"{least}; aim {self.aim:g}{kind}"

    def _measure(self) -> str:
        return self.against[0] if len(self.against) == 1 else f"the best of {len(self.against)}"

    def _base(self, figures: Figures) -> Figure | None:
        if self.against_what is not None:
            return figures.get(self.against_what, self.system)
        found = [figures.get(self.what, system) for system in self.against]
        known = [one for one in found if one is not None]
        best = max if self.is_floor else min
        return best(known, key=lambda one: one.median) if known else None

    def _held(self, value: float) -> Held:
        if self.aim is not None and self._keeps(value, self.aim):
            return "aim held"
        return "held" if self._keeps(value, self.least) else "not held"

    def _keeps(self, value: float, bound: float) -> bool:
        return value >= bound if self.is_floor else value <= bound
