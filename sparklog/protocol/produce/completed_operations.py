"""Necessary condition of the rule `completed_operations` (rules 3.2, 4.3, 4.4)."""

from __future__ import annotations


def may_be_complete(is_leader: bool, high_watermark: int | None, required_offset: int) -> bool:
    """Return False only if the rule does not give this operation; the columns are the rule's.

    Therefore a leader that appends, and whose followers have yet to report, runs no rule for it.
    """
    return not is_leader or (high_watermark is not None and high_watermark >= required_offset)
