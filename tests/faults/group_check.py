"""The checks of client logs that a pass over the final log cannot make: sends, polls, commits.

nonmonotonic send: a producer's later record of a partition was acknowledged at a lower offset.
nonmonotonic poll: a member polled an offset again, or a lower one, within one assignment.
poll skip: a member left a record out, within one assignment or between a commit and its first poll.
unseen: an acknowledged record that no member of the group has polled.
commit backwards: a commit that began after another had succeeded, and succeeded at a lower offset.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from tests.faults.client_logs import Assigned, Committed, GroupLog, Polled, ProducerLog

Anomaly = tuple[str, str]
"""The kind of an anomaly, and a sentence about it."""

Offsets = Mapping[int, Sequence[int]]
"""All offsets of the final log by partition, in order."""


def check_sends(producer: ProducerLog) -> Iterator[Anomaly]:
    """Yield each acknowledgement below that of an earlier record of the producer."""
    ends: dict[int, int] = {}
    for one in sorted(producer.answered, key=lambda one: one.first):
        if one.error != "NONE":
            continue
        if one.offset < ends.get(one.partition, 0):
            yield (
                "nonmonotonic send",
                (
                    f"record {one.first} of {producer.name} was acknowledged at offset "
                    f"{one.offset} of partition {one.partition}, "
                    f"an earlier one at {ends[one.partition] - 1}"
                ),
            )
        ends[one.partition] = max(ends.get(one.partition, 0), one.offset + one.size)


def check_polls(group: GroupLog, there: Offsets) -> Iterator[Anomaly]:
    """Yield the polls that repeat or leave out records, against the final log."""
    ends: dict[tuple[str, int], int] = {}
    for event in _in_order(group):
        if isinstance(event, Assigned):
            for partition in event.partitions:
                ends.pop((event.member, partition), None)
            continue
        offsets = there.get(event.partition, ())
        of = event.member, event.partition
        where = f"{event.member} polled offset"
        for offset, _ in event.records:
            end = ends.get(of)
            if end is not None and offset < end:
                yield (
                    "nonmonotonic poll",
                    f"{where} {offset} of partition {event.partition} after {end - 1}",
                )
            begin = end if end is not None else _most_committed(group, event)
            left_out = offsets[bisect_left(offsets, begin) : bisect_left(offsets, offset)]
            if left_out:
                yield (
                    "poll skip",
                    (
                        f"{where} {offset} of partition {event.partition} and left out "
                        f"{len(left_out)} records from offset {left_out[0]}"
                    ),
                )
            ends[of] = max(end or 0, offset + 1)


def _in_order(group: GroupLog) -> list[Assigned | Polled]:
    events: list[Assigned | Polled] = [*group.assigned, *group.polled]
    return sorted(events, key=lambda one: one.at_ms)


def _most_committed(group: GroupLog, poll: Polled) -> int:
    """Return the highest offset whose commit had begun before a poll, whatever its outcome."""
    found = [
        one.offsets[poll.partition]
        for one in group.committed
        if one.at_ms <= poll.at_ms and poll.partition in one.offsets
    ]
    return max(found, default=0)


def check_unseen(
    producers: Sequence[ProducerLog],
    group: GroupLog,
    compacted: Mapping[int, Collection[int]] | None = None,
) -> Iterator[Anomaly]:
    """Yield the acknowledged records that the group has not polled, after it has drained.

    `compacted`, the offsets of each partition that compaction may have removed before.
    """
    seen: dict[int, set[int]] = defaultdict(set)
    for partition, offsets in (compacted or {}).items():
        seen[partition].update(offsets)
    for poll in group.polled:
        seen[poll.partition].update(offset for offset, _ in poll.records)
    for producer in producers:
        for one in producer.answered:
            if one.error != "NONE":
                continue
            for number in range(one.size):
                if one.offset + number not in seen[one.partition]:
                    yield (
                        "unseen",
                        (
                            f"record {one.first + number} of {producer.name}, acknowledged at "
                            f"offset {one.offset + number} of partition {one.partition}, "
                            "was never polled"
                        ),
                    )


def check_commits(group: GroupLog) -> Iterator[Anomaly]:
    """Yield each successful commit below one that had succeeded before it began."""
    succeeded = [one for one in group.committed if one.error == "NONE"]
    by_end = sorted(succeeded, key=_end_ms)
    highest: dict[int, int] = {}
    ended = 0
    for one in sorted(succeeded, key=lambda one: one.at_ms):
        while ended < len(by_end) and _end_ms(by_end[ended]) < one.at_ms:
            for partition, offset in by_end[ended].offsets.items():
                highest[partition] = max(highest.get(partition, 0), offset)
            ended += 1
        for partition, offset in one.offsets.items():
            if offset < highest.get(partition, 0):
                yield (
                    "commit backwards",
                    (
                        f"{one.member} committed offset {offset} of partition {partition} after "
                        f"{highest[partition]} was committed"
                    ),
                )


def _end_ms(commit: Committed) -> int:
    return commit.ended_ms if commit.ended_ms is not None else commit.at_ms
