"""A batch query: the offset range of each partition, determined once."""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.cluster.connection import Visible
from sparklog.datasource.data_loss import DataLoss
from sparklog.datasource.kept_logs import with_logs
from sparklog.datasource.offset_reader import OffsetReader, Seen
from sparklog.datasource.options import AtOffsets, ReadOptions
from sparklog.datasource.read_plan import plan_tasks
from sparklog.datasource.read_task import OffsetRange, ReadTask
from sparklog.datasource.starting_points import ending_offsets, starting_offsets
from sparklog.errors import ConfigError
from sparklog.model import TopicPartition


def plan_batch(options: ReadOptions) -> list[ReadTask]:
    """Return the tasks of a batch query; raises as the two functions below do."""
    return with_logs(
        options.cluster,
        lambda logs: _tasks(OffsetReader(options, logs)),
        options.storage_options,
    )


def _tasks(offset_reader: OffsetReader) -> list[ReadTask]:
    seen = seen_by_batch(offset_reader)
    return plan_tasks(offset_reader, seen, batch_ranges(offset_reader, seen))


def seen_by_batch(offset_reader: OffsetReader) -> Seen:
    """Return the replicas and offsets that a batch query may read, by partition.

    Raises UNKNOWN_TOPIC_OR_PARTITION, and the error that keeps a partition from being read.
    """
    ending = offset_reader.options.ending
    positions = ending.positions if isinstance(ending, AtOffsets) else {}
    needed = {key: one.offset for key, one in positions.items()}
    return offset_reader.visible(offset_reader.partitions(), needed)


def batch_ranges(offset_reader: OffsetReader, seen: Seen) -> list[OffsetRange]:
    """Return the offset range of each partition.

    Raises `ConfigError` if the options do not fit the partitions, `DataLossError` if they request
    records that do not exist, and as `starting_offsets` does.
    """
    loss = DataLoss(offset_reader.options.fail_on_data_loss)
    starts = starting_offsets(offset_reader, seen, loss)
    ends = ending_offsets(offset_reader, seen, loss)
    return [_range(key, one, starts, ends, loss) for key, one in seen.items()]


def _range(
    key: TopicPartition,
    seen: Visible,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    loss: DataLoss,
) -> OffsetRange:
    start, end = starts[key], ends[key]
    if end < seen.log_start_offset == start:
        loss.report(
            f"records up to {end - 1} of {key} are requested, but they were deleted: its log "
            f"starts at {start}"
        )
        return OffsetRange(key, start, start)
    if start > end:
        raise ConfigError(
            f"the start {start} of {key} is beyond its end {end}: correct the offsets; the log of "
            f"{key} has the offsets {seen.log_start_offset} to {seen.high_watermark - 1}"
        )
    if end > seen.high_watermark:
        loss.report(
            f"records up to {end - 1} of {key} are requested, but its high watermark is "
            f"{seen.high_watermark}"
        )
    return OffsetRange(key, start, min(end, seen.high_watermark))
