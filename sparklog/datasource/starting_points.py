"""Turning what users write (earliest, an offset, a time) into an offset for each partition."""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.datasource.data_loss import (
    DataLoss,
    replaced_from,
    replaced_sentence,
    sound_offsets,
)
from sparklog.datasource.offsets import EARLIEST, LATEST
from sparklog.datasource.options import AtOffsets, AtTimestamp, AtTimestamps, OffsetLimit
from sparklog.datasource.subscription import Seen, Subscription
from sparklog.errors import ConfigError, SparklogError
from sparklog.model import TopicPartition


def starting_offsets(
    subscription: Subscription, seen: Seen, loss: DataLoss
) -> dict[TopicPartition, int]:
    """Return where to start in each partition.

    Raises `ConfigError` where the options do not name exactly these partitions, `SparklogError`
    where no record is as young as asked, `DataLossError` where offsets of a checkpoint say so.
    """
    options = subscription.options
    found = _offsets(subscription, seen, options.starting, "startingOffsets")
    for key, offset in found.items():
        if offset is None and not options.latest_where_no_timestamp_matches:
            raise SparklogError(
                f"no record of {key} is as young as the time to start at: set option "
                "startingOffsetsByTimestampStrategy to latest to start at its end"
            )
    starts = {key: seen[key].high_watermark if one is None else one for key, one in found.items()}
    if isinstance(options.starting, AtOffsets):
        named = {key: one for key, one in options.starting.positions.items() if one.offset >= 0}
        starts |= sound_offsets(subscription.connection, named, seen, loss)
    return starts


def ending_offsets(
    subscription: Subscription, seen: Seen, loss: DataLoss
) -> dict[TopicPartition, int]:
    """Return where to end in each partition; where no record is as young as asked, at its end.

    Raises `ConfigError` where the options do not name exactly these partitions, `DataLossError`
    where records below offsets of a checkpoint were replaced.
    """
    ending = subscription.options.ending
    found = _offsets(subscription, seen, ending, "endingOffsets")
    if isinstance(ending, AtOffsets):
        replaced = replaced_from(subscription.connection, ending.positions, seen)
        for key, offset in replaced.items():
            loss.report(replaced_sentence(key, ending.positions[key].offset, offset))
    return {key: seen[key].high_watermark if one is None else one for key, one in found.items()}


def _offsets(
    subscription: Subscription, seen: Seen, limit: OffsetLimit, option: str
) -> dict[TopicPartition, int | None]:
    """Return the offset that `limit` means, or `None` where no record is as young as it asks."""
    if isinstance(limit, AtOffsets):
        _check_complete(limit.positions, seen, option)
        asked = {key: limit.positions[key].offset for key in seen}
    elif isinstance(limit, AtTimestamp | AtTimestamps):
        times = dict.fromkeys(seen, limit.timestamp) if isinstance(limit, AtTimestamp) else {}
        if isinstance(limit, AtTimestamps):
            _check_complete(limit.timestamps, seen, f"{option}ByTimestamp")
            times = dict(limit.timestamps)
        found = subscription.offsets_for_times(times)
        # A follower may not have got so far yet.
        return {
            key: None if offset is None else min(offset, seen[key].high_watermark)
            for key, offset in found.items()
        }
    else:
        asked = dict.fromkeys(seen, limit.offset)
    ends = {
        key: {EARLIEST: one.log_start_offset, LATEST: one.high_watermark}
        for key, one in seen.items()
    }
    return {key: ends[key].get(offset, offset) for key, offset in asked.items()}


def _check_complete(named: Mapping[TopicPartition, object], seen: Seen, option: str) -> None:
    if named.keys() != seen.keys():
        raise ConfigError(
            f"option {option} must name all partitions that are read, and no others: it names "
            f"{_list(named)}, read are {_list(seen)} (in offsets, -1 is latest and -2 earliest)"
        )


def _list(keys: Mapping[TopicPartition, object]) -> str:
    return ", ".join(map(str, sorted(keys))) or "none"
