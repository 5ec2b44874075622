"""Necessary condition of the rule `isr_expand` (rule 5.2), for partitions with a full ISR."""

from __future__ import annotations


def may_expand(isr_size: int, replica_count: int) -> bool:
    """Return False only if the rule gives no replica, because all replicas are in sync."""
    return isr_size < replica_count
