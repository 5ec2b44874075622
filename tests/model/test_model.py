"""The protocol of docs/protocol.md, explored within bounds: it holds, and its mutants do not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import permutations

import pytest

from tests.model.configurations import mutated
from tests.model.decisions import isr_shrink
from tests.model.explorer import explore, next_states
from tests.model.leader import attempted_high_watermarks
from tests.model.state import IDLE, Mutation, Setting, State, canonical, initial_state, renamed
from tests.model.story import told

# name: (bounds, the invariant that breaks, the number of steps of a shortest path)
MUTANTS = {
    # Kafka's refuted variants.
    "truncates_to_high_watermark": (
        Setting(replicas=2, records=2, epochs=3),
        "acknowledged_records_survive",
        9,
    ),
    "falls_back_to_high_watermark": (
        Setting(replicas=3, records=2, epochs=3),
        "epoch_histories_tell_the_log",
        10,
    ),
    "fetches_by_offset_alone": (
        Setting(replicas=3, records=2, epochs=3),
        "acknowledged_records_survive",
        7,
    ),
    "fetches_without_leader_epoch": (
        Setting(replicas=3, records=1, epochs=3, isr_changes=False),
        "acknowledged_records_survive",
        14,
    ),
    # Allowed by tables, and not by RPCs.
    "reads_the_log_as_it_is": (
        Setting(replicas=3, records=2, epochs=2, retries=True, isr_changes=False),
        "logs_match",
        12,
    ),
    "joins_without_a_report": (
        Setting(replicas=3, records=2, epochs=2),
        "high_watermark_is_below_every_known_end",
        8,
    ),
    "believes_other_leader_epochs": (
        Setting(replicas=3, records=2, epochs=3),
        "acknowledged_records_survive",
        7,
    ),
    "enters_epoch_after_append": (
        Setting(replicas=2, records=2, epochs=3),
        "epoch_histories_tell_the_log",
        2,
    ),
    "appends_what_named_another_epoch": (
        Setting(replicas=2, records=2, epochs=3, requests=True),
        "requests_are_appended_in_the_epoch_they_named",
        5,
    ),
    "commits_a_path_twice": (
        Setting(replicas=2, records=2, epochs=2, retries=True),
        "nothing_is_written_twice",
        3,
    ),
    # A step is one commit of the journal, and the checkpoints lag behind it.
    "answers_without_high_watermark": (
        Setting(replicas=2, records=1, epochs=2),
        "acknowledged_records_survive",
        2,
    ),
    "answers_before_high_watermark": (
        Setting(replicas=2, records=1, epochs=2),
        "acknowledged_records_are_shown",
        3,
    ),
    "checkpoint_ahead_of_the_journal": (
        Setting(replicas=2, records=1, epochs=2, checkpoints=2),
        "replay_is_state",
        3,
    ),
    "cleans_up_before_checkpoints": (
        Setting(replicas=2, records=1, epochs=2, checkpoints=2),
        "replay_is_state",
        4,
    ),
    "fork_after_clean_up": (
        Setting(replicas=2, records=1, epochs=2, crashes=1, lost_answers=1, checkpoints=3),
        "acknowledged_records_survive",
        10,
    ),
    "zombie_rewrites_its_row": (
        Setting(replicas=2, records=2, epochs=2, crashes=1),
        "follower_readers_never_go_back",
        8,
    ),
    "lost_answers_are_not_derived": (
        Setting(replicas=2, records=2, epochs=3, lost_answers=1),
        "epoch_histories_tell_the_log",
        3,
    ),
    "changes_isr_beside_a_put": (
        Setting(replicas=2, records=1, epochs=2, lost_answers=1),
        "acknowledged_records_survive",
        7,
    ),
    "unites_histories_on_start": (
        Setting(replicas=2, records=1, epochs=2, crashes=2, checkpoints=1),
        "epoch_histories_increase",
        8,
    ),
    # Readings of the rules that would be mistakes, and the repairs of two of them.
    "lost_log_leaves_partition_epoch": (
        Setting(replicas=3, records=1, epochs=2, crashes=1, lost_tails=1),
        "acknowledged_records_survive",
        10,
    ),
    "reads_registrations_first": (
        Setting(replicas=3, records=1, epochs=2, crashes=1, lost_tails=1),
        "acknowledged_records_survive",
        11,
    ),
    "follower_high_watermark_falls": (
        Setting(replicas=3, records=1, epochs=2),
        "follower_readers_never_go_back",
        10,
    ),
    "lost_tail_goes_unnoticed": (
        Setting(replicas=2, records=1, epochs=2, crashes=1, lost_tails=1),
        "acknowledged_records_survive",
        5,
    ),
    "resumes_an_older_log": (
        Setting(replicas=2, records=1, epochs=2, parks=1, lost_tails=1),
        "acknowledged_records_survive",
        6,
    ),
    "lost_log_stays_eligible": (
        Setting(replicas=3, records=1, epochs=2, min_isr=2, crashes=1, lost_tails=1, pauses=0),
        "acknowledged_records_survive",
        10,
    ),
    "eligible_replicas_stay": (
        Setting(replicas=3, records=1, epochs=2, min_isr=2, pauses=0),
        "acknowledged_records_survive",
        8,
    ),
}


def test_every_mistake_is_tried() -> None:
    """Two mistakes violate no invariant; each has a test of its own below."""
    mistakes = {field.name for field in fields(Mutation)}
    untold = {"joins_beyond_lag_max_messages", "believes_other_broker_epochs"}
    assert mistakes - MUTANTS.keys() == untold


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(name: str) -> None:
    """A mistake in the model violates an invariant; the printed path is a shortest one."""
    setting, invariant, length = MUTANTS[name]
    found = explore(replace(setting, mutation=mutated(name)))

    assert found.violation is not None
    print(told(found.violation))
    assert (found.violation.invariant, found.violation.length) == (invariant, length)


def test_a_report_of_an_earlier_process_describes_the_log_beside_it() -> None:
    """1.3: a row and its log are one commit, so a power failure loses both.

    The check of the broker epoch in a report (KIP-903) protects a leader whose handle still has
    rows that a journal has lost. The model has no such handles.
    """
    lossy = Setting(replicas=2, records=1, epochs=2, crashes=1, lost_tails=1)
    found = explore(replace(lossy, mutation=mutated("believes_other_broker_epochs")))
    assert found.is_complete
    assert found.violation is None


IN_MESSAGES = Setting(
    replicas=2, records=3, epochs=2, pauses=0, slow_high_watermark=True, lag_max_messages=1
)


def reachable(setting: Setting) -> Iterator[tuple[tuple[str | int, ...], State]]:
    """Yield every step that is possible within the bounds, with the state after it."""
    seen = {initial_state(setting)}
    waiting = list(seen)
    while waiting:
        for label, after in next_states(setting, waiting.pop()):
            yield label, after
            if canonical(after) not in seen:
                seen.add(canonical(after))
                waiting.append(canonical(after))


def joiners_that_leave_at_once(setting: Setting) -> int:
    """Return the number of steps in which a follower joins beyond replica.lag.max.messages (5.1,
    5.2).
    """
    count = 0
    for (action, *actors), after in reachable(setting):
        if action == "LeaderExpandsIsr":
            leader = after.replicas[int(actors[0])]
            end = leader.leading.ends[int(actors[1])]
            lag_in_messages = (True, end, False)
            count += isr_shrink(len(leader.log), setting.lag_max_messages, (lag_in_messages,))
    return count


def test_a_follower_that_joins_is_within_lag_max_messages() -> None:
    """5.2: otherwise it joins and leaves forever, as the mutant does."""
    assert joiners_that_leave_at_once(IN_MESSAGES) == 0
    flapping = replace(IN_MESSAGES, min_isr=2, mutation=mutated("joins_beyond_lag_max_messages"))
    assert joiners_that_leave_at_once(replace(flapping, mutation=Mutation())) == 0
    assert joiners_that_leave_at_once(flapping) > 0


def test_the_high_watermark_waits_for_nobody_beyond_lag_max_messages() -> None:
    """2.1: a leader that is alone in its ISR commits at once beside a follower that far behind."""
    count = 0
    for _, state in reachable(IN_MESSAGES):
        for broker, replica in enumerate(state.replicas):
            leading, end = replica.leading, len(replica.log)
            if leading.isr != 1 << broker:
                continue
            follower_end = leading.ends[1 - broker]
            if 0 <= follower_end < end - IN_MESSAGES.lag_max_messages:
                count += 1
                marks = attempted_high_watermarks(IN_MESSAGES, state, broker, replica)
                assert marks == (end,)
    assert count


SOME_OF_EVERYTHING = Setting(
    replicas=3,
    records=3,
    epochs=3,
    min_isr=2,
    crashes=2,
    fences=2,
    lost_tails=1,
    uncleans=1,
    stops=1,
    unknown_outcomes=True,
    lost_answers=1,
    checkpoints=2,
)


def walks(setting: Setting) -> Iterator[State]:
    """Return the states along random paths."""
    for seed in range(20):
        choice = random.Random(seed)
        state = initial_state(setting)
        for _ in range(40):
            yield state
            steps = list(next_states(setting, state))
            if not steps:
                break
            state = choice.choice(steps)[1]


def test_brokers_are_interchangeable() -> None:
    """The representative of a state does not depend on the brokers' names."""
    for state in walks(SOME_OF_EVERYTHING):
        representatives = {canonical(renamed(state, order)) for order in permutations(range(3))}
        assert representatives == {canonical(state)}


def at_rest(setting: Setting) -> set[State]:
    """Every reachable state in which no tick is under way."""
    seen = {initial_state(setting)}
    waiting = list(seen)
    while waiting:
        after = {canonical(step[1]) for step in next_states(setting, waiting.pop())} - seen
        seen |= after
        waiting += after
    return {state for state in seen if all(replica.tick == IDLE for replica in state.replicas)}


@pytest.mark.parametrize(
    "setting",
    [
        Setting(replicas=2, records=2, epochs=3),
        Setting(replicas=3, records=1, epochs=2),
        Setting(replicas=2, records=1, epochs=3, fences=1, uncleans=1, partial_fetches=True),
    ],
)
def test_a_follower_tick_with_fewer_steps_leads_to_the_same_states(setting: Setting) -> None:
    """No process can observe when a tick truncated its log, unless the tick is interrupted."""
    assert setting.writes_are_one_step
    assert at_rest(setting) == at_rest(replace(setting, reduces=False))
