"""Records that are gone before they were read: found by topic id and leader epoch, and reported.

A position carries the leader epoch of the record before it. Records that were read have been
replaced since, by an unclean election, where the leader's history says that this epoch ended
before the position, and where the leader's log never had this epoch (KIP-320).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from sparklog.clients.connection import Connection, Visible
from sparklog.datasource.offsets import NO_EPOCH, NO_OFFSET, Position
from sparklog.errors import SparklogError
from sparklog.model import EpochEntry, TopicIdPartition, TopicPartition


class DataLossError(SparklogError):
    """Records were lost before they were read, and `failOnDataLoss` is true."""


@dataclass(frozen=True)
class DataLoss:
    """What is done about records that are gone."""

    is_fatal: bool

    def report(self, what: str) -> None:
        """Say what was lost: raise `DataLossError`, or warn where the options want to go on."""
        if self.is_fatal:
            raise DataLossError(
                f"{what}; to go on without what is lost, set option failOnDataLoss to false"
            )
        warnings.warn(f"{what}; going on, since failOnDataLoss is false", stacklevel=2)


def epoch_before(offset: int, epochs: tuple[EpochEntry, ...]) -> EpochEntry:
    """Return the leader epoch of the record before `offset`, by a history (oldest first)."""
    started = [entry for entry in epochs if entry.start_offset < offset]
    return started[-1] if started else EpochEntry(NO_EPOCH, NO_OFFSET)


def position_at(offset: int, seen: Visible) -> Position:
    """Return the position at `offset` of a partition."""
    return Position(offset, seen.state.topic_id, *epoch_before(offset, seen.epochs))


def sound_offsets(
    connection: Connection,
    positions: Mapping[TopicPartition, Position],
    seen: Mapping[TopicPartition, Visible],
    loss: DataLoss,
) -> dict[TopicPartition, int]:
    """Return from where on nothing was read, by partition, reporting what has been lost.

    That is the position itself while all is well; the point of divergence after a truncation; the
    start of the log where the topic was made anew, or where the log begins later by now.
    """
    replaced = replaced_from(connection, positions, seen)
    offsets = {}
    for key, position in positions.items():
        visible = seen[key]
        offset, start = position.offset, visible.log_start_offset
        if position.topic_id not in ("", visible.state.topic_id):
            loss.report(
                f"topic {key.topic} was deleted and created again: what partition {key.partition} "
                f"held of the old one from offset {offset} on is lost"
            )
            offset = start
        elif key in replaced:
            loss.report(replaced_sentence(key, offset, replaced[key]))
            offset = replaced[key]
        if offset < start:
            loss.report(
                f"records {offset} to {start - 1} of {key} were deleted before they were read: its "
                f"log starts at {start}"
            )
            offset = start
        offsets[key] = offset
    return offsets


def replaced_sentence(key: TopicPartition, offset: int, replaced: int) -> str:
    """Say that of the records below `offset` those from `replaced` on are others now."""
    records = (
        f"records {replaced} to {offset - 1}" if replaced < offset else f"records below {offset}"
    )
    return (
        f"the log of {key} was truncated: {records}, which were read, are replaced by others, "
        "after an unclean election"
    )


def replaced_from(
    connection: Connection,
    positions: Mapping[TopicPartition, Position],
    seen: Mapping[TopicPartition, Visible],
) -> dict[TopicPartition, int]:
    """Return the first replaced offset of each partition in which records that were read changed.

    It is the position itself where it is only known that records below it were replaced: the
    leader's log never had the position's epoch, and the position does not say where that began.
    """
    asked = {
        seen[key].state.key: (key, position)
        for key, position in positions.items()
        if position.leader_epoch != NO_EPOCH and position.topic_id == seen[key].state.topic_id
    }
    # The history answers at once for a position whose epoch the log has at the same offset.
    asked = {
        of_id: (key, position)
        for of_id, (key, position) in asked.items()
        if epoch_before(position.offset, seen[key].epochs).epoch != position.leader_epoch
    }
    if not asked:
        return {}
    answers = connection.rules.run(
        "end_offset_for_epoch",
        asked=[
            {
                "topic_id": of_id.topic_id,
                "partition": of_id.partition,
                "asked_epoch": position.leader_epoch,
                "log_end_offset": seen[key].high_watermark,
            }
            for of_id, (key, position) in asked.items()
        ],
        entries=[
            {
                "topic_id": of_id.topic_id,
                "partition": of_id.partition,
                "epoch": entry.epoch,
                "start_offset": entry.start_offset,
            }
            for of_id, (key, _) in asked.items()
            for entry in seen[key].epochs
        ],
    )
    replaced = {}
    for row in answers:
        key, position = asked[TopicIdPartition(row["topic_id"], row["partition"])]
        # -1: the log has no epoch so old, so that nothing of what was read is known to be in it.
        end = max(row["end_offset"], 0)
        if row["epoch"] == position.leader_epoch:
            if end < position.offset:
                replaced[key] = end
            continue
        # The log has no record of the epoch: all that was read of it is replaced.
        start = position.offset if position.epoch_start == NO_OFFSET else position.epoch_start
        replaced[key] = min(end, start, position.offset)
    return replaced
