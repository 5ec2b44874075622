"""Replicas that may lead although they are out of sync: eligible_replicas (7.5, KIP-966)."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.protocol.rules import Rules


def eligible(
    rules: Rules,
    replicas: Collection[int],
    *,
    before: Collection[int],
    isr: Collection[int],
    elr: Collection[int] = (),
    min_isr: int = 2,
    is_unclean: bool = False,
) -> set[int]:
    """Return the eligible replicas after the ISR has changed from `before` to `isr`."""
    rows = [
        {
            "topic_id": "t",
            "partition": 0,
            "broker_id": broker,
            "was_in_isr": broker in before,
            "in_isr": broker in isr,
            "in_elr": broker in elr,
            "is_unclean": is_unclean,
            "min_isr": min_isr,
        }
        for broker in replicas
    ]
    found = rules.run("eligible_replicas", replicas=rows)
    assert sorted(row["broker_id"] for row in found) == sorted(replicas)
    return {row["broker_id"] for row in found if row["in_elr"]}


def test_who_leaves_the_in_sync_set_below_min_isr_becomes_eligible(rules: Rules) -> None:
    """It has all committed records: below min.insync.replicas nothing more is committed (2.3)."""
    assert eligible(rules, [0, 1, 2], before=[0, 1], isr=[0]) == {1}
    assert eligible(rules, [0, 1, 2], before=[0, 1, 2], isr=[0]) == {1, 2}


def test_who_leaves_while_min_isr_remains_does_not(rules: Rules) -> None:
    """It lacks the records that are committed from then on."""
    assert eligible(rules, [0, 1, 2], before=[0, 1, 2], isr=[0, 1]) == set()


def test_who_is_eligible_stays_so_while_the_in_sync_set_is_below_min_isr(rules: Rules) -> None:
    """Other replicas may join and leave meanwhile."""
    assert eligible(rules, [0, 1, 2], before=[0, 1], isr=[0], elr=[2], min_isr=3) == {1, 2}
    assert eligible(rules, [0, 1, 2, 3], before=[0], isr=[0, 3], elr=[2], min_isr=3) == {2}


def test_reaching_min_isr_clears_the_eligible_ones(rules: Rules) -> None:
    """The next record is committed without them."""
    assert eligible(rules, [0, 1, 2], before=[0], isr=[0, 1], elr=[2]) == set()


def test_who_is_in_sync_is_not_eligible_besides(rules: Rules) -> None:
    """An elected eligible replica is no longer eligible; the members of the ISR that it replaces
    are.
    """
    assert eligible(rules, [0, 1, 2], before=[0], isr=[1], elr=[1]) == {0}


def test_an_election_by_the_in_sync_set_leaves_the_eligible_ones(rules: Rules) -> None:
    """They are cleared once the ISR reaches min.insync.replicas, and not by an election."""
    assert eligible(rules, [0, 1, 2], before=[1], isr=[1], elr=[2]) == {2}


def test_an_unclean_election_clears_the_eligible_ones(rules: Rules) -> None:
    """The leader's log is authoritative from then on, and theirs are not."""
    assert eligible(rules, [0, 1, 2], before=[0], isr=[1], elr=[2], is_unclean=True) == set()


def test_min_isr_is_at_most_the_number_of_replicas(rules: Rules) -> None:
    """Rule 2.3: otherwise a complete ISR would keep its eligible replicas forever."""
    assert eligible(rules, [0, 1], before=[0], isr=[0, 1], elr=[1], min_isr=5) == set()
    assert eligible(rules, [0, 1], before=[0, 1], isr=[0], min_isr=5) == {1}


def test_where_one_replica_is_enough_nobody_is_ever_eligible(rules: Rules) -> None:
    """Rule 2.3: the high watermark is never blocked then."""
    assert eligible(rules, [0, 1], before=[0, 1], isr=[0], elr=[1], min_isr=1) == set()


def test_an_in_sync_set_that_is_empty_leaves_its_members_eligible(rules: Rules) -> None:
    """Rule 7.2: a replica that lost its log leaves as the last one, and is then removed from the
    ELR.
    """
    assert eligible(rules, [0, 1, 2], before=[], isr=[], elr=[2]) == {2}


MEMBERS = st.sets(st.integers(0, 4))


@settings(max_examples=80, deadline=None)
@given(before=MEMBERS, isr=MEMBERS, elr=MEMBERS, min_isr=st.integers(1, 6), unclean=st.booleans())
def test_the_rule_in_terms_of_sets(
    rules: Rules, before: set[int], isr: set[int], elr: set[int], min_isr: int, unclean: bool
) -> None:
    """KIP-966: (in sync before, or eligible) without the in-sync ones, or empty."""
    is_cleared = unclean or len(isr) >= min(min_isr, 5)
    expected = set() if is_cleared else (before | elr) - isr
    found = eligible(
        rules, range(5), before=before, isr=isr, elr=elr, min_isr=min_isr, is_unclean=unclean
    )
    assert found == expected
