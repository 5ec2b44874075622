"""The leader's high watermark and visible offsets: high_watermark, visible_offsets (2.1-2.6)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.protocol.rules import Rules

LAG_MS = 30_000
NOW_MS = 100_000


def leader(log_end_offset: int = 10, **changes: Any) -> dict[str, Any]:
    return follower(log_end_offset, **{"last_caught_up_ms": NOW_MS, **changes})


def follower(log_end_offset: int | None, **changes: Any) -> dict[str, Any]:
    """Return an in-sync follower that keeps up."""
    return {
        "topic_id": "t",
        "partition": 0,
        "high_watermark": 3,
        "min_isr": 1,
        "in_isr": True,
        "in_proposed_isr": False,
        "is_alive": True,
        "log_end_offset": log_end_offset,
        "leader_log_end_offset": 10,
        "last_caught_up_ms": NOW_MS,
        "now_ms": NOW_MS,
        "lag_time_max_ms": LAG_MS,
        "lag_max_messages": None,
        **changes,
    }


def outsider(log_end_offset: int | None, **changes: Any) -> dict[str, Any]:
    """Return a follower outside the in-sync set that keeps up."""
    return follower(log_end_offset, **{"in_isr": False, **changes})


def high_watermark(rules: Rules, *replicas: dict[str, Any]) -> int:
    [row] = rules.run("high_watermark", replicas=list(replicas))
    assert (row["topic_id"], row["partition"]) == ("t", 0)
    return int(row["high_watermark"])


def test_it_is_the_least_log_end_of_the_in_sync_replicas(rules: Rules) -> None:
    """Rule 2.1, including the leader's own log end."""
    assert high_watermark(rules, leader(), follower(8), follower(6)) == 6
    assert high_watermark(rules, leader(), follower(10), follower(10)) == 10


def test_alone_in_the_isr_the_leader_moves_it_at_once(rules: Rules) -> None:
    """Rule 2.2."""
    assert high_watermark(rules, leader()) == 10


def test_it_never_moves_back(rules: Rules) -> None:
    """Rule 2.1: a leader may know lower log ends of its followers than were committed before."""
    assert high_watermark(rules, leader(), follower(2)) == 3


def test_an_in_sync_replica_that_has_not_reported_in_this_epoch_blocks_it(rules: Rules) -> None:
    """Rule 2.1: for any positions of the others, alive or not."""
    assert high_watermark(rules, leader(), follower(10), follower(None)) == 3
    assert high_watermark(rules, leader(), follower(None, is_alive=False)) == 3


def test_an_outsider_that_has_not_reported_does_not_block_it(rules: Rules) -> None:
    """Rule 2.1: it is not about to join."""
    assert high_watermark(rules, leader(), follower(8), outsider(None)) == 8


def test_a_replica_about_to_join_holds_it_back(rules: Rules) -> None:
    """Rule 2.1: otherwise it could stay ahead of the joining replica forever."""
    assert high_watermark(rules, leader(), follower(8), outsider(6)) == 6


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"is_alive": False}, id="fenced"),
        pytest.param({"log_end_offset": None}, id="not reported in this epoch and broker epoch"),
        pytest.param({"last_caught_up_ms": NOW_MS - LAG_MS - 1}, id="not caught up for too long"),
        pytest.param({"last_caught_up_ms": None}, id="never caught up"),
    ],
)
def test_a_replica_that_cannot_join_does_not_hold_it_back(
    rules: Rules, change: dict[str, Any]
) -> None:
    """Rule 2.1: not fenced, current broker epoch, reported, caught up; each condition negated
    once.
    """
    assert high_watermark(rules, leader(), follower(8), outsider(6)) == 6
    assert high_watermark(rules, leader(), follower(8), outsider(6) | change) == 8


def test_caught_up_within_the_lag_time_counts_to_the_last_millisecond(rules: Rules) -> None:
    """Rule 2.1: a lag of exactly replica.lag.time.max.ms counts as caught up."""
    one = outsider(6, last_caught_up_ms=NOW_MS - LAG_MS)
    assert high_watermark(rules, leader(), follower(8), one) == 6


def test_a_replica_beyond_lag_max_messages_does_not_hold_it_back(rules: Rules) -> None:
    """Rule 2.1: it cannot join (5.2). An ISR member holds the high watermark back until it
    leaves.
    """
    within = {"lag_max_messages": 4}
    assert high_watermark(rules, leader(**within), outsider(6, **within)) == 6
    assert high_watermark(rules, leader(**within), outsider(5, **within)) == 10
    assert high_watermark(rules, leader(**within), follower(5, **within)) == 5


def test_under_min_isr_it_stands_still(rules: Rules) -> None:
    """Rule 2.3 (KIP-966): also if the only in-sync replica has all records."""
    lone = [leader(min_isr=2), outsider(10, min_isr=2, is_alive=False)]
    assert high_watermark(rules, *lone) == 3
    assert high_watermark(rules, *(one | {"min_isr": 1} for one in lone)) == 10


def test_min_isr_is_at_most_the_number_of_replicas(rules: Rules) -> None:
    """Rule 2.3: min.insync.replicas 3 of two replicas means two."""
    assert high_watermark(rules, leader(min_isr=3), follower(8, min_isr=3)) == 8
    assert high_watermark(rules, leader(min_isr=3), outsider(8, min_isr=3)) == 3


def test_while_an_isr_change_is_in_flight_the_old_and_the_new_set_bind(rules: Rules) -> None:
    """Rule 2.4 (KIP-497): for shrinking the leaving replica counts, for expanding the joining
    one.
    """
    leaving = [leader(in_proposed_isr=True), follower(6)]
    assert high_watermark(rules, *leaving) == 6
    joining = [leader(in_proposed_isr=True), outsider(6, in_proposed_isr=True, is_alive=False)]
    assert high_watermark(rules, *joining) == 6
    joining[1]["log_end_offset"] = None
    assert high_watermark(rules, *joining) == 3


def test_a_proposed_replica_does_not_count_for_min_isr(rules: Rules) -> None:
    """Rules 2.3, 2.4: until the change is known to have landed, the old ISR applies."""
    joining = outsider(10, in_proposed_isr=True, min_isr=2)
    assert high_watermark(rules, leader(in_proposed_isr=True, min_isr=2), joining) == 3


def test_partitions_are_judged_each_by_itself(rules: Rules) -> None:
    """One query computes it for every partition that the broker leads."""
    replicas = [
        one | {"partition": partition}
        for partition, end in ((0, 5), (1, None), (2, 9))
        for one in (leader(), follower(end))
    ]
    found = rules.run("high_watermark", replicas=replicas)
    assert {row["partition"]: row["high_watermark"] for row in found} == {0: 5, 1: 3, 2: 9}


@settings(max_examples=40, deadline=None)
@given(
    before=st.integers(0, 10),
    followers=st.lists(
        st.tuples(st.none() | st.integers(0, 10), st.booleans(), st.booleans(), st.booleans()),
        max_size=4,
    ),
    min_isr=st.integers(1, 4),
)
def test_it_never_passes_an_in_sync_replica(
    rules: Rules,
    before: int,
    followers: list[tuple[int | None, bool, bool, bool]],
    min_isr: int,
) -> None:
    """Rules 2.1, 2.3, 9.7: it never decreases, and covers only records that all members have."""
    replicas = [leader(), *(follower(end) for end, *_ in followers)]
    for one, (_, in_isr, in_proposed_isr, is_alive) in zip(replicas[1:], followers, strict=True):
        one |= {"in_isr": in_isr, "in_proposed_isr": in_proposed_isr, "is_alive": is_alive}
    for one in replicas:
        one |= {"high_watermark": before, "min_isr": min_isr}
    after = high_watermark(rules, *replicas)
    members = [one for one in replicas if one["in_isr"] or one["in_proposed_isr"]]
    assert before <= after
    if after > before:
        assert all((one["log_end_offset"] or 0) >= after for one in members)
        assert sum(one["in_isr"] for one in replicas) >= min(min_isr, len(replicas))


def visible(rules: Rules, **changes: Any) -> tuple[int, int, str | None, str | None]:
    """Return the start, the end, the error of a fetch, and the error of a request for the latest
    offset.
    """
    partition = {
        "topic_id": "t",
        "partition": 0,
        "leader": 1,
        "leader_epoch": 4,
        "is_as_elected": True,
        "reported_leader_epoch": 4,
        "high_watermark": 8,
        "log_start_offset": 2,
        "epoch_start_offset": 8,
        **changes,
    }
    [row] = rules.run("visible_offsets", partitions=[partition])
    return row["log_start_offset"], row["high_watermark"], row["error"], row["latest_error"]


def test_a_consumer_sees_the_records_below_the_high_watermark(rules: Rules) -> None:
    """Rule 2.6."""
    assert visible(rules) == (2, 8, None, None)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"reported_leader_epoch": 3}, id="the row is of an older epoch"),
        pytest.param({"reported_leader_epoch": 5}, id="the row is of a newer epoch"),
        pytest.param({"reported_leader_epoch": None}, id="there is no row yet"),
    ],
)
def test_a_leader_shows_nothing_before_its_first_tick_in_the_epoch(
    rules: Rules, change: dict[str, Any]
) -> None:
    """Rule 2.6: its row was written in another role."""
    assert visible(rules, **change)[2:] == ("OFFSET_NOT_AVAILABLE", "OFFSET_NOT_AVAILABLE")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"high_watermark": 7}, id="the high watermark is below the epoch's start"),
        pytest.param({"epoch_start_offset": None}, id="the epoch's start is unknown"),
    ],
)
def test_a_new_leader_serves_fetches_before_it_knows_the_latest_offset(
    rules: Rules, change: dict[str, Any]
) -> None:
    """Rules 2.6, 10.2 (KIP-207): "latest" never goes below visible records."""
    expected = change.get("high_watermark", 8)
    assert visible(rules, **change) == (2, expected, None, "OFFSET_NOT_AVAILABLE")


def test_an_offline_partition_shows_nothing(rules: Rules) -> None:
    """Rule 7.5: there is no leader; the last leader's row does not matter."""
    assert visible(rules, leader=None)[2:] == ("LEADER_NOT_AVAILABLE", "LEADER_NOT_AVAILABLE")


def test_a_new_topic_is_empty_before_its_leader_has_ticked(rules: Rules) -> None:
    """Its first leader has no records, which is not an error."""
    new = {
        "leader_epoch": 0,
        "reported_leader_epoch": None,
        "high_watermark": None,
        "log_start_offset": None,
        "epoch_start_offset": None,
    }
    assert visible(rules, **new) == (0, 0, None, None)
