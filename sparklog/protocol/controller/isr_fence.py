"""Necessary condition of the rule `isr_fence` (rule 7.2), for elections without fenced members."""

from __future__ import annotations


def may_be_fenced(in_isr: bool, is_alive: bool) -> bool:
    """Return False only if the rule does not give this replica; the columns are the rule's."""
    return in_isr and not is_alive
