"""Preferred leaders: preferred_election, leader_imbalance (7.6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.protocol.rules import Rules


@pytest.mark.parametrize(
    ("preferred", "leader", "is_given_back"),
    [
        pytest.param({}, 1, True, id="in sync, alive, and another one leads"),
        pytest.param({}, None, True, id="or nobody does"),
        pytest.param({}, 0, False, id="it leads already"),
        pytest.param({"in_isr": False}, 1, False, id="it is not in sync"),
        pytest.param({"is_alive": False}, 1, False, id="it is not alive"),
        pytest.param({"is_stopping": True}, 1, False, id="it is about to stop"),
        pytest.param({"is_stopping": True}, None, False, id="also where nobody leads"),
    ],
)
def test_the_preferred_replica_gets_its_leadership_back(
    rules: Rules, preferred: dict[str, bool], leader: int | None, is_given_back: bool
) -> None:
    """Rule 7.6: only without the risk of losing records, which an unclean election would have."""
    replicas = [
        {
            "topic_id": "t",
            "partition": 0,
            "broker_id": broker,
            "replica_index": broker,
            "in_isr": True,
            "is_alive": True,
            "is_stopping": False,
            "leader": leader,
        }
        for broker in (1, 0, 2)
    ]
    replicas[1] |= preferred
    expected = [{"topic_id": "t", "partition": 0, "leader": 0}] if is_given_back else []
    assert rules.run("preferred_election", replicas=replicas) == expected


Assigned = Sequence[tuple[Sequence[int], int | None]]
"""For each partition the assigned brokers, the preferred one first, and the leader."""


def imbalanced(rules: Rules, assigned: Assigned, max_percentage: int = 10) -> set[int]:
    """Return the numbers of the partitions whose preferred replica is to be elected."""
    rows: list[dict[str, Any]] = [
        {
            "topic_id": "t",
            "partition": partition,
            "broker_id": broker,
            "replica_index": index,
            "leader": leader,
            "max_percentage": max_percentage,
        }
        for partition, (replicas, leader) in enumerate(assigned)
        for index, broker in enumerate(replicas)
    ]
    found = rules.run("leader_imbalance", replicas=rows)
    assert len({row["partition"] for row in found}) == len(found)
    return {row["partition"] for row in found}


def test_a_broker_that_lacks_more_than_its_percentage_gets_all_of_it_back(rules: Rules) -> None:
    """Rule 7.6: Kafka compares the broker's share of partitions that it is preferred for and does
    not lead.
    """
    of_ten = [([0, 1], 0)] * 8 + [([0, 1], 1)] * 2
    assert imbalanced(rules, of_ten, 10) == {8, 9}
    assert imbalanced(rules, of_ten, 19) == {8, 9}


def test_a_broker_that_lacks_just_its_percentage_is_left_alone(rules: Rules) -> None:
    """Rule 7.6: it must exceed it."""
    of_ten = [([0, 1], 0)] * 9 + [([0, 1], 1)]
    assert imbalanced(rules, of_ten, 10) == set()
    assert imbalanced(rules, of_ten, 9) == {9}


def test_a_broker_is_judged_by_what_it_is_preferred_for(rules: Rules) -> None:
    """Rule 7.6: neither the partitions that it leads nor the other brokers' shares count."""
    assigned = [([0, 1], 0), ([1, 0], 0), ([2, 0], 2), ([2, 0], 2)]
    assert imbalanced(rules, assigned) == {1}


def test_a_partition_without_leader_counts_as_not_led(rules: Rules) -> None:
    """Rule 7.6: a null leader counts as another leader, on both engines."""
    assert imbalanced(rules, [([0, 1], None), ([0, 1], 0)]) == {0}


def test_with_zero_percent_every_partition_is_given_back(rules: Rules) -> None:
    """Rule 7.6: with 0 % one imbalanced partition of a hundred is enough."""
    assert imbalanced(rules, [([0, 1], 0)] * 99 + [([0, 1], 1)], 0) == {99}


def test_with_a_hundred_percent_nothing_is_given_back(rules: Rules) -> None:
    """Rule 7.6: with 100 % no partition changes its leader."""
    assert imbalanced(rules, [([0, 1], 1)], 100) == set()


BROKERS = st.permutations([0, 1, 2, 3])


@settings(max_examples=60, deadline=None)
@given(
    assigned=st.lists(st.tuples(BROKERS, st.none() | st.sampled_from([0, 1, 2, 3])), max_size=12),
    percentage=st.integers(0, 100),
)
def test_the_rule_is_what_kafka_computes_broker_by_broker(
    rules: Rules, assigned: Assigned, percentage: int
) -> None:
    """KafkaController.checkAndTriggerAutoLeaderRebalance, written again in Python."""
    of_broker: dict[int, list[int]] = defaultdict(list)
    for partition, (replicas, _) in enumerate(assigned):
        of_broker[replicas[0]].append(partition)
    expected: set[int] = set()
    for broker, partitions in of_broker.items():
        lacking = [number for number in partitions if assigned[number][1] != broker]
        if len(lacking) * 100 > percentage * len(partitions):
            expected |= set(lacking)
    assert imbalanced(rules, assigned, percentage) == expected
