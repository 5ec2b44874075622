"""Who leads, and who is silent: leader_election, silent_brokers (7.1, 7.2, 7.5)."""

from __future__ import annotations

from typing import NamedTuple

import pytest

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
) -> Elected:
    """Elect in leader epoch 4; `replicas` are the assigned ones in their order."""
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
            "leader_epoch": 4,
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
    """Rules 6.6, 7.5: an earlier assigned replica that came back does not take over."""
    found = elect(rules, [2, 1, 0], isr=[0, 1, 2], alive=[0, 1, 2], leader=1)
    assert found == Elected(1, 4, [0, 1, 2], is_changed=False)


def test_the_first_assigned_replica_in_sync_and_alive_leads(rules: Rules) -> None:
    """Rule 7.5: the order is that of the assignment, not of the broker ids."""
    assert elect(rules, [2, 1, 0], isr=[0, 1, 2], alive=[0, 1], leader=2).leader == 1
    assert elect(rules, [2, 1, 0], isr=[0, 2], alive=[0, 1], leader=2).leader == 0
    assert elect(rules, [2, 0, 1], isr=[0, 1], alive=[0, 1], leader=2).leader == 0


def test_losing_the_leader_to_another_raises_the_leader_epoch(rules: Rules) -> None:
    """Rules 6.1, 7.5; the in-sync set is the fencing's affair."""
    found = elect(rules, [0, 1], isr=[1], alive=[1], leader=0)
    assert found == Elected(1, 5, [1], is_changed=True)


def test_losing_the_leader_to_none_raises_the_leader_epoch(rules: Rules) -> None:
    """Rule 7.5: the partition is offline, its in-sync set kept."""
    found = elect(rules, [0, 1], isr=[0], alive=[1], leader=0)
    assert found == Elected(None, 5, [0], is_changed=True)


def test_an_offline_partition_waits_without_raising_the_epoch_again(rules: Rules) -> None:
    """Rule 7.5: nothing changes until an in-sync member is back."""
    found = elect(rules, [0, 1], isr=[0], alive=[1])
    assert found == Elected(None, 4, [0], is_changed=False)
    found = elect(rules, [0, 1], isr=[0], alive=[0, 1])
    assert found == Elected(0, 5, [0], is_changed=True)


def test_a_broker_that_registered_anew_is_elected_anew(rules: Rules) -> None:
    """Rule 7.2: possibly to itself, but in a new leader epoch."""
    found = elect(rules, [0, 1], isr=[0, 1], alive=[0, 1], leader=0, leader_is_valid=False)
    assert found == Elected(0, 5, [0, 1], is_changed=True)


def test_an_unclean_election_needs_to_be_allowed(rules: Rules) -> None:
    """Rule 7.5 (unclean.leader.election.enable): its records become the truth, so it is alone."""
    assert elect(rules, [0, 1, 2], isr=[0], alive=[1, 2]).leader is None
    found = elect(rules, [0, 2, 1], isr=[0], alive=[1, 2], unclean=True)
    assert found == Elected(2, 5, [2], is_changed=True, is_unclean=True)


def test_an_unclean_election_still_prefers_who_is_in_sync(rules: Rules) -> None:
    """Rule 7.5: no record is given up where it need not be."""
    found = elect(rules, [0, 1, 2], isr=[0, 2], alive=[1, 2], leader=0, unclean=True)
    assert found == Elected(2, 5, [0, 2], is_changed=True)


def test_an_unclean_election_takes_no_leader_away(rules: Rules) -> None:
    """Rule 7.5: a valid leader stays whatever is allowed."""
    found = elect(rules, [0, 1], isr=[1], alive=[0, 1], leader=1, unclean=True)
    assert found == Elected(1, 4, [1], is_changed=False)


def test_with_nobody_alive_there_is_no_leader(rules: Rules) -> None:
    """Rule 7.5: also where the election may be unclean."""
    found = elect(rules, [0, 1], isr=[0], alive=[], leader=0, unclean=True)
    assert found == Elected(None, 5, [0], is_changed=True)


def test_an_eligible_replica_comes_after_those_in_sync_and_before_unclean_ones(
    rules: Rules,
) -> None:
    """Rule 7.5 (KIP-966): it has all that was committed, so it is elected without leave."""
    assert elect(rules, [0, 1, 2], isr=[2], alive=[1, 2], elr=(1,), leader=0).leader == 2
    for unclean in (False, True):
        found = elect(rules, [0, 1, 2], isr=[0], alive=[1, 2], elr=(2,), unclean=unclean)
        assert found == Elected(2, 5, [2], is_changed=True)


def test_a_fenced_eligible_replica_is_not_elected(rules: Rules) -> None:
    """Rule 7.5: elected when unfenced."""
    assert elect(rules, [0, 1, 2], isr=[0], alive=[1], elr=(2,)).leader is None


def test_an_unclean_election_says_so(rules: Rules) -> None:
    """Rule 7.5: then nobody is eligible any more, which `eligible_replicas` decides."""
    found = elect(rules, [0, 1, 2], isr=[0], alive=[1], elr=(2,), unclean=True)
    assert found == Elected(1, 5, [1], is_changed=True, is_unclean=True)


def test_a_stopping_leader_hands_over_within_the_in_sync_set(rules: Rules) -> None:
    """Rule 7.2: to the first assigned one that is not about to stop as well."""
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
    """Rule 7.2: a planned stop costs no record and no time without a leader."""
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
    """Rules 7.2, 7.5: after all others in sync, and with its in-sync set."""
    found = elect(rules, [0, 1, 2], isr=[0, 1, 2], alive=[1, 2], leader=0, stopping=(1,))
    assert found == Elected(2, 5, [0, 1, 2], is_changed=True)
    found = elect(rules, [0, 1, 2], isr=[1], alive=[1, 2], elr=(2,), leader=0, stopping=(1,))
    assert found == Elected(1, 5, [1], is_changed=True)


def test_a_stopping_broker_that_registered_anew_is_elected_anew(rules: Rules) -> None:
    """Rule 7.2: rather than that nobody leads."""
    found = elect(rules, [0, 1], isr=[0], alive=[0], leader=0, leader_is_valid=False, stopping=(0,))
    assert found == Elected(0, 5, [0], is_changed=True)


def test_every_partition_gets_its_own_leader(rules: Rules) -> None:
    """One query elects for all; the same broker may lead one and not the other."""
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
    """Rules 7.1, 7.2: broker.session.timeout.ms since its row last changed, as observed here.

    A parked one has parked.session.timeout.ms.
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
