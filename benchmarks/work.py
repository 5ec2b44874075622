"""A work: one thing to measure, with what is asked of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.figures import Figures, Target


@dataclass(frozen=True)
class Work:
    """One row of the table.

    Parameters: `name`, as on the command line; `measured`, how it is done, for the report;
    `run`, which fills in the figures; `appendix`, what the report says of them instead of the
    table of figures, or before it (`has_table`); `is_by_hand`, that it takes too long to be part
    of a run that names no works; `is_plotted`; `most_runs`, an upper bound
    of the runs.
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
