"""Necessary condition of the rule `completed_reassignments` (rule 7.8)."""

from __future__ import annotations


def may_allow_completion(in_isr: bool, removing: bool) -> bool:
    """Return False only if this replica keeps the reassignment from being complete.

    The columns are the rule's.
    """
    return in_isr or removing
