"""Stories that the state machine has found, each of which once violated an invariant."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.faulty_files import Kept
from tests.state_machine.checked_cluster import CheckedCluster

Start = Callable[..., CheckedCluster]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[CheckedCluster] = []

    def make(brokers: int, partitions: int, min_isr: int, *, syncs: bool = True) -> CheckedCluster:
        started.append(CheckedCluster(brokers, partitions, min_isr, syncs=syncs))
        return started[-1]

    yield make
    for cluster in started:
        cluster.close()


def test_a_first_leader_that_lost_its_root_does_not_show_an_empty_partition(start: Start) -> None:
    """It has no row, like the leader of a new topic, but consumers have read records (2.6, 9.3)."""
    cluster = start(2, 1, 2)
    cluster.produce(0, 3)
    cluster.tick_until_idle()
    cluster.lose_root(0)
    cluster.restart(0)
    cluster.consume(0)
    cluster.come_to_rest()


def test_a_client_goes_on_after_a_leaders_root_was_lost(start: Start) -> None:
    """The tables under the old names are new ones, once another broker has led and it leads
    again.
    """
    cluster = start(2, 1, 1)
    cluster.produce(0, 1)
    cluster.tick_until_idle()
    cluster.lose_root(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    cluster.elect("preferred", 0)
    cluster.produce(0, 1)
    cluster.consume(0)
    cluster.come_to_rest()


def test_a_client_is_refused_by_a_leader_that_lost_its_root_and_was_not_replaced_yet(
    start: Start,
) -> None:
    """Between its registration and the controller's next tick it is still named as the leader."""
    cluster = start(2, 1, 1)
    cluster.produce(0, 1)
    cluster.tick_until_idle()
    cluster.lose_root(0)
    cluster.restart(0)
    cluster.produce(0, 1)
    cluster.come_to_rest()


def test_a_request_whose_leaders_root_was_lost_is_not_answered_and_sent_again(
    start: Start,
) -> None:
    """A request that was lost with its leader's root gets no answer, and its retry is stored."""
    cluster = start(2, 1, 1)
    cluster.produce(0, 1)
    cluster.tick_until_idle()
    cluster.produce(0, 1)
    cluster.leader_tick(0)
    cluster.lose_root(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    assert cluster.requests[1].pending.response is None
    cluster.come_to_rest()


def test_a_process_that_pauses_before_its_first_poll_polls_when_it_wakes_up(start: Start) -> None:
    """A process that was paused before its first poll polls once it resumes."""
    cluster = start(2, 1, 1)
    cluster.crash(0)
    cluster.restart(0)
    cluster.controller_tick()
    cluster.produce(0, 1, 1)
    cluster.pause(0)
    cluster.leader_tick(0)
    response = cluster.requests[0].pending.response
    assert response is not None
    assert response.error == "NONE"
    cluster.come_to_rest()


def test_a_follower_keeps_what_its_leader_lost_with_its_power(start: Start) -> None:
    """The leader's tables are read again before its process has started: they are shorter (6.3)."""
    cluster = start(2, 1, 2, syncs=False)
    cluster.produce(0, 2)
    cluster.tick_until_idle()
    cluster.lose_power(0)
    cluster.follower_tick(1)
    cluster.follower_tick(1)
    cluster.come_to_rest()


def test_a_restart_writes_the_epochs_that_its_log_shows(start: Start) -> None:
    """The process ended after the commit of an epoch's first copy, before its entry (6.1, 7.0)."""
    cluster = start(2, 1, 1)
    cluster.pause(0)
    cluster.fence(0)
    cluster.resume(0)
    cluster.produce(0, 1)
    cluster.leader_tick(1)
    cluster.faulty_tick("follower_tick", 0, "log/_delta_log", "died")
    cluster.come_to_rest()


def test_a_consumer_is_not_shown_less_by_a_leader_that_lost_its_power(start: Start) -> None:
    """Between its registration and the election of another leader it is still named (2.6, 9.3)."""
    cluster = start(2, 1, 2, syncs=False)
    cluster.produce(0, 2)
    cluster.tick_until_idle()
    cluster.lose_power(0)
    cluster.restart(0)
    cluster.come_to_rest()


def test_a_commit_into_a_removed_version_does_not_come_back_with_a_power_loss(
    start: Start,
) -> None:
    """The process was suspended until the clean-up, and removed its commit, but not durably
    (10.7).
    """
    cluster = start(2, 1, 1)
    cluster.produce(0, 2)
    cluster.tick_until_idle()
    cluster.produce(0, 1)
    cluster.leader_tick(0)
    cluster.suspend("follower_tick", 1, "log/_delta_log", takes_over=True, cleans_up=True)
    cluster.lose_power(1, "none", "all")


def test_a_file_that_could_not_be_read_is_copied_again(start: Start) -> None:
    """The scrub in a leader's tick found it; the replica reports the damage until then (10.8)."""
    cluster = start(3, 2, 2)
    for partition in (0, 1):
        cluster.produce(partition, 2)
    cluster.tick_until_idle()
    for broker in (0, 1, 2):
        cluster.leader_tick(broker)
    cluster.follower_tick(0)
    for broker in (0, 1, 2):
        cluster.leader_tick(broker)
    for partition in (0, 1):
        cluster.produce(partition, 2, producer=0)
        cluster.produce(partition, 1, producer=1)
    cluster.tick_until_idle()
    cluster.merge_during(2, "follower_tick", 2)
    for partition in (0, 1):
        cluster.produce(partition, 1)
    cluster.faulty_tick("leader_tick", 0, "log", "unread")
    cluster.come_to_rest()


@pytest.mark.parametrize("names", ["all", "none"])
@pytest.mark.parametrize("content", ["all", "none"])
def test_the_only_replica_goes_on_with_what_a_power_loss_left(
    start: Start, names: Kept, content: Kept
) -> None:
    """It is shown before it is elected again, also if nothing was lost (9.3)."""
    cluster = start(1, 1, 1, syncs=False)
    cluster.produce(0, 2)
    cluster.tick_until_idle()
    cluster.lose_power(0, names, content)
    cluster.restart(0)
    cluster.come_to_rest()
