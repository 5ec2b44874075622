"""The sound prefix of a replica's log: its batches before the first fault (rule 9.5).

Invariants of a sound log: each batch begins at the offset where the previous one ends; leader
epochs never decrease with the offset; each header matches its checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from sparklog.model import Batch
from sparklog.storage.batch_actions import header_checksum


class Fault(NamedTuple):
    """The first fault of a replica's log: the number of batches before it, and its description."""

    sound_count: int
    fault: str


def first_fault(
    batches: Sequence[Batch],
    damaged: Sequence[tuple[Batch, str]] = (),
    first: int = 0,
    last: int | None = None,
) -> Fault | None:
    """Return the first fault of a replica's log, or `None` if it is sound.

    Parameters: `batches`, those whose headers match their checksums, by ascending offset;
    `damaged`, the others, each with the checksum that its header carries; `first` and `last`, the
    positions in `batches` between which neighbours are compared.
    """
    fault = _disorder(batches, first, len(batches) if last is None else last)
    if not damaged:
        return fault
    wrong = ", ".join(batch.path for batch, _ in damaged)
    end = len(batches) if fault is None else fault.sound_count
    # Each damaged header must belong to a gap or to the end. If one may belong before or in the
    # prefix, no batch is sound.
    places = {
        one.next_offset
        for one, following in pairwise(batches)
        if one.next_offset < following.base_offset
    }
    places |= {batches[-1].next_offset} if batches else set()
    start = batches[0].base_offset if batches else 0
    is_placed = all(_fits(batch, checksum, places, start) for batch, checksum in damaged)
    return Fault(
        end if is_placed else 0, f"the header of {wrong} does not match its header_checksum"
    )


def _disorder(batches: Sequence[Batch], first: int, last: int) -> Fault | None:
    previous: Batch | None = None
    for index in range(first, last):
        batch = batches[index]
        if previous is not None:
            if previous.next_offset != batch.base_offset:
                end = previous.next_offset
                is_gap = end < batch.base_offset
                # Either of two overlapping batches may be the wrong one.
                return Fault(
                    index if is_gap else _count_below(batches, batch.base_offset, index),
                    f"{batch.path} begins at offset {batch.base_offset} and the batch before it "
                    f"ends at {end}",
                )
            if previous.leader_epoch > batch.leader_epoch:
                return Fault(
                    index - 1,
                    f"{batch.path} has leader epoch {batch.leader_epoch} and follows a batch of "
                    f"epoch {previous.leader_epoch}",
                )
        previous = batch
    return None


def _count_below(batches: Sequence[Batch], offset: int, count: int) -> int:
    """Return how many of the first `count` batches end at or below `offset`."""
    while count and batches[count - 1].next_offset > offset:
        count -= 1
    return count


def _fits(batch: Batch, checksum: str, places: set[int], start: int) -> bool:
    """Return whether a damaged header belongs to one of `places` and not before the first batch.

    Parameters: `places`, base offsets; `start`, the base offset of the first sound batch.
    """

    def was_at(base_offset: int) -> bool:
        return header_checksum(batch._replace(base_offset=base_offset)) == checksum

    if any(was_at(place) for place in places):
        return True
    return batch.base_offset in places and not was_at(start - batch.last_offset_delta - 1)
