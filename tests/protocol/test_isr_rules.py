"""ISR membership: follower_progress, isr_shrink, isr_expand, isr_fence (1.3, 5.1, 5.2, 7.2)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from sparklog.protocol.rules import Rules

LAG_MS = 30_000
NOW_MS = 100_000


class Progress(NamedTuple):
    """The leader's state of a follower after its report."""

    log_end_offset: int | None
    previous_leader_log_end_offset: int | None
    previous_report_ms: int | None
    last_caught_up_ms: int | None


def progress(rules: Rules, **changes: Any) -> Progress:
    """Evaluate a follower's new row; it was at 7 of 10 a moment ago, and at 10 when the log ended
    there.
    """
    row = {
        "topic_id": "t",
        "partition": 0,
        "broker_id": 1,
        "leader_epoch": 4,
        "broker_epoch": 20,
        "reported_leader_epoch": 4,
        "reported_broker_epoch": 20,
        "reported_log_end_offset": 8,
        "is_new": True,
        "leader_log_end_offset": 12,
        "previous_leader_log_end_offset": 10,
        "previous_report_ms": NOW_MS - 500,
        "last_caught_up_ms": NOW_MS - 9_000,
        "now_ms": NOW_MS,
        **changes,
    }
    [found] = rules.run("follower_progress", followers=[row])
    assert (found["topic_id"], found["partition"], found["broker_id"]) == ("t", 0, 1)
    return Progress(*(found[name] for name in Progress._fields))


def test_a_report_moves_the_leaders_copy_of_the_position(rules: Rules) -> None:
    """Rules 1.3, 5.1: the position and the leader's time are stored; the follower still lags."""
    assert progress(rules) == Progress(8, 12, NOW_MS, NOW_MS - 9_000)


def test_at_the_leaders_end_it_is_caught_up_now(rules: Rules) -> None:
    """Rule 5.1."""
    assert progress(rules, reported_log_end_offset=12) == Progress(12, 12, NOW_MS, NOW_MS)


def test_at_what_was_the_leaders_end_it_was_caught_up_at_its_previous_report(rules: Rules) -> None:
    """Rule 5.1: under a steady load a follower never reaches the log end, but is always close to
    it.
    """
    assert progress(rules, reported_log_end_offset=10) == Progress(10, 12, NOW_MS, NOW_MS - 500)


def test_being_caught_up_never_moves_back(rules: Rules) -> None:
    """Rule 5.1: the later of the two times counts."""
    found = progress(rules, reported_log_end_offset=10, last_caught_up_ms=NOW_MS - 100)
    assert found.last_caught_up_ms == NOW_MS - 100


def test_a_first_report_may_leave_it_never_caught_up(rules: Rules) -> None:
    """Rule 5.1: a follower outside the ISR begins as never caught up."""
    never = dict.fromkeys(Progress._fields[1:])
    assert progress(rules, **never) == Progress(8, 12, NOW_MS, None)
    assert progress(rules, **never, reported_log_end_offset=12).last_caught_up_ms == NOW_MS


def test_an_unchanged_row_is_no_report(rules: Rules) -> None:
    """Rule 5.1: the position stays, but no time is stored, even at the leader's log end."""
    found = progress(rules, is_new=False, reported_log_end_offset=12)
    assert found == Progress(12, 10, NOW_MS - 500, NOW_MS - 9_000)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"reported_leader_epoch": 3}, id="under an older leader epoch"),
        pytest.param({"reported_leader_epoch": 5}, id="under a newer one: this leader is deposed"),
        pytest.param({"reported_leader_epoch": -1}, id="not agreed with any leader yet"),
        pytest.param({"reported_broker_epoch": 19}, id="by the broker's last process"),
        pytest.param({"reported_broker_epoch": 21}, id="by a process not known yet"),
        pytest.param(
            {
                "reported_leader_epoch": None,
                "reported_broker_epoch": None,
                "reported_log_end_offset": None,
                "is_new": False,
            },
            id="no row at all",
        ),
    ],
)
@pytest.mark.parametrize("reported", [8, 12])
def test_what_does_not_count_leaves_no_position_and_no_time(
    rules: Rules, change: dict[str, Any], reported: int
) -> None:
    """Rules 1.3, 6.4 (KIP-320, KIP-903): a position that an earlier process reported is dropped as
    well.

    A broker that lost its disk and returned between two polls of the leader must not count with its
    earlier position.
    """
    found = progress(rules, **{"reported_log_end_offset": reported, **change})
    assert found == Progress(None, 10, NOW_MS - 500, NOW_MS - 9_000)


def test_a_row_seen_before_its_process_was_known_counts_afterwards(rules: Rules) -> None:
    """Rule 1.3: the leader's metadata may be older than the follower's row, for one tick."""
    assert progress(rules, is_new=False).log_end_offset == 8


def shrunk(rules: Rules, *replicas: dict[str, Any]) -> list[int]:
    return sorted(row["broker_id"] for row in rules.run("isr_shrink", replicas=list(replicas)))


def member(broker_id: int, log_end_offset: int | None = 10, **changes: Any) -> dict[str, Any]:
    """Return an in-sync follower whose time has expired, unless it is at the leader's log end."""
    return {
        "topic_id": "t",
        "partition": 0,
        "broker_id": broker_id,
        "is_leader": False,
        "in_isr": True,
        "is_alive": True,
        "log_end_offset": log_end_offset,
        "leader_log_end_offset": 10,
        "last_caught_up_ms": NOW_MS - LAG_MS - 1,
        "now_ms": NOW_MS,
        "lag_time_max_ms": LAG_MS,
        "lag_max_messages": None,
        **changes,
    }


@pytest.mark.parametrize(
    ("replica", "leaves"),
    [
        pytest.param(member(1, 6), True, id="stuck: behind, and not caught up for too long"),
        pytest.param(member(1, None), True, id="never fetched from this leader"),
        pytest.param(member(1, 6, last_caught_up_ms=None), True, id="never once caught up"),
        pytest.param(
            member(1, 6, last_caught_up_ms=NOW_MS - LAG_MS), False, id="slow, but moving in time"
        ),
        pytest.param(
            member(1, None, last_caught_up_ms=NOW_MS), False, id="the new leader's first look"
        ),
        pytest.param(member(1, 10), False, id="at the leader's end, however long idle"),
        pytest.param(member(1, 11), True, id="beyond the leader's end is not at it"),
        pytest.param(member(1, 6, in_isr=False), False, id="outside already"),
        pytest.param(member(1, 6, is_leader=True), False, id="the leader itself"),
        pytest.param(member(1, 6, is_alive=False), True, id="fenced and behind"),
    ],
)
def test_a_follower_leaves_when_it_has_not_been_caught_up_for_too_long(
    rules: Rules, replica: dict[str, Any], leaves: bool
) -> None:
    """Rule 5.1, Kafka's IsrExpirationTest."""
    assert shrunk(rules, replica) == ([1] if leaves else [])


def test_lag_max_messages_is_the_old_criterion_and_off_by_default(rules: Rules) -> None:
    """Rule 5.1: a replica further behind leaves at once; one whose position is unknown stays."""
    in_time = {"last_caught_up_ms": NOW_MS}
    assert shrunk(rules, member(1, 6, **in_time)) == []
    assert shrunk(rules, member(1, 6, lag_max_messages=4, **in_time)) == []
    assert shrunk(rules, member(1, 6, lag_max_messages=3, **in_time)) == [1]
    assert shrunk(rules, member(1, None, lag_max_messages=3, **in_time)) == []


def test_several_may_leave_several_partitions_at_once(rules: Rules) -> None:
    """One query over all partitions that the broker leads."""
    replicas = [member(0, is_leader=True), member(1, 6), member(2, 6), member(1, 6, partition=1)]
    found = rules.run("isr_shrink", replicas=replicas)
    left = sorted((row["partition"], row["broker_id"]) for row in found)
    assert left == [(0, 1), (0, 2), (1, 1)]


def candidate(**changes: Any) -> dict[str, Any]:
    """Return a follower that may join."""
    return {
        "topic_id": "t",
        "partition": 0,
        "broker_id": 1,
        "in_isr": False,
        "is_alive": True,
        "log_end_offset": 8,
        "leader_log_end_offset": 12,
        "high_watermark": 8,
        "epoch_start_offset": 8,
        "previous_report_ms": NOW_MS - LAG_MS,
        "now_ms": NOW_MS,
        "lag_time_max_ms": LAG_MS,
        "lag_max_messages": None,
        **changes,
    }


def test_a_follower_joins_at_the_high_watermark_and_the_epochs_start(rules: Rules) -> None:
    """Rule 5.2: it need not have reached the leader's log end."""
    expected = {"topic_id": "t", "partition": 0, "broker_id": 1}
    assert rules.run("isr_expand", replicas=[candidate()]) == [expected]


def test_a_follower_joins_within_lag_max_messages(rules: Rules) -> None:
    """Rule 5.2: a lag of exactly the limit counts as within; a follower that 5.1 removes never
    joins.
    """
    assert len(rules.run("isr_expand", replicas=[candidate(lag_max_messages=4)])) == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"in_isr": True}, id="it is in already"),
        pytest.param({"is_alive": False}, id="its broker is fenced (KIP-841)"),
        pytest.param({"log_end_offset": 7}, id="it is below high watermark and epoch start"),
        pytest.param({"high_watermark": 9}, id="it is below the high watermark"),
        pytest.param({"epoch_start_offset": 9}, id="it is below the epoch's start"),
        pytest.param({"log_end_offset": None}, id="no report in this epoch and broker epoch"),
        pytest.param({"previous_report_ms": NOW_MS - LAG_MS - 1}, id="its report is too old"),
        pytest.param({"previous_report_ms": None}, id="it has never reported"),
        pytest.param({"lag_max_messages": 3}, id="it is further behind than lag.max.messages"),
    ],
)
def test_a_follower_does_not_join_when(rules: Rules, change: dict[str, Any]) -> None:
    """Rule 5.2, each condition negated once; if an epoch is wrong (KIP-903), the position is
    null.
    """
    assert rules.run("isr_expand", replicas=[candidate(**change)]) == []


def fenced(rules: Rules, *replicas: tuple[int, bool, bool]) -> list[int]:
    """Run isr_fence over (broker, in the in-sync set, alive)."""
    rows = [
        {"topic_id": "t", "partition": 0, "broker_id": one, "in_isr": in_isr, "is_alive": is_alive}
        for one, in_isr, is_alive in replicas
    ]
    return sorted(row["broker_id"] for row in rules.run("isr_fence", replicas=rows))


def test_fenced_brokers_leave_where_others_remain(rules: Rules) -> None:
    """Rule 7.2: one or several, leader or not."""
    assert fenced(rules, (0, True, False), (1, True, True), (2, True, True)) == [0]
    assert fenced(rules, (0, True, False), (1, True, False), (2, True, True)) == [0, 1]


def test_the_last_in_sync_replicas_stay_though_fenced(rules: Rules) -> None:
    """Rule 7.2: if no member would remain, the ISR is unchanged; a live outsider does not count."""
    assert fenced(rules, (0, True, False)) == []
    assert fenced(rules, (0, True, False), (1, True, False), (2, False, True)) == []


def test_who_lives_or_is_out_already_does_not_leave(rules: Rules) -> None:
    """Rule 7.2."""
    assert fenced(rules, (0, True, True), (1, True, True), (2, False, False)) == []
