"""A work: a measurement with its targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.figures import Figures, Target


@dataclass(frozen=True)
class Work:
    """One row of the report's table.

    Parameters: `name`, as on the command line; `measured`, the description of the measurement for
    the report; `run`, which fills in the figures; `appendix`, the report's text in place of the
    table of figures, or before it (`has_table`); `is_by_hand`, whether it takes too long for a run
    that names no works; `is_plotted`; `most_runs`, an upper bound of the runs.
    """

    name: str
    title: str
    measured: str
    run: Callable[[Bench, Figures], None]
    targets: tuple[Target, ...] = ()
    appendix: Callable[[Figures], str] | None = None
    has_table: bool = False
    is_by_hand: bool = False
    is_plotted: bool = True
    most_runs: int = 1000
