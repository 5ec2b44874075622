"""Necessary conditions of the rule `isr_expand` (rule 5.2)."""

from __future__ import annotations


def may_expand(isr_size: int, replica_count: int) -> bool:
    """Return False only if the rule gives no replica, because all replicas are in sync."""
    return isr_size < replica_count


def may_join(log_end_offset: int | None, high_watermark: int) -> bool:
    """Return False only if the rule does not give this follower: it is below the high watermark.

    Parameters: `log_end_offset`, `None` if the follower has not reported in this leader epoch.
    """
    return log_end_offset is not None and log_end_offset >= high_watermark
