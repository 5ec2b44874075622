"""Conversion of earliest, latest, offsets and times into an offset for each partition."""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.datasource.data_loss import DataLoss, replaced_from, replaced_sentence, sound_offsets
from sparklog.datasource.offset_reader import OffsetReader, Seen
from sparklog.datasource.offsets import EARLIEST, LATEST
from sparklog.datasource.options import AtOffsets, AtTimestamp, AtTimestamps, OffsetLimit
from sparklog.errors import ConfigError, SparklogError
from sparklog.model import TopicPartition


def starting_offsets(
    offset_reader: OffsetReader, seen: Seen, loss: DataLoss
) -> dict[TopicPartition, int]:
    """Return the start offset of each partition.

    Raises `ConfigError` if the options do not name exactly these partitions, `SparklogError` if no
    record is at or after the given time, `DataLossError` if offsets of a checkpoint show a loss.
    """
    options = offset_reader.options
    found = _offsets(offset_reader, seen, options.starting, "startingOffsets")
    for key, offset in found.items():
        if offset is None and not options.latest_where_no_timestamp_matches:
            raise SparklogError(
                f"no record of {key} is at or after the starting time: set option "
                "startingOffsetsByTimestampStrategy to latest to start at its end"
            )
    starts = {key: seen[key].high_watermark if one is None else one for key, one in found.items()}
    if isinstance(options.starting, AtOffsets):
        named = {key: one for key, one in options.starting.positions.items() if one.offset >= 0}
        starts |= sound_offsets(offset_reader.connection, named, seen, loss)
    return starts


def ending_offsets(
    offset_reader: OffsetReader, seen: Seen, loss: DataLoss
) -> dict[TopicPartition, int]:
    """Return the end offset of each partition: the high watermark if no record is so young.

    Raises `ConfigError` if the options do not name exactly these partitions, `DataLossError` if
    records below offsets of a checkpoint were replaced.
    """
    ending = offset_reader.options.ending
    found = _offsets(offset_reader, seen, ending, "endingOffsets")
    if isinstance(ending, AtOffsets):
        replaced = replaced_from(offset_reader.connection, ending.positions, seen)
        for key, offset in replaced.items():
            loss.report(replaced_sentence(key, ending.positions[key].offset, offset))
    return {key: seen[key].high_watermark if one is None else one for key, one in found.items()}


def _offsets(
    offset_reader: OffsetReader, seen: Seen, limit: OffsetLimit, option: str
) -> dict[TopicPartition, int | None]:
    """Return the offset that `limit` means, or `None` if no record is at or after its time."""
    if isinstance(limit, AtOffsets):
        _check_complete(limit.positions, seen, option)
        asked = {key: limit.positions[key].offset for key in seen}
    elif isinstance(limit, AtTimestamp | AtTimestamps):
        times = dict.fromkeys(seen, limit.timestamp) if isinstance(limit, AtTimestamp) else {}
        if isinstance(limit, AtTimestamps):
            _check_complete(limit.timestamps, seen, f"{option}ByTimestamp")
            times = dict(limit.timestamps)
        found = offset_reader.offsets_for_times(times)
        # A follower may not have reached it yet.
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
            f"option {option} must name exactly the partitions to read: it names {_list(named)} "
            f"instead of {_list(seen)} (in offsets, -1 is latest and -2 earliest)"
        )


def _list(keys: Mapping[TopicPartition, object]) -> str:
    return ", ".join(map(str, sorted(keys))) or "none"
