"""Necessary conditions of the rule `mergeable_batches` (rule 8.4).

The merger reads the headers of up to 1,000 batches of a partition. It runs the rule only for
partitions in which batches have become old enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.model import Batch


def is_below_high_watermark(next_offset: int, high_watermark: int) -> bool:
    """Return False only if the rule never merges a batch that ends at `next_offset`.

    It is checked again when a merge is committed, since the log may have been truncated meanwhile.
    """
    return next_offset <= high_watermark


def may_be_merged(
    next_offset: int, high_watermark: int, appended_at_ms: int, now_ms: int, min_lag_ms: int
) -> bool:
    """Return False only if the rule merges no batch with this end and this commit time."""
    return (
        is_below_high_watermark(next_offset, high_watermark)
        and now_ms - appended_at_ms >= min_lag_ms
    )


def may_have_run(batch_count: int, min_batches: int) -> bool:
    """Return False only if the rule finds no run among `batch_count` batches."""
    return batch_count >= min_batches


def first_open_offset(batches: Sequence[Batch], max_batch_bytes: int) -> int:
    """Return the offset below which no batch is in a later run, after the rule found no run.

    Parameters: `batches`, the adjacent batches in which the rule found no run, at least one.

    A later run includes a batch after these. It has at most `max_batch_bytes`, one leader epoch,
    and no batch of a quarter of `max_batch_bytes` or more.
    """
    last = batches[-1]
    offset, left = last.next_offset, max_batch_bytes
    for batch in reversed(batches):
        left -= batch.size_bytes
        is_too_large = batch.size_bytes * 4 >= max_batch_bytes
        if left < 0 or is_too_large or batch.leader_epoch != last.leader_epoch:
            break
        offset = batch.base_offset
    return offset
