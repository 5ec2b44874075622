"""Divergence of a reader's position from the leader's log (rule 8.2, KIP-320).

The consumer, streams and batch queries call `divergences`. The rules `end_offset_for_epoch` and
`divergence` decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparklog.model import EpochEntry, TopicIdPartition
from sparklog.protocol.rules import Rules

NO_EPOCH_ENTRY = EpochEntry(-1, -1)
"""The result of `epoch_before` if the history has no record before the offset."""


class ReadPosition(NamedTuple):
    """A reader's position in a partition, and the leader's history to compare it with.

    - `fetch_offset` is the offset of the next record to be read.
    - `leader_epoch` is the leader epoch of the record before it, -1 if it is unknown.
    - `epoch_start_offset` is the first offset of that epoch, `None` if it is unknown.
    - `log_end_offset` is the end of the leader's log. With `None` the log is not open, and the
      position counts as within the log.
    - `epochs` is the leader's history, oldest first.
    """

    fetch_offset: int
    leader_epoch: int
    epoch_start_offset: int | None
    log_end_offset: int | None
    epochs: Sequence[EpochEntry]


class Divergence(NamedTuple):
    """A result row of the rule `divergence`, whose text describes the columns."""

    epoch: int
    divergent_offset: int | None
    replaced_offset: int


def divergences(
    rules: Rules, positions: Mapping[TopicIdPartition, ReadPosition]
) -> dict[TopicIdPartition, Divergence]:
    """Return a divergence for each position below which the leader's log has other records."""
    asked = {key: one for key, one in positions.items() if may_have_diverged(one)}
    if not asked:
        return {}
    ends = rules.run(
        "end_offset_for_epoch",
        asked=[
            key._asdict()
            | {
                "asked_epoch": one.leader_epoch,
                "log_end_offset": one.fetch_offset
                if one.log_end_offset is None
                else one.log_end_offset,
            }
            for key, one in asked.items()
        ],
        entries=[
            key._asdict() | entry._asdict() for key, one in asked.items() for entry in one.epochs
        ],
    )
    found = {TopicIdPartition(row["topic_id"], row["partition"]): row for row in ends}
    diverged = rules.run(
        "divergence",
        positions=[
            key._asdict()
            | {
                "fetch_offset": one.fetch_offset,
                "leader_epoch": one.leader_epoch,
                "epoch_start_offset": one.epoch_start_offset,
                "found_epoch": found[key]["epoch"],
                "end_offset": found[key]["end_offset"],
            }
            for key, one in asked.items()
        ],
    )
    return {
        TopicIdPartition(row["topic_id"], row["partition"]): Divergence(
            row["epoch"], row["divergent_offset"], row["replaced_offset"]
        )
        for row in diverged
    }


def may_have_diverged(position: ReadPosition) -> bool:
    """Return False only if the rules find no divergence: a necessary condition of 6.2 and 8.2.

    A stream checks at every micro-batch. Almost always the record before the position has the same
    epoch in the leader's history, and no rule is run.
    """
    if position.leader_epoch < 0:
        return False
    if position.log_end_offset is not None and position.log_end_offset < position.fetch_offset:
        return True
    return epoch_before(position.fetch_offset, position.epochs).epoch != position.leader_epoch


def epoch_before(offset: int, epochs: Sequence[EpochEntry]) -> EpochEntry:
    """Return the entry of a history for the leader epoch of the record before `offset`."""
    started = [entry for entry in epochs if entry.start_offset < offset]
    return started[-1] if started else NO_EPOCH_ENTRY
