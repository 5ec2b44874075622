"""Necessary condition of the rule `expired_operations` (rule 4.2), for ticks without work."""

from __future__ import annotations


def may_have_expired(deadline_ms: int, now_ms: int) -> bool:
    """Return False only if the rule gives no operation whose deadline is `deadline_ms` or later.

    Invariant: if it is False for the first deadline of a set of operations, no operation of the set
    has expired.
    """
    return now_ms >= deadline_ms
