"""Necessary condition of the rule `fetch` (rules 6.3, 6.4), for partitions that have caught up."""

from __future__ import annotations


def may_return_batches(fetch_offset: int, leader_log_end_offset: int) -> bool:
    """Return False only if the rule gives no batch: the leader's log ends there or before.

    Example: a follower at offset 7 of a leader whose log ends at 7 fetches nothing.
    """
    return fetch_offset < leader_log_end_offset
