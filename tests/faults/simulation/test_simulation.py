"""The simulation replays a seed exactly, and short seeds find nothing in the product."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults import parts
from tests.faults.results import Results, summary
from tests.faults.simulation import script
from tests.faults.simulation.mutations import (
    LATER_SEEDS_NEEDED,
    MUTATIONS,
    SEEDS_NEEDED,
    SEEDS_WITH_CUT_LEADERS_NEEDED,
    SEEDS_WITH_DAMAGED_TABLES_NEEDED,
)
from tests.faults.simulation.runner import play, run
from tests.faults.simulation.script import Event, Step
from tests.faults.simulation.shrinking import shrink
from tests.faults.simulation.stories import (
    FIRST_ON_STORES,
    FIRST_WITH_CUT_LEADERS,
    FIRST_WITH_DAMAGED_TABLES,
    shape_of,
    steps_of,
)

_DIGEST = (
    "from tests.faults.simulation.runner import play\n"
    "from tests.faults.simulation.stories import steps_of\n"
    "print(play({seed}, steps_of({seed}, 150)).digest)\n"
)


def _digest(seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", _DIGEST.format(seed=seed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("seed", [3, 20_017], ids=["in folders", "on a store"])
def test_a_seed_replays_one_history_in_every_process(seed: int) -> None:
    """Two processes with different hash seeds make the same operations, with the same outcomes."""
    first = _digest(seed, "1")
    assert len(first) == 64
    assert _digest(seed, "2") == first


def test_threads_beside_the_simulation_do_not_change_its_history() -> None:
    """Their sleep advanced its clock, so that requests timed out in every round."""
    steps = steps_of(0, 50)
    alone = play(0, steps).digest
    ended = threading.Event()

    def sleeping() -> None:
        while not ended.is_set():
            time.sleep(0.01)

    thread = threading.Thread(target=sleeping)
    thread.start()
    try:
        assert play(0, steps).digest == alone
    finally:
        ended.set()
        thread.join()


def test_another_seed_is_another_history() -> None:
    assert steps_of(1, 100) != steps_of(2, 100)


def test_seeds_have_each_kind_of_topic() -> None:
    """Compaction, retention by time, both fates of what was not synced, and all sizes."""
    shapes = [shape_of(seed) for seed in range(40)]
    for name in ("is_compacted", "is_synced", "partitions", "replication_factor", "min_isr"):
        assert len({getattr(one, name) for one in shapes}) == 2, name
    assert {one.retention_ms > 0 for one in shapes} == {True, False}
    assert any(shape_of(seed).has_bit_flips for seed in range(1_000, 1_020))
    later = [shape_of(FIRST_ON_STORES + seed) for seed in range(40)]
    assert {one.outdated_lists > 0 for one in later if one.is_on_store} == {True, False}
    assert {one.has_public_clients for one in later} == {True, False}
    assert not all(one.is_on_store for one in later)
    last = [shape_of(FIRST_WITH_DAMAGED_TABLES + seed) for seed in range(40)]
    assert {one.is_on_store for one in last if one.has_damaged_tables} == {True, False}


def test_compaction_removes_records_in_a_clean_seed() -> None:
    """Seed 28 has a compacted topic, and replicas that are cleaned at different times."""
    outcome = play(28, steps_of(28, 500))
    assert outcome.problems == []
    assert outcome.counts["cleaned records"] > 0


def test_a_flipped_bit_is_found_and_repaired_in_a_clean_seed() -> None:
    """Seed 1010: a bit of a batch file flips while its broker works; a repair is requested."""
    outcome = play(1010, steps_of(1010, 500))
    assert outcome.problems == []
    assert outcome.counts["flipped"] > 0
    assert outcome.counts["found sound"] > 0


def test_lists_that_lag_and_puts_that_land_late_are_in_a_clean_seed() -> None:
    """Seed 20017: an object store with `Producer` and `Consumer`."""
    outcome = play(20_017, steps_of(20_017, 500))
    assert outcome.problems == []
    for name in ("outdated", "put late", "read on", "acknowledged"):
        assert outcome.counts[name] > 0, name


@pytest.mark.parametrize("seed", [40_011, 40_018, 40_064], ids=["store", "folder", "cluster root"])
def test_a_damaged_commit_is_found_and_repaired_in_a_clean_seed(seed: int) -> None:
    """A commit of a journal is damaged, or one of a table of the cluster root, and then repaired.

    The journal has second copies in the folder, and none on the store.
    """
    outcome = play(seed, steps_of(seed, 500))
    assert outcome.problems == []
    assert outcome.counts["damaged tables"] > 0
    assert outcome.counts["found sound"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_is_clean(seed: int) -> None:
    outcome = play(seed, steps_of(seed, 200))
    assert outcome.problems == []
    assert outcome.counts["acknowledged"] > 0


def test_a_high_watermark_that_was_seen_and_not_synced_is_reached_again() -> None:
    """Seed 232: a leader ended between the link and the sync of a high watermark, and its machine
    lost power. A consumer had seen the record, which stays, and sees it again.
    """
    died = Event(1, "died", "link")
    steps = [
        Step("producer-1", "send", (0, 1, 0)),
        Step("broker-0a", "leader_tick"),
        Step("broker-2a", "follower_tick"),
        Step("broker-1a", "follower_tick"),
        Step("broker-0a", "leader_tick", (), (died,)),
        Step("consumer-0", "read", (0,)),
        Step("actor-0a", "power", (1, 1)),
        Step("actor-2a", "controller_tick"),
    ]
    outcome = play(232, steps)
    assert outcome.problems == []
    assert outcome.counts["power cuts"] == 1
    assert outcome.counts["read"] >= 2


def test_a_reassignment_does_not_leave_a_damaged_file_alone() -> None:
    """Seed 23248: the sound replicas were removed before a scrub, which the documents warn of. No
    sound copy was left, and the cluster could not come to rest.
    """
    steps = [
        Step("producer-0", "send", (0, 1, 0)),
        Step("producer-1", "send", (0, 1, 1)),
        Step("actor-0a", "leader_tick"),
        Step("actor-1a", "follower_tick"),
        Step("actor-2a", "follower_tick"),
        Step("actor-0a", "leader_tick"),
        Step("actor-1a", "follower_tick"),
        Step("actor-2a", "follower_tick"),
        Step("actor-2a", "flip", (0, 373589)),
        Step("admin", "reassign", (0, 2)),
    ]
    outcome = play(23248, steps)
    assert outcome.problems == []
    assert outcome.counts["flipped"] == outcome.counts["found sound"] == 1


def test_a_consumer_begins_again_after_the_only_replica_has_lost_records() -> None:
    """Seed 23567: the cluster does not sync, and a power loss took the records that were read."""
    steps = [
        Step("admin", "reassign", (0, 0)),
        Step("actor-0a", "controller_tick"),
        Step("producer-1", "send", (0, 3, 0)),
        Step("broker-0a", "leader_tick"),
        Step("consumer-1", "poll"),
        Step("actor-0a", "power", (1, 1)),
    ]
    outcome = play(23567, steps)
    assert outcome.problems == []
    assert outcome.counts["power cuts"] == 1
    assert outcome.counts["read on"] >= 1


def test_an_unsynced_root_with_a_torn_commit_of_truncations_is_replaced() -> None:
    """Seed 28643: the broker started, since it does not read the table, and the audit named it."""
    steps = [
        Step("producer-0", "send", (1, 1, 1)),
        Step("actor-1a", "leader_tick"),
        Step("actor-2a", "follower_tick"),
        Step("actor-0a", "controller_tick"),
        Step("clock", "advance", (12000,)),
        Step("actor-0a", "heartbeat"),
        Step("actor-0a", "controller_tick"),
        Step("broker-0a", "leader_tick"),
        Step("broker-2a", "leader_tick"),
        Step("broker-2a", "follower_tick"),
        Step("clock", "advance", (70000,)),
        Step("producer-1", "send", (1, 1, 2)),
        Step("broker-2a", "leader_tick"),
        Step("broker-2a", "follower_tick"),
        Step("broker-0a", "leader_tick"),
        Step("clock", "advance", (3000,)),
        Step("broker-2a", "follower_tick"),
        Step("clock", "advance", (1000,)),
        Step("clock", "advance", (1000,)),
        Step("broker-2a", "leader_tick"),
        Step("actor-2a", "power", (1, 0)),
    ]
    outcome = play(28643, steps)
    assert outcome.problems == []
    assert outcome.counts["replaced roots"] == 1


def test_a_broker_whose_clock_was_set_back_verifies_its_log_again() -> None:
    """A commit of its log could not be read once, while its clock was an hour ahead. The broker
    would have verified its log again in an hour, and stayed out of every ISR.
    """
    assert play(9806, steps_of(9806, 500)).problems == []


def test_runs_go_on_after_the_seeds_that_are_done(tmp_path: Path) -> None:
    assert run(range(1), 20, 1, tmp_path).seeds == 1
    results = run(range(2), 20, 1, tmp_path)
    assert results.seeds == 2
    assert results.failures == {}


def test_a_run_of_the_torture_adds_the_seeds_that_it_has_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "SIMULATED_STEPS", 20)
    results = Results(tmp_path / "simulation.jsonl")
    for seeds in (1, 3):
        monkeypatch.setattr(parts, "SIMULATED_SEEDS", seeds)
        parts.simulation(tmp_path / "simulation", results, 0, 1)
    assert [one["seeds"] for one in results.load()] == [1, 2]
    assert summary(results.load()).startswith("3 seeds, ")
    assert summary(results.load()).endswith(" 0 anomalies")


def test_a_script_is_saved_and_loaded(tmp_path: Path) -> None:
    steps = steps_of(1, 200)
    assert any(step.events for step in steps)
    script.save(steps, tmp_path / "script.json")
    assert script.load(tmp_path / "script.json") == steps


def test_shrinking_keeps_what_fails_and_nothing_else() -> None:
    steps = [Step("clock", "advance", (number,)) for number in range(40)]
    steps[7] = Step("broker-0a", "leader_tick", (), (Event(1, "refused"), Event(2, "suspend")))
    steps[31] = Step("producer-0", "poll")

    def fails(candidate: Sequence[Step]) -> bool:
        ticks = [one for one in candidate if Event(2, "suspend") in one.events]
        return bool(ticks) and Step("producer-0", "poll") in candidate

    short = shrink(steps, fails)
    assert list(map(str, short)) == [
        "broker-0a leader_tick; at operation 2: suspend",
        "producer-0 poll",
    ]


ONE_SEED = [name for name, seeds in SEEDS_NEEDED.items() if seeds == 1]


@pytest.mark.parametrize("mutation", ONE_SEED)
def test_a_mutation_is_found_by_the_first_seed(mutation: str) -> None:
    """The others need more seeds: `python -m tests.faults.simulation --mutations`."""
    assert play(0, steps_of(0, 500), mutation).problems


LATER_SEEDS = {
    name: first + seeds - 1
    for first, needed in (
        (FIRST_ON_STORES, LATER_SEEDS_NEEDED),
        (FIRST_WITH_DAMAGED_TABLES, SEEDS_WITH_DAMAGED_TABLES_NEEDED),
        (FIRST_WITH_CUT_LEADERS, SEEDS_WITH_CUT_LEADERS_NEEDED),
    )
    for name, seeds in needed.items()
}


@pytest.mark.parametrize(("mutation", "seed"), LATER_SEEDS.items())
def test_a_mutation_is_found_by_a_later_seed(mutation: str, seed: int) -> None:
    assert play(seed, steps_of(seed, 500), mutation).problems
    assert play(seed, steps_of(seed, 500)).problems == []


def test_the_mutations_with_stated_seeds_exist() -> None:
    assert SEEDS_NEEDED.keys() <= MUTATIONS.keys()
    assert len(ONE_SEED) > 10
    assert LATER_SEEDS.keys() <= MUTATIONS.keys() - SEEDS_NEEDED.keys()
    assert len(SEEDS_NEEDED) >= 20
