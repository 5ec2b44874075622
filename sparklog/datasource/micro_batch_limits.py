"""Limits on the size of one micro-batch, as in Spark's Kafka connector."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sparklog.clock import Clock
from sparklog.datasource.options import ReadOptions
from sparklog.model import TopicPartition

TopicOffsets = Mapping[TopicPartition, int]


def within_limit(starts: TopicOffsets, ends: TopicOffsets, limit: int | None) -> TopicOffsets:
    """Return the ends of a read of `limit` records, in proportion to what each partition has.

    As in Spark's Kafka connector a small partition is not starved, so there may be a few more
    records than the limit. `None` is no limit.
    """
    sizes = {key: ends[key] - start for key, start in starts.items() if ends[key] > start}
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return ends
    result = dict(ends)
    for key, size in sizes.items():
        share = limit * (size / total)
        taken = math.ceil(share) if share < 1 else math.floor(share)
        result[key] = min(ends[key], starts[key] + taken)
    return result


class MinimumPerTrigger:
    """Delays a micro-batch until it has enough records: minOffsetsPerTrigger, maxTriggerDelay."""

    def __init__(self, options: ReadOptions, clock: Clock) -> None:
        self._minimum = options.min_offsets_per_trigger
        self._delay_ms = options.max_trigger_delay_ms
        self._clock = clock
        self._last_ms: int | None = None

    def is_awaited(self, starts: TopicOffsets, ends: TopicOffsets) -> bool:
        """Return whether to wait for more records; a query's first micro-batch never waits."""
        if self._minimum is None:
            return False
        now_ms = self._clock.monotonic_ms()
        is_due = self._last_ms is None or now_ms - self._last_ms >= self._delay_ms
        new = sum(max(end - starts[key], 0) for key, end in ends.items())
        if not is_due and new < self._minimum:
            return True
        self._last_ms = now_ms
        return False
