"""A batch query: from where to where each partition is read, decided once."""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.clients.connection import Visible
from sparklog.datasource.data_loss import DataLoss
from sparklog.datasource.kept_logs import with_logs
from sparklog.datasource.options import AtOffsets, ReadOptions
from sparklog.datasource.read_plan import plan_tasks
from sparklog.datasource.read_task import OffsetRange, ReadTask
from sparklog.datasource.starting_points import ending_offsets, starting_offsets
from sparklog.datasource.subscription import Seen, Subscription
from sparklog.errors import ConfigError
from sparklog.model import TopicPartition


def plan_batch(options: ReadOptions) -> list[ReadTask]:
    """Return what each task of a batch query reads; raises as the two below do."""
    return with_logs(options.cluster, lambda logs: _tasks(Subscription(options, logs)))


def _tasks(subscription: Subscription) -> list[ReadTask]:
    seen = seen_by_batch(subscription)
    return plan_tasks(subscription, seen, batch_ranges(subscription, seen))


def seen_by_batch(subscription: Subscription) -> Seen:
    """Return what may be seen of the partitions that a batch query reads.

    Raises UNKNOWN_TOPIC_OR_PARTITION, and what keeps a partition from being seen.
    """
    ending = subscription.options.ending
    positions = ending.positions if isinstance(ending, AtOffsets) else {}
    needed = {key: one.offset for key, one in positions.items()}
    return subscription.visible(subscription.partitions(), needed)


def batch_ranges(subscription: Subscription, seen: Seen) -> list[OffsetRange]:
    """Return from where to where each partition is read.

    Raises `ConfigError` where the options do not fit the partitions, `DataLossError` where they ask
    for records that are not there, and what `starting_offsets` raises.
    """
    loss = DataLoss(subscription.options.fail_on_data_loss)
    starts = starting_offsets(subscription, seen, loss)
    ends = ending_offsets(subscription, seen, loss)
    return [_range(key, one, starts, ends, loss) for key, one in seen.items()]


def _range(
    key: TopicPartition,
    seen: Visible,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    loss: DataLoss,
) -> OffsetRange:
    start, end = starts[key], ends[key]
    if start > end:
        raise ConfigError(
            f"the start {start} of {key} is beyond its end {end}: correct the offsets; the log of "
            f"{key} has the offsets {seen.log_start_offset} to {seen.high_watermark - 1}"
        )
    if end > seen.high_watermark:
        loss.report(
            f"records up to {end - 1} of {key} are asked for, but its high watermark is "
            f"{seen.high_watermark}"
        )
    return OffsetRange(key, start, min(end, seen.high_watermark))
