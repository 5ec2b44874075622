"""The progress of long work, as it is reported to its caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, TypeVar

OnProgress: TypeAlias = Callable[[str, int, "int | None"], object]
"""Receives the name of the work, the steps that are done, and their number if it is known.

Threads of the work may call it.
"""

_Of = TypeVar("_Of")
_Result = TypeVar("_Result")


def counted(of: Sequence[_Of], name: str, on_progress: OnProgress | None) -> Iterator[_Of]:
    """Yield the steps of a work; each is reported when the next one is requested."""
    for number, one in enumerate(of, start=1):
        yield one
        if on_progress is not None:
            on_progress(name, number, len(of))


def reporting(
    action: Callable[[_Of], _Result], name: str, total: int, on_progress: OnProgress | None
) -> Callable[[_Of], _Result]:
    """Return an action for several threads that reports each of its calls when it has ended."""
    if on_progress is None:
        return action
    lock = threading.Lock()
    done = 0

    def act(one: _Of) -> _Result:
        nonlocal done
        result = action(one)
        with lock:
            done += 1
            on_progress(name, done, total)
        return result

    return act
