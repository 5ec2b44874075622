"""The object store of the simulation, and what the product does on one whose lists lag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sparklog.storage.location import Location
from tests.faults.simulation.scheduler import Process, Scheduler
from tests.faults.simulation.script import Event, Step
from tests.faults.simulation.simulated_store import ROOT
from tests.faults.simulation.world import BROKERS, Shape, World, process_names


class Store:
    """A store with one process, whose requests have the outcomes of events."""

    def __init__(self, folder: Path) -> None:
        self.scheduler = Scheduler(folder, has_store=True)
        self.process = Process("broker-0a", self.scheduler, 0, folder / "boot_id")
        self.location = Location.of(f"{ROOT}/root")

    def put(self, name: str, *events: Event) -> BaseException | None:
        """Let the process create an object; return its error."""
        self.process.begin(lambda: self.location.put_new(name, name.encode()))
        self.scheduler.run(self.process, events)
        return self.process.error

    def listed(self, *events: Event) -> list[str]:
        """Return the names that a list of the process has."""
        found: list[str] = []
        self.process.begin(lambda: found.extend(self.location.names()))
        self.scheduler.run(self.process, events)
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    created = Store(tmp_path)
    with created.scheduler.installed():
        yield created
        created.process.end()


def test_an_object_is_created_once(store: Store) -> None:
    assert store.put("a") is None
    assert isinstance(store.put("a"), FileExistsError)
    assert store.location.read_bytes("a") == b"a"


@pytest.mark.parametrize("outcome", ["landed", "unknown"])
def test_a_put_may_be_carried_out_without_an_answer(store: Store, outcome: str) -> None:
    assert isinstance(store.put("a", Event(1, outcome, "link")), OSError)
    assert store.location.read_bytes("a") == b"a"


def test_a_put_that_was_given_up_may_be_carried_out_later(store: Store) -> None:
    """At once or some seconds later, unless the object exists by then."""
    for name in "abcd":
        assert isinstance(store.put(name, Event(1, "late", "link")), OSError)
    assert store.listed() == ["a", "b", "d"]
    assert store.put("c") is None
    assert isinstance(store.put("d"), FileExistsError)
    store.scheduler.now_ms += 20_000
    assert store.listed() == ["a", "b", "c", "d"]
    assert store.scheduler.counts["put late"] == 3


def test_an_outdated_list_is_that_of_seconds_ago(store: Store) -> None:
    """It lacks what is new, and has what was removed."""
    store.put("old")
    store.put("removed")
    store.scheduler.now_ms += 10_000
    store.put("new")
    store.location.remove("removed")
    assert store.listed(Event(1, "landed", "list")) == ["old", "removed"]
    assert store.listed() == ["new", "old"]


def played(steps: Sequence[Step]) -> World:
    """Play steps on a store of which every list lags."""
    drifts = (0,) * len(process_names())
    world = World(Shape(1, BROKERS, drifts, is_on_store=True, outdated_lists=1.0))
    assert world.play(steps).problems == []
    return world


def test_a_consumer_that_starts_by_an_outdated_list_reads_what_is_acknowledged() -> None:
    """It opened the leader's journal as of seconds ago, and took that for its end."""
    ticks = [
        Step(f"broker-{one}a", role)
        for role in ("leader_tick", "follower_tick", "leader_tick")
        for one in range(BROKERS)
    ]
    sent = Step("producer-1", "send", (0, 1, 0))
    answered = Step("producer-1", "poll")
    later = Step("clock", "advance", (10_000,))
    world = played([later, sent, *ticks, answered, Step("consumer-0", "read", (0,))])
    assert world.history.answers[0].error == "NONE"
    assert len(world.history.reads[0].records) == 1
