"""SQL functions that rules use and SQLite lacks, with the results of DuckDB and Spark.

The module has nothing else: a database keeps its functions, and through them all names of their
module, for as long as the process lives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _greatest(*values: Any) -> Any:
    return max((value for value in values if value is not None), default=None)


def _least(*values: Any) -> Any:
    return min((value for value in values if value is not None), default=None)


def _mod(value: int | None, divisor: int | None) -> int | None:
    """Return the remainder, with the sign of `value`."""
    if value is None or not divisor:
        return None
    remainder = abs(value) % abs(divisor)
    return -remainder if value < 0 else remainder


FUNCTIONS: tuple[tuple[str, int, Callable[..., Any]], ...] = (
    ("greatest", -1, _greatest),
    ("least", -1, _least),
    ("mod", 2, _mod),
)
