"""The state machine's checker finds seeded faults: each fails a short story that holds without it.

`python -m tests.state_machine.run --fault NAME` lets the random machine search for one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.state_machine.checked_cluster import CheckedCluster
from tests.state_machine.faults import FAULTS

Story = Callable[[], CheckedCluster]


def with_two_records(brokers: int = 2, min_isr: int = 1, *, syncs: bool = True) -> CheckedCluster:
    """Start a cluster with one partition, led by broker 0, and two committed records."""
    cluster = CheckedCluster(brokers, 1, min_isr, on_failure=lambda _: None, syncs=syncs)
    cluster.produce(0, 2)
    cluster.tick_until_idle()
    return cluster


def a_replaced_process_acts_once_more(cluster: CheckedCluster) -> None:
    cluster.produce(0, 1)
    cluster.advance(1)
    cluster.replace_process(0)
    cluster.controller_tick()
    cluster.produce(0, 1)
    cluster.leader_tick(0)
    cluster.zombie_tick(0, "leader_tick")
    cluster.zombie_tick(0, "leader_tick")
    cluster.come_to_rest()


def a_log_commit_is_refused(cluster: CheckedCluster) -> None:
    cluster.produce(0, 1, acks=1)
    cluster.faulty_tick("leader_tick", 0, "log/_delta_log", "refused")
    cluster.come_to_rest()


def a_new_epochs_first_copy_has_an_unknown_outcome(cluster: CheckedCluster) -> None:
    cluster.elect("preferred", 0)
    cluster.pause(0)
    cluster.fence(0)
    cluster.resume(0)
    cluster.produce(0, 1, acks=1)
    cluster.leader_tick(1)
    cluster.faulty_tick("follower_tick", 0, "log/_delta_log", "unknown")
    cluster.come_to_rest()


def a_follower_outside_the_isr_is_behind(cluster: CheckedCluster) -> None:
    cluster.pause(1)
    cluster.fence(1)
    cluster.produce(0, 2)
    cluster.leader_tick(0)
    cluster.resume(1)
    cluster.faulty_tick("follower_tick", 1, "log", "full")
    cluster.come_to_rest()


def another_broker_leads(cluster: CheckedCluster) -> None:
    cluster.pause(0)
    cluster.fence(0)
    cluster.resume(0)
    cluster.produce(0, 1)
    cluster.tick_until_idle()
    cluster.come_to_rest()


def a_copys_commit_is_refused(cluster: CheckedCluster) -> None:
    cluster.produce(0, 1)
    cluster.leader_tick(0)
    # With the fault, the commit of the copies is the second one.
    cluster.faulty_tick("follower_tick", 1, "log/_delta_log", "refused", 1)
    cluster.leader_tick(0)
    cluster.come_to_rest()


def a_follower_starts_again_below_its_log_end(cluster: CheckedCluster) -> None:
    cluster.produce(0, 1)
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    cluster.leader_tick(0)
    cluster.crash(1)
    cluster.restart(1)
    cluster.follower_tick(1, stop_after="truncate")
    cluster.come_to_rest()


def the_power_fails(cluster: CheckedCluster) -> None:
    cluster.produce(0, 1)
    cluster.tick_until_idle()
    cluster.lose_power(1)
    cluster.restart(1)
    cluster.tick_until_idle()
    cluster.lose_power(0, "all", "half")
    cluster.restart(0)
    cluster.come_to_rest()


def a_process_sleeps_through_a_clean_up(cluster: CheckedCluster) -> None:
    cluster.produce(0, 1)
    cluster.suspend("leader_tick", 0, "log/_delta_log", takes_over=True, cleans_up=True)
    cluster.come_to_rest()


def a_broker_starts_again_behind_its_checkpoints(cluster: CheckedCluster) -> None:
    cluster.advance(5_000)
    cluster.produce(0, 1)
    cluster.tick_until_idle()
    cluster.produce(0, 1)
    cluster.tick_until_idle()
    cluster.crash(1)
    cluster.restart(1)
    cluster.come_to_rest()


STORIES: dict[str, tuple[Callable[[CheckedCluster], None], bool]] = {
    "fence_check_left_out": (a_replaced_process_acts_once_more, True),
    "answered_before_the_log_commit": (a_log_commit_is_refused, True),
    "what_failed_is_kept": (a_new_epochs_first_copy_has_an_unknown_outcome, True),
    "requests_taken_before_the_log_commit": (a_log_commit_is_refused, True),
    "high_watermark_ahead_of_the_log": (a_follower_outside_the_isr_is_behind, True),
    "epoch_entry_not_written": (another_broker_leads, True),
    "checkpoint_ahead_of_the_journal": (a_broker_starts_again_behind_its_checkpoints, True),
    "checkpoint_not_replayed": (a_broker_starts_again_behind_its_checkpoints, True),
    "epoch_taken_from_memory": (another_broker_leads, True),
    "reported_before_the_commit": (a_copys_commit_is_refused, True),
    "truncation_to_the_high_watermark": (a_follower_starts_again_below_its_log_end, True),
    "nothing_synced": (the_power_fails, True),
    "predecessor_check_left_out": (a_process_sleeps_through_a_clean_up, True),
    "unclean_start_not_noticed": (the_power_fails, False),
    "followers_claim_the_lead": (another_broker_leads, True),
}
"""For each fault the story that it fails, and whether the brokers sync their files in it."""


def play(name: str) -> None:
    story, syncs = STORIES[name]
    cluster = with_two_records(syncs=syncs)
    try:
        story(cluster)
    finally:
        cluster.close()


@pytest.mark.parametrize("story", dict.fromkeys(STORIES.values()), ids=lambda of: of[0].__name__)
def test_a_story_holds_without_a_fault(
    story: tuple[Callable[[CheckedCluster], None], bool],
) -> None:
    """A story holds without its fault."""
    name = next(name for name, of in STORIES.items() if of == story)
    play(name)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A story fails with its fault."""
    FAULTS[fault](monkeypatch)
    with pytest.raises(AssertionError) as found:
        play(fault)
    print(f"{fault}: {found.value}")


def test_every_fault_has_a_story() -> None:
    """Every fault has a story."""
    assert STORIES.keys() == FAULTS.keys()
