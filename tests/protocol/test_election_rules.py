"""Elections and expired sessions: leader_election, silent_brokers (7.1, 7.2, 7.5)."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.cluster.observations import is_silent
from sparklog.protocol.rules import Rules


class Elected(NamedTuple):
    """A partition after the election."""

    leader: int | None
    leader_epoch: int
    isr: list[int]
    is_changed: bool
    is_unclean: bool = False


def elect(
    rules: Rules,
    replicas: list[int],
    *,
    isr: list[int],
    alive: list[int],
    leader: int | None = None,
    elr: tuple[int, ...] = (),
    stopping: tuple[int, ...] = (),
    unclean: bool = False,
    leader_is_valid: bool | None = None,
    epoch: int = 4,
) -> Elected:
    """Elect in leader epoch `epoch`; `replicas` are the assigned ones in their order."""
    rows = [
        {
            "topic_id": "t",
            "partition": 0,
            "broker_id": broker,
            "replica_index": index,
            "in_isr": broker in isr,
            "in_elr": broker in elr,
            "is_alive": broker in alive,
            "is_stopping": broker in stopping,
            "leader": leader,
            "leader_is_valid": leader in alive if leader_is_valid is None else leader_is_valid,
            "leader_epoch": epoch,
            "allows": "unclean" if unclean else "clean",
        }
        for index, broker in enumerate(replicas)
    ]
    found = rules.run("leader_election", replicas=rows)
    assert sorted(row["broker_id"] for row in found) == sorted(replicas)
    columns = ("leader", "leader_epoch", "is_changed", "is_unclean")
    [(leader, epoch, is_changed, is_unclean)] = {
        tuple(row[column] for column in columns) for row in found
    }
    new_isr = sorted(row["broker_id"] for row in found if row["in_isr"])
    return Elected(leader, epoch, new_isr, is_changed, is_unclean)


def test_a_valid_leader_stays(rules: Rules) -> None:
    """Rules 6.6, 7.5: an earlier assigned replica that has returned does not take over."""
    found = elect(rules, [2, 1, 0], isr=[0, 1, 2], alive=[0, 1, 2], leader=1)
    assert found == Elected(1, 4, [0, 1, 2], is_changed=False)


def test_the_first_assigned_replica_in_sync_and_alive_leads(rules: Rules) -> None:
    """Rule 7.5: the order is that of the assignment, not of the broker ids."""
    assert elect(rules, [2, 1, 0], isr=[0, 1, 2], alive=[0, 1], leader=2).leader == 1
    assert elect(rules, [2, 1, 0], isr=[0, 2], alive=[0, 1], leader=2).leader == 0
    assert elect(rules, [2, 0, 1], isr=[0, 1], alive=[0, 1], leader=2).leader == 0


def test_the_first_leader_of_a_new_topic_leads_in_epoch_0(rules: Rules) -> None:
    """Rules 6.1, 7.5: chosen as any other, a stopping broker last."""
    found = elect(rules, [2, 1, 0], isr=[0, 1], alive=[0, 1], epoch=-1)
    assert found == Elected(1, 0, [0, 1], is_changed=True)
    found = elect(rules, [2, 1, 0], isr=[0, 1, 2], alive=[0, 1, 2], stopping=(2,), epoch=-1)
    assert found == Elected(1, 0, [0, 1, 2], is_changed=True)
    assert elect(rules, [2, 1], isr=[2], alive=[2], stopping=(2,), epoch=-1).leader == 2


def test_losing_the_leader_to_another_raises_the_leader_epoch(rules: Rules) -> None:
    """Rules 6.1, 7.5; the ISR is changed by fencing, not by the election."""
    found = elect(rules, [0, 1], isr=[1], alive=[1], leader=0)
    assert found == Elected(1, 5, [1], is_changed=True)


def test_losing_the_leader_to_none_raises_the_leader_epoch(rules: Rules) -> None:
    """Rule 7.5: the partition is offline and keeps its ISR."""
    found = elect(rules, [0, 1], isr=[0], alive=[1], leader=0)
    assert found == Elected(None, 5, [0], is_changed=True)


def test_an_offline_partition_waits_without_raising_the_epoch_again(rules: Rules) -> None:
    """Rule 7.5: nothing changes until an ISR member is alive again."""
    found = elect(rules, [0, 1], isr=[0], alive=[1])
    assert found == Elected(None, 4, [0], is_changed=False)
    found = elect(rules, [0, 1], isr=[0], alive=[0, 1])
    assert found == Elected(0, 5, [0], is_changed=True)


def test_a_broker_that_registered_again_is_elected_again(rules: Rules) -> None:
    """Rule 7.2: the same broker may be elected, but in a new leader epoch."""
    found = elect(rules, [0, 1], isr=[0, 1], alive=[0, 1], leader=0, leader_is_valid=False)
    assert found == Elected(0, 5, [0, 1], is_changed=True)


def test_an_unclean_election_needs_to_be_allowed(rules: Rules) -> None:
    """Rule 7.5 (unclean.leader.election.enable): its log becomes authoritative, so it is the only
    ISR member.
    """
    assert elect(rules, [0, 1, 2], isr=[0], alive=[1, 2]).leader is None
    found = elect(rules, [0, 2, 1], isr=[0], alive=[1, 2], unclean=True)
    assert found == Elected(2, 5, [2], is_changed=True, is_unclean=True)


def test_an_unclean_election_still_prefers_who_is_in_sync(rules: Rules) -> None:
    """Rule 7.5: no record is lost unless no in-sync replica is alive."""
    found = elect(rules, [0, 1, 2], isr=[0, 2], alive=[1, 2], leader=0, unclean=True)
    assert found == Elected(2, 5, [0, 2], is_changed=True)


def test_an_unclean_election_takes_no_leader_away(rules: Rules) -> None:
    """Rule 7.5: a valid leader stays, also if an unclean election is allowed."""
    found = elect(rules, [0, 1], isr=[1], alive=[0, 1], leader=1, unclean=True)
    assert found == Elected(1, 4, [1], is_changed=False)


def test_with_nobody_alive_there_is_no_leader(rules: Rules) -> None:
    """Rule 7.5: also if an unclean election is allowed."""
    found = elect(rules, [0, 1], isr=[0], alive=[], leader=0, unclean=True)
    assert found == Elected(None, 5, [0], is_changed=True)


def test_an_eligible_replica_comes_after_those_in_sync_and_before_unclean_ones(
    rules: Rules,
) -> None:
    """Rule 7.5 (KIP-966): it has all committed records, so no permission is needed."""
    assert elect(rules, [0, 1, 2], isr=[2], alive=[1, 2], elr=(1,), leader=0).leader == 2
    for unclean in (False, True):
        found = elect(rules, [0, 1, 2], isr=[0], alive=[1, 2], elr=(2,), unclean=unclean)
        assert found == Elected(2, 5, [2], is_changed=True)


def test_a_fenced_eligible_replica_is_not_elected(rules: Rules) -> None:
    """Rule 7.5: it is elected once it is unfenced."""
    assert elect(rules, [0, 1, 2], isr=[0], alive=[1], elr=(2,)).leader is None


def test_an_unclean_election_says_so(rules: Rules) -> None:
    """Rule 7.5: no replica is eligible afterwards, which `eligible_replicas` decides."""
    found = elect(rules, [0, 1, 2], isr=[0], alive=[1], elr=(2,), unclean=True)
    assert found == Elected(1, 5, [1], is_changed=True, is_unclean=True)


def test_a_stopping_leader_hands_over_within_the_in_sync_set(rules: Rules) -> None:
    """Rule 7.2: the first assigned in-sync replica that is not stopping becomes the leader."""
    everyone = [0, 1, 2]
    found = elect(rules, everyone, isr=everyone, alive=everyone, leader=0, stopping=(0,))
    assert found == Elected(1, 5, everyone, is_changed=True)
    found = elect(rules, everyone, isr=everyone, alive=everyone, leader=0, stopping=(0, 1))
    assert found == Elected(2, 5, everyone, is_changed=True)


@pytest.mark.parametrize(
    ("isr", "alive", "elr", "stopping", "unclean"),
    [
        pytest.param([0], [0, 1, 2], (), (0,), True, id="nobody else is in sync"),
        pytest.param([0], [0, 1, 2], (1,), (0,), False, id="another one is eligible only"),
        pytest.param([0, 1], [0, 2], (), (0,), False, id="the other one is not alive"),
        pytest.param([0, 1], [0, 1, 2], (), (0, 1), False, id="the other one stops, too"),
        pytest.param([0, 1], [0, 1, 2], (), (1,), False, id="it is another one that stops"),
    ],
)
def test_a_stopping_leader_leads_on_where_it_cannot_hand_over(
    rules: Rules,
    isr: list[int],
    alive: list[int],
    elr: tuple[int, ...],
    stopping: tuple[int, ...],
    unclean: bool,
) -> None:
    """Rule 7.2: a planned stop costs neither records nor time without a leader."""
    found = elect(
        rules,
        [0, 1, 2],
        isr=isr,
        alive=alive,
        elr=elr,
        stopping=stopping,
        unclean=unclean,
        leader=0,
    )
    assert found == Elected(0, 4, isr, is_changed=False)


def test_a_stopping_replica_in_sync_leads_before_an_eligible_one(rules: Rules) -> None:
    """Rules 7.2, 7.5: it comes after all other in-sync replicas, and the ISR is kept."""
    found = elect(rules, [0, 1, 2], isr=[0, 1, 2], alive=[1, 2], leader=0, stopping=(1,))
    assert found == Elected(2, 5, [0, 1, 2], is_changed=True)
    found = elect(rules, [0, 1, 2], isr=[1], alive=[1, 2], elr=(2,), leader=0, stopping=(1,))
    assert found == Elected(1, 5, [1], is_changed=True)


def test_a_stopping_broker_that_registered_again_is_elected_again(rules: Rules) -> None:
    """Rule 7.2: otherwise the partition would have no leader."""
    found = elect(rules, [0, 1], isr=[0], alive=[0], leader=0, leader_is_valid=False, stopping=(0,))
    assert found == Elected(0, 5, [0], is_changed=True)


def test_every_partition_gets_its_own_leader(rules: Rules) -> None:
    """One query elects for all partitions; one broker may lead some of them and not others."""
    rows = [
        {
            "topic_id": topic,
            "partition": partition,
            "broker_id": broker,
            "replica_index": index,
            "in_isr": True,
            "in_elr": False,
            "is_alive": broker != 0,
            "is_stopping": False,
            "leader": replicas[0],
            "leader_is_valid": replicas[0] != 0,
            "leader_epoch": epoch,
            "allows": "clean",
        }
        for topic, partition, replicas, epoch in (
            ("t", 0, [0, 1, 2], 3),
            ("t", 1, [2, 0, 1], 5),
            ("u", 0, [0, 2, 1], 7),
        )
        for index, broker in enumerate(replicas)
    ]
    leaders = {
        (row["topic_id"], row["partition"]): (row["leader"], row["leader_epoch"])
        for row in rules.run("leader_election", replicas=rows)
    }
    assert leaders == {("t", 0): (1, 4), ("t", 1): (2, 5), ("u", 0): (2, 8)}


@pytest.mark.parametrize(
    ("state", "silent_ms", "is_fenced"),
    [
        ("alive", 9_001, True),
        ("alive", 9_000, False),
        ("stopping", 9_001, True),
        ("parked", 60_000, False),
        ("parked", 60_001, True),
        ("fenced", 60_001, False),
        ("stopped", 60_001, False),
    ],
)
def test_a_broker_is_fenced_when_its_session_has_run_out(
    rules: Rules, state: str, silent_ms: int, is_fenced: bool
) -> None:
    """Rules 7.1, 7.2: broker.session.timeout.ms after the observer first read its row's last
    change.

    A parked broker has parked.session.timeout.ms.
    """
    row = {
        "broker_id": 3,
        "state": state,
        "last_changed_ms": 50_000,
        "now_ms": 50_000 + silent_ms,
        "session_timeout_ms": 9_000,
        "parked_at_ms": 1_000_000 if state == "parked" else None,
        "wall_clock_ms": 1_000_000 + silent_ms,
        "parked_session_timeout_ms": 60_000,
    }
    assert rules.run("silent_brokers", brokers=[row]) == ([{"broker_id": 3}] if is_fenced else [])


@settings(max_examples=100, deadline=None)
@given(
    state=st.sampled_from(["alive", "stopping", "parked"]),
    times=st.tuples(*[st.integers(0, 9)] * 5),
    parked_at_ms=st.none() | st.integers(0, 9),
)
def test_the_rule_and_the_sessions_of_others_end_at_the_same_moment(
    rules: Rules, state: str, times: tuple[int, ...], parked_at_ms: int | None
) -> None:
    """Rule 7.1: leases, group members and unfinished topics go by `is_silent`."""
    last_changed_ms, now_ms, wall_clock_ms, session_ms, parked_session_ms = times
    row = {
        "broker_id": 3,
        "state": state,
        "last_changed_ms": last_changed_ms,
        "now_ms": now_ms,
        "session_timeout_ms": session_ms,
        "parked_at_ms": parked_at_ms,
        "wall_clock_ms": wall_clock_ms,
        "parked_session_timeout_ms": parked_session_ms,
    }
    if state != "parked":
        expected = is_silent(now_ms, since_ms=last_changed_ms, timeout_ms=session_ms)
    elif parked_at_ms is None:
        expected = is_silent(now_ms, since_ms=last_changed_ms, timeout_ms=parked_session_ms)
    else:
        expected = is_silent(wall_clock_ms, since_ms=parked_at_ms, timeout_ms=parked_session_ms)
    assert bool(rules.run("silent_brokers", brokers=[row])) == expected
