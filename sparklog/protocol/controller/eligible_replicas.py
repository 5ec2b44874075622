"""Necessary condition of the rule `eligible_replicas` (rule 7.5), for ISRs that nobody leaves."""

from __future__ import annotations


def may_be_eligible(was_in_isr: bool, in_isr: bool, in_elr: bool) -> bool:
    """Return False only if this replica is not eligible, neither before nor by the rule.

    The columns are the rule's.
    """
    return in_elr or (was_in_isr and not in_isr)
