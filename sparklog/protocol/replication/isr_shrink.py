"""Necessary conditions of `isr_shrink`, and of a change of `high_watermark` by time (2.1, 5.1)."""

from __future__ import annotations


def may_have_fallen_behind(
    log_end_offset: int | None,
    leader_log_end_offset: int,
    last_caught_up_ms: int | None,
    polled_at_ms: int,
    now_ms: int,
    lag_time_max_ms: int,
) -> bool:
    """Return False only if time alone does not change the results of the rules for this follower.

    Precondition: the rules have run for its partition at `polled_at_ms`, and only time has changed
    up to `now_ms`. If False, `isr_shrink` gives the same result as then, and `high_watermark` waits
    for the follower as before. Therefore an idle leader runs no rule. The expiry of
    `lag_time_max_ms` is reported once.
    """
    return (
        may_fall_behind(
            log_end_offset, leader_log_end_offset, last_caught_up_ms, polled_at_ms, lag_time_max_ms
        )
        and now_ms > (last_caught_up_ms or 0) + lag_time_max_ms
    )


def may_fall_behind(
    log_end_offset: int | None,
    leader_log_end_offset: int,
    last_caught_up_ms: int | None,
    polled_at_ms: int,
    lag_time_max_ms: int,
) -> bool:
    """Return False only if `may_have_fallen_behind` is False at every time from now on.

    Precondition: as there, for a `polled_at_ms` that never decreases.
    """
    if log_end_offset == leader_log_end_offset or last_caught_up_ms is None:
        return False
    return polled_at_ms <= last_caught_up_ms + lag_time_max_ms


def may_leave(
    last_caught_up_ms: int | None,
    now_ms: int,
    lag_time_max_ms: int,
    lag_max_messages: int | None,
) -> bool:
    """Return False only if `isr_shrink` does not give this follower: its time has not run out."""
    has_limit = lag_max_messages is not None
    return has_limit or last_caught_up_ms is None or now_ms - last_caught_up_ms > lag_time_max_ms
