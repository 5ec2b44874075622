"""Necessary condition of the rule `truncation_point` (rule 6.3), for logs that have agreed before.

Copies from the leader keep two logs in agreement; a new leader epoch of either does not, nor does a
log end that the other log does not reach.
"""

from __future__ import annotations


def may_disagree(
    log_end_offset: int,
    leader_log_start_offset: int,
    leader_log_end_offset: int,
    *,
    has_new_epochs: bool,
) -> bool:
    """Return False only if the rule still cuts nothing and does not wait.

    Parameters: the offsets of the two logs now; `has_new_epochs`, whether one of the histories or
    the leader epoch differs from those with which the rule has last cut nothing and not waited.
    """
    return has_new_epochs or not (
        leader_log_start_offset <= log_end_offset <= leader_log_end_offset
    )
