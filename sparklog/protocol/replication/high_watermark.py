"""Necessary condition of a move in `high_watermark` (rules 2.1, 2.3)."""

from __future__ import annotations

from collections.abc import Iterable


def may_advance(high_watermark: int, in_sync_log_end_offsets: Iterable[int | None]) -> bool:
    """Return False only if the rule gives the high watermark that the partition has.

    Parameters: `in_sync_log_end_offsets`, those of the in-sync replicas, or some of them; `None`
    for a replica that has not reported in this leader epoch.
    """
    return all(end is not None and end > high_watermark for end in in_sync_log_end_offsets)
