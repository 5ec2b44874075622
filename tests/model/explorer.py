"""Visits every state that is reachable within a setting's bounds, breadth first.

States that differ only in the names of brokers are one state. Visited states are kept as 64-bit
hashes, each with its parent's, so that the first violation found is printed with a shortest path.

Not modelled: there is one partition, a batch is one record, and logs begin at offset 0 (no
retention, no merging); one controller, whose tick is atomic; no reassignment; no damage. Time is a
choice: any session may expire and any follower behind the log end may be lagging. A broker in doubt
leaves the ISR and ELR in one compare-and-set. An older process of a restarted broker has at most
one put in flight: it is fenced at its next commit. delayed_operations is like the other tables.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tests.model.controller import (
    broker_announces_stop,
    broker_crashes,
    broker_heartbeats,
    broker_parks,
    broker_restarts,
    broker_resumes,
    broker_stops,
    client_sends,
    controller_acts,
    controller_elects_by_hand,
    controller_fences,
    parked_log_is_restored,
    syncing_stops,
)
from tests.model.follower import follower_continues, follower_reads
from tests.model.invariants import INVARIANTS, TRANSITION_INVARIANTS, Relation
from tests.model.journal import Step, broker_checkpoints, journal_is_cleaned_up, put_arrives
from tests.model.leader import LEADER_ACTIONS, leader_becomes
from tests.model.state import IDLE, Setting, State, canonical, initial_state

_COMMITS = {
    "BrokerLeavesSets",
    "FollowerCommits",
    "FollowerReads",
    "FollowerReports",
    "FollowerTicks",
    "FollowerTruncates",
    "FollowerWithdraws",
    "LeaderBecomes",
    "LeaderCommits",
    "PutArrives",
    "ZombieRewritesRow",
}
"""Steps that change a row or the visible records."""


def next_states(setting: Setting, state: State) -> Iterator[Step]:
    """Yield each possible next step with its state."""
    if not setting.lost_tails:
        yield from _steps(setting, state)
        return
    for step in _steps(setting, state):
        yield step
        if step[0][0] in _COMMITS:
            yield from syncing_stops(setting, state, step)


def _steps(setting: Setting, state: State) -> Iterator[Step]:
    """All steps of the protocol."""
    yield from client_sends(setting, state)
    for broker, replica in enumerate(state.replicas):
        if state.alive >> broker & 1:
            yield from broker_crashes(setting, state, broker)
            yield from broker_announces_stop(setting, state, broker)
            yield from broker_stops(setting, state, broker)
            yield from broker_parks(setting, state, broker)
            yield from broker_heartbeats(setting, state, broker)
            yield from broker_checkpoints(setting, state, broker)
            if replica.leading.epoch >= 0:
                for action in LEADER_ACTIONS:
                    yield from action(setting, state, broker)
            elif replica.tick is not IDLE:
                yield from follower_continues(setting, state, broker)
            else:
                yield from follower_reads(setting, state, broker)
            yield from leader_becomes(setting, state, broker)
        elif state.parked >> broker & 1:
            yield from broker_resumes(setting, state, broker)
            yield from parked_log_is_restored(setting, state, broker)
        else:
            yield from broker_restarts(setting, state, broker)
        yield from put_arrives(setting, state, broker)
        yield from journal_is_cleaned_up(setting, state, broker)
    yield from controller_fences(setting, state)
    yield from controller_acts(setting, state)
    yield from controller_elects_by_hand(setting, state)


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold, and a shortest path to the violation."""

    invariant: str
    story: tuple[Step, ...]

    @property
    def length(self) -> int:
        """The number of steps."""
        return len(self.story)


@dataclass(frozen=True)
class Exploration:
    """The result of an exploration; `seconds` are CPU seconds of this process."""

    states: int
    transitions: int
    depth: int
    seconds: float
    is_complete: bool
    violation: Violation | None


Progress: TypeAlias = "Callable[[Exploration, int], None]"
"""Called after each level with the results so far and the number of pending states."""


def explore(
    setting: Setting, max_states: int | None = None, progress: Progress | None = None
) -> Exploration:
    """Visit every state within the bounds, up to the first violation or `max_states`."""
    was_enabled = gc.isenabled()
    gc.disable()  # states are acyclic, and there are millions of them
    try:
        return _Search(setting, max_states, progress).run()
    finally:
        if was_enabled:
            gc.enable()


class _Search:
    def __init__(self, setting: Setting, max_states: int | None, progress: Progress | None) -> None:
        self.setting = setting
        self.max_states = max_states
        self.progress = progress
        self.parents: dict[int, int] = {}
        self.transitions = 0
        self.depth = 0
        self.began = time.process_time()

    def run(self) -> Exploration:
        first = canonical(initial_state(self.setting))
        self.parents[hash(first)] = 0
        level = [first]
        while level:
            if self.max_states is not None and len(self.parents) > self.max_states:
                return self._result(False, None)
            found = self._expand(level)
            if isinstance(found, Violation):
                return self._result(False, found)
            level = found
            self.depth += bool(level)
            if self.progress is not None:
                self.progress(self._result(False, None), len(level))
        return self._result(True, None)

    def _result(self, is_complete: bool, violation: Violation | None) -> Exploration:
        seconds = time.process_time() - self.began
        states = len(self.parents)
        return Exploration(states, self.transitions, self.depth, seconds, is_complete, violation)

    def _expand(self, level: list[State]) -> list[State] | Violation:
        setting, parents = self.setting, self.parents
        following: list[State] = []
        for state in level:
            here = hash(state)
            for label, after in next_states(setting, state):
                self.transitions += 1
                if label[0] in _COMMITS:
                    for relation in TRANSITION_INVARIANTS:
                        if not relation(setting, state, after):
                            return Violation(relation.__name__, self._story(here, relation))
                reached = canonical(after)
                key = hash(reached)
                if key in parents:
                    continue
                parents[key] = here
                for invariant in INVARIANTS:
                    if not invariant(setting, reached):
                        return Violation(invariant.__name__, self._story(key))
                following.append(reached)
        return following

    def _story(self, key: int, broken: Relation | None = None) -> tuple[Step, ...]:
        """Repeat the path with the brokers' first names, and add one step that violates
        `broken`.
        """
        way = [key]
        while self.parents[way[-1]]:
            way.append(self.parents[way[-1]])
        state = initial_state(self.setting)
        story: list[Step] = []
        for wanted in reversed(way[:-1]):
            label, state = next(
                step
                for step in next_states(self.setting, state)
                if hash(canonical(step[1])) == wanted
            )
            story.append((label, state))
        if broken is not None:
            story += [
                step
                for step in next_states(self.setting, state)
                if step[0][0] in _COMMITS and not broken(self.setting, state, step[1])
            ][:1]
        return tuple(story)
