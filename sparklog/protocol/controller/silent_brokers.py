"""Necessary condition of the rule `silent_brokers` (rules 7.1, 7.2)."""

from __future__ import annotations


def may_be_silent(
    state: str,
    last_changed_ms: int,
    now_ms: int,
    session_timeout_ms: int,
    parked_at_ms: int | None,
    wall_clock_ms: int,
    parked_session_timeout_ms: int,
) -> bool:
    """Return False only if the rule does not give this broker; the columns are the rule's.

    Therefore a controller without silent brokers runs no rule.
    """
    if state == "parked" and parked_at_ms is not None:
        return wall_clock_ms - parked_at_ms > parked_session_timeout_ms
    return now_ms - last_changed_ms > min(session_timeout_ms, parked_session_timeout_ms)
