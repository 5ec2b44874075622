"""Shrinks a failing script by delta debugging: first its steps, then the events within them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.faults.simulation.script import Step


def shrink(
    steps: Sequence[Step], fails: Callable[[Sequence[Step]], bool], most_runs: int = 200
) -> list[Step]:
    """Return a sublist of `steps`, with some of their events, for which `fails` is true.

    Parameters: `fails`, plays a script and returns whether it fails in the same way; `most_runs`,
    the most calls of it.
    """
    left = most_runs

    def still_fails(candidate: Sequence[Step]) -> bool:
        nonlocal left
        left -= 1
        return fails(candidate)

    found = list(steps)
    size = max(len(found) // 2, 1)
    while left > 0:
        at, is_shorter = 0, False
        while at < len(found) and left > 0:
            candidate = found[:at] + found[at + size :]
            if still_fails(candidate):
                found, is_shorter = candidate, True
            else:
                at += size
        if size == 1 and not is_shorter:
            break
        size = max(size // 2, 1)
    for index, step in enumerate(found):
        for event in step.events:
            current = found[index]
            fewer = current._replace(events=tuple(one for one in current.events if one != event))
            candidate = [*found[:index], fewer, *found[index + 1 :]]
            if left > 0 and still_fails(candidate):
                found = candidate
    return found
