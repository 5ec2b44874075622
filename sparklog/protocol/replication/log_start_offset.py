"""Necessary conditions of the rule `log_start_offset` (rule 8.3).

A leader has the headers of all batches in memory. It gives the rule the first batches of each log,
up to the first that is kept, and only the logs whose first batch may be deleted.
"""

from __future__ import annotations


def may_be_deleted(
    max_timestamp_ms: int,
    appended_at_ms: int,
    now_ms: int,
    retention_ms: int,
    bytes_after: int,
    retention_bytes: int,
) -> bool:
    """Return False only if the rule keeps this batch, and those after it.

    Parameters: `bytes_after`, the size in bytes of the batches after this one.
    """
    largest_ms = max_timestamp_ms if max_timestamp_ms >= 0 else appended_at_ms
    is_expired = retention_ms >= 0 and now_ms - largest_ms > retention_ms
    return is_expired or 0 <= retention_bytes <= bytes_after


def may_be_requested(
    delete_records_offset: int | None, log_start_offset: int, high_watermark: int
) -> bool:
    """Return False only if an administrator's request moves no log start offset now."""
    return (
        delete_records_offset is not None
        and log_start_offset < delete_records_offset <= high_watermark
    )
