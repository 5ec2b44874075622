"""The protocol of docs/protocol.md, explored within bounds: it holds, and its mutants do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from tests.model.configurations import mutated
from tests.model.explorer import explore, next_states
from tests.model.state import Setting, canonical, initial_state, renamed
from tests.model.story import told

# name: (bounds, the invariant that breaks, the number of steps of a shortest story)
MUTANTS = {
    # Kafka's refuted variants.
    "truncates_to_high_watermark": (
        Setting(replicas=2, records=2, epochs=3),
        "acknowledged_records_survive",
        13,
    ),
    "falls_back_to_high_watermark": (
        Setting(replicas=3, records=2, epochs=3),
        "in_sync_replicas_agree_below_high_watermark",
        12,
    ),
    "fetches_by_offset_alone": (
        Setting(replicas=3, records=2, epochs=3),
        "in_sync_replicas_agree_below_high_watermark",
        8,
    ),
    "fetches_without_leader_epoch": (
        Setting(replicas=3, records=1, epochs=3, isr_changes=False),
        "in_sync_replicas_agree_below_high_watermark",
        18,
    ),
    # What tables allow and RPCs do not.
    "reads_the_log_as_it_is": (
        Setting(replicas=3, records=2, epochs=2, retries=True, isr_changes=False),
        "logs_match",
        16,
    ),
    "joins_without_a_report": (
        Setting(replicas=3, records=2, epochs=2),
        "in_sync_replicas_agree_below_high_watermark",
        9,
    ),
    "believes_other_leader_epochs": (
        Setting(replicas=3, records=2, epochs=3),
        "in_sync_replicas_agree_below_high_watermark",
        8,
    ),
    "believes_other_broker_epochs": (
        Setting(replicas=3, records=1, epochs=2, crashes=1, lost_tails=1),
        "acknowledged_records_survive",
        10,
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
    "zombie_rewrites_its_row": (
        Setting(replicas=2, records=2, epochs=2, crashes=1),
        "follower_readers_never_go_back",
        11,
    ),
    # Readings of the rules that would be mistakes.
    "joins_under_an_old_registration": (
        Setting(replicas=3, records=1, epochs=2, crashes=1, lost_tails=1),
        "acknowledged_records_survive",
        10,
    ),
    "unites_histories_on_start": (
        Setting(replicas=2, records=1, epochs=2, crashes=2),
        "epoch_histories_increase",
        13,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(name: str) -> None:
    """A mistake built into the model breaks an invariant; the story printed is a shortest one."""
    setting, invariant, length = MUTANTS[name]
    found = explore(replace(setting, mutation=mutated(name)))

    assert found.violation is not None
    print(told(found.violation))
    assert (found.violation.invariant, found.violation.length) == (invariant, length)


@pytest.mark.xfail(strict=True, reason="2.5 lets a follower's high watermark fall, against 9.3")
def test_readers_of_followers_never_go_back() -> None:
    """2.7 and 9.3: nor does what is seen at a follower, through a clean election."""
    found = explore(Setting(replicas=3, records=1, epochs=2, follower_readers=True))

    assert found.violation is None, told(found.violation)


def test_readers_of_followers_never_go_back_where_the_high_watermark_only_rises() -> None:
    """2.5 repaired: a follower's high watermark falls by truncation only."""
    setting = Setting(
        replicas=3,
        records=1,
        epochs=2,
        follower_readers=True,
        follower_high_watermark_only_rises=True,
    )
    found = explore(setting)

    assert found.is_complete


def test_brokers_are_interchangeable() -> None:
    """The representative of a state does not depend on the brokers' names."""
    setting = Setting(replicas=3, records=2, epochs=2, crashes=1)
    states = [initial_state(setting)]
    for depth in range(40):
        steps = list(next_states(setting, states[-1]))
        states.append(steps[depth * 7 % len(steps)][1])
    for state in states:
        representatives = {canonical(renamed(state, order)) for order in permutations(range(3))}
        assert representatives == {canonical(state)}
