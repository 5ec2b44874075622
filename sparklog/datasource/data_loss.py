"""Records that were lost before they were read: detection by topic id and leader epoch, reports.

A position carries the leader epoch of the record before it. With it `divergences` finds records
that were read and that an unclean election has replaced since (KIP-320).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from sparklog.cluster.connection import Connection, Visible
from sparklog.datasource.offsets import Position
from sparklog.errors import SparklogError
from sparklog.model import TopicPartition
from sparklog.protocol.consume.divergence import ReadPosition, divergences, epoch_before


class DataLossError(SparklogError):
    """Records were lost before they were read, and `failOnDataLoss` is true."""


@dataclass(frozen=True)
class DataLoss:
    """The reaction to lost records."""

    is_fatal: bool

    def report(self, what: str) -> None:
        """Report a loss: raise `DataLossError`, or warn if `failOnDataLoss` is false."""
        if self.is_fatal:
            raise DataLossError(
                f"{what}; to continue without lost records, set option failOnDataLoss to false"
            )
        warnings.warn(f"{what}; continuing, since failOnDataLoss is false", stacklevel=2)


def position_at(offset: int, seen: Visible) -> Position:
    """Return the position at `offset` of a partition."""
    return Position(offset, seen.state.topic_id, *epoch_before(offset, seen.epochs))


def sound_offsets(
    connection: Connection,
    positions: Mapping[TopicPartition, Position],
    seen: Mapping[TopicPartition, Visible],
    loss: DataLoss,
) -> dict[TopicPartition, int]:
    """Return the first offset to read of each partition, and report lost records.

    It is the position itself if nothing was lost, and the point of divergence after a truncation.
    It is the log start offset if the topic was recreated, or if the log now begins later.
    """
    replaced = replaced_from(connection, positions, seen)
    offsets = {}
    for key, position in positions.items():
        visible = seen[key]
        offset, start = position.offset, visible.log_start_offset
        if position.topic_id not in ("", visible.state.topic_id):
            loss.report(
                f"topic {key.topic} was deleted and created again: the old records of partition "
                f"{key.partition} from offset {offset} on are lost"
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
    """Return the message that the records from `replaced` on, below `offset`, were replaced."""
    records = (
        f"records {replaced} to {offset - 1}" if replaced < offset else f"records below {offset}"
    )
    return (
        f"the log of {key} was truncated after an unclean election: {records}, which were read, "
        "are replaced by others"
    )


def replaced_from(
    connection: Connection,
    positions: Mapping[TopicPartition, Position],
    seen: Mapping[TopicPartition, Visible],
) -> dict[TopicPartition, int]:
    """Return the first replaced offset of each partition in which records that were read changed.

    It is the position itself if it is only known that records below it were replaced: the leader's
    log never had the position's epoch, and the position does not have the start of that epoch.
    """
    names = {seen[key].state.key: key for key in positions}
    diverged = divergences(
        connection.rules,
        {
            of_id: ReadPosition(
                fetch_offset=positions[key].offset,
                leader_epoch=positions[key].leader_epoch,
                epoch_start_offset=positions[key].known_epoch_start,
                # A position beyond the high watermark of the replica that is read is not diverged.
                log_end_offset=None,
                epochs=seen[key].epochs,
            )
            for of_id, key in names.items()
            if positions[key].topic_id == of_id.topic_id
        },
    )
    return {names[of_id]: one.replaced_offset for of_id, one in diverged.items()}
