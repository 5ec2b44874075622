"""Conditions on logs and leader-epoch histories, which the model and the state machine share.

A log is a sequence of records, each a leader epoch and a value; a record's offset is its index. A
history is a sequence of leader epochs and their start offsets. `tests/test_invariants.py` compares
the conditions with the rules of `sparklog audit`, which state them for tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

_Record = TypeVar("_Record", bound=tuple[int, object])


def agree_below(one: Sequence[_Record], other: Sequence[_Record], end: int) -> bool:
    """9.1, 9.2: both logs have the same records below `end`, or both end earlier."""
    return one[:end] == other[:end]


def has_each_value_once(log: Sequence[tuple[int, object]]) -> bool:
    """9.1, 3.7: no value is in the log twice; each record that was sent has a value of its own."""
    return len(log) < 2 or len({value for _, value in log}) == len(log)


def epochs_never_decrease(log: Sequence[tuple[int, object]]) -> bool:
    """9.5: leader epochs never decrease with the offset."""
    return len(log) < 2 or all(a[0] <= b[0] for a, b in pairwise(log))


def history_increases(history: Sequence[tuple[int, int]]) -> bool:
    """9.6: epochs and start offsets increase strictly."""
    return all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(history))


def history_has_epochs(
    history: Sequence[tuple[int, int]], log: Sequence[tuple[int, object]]
) -> bool:
    """6.1, 9.6: the epoch of every record is the one that the history has for its offset.

    The history increases.
    """
    at = -1
    for offset, (epoch, _) in enumerate(log):
        while at + 1 < len(history) and history[at + 1][1] <= offset:
            at += 1
        if at < 0 or history[at][0] != epoch:
            return False
    return True
