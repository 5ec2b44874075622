"""A follower's fetches and its high watermark: fetch, follower_high_watermark (2.5, 6.3)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.protocol.rules import Rules

PARTITION = {"topic_id": "t", "partition": 0}


class Batch(NamedTuple):
    """A batch of the leader's log."""

    base_offset: int
    records: int
    leader_epoch: int = 0
    size_bytes: int = 10
    partition: int = 0

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.records

    def row(self) -> dict[str, Any]:
        return {
            "topic_id": "t",
            "partition": self.partition,
            "path": f"{self.partition}/{self.base_offset}",
            "base_offset": self.base_offset,
            "last_offset_delta": self.records - 1,
            "leader_epoch": self.leader_epoch,
            "size_bytes": self.size_bytes,
        }


def position(fetch_offset: int, last_fetched_epoch: int | None, **changes: int) -> dict[str, Any]:
    return {
        **PARTITION,
        "fetch_offset": fetch_offset,
        "last_fetched_epoch": last_fetched_epoch,
        "leader_epoch": 9,
        "max_bytes": 1000,
        "max_total_bytes": 1000,
        "last_served": 0,
        **changes,
    }


def fetch(
    rules: Rules, positions: dict[str, Any] | list[dict[str, Any]], batches: list[Batch]
) -> list[tuple[int, int]]:
    """Return (partition, base offset) of the fetched batches, in their order."""
    found = rules.run(
        "fetch",
        positions=positions if isinstance(positions, list) else [positions],
        batches=[batch.row() for batch in batches],
    )
    assert all(row["path"] == f"{row['partition']}/{row['base_offset']}" for row in found)
    return [(row["partition"], row["base_offset"]) for row in found]


def bases(rules: Rules, of: dict[str, Any], batches: list[Batch]) -> list[int]:
    return [base for _, base in fetch(rules, of, batches)]


THREE = [Batch(0, 2), Batch(2, 2), Batch(4, 1)]


@pytest.mark.parametrize(
    ("offset", "given_bases"), [(0, [0, 2, 4]), (2, [2, 4]), (4, [4]), (5, []), (7, [])]
)
def test_a_follower_is_given_the_batches_at_or_after_its_position(
    rules: Rules, offset: int, given_bases: list[int]
) -> None:
    """Rule 6.3: in order of offset; no batch at or above the leader's log end."""
    assert bases(rules, position(offset, 0 if offset else None), THREE) == given_bases


def test_a_batch_that_straddles_the_position_is_marked(rules: Rules) -> None:
    """Rule 6.3: it begins before the position, for example after merging, and has to be sliced."""
    found = rules.run("fetch", positions=[position(3, 0)], batches=[batch.row() for batch in THREE])
    assert [(row["base_offset"], row["straddles"]) for row in found] == [(2, True), (4, False)]


def test_a_diverged_follower_is_given_nothing(rules: Rules) -> None:
    """Rule 6.4: the batch before the position must have the follower's last epoch; otherwise rule
    6.3.
    """
    log = [Batch(0, 2, 0), Batch(2, 2, 2), Batch(4, 2, 2)]
    assert bases(rules, position(4, 2), log) == [4]
    assert bases(rules, position(4, 1), log) == []
    assert bases(rules, position(4, 3), log) == []
    assert bases(rules, position(2, 0), log) == [2, 4]
    assert bases(rules, position(2, 2), log) == []


def test_a_straddling_batch_is_checked_like_the_one_before_the_position(rules: Rules) -> None:
    """Rule 6.4: its records before the position are also the follower's, or the logs have
    diverged.
    """
    assert bases(rules, position(3, 1), [Batch(0, 2, 0), Batch(2, 4, 1)]) == [2]
    assert bases(rules, position(3, 0), [Batch(0, 2, 0), Batch(2, 4, 1)]) == []


def test_a_follower_without_records_has_no_last_epoch(rules: Rules) -> None:
    """Rule 6.7: it restarted at the leader's log start offset, which may be in the middle of a
    batch.
    """
    assert bases(rules, position(3, None), [Batch(2, 4, 1), Batch(6, 1, 1)]) == [2, 6]


def test_one_diverged_partition_does_not_stop_another(rules: Rules) -> None:
    """Each partition is decided independently."""
    log = [Batch(0, 2, 1), Batch(2, 2, 1), Batch(0, 2, 1, 10, 1), Batch(2, 2, 1, 10, 1)]
    of = [position(2, 0), position(2, 1, partition=1)]
    assert fetch(rules, of, log) == [(1, 2)]


def test_batches_of_a_higher_epoch_are_never_given(rules: Rules) -> None:
    """Rule 6.4: the log may have been extended under a leader that the follower does not know."""
    log = [Batch(0, 2, 0), Batch(2, 2, 3), Batch(4, 2, 4)]
    assert bases(rules, position(0, None, leader_epoch=3), log) == [0, 2]
    assert bases(rules, position(0, None, leader_epoch=2), log) == [0]
    assert bases(rules, position(2, 0, leader_epoch=2), log) == []


def test_a_position_before_the_leaders_log_is_given_nothing(rules: Rules) -> None:
    """Rules 6.7, 9.5: a batch that begins after the position would leave a gap."""
    assert bases(rules, position(3, 0), [Batch(4, 2), Batch(6, 2)]) == []
    assert bases(rules, position(0, None), [Batch(4, 2)]) == []


def test_bytes_bound_each_partition_but_one_batch_is_always_given(rules: Rules) -> None:
    """Rule 6.3: replica.fetch.max.bytes; a batch larger than that is still fetched."""
    log = [Batch(0, 1, 0, 40), Batch(1, 1, 0, 40), Batch(2, 1, 0, 1)]
    assert bases(rules, position(0, None, max_bytes=81), log) == [0, 1, 2]
    assert bases(rules, position(0, None, max_bytes=80), log) == [0, 1]
    assert bases(rules, position(0, None, max_bytes=79), log) == [0]
    assert bases(rules, position(0, None, max_bytes=1), log) == [0]


def test_bytes_bound_the_tick_in_turns(rules: Rules) -> None:
    """First batches precede second ones, so that the backlog of one partition does not starve the
    others.
    """
    log = [Batch(base, 1, 0, 10, partition) for partition in (0, 1) for base in (0, 1)]

    def given_within(total: int) -> list[tuple[int, int]]:
        of = [position(0, None, partition=one, max_total_bytes=total) for one in (0, 1)]
        return fetch(rules, of, log)

    assert given_within(40) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert given_within(30) == [(0, 0), (0, 1), (1, 0)]
    assert given_within(20) == [(0, 0), (1, 0)]
    assert given_within(19) == [(0, 0)]
    assert given_within(1) == [(0, 0)]


def test_the_turn_goes_to_those_served_longest_ago(rules: Rules) -> None:
    """Otherwise the first partitions could starve the last ones as long as they have new
    batches.
    """
    log = [Batch(base, 1, 0, 10, partition) for partition in range(3) for base in (0, 1)]
    served = {0: 7, 1: 5, 2: 7}

    def given_within(total: int) -> list[tuple[int, int]]:
        of = [
            position(0, None, partition=one, max_total_bytes=total, last_served=last)
            for one, last in served.items()
        ]
        return fetch(rules, of, log)

    assert given_within(1) == [(1, 0)]
    assert given_within(20) == [(0, 0), (1, 0)]
    assert given_within(40) == [(0, 0), (1, 0), (1, 1), (2, 0)]


@settings(max_examples=30, deadline=None)
@given(
    log=st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(1, 30)), max_size=8),
    max_bytes=st.integers(1, 60),
    max_total_bytes=st.integers(1, 60),
)
def test_fetching_until_nothing_is_given_copies_the_whole_log(
    rules: Rules, log: list[tuple[int, bool, int]], max_bytes: int, max_total_bytes: int
) -> None:
    """Rule 9.5: for any limits, every fetch continues where the previous one ended, without a
    gap.
    """
    batches: list[Batch] = []
    end, epoch = 0, 0
    for records, is_new_epoch, size in log:
        epoch += is_new_epoch
        batches.append(Batch(end, records, epoch, size))
        end += records
    by_base = {batch.base_offset: batch for batch in batches}
    copied: list[Batch] = []
    while True:
        offset = copied[-1].next_offset if copied else 0
        of = position(
            offset,
            copied[-1].leader_epoch if copied else None,
            max_bytes=max_bytes,
            max_total_bytes=max_total_bytes,
        )
        found = bases(rules, of, batches)
        if not found:
            break
        copied += [by_base[base] for base in found]
    assert copied == batches


@pytest.mark.parametrize(
    ("own", "leaders", "own_end", "expected"),
    [(0, 7, 5, 5), (0, 3, 5, 3), (0, 5, 5, 5), (4, 3, 5, 4), (4, 7, 5, 5)],
)
def test_a_followers_high_watermark(
    rules: Rules, own: int, leaders: int, own_end: int, expected: int
) -> None:
    """Rule 2.5: the leader's as fetched, limited by the follower's log end, and never lower
    (9.3).
    """
    followed = PARTITION | {
        "high_watermark": own,
        "leader_high_watermark": leaders,
        "log_end_offset": own_end,
    }
    [row] = rules.run("follower_high_watermark", followed=[followed])
    assert row == PARTITION | {"high_watermark": expected}
