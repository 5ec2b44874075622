"""Visits every state that is reachable within a setting's bounds, breadth first.

Brokers that differ by name only are one state. Visited states are kept as 64-bit hashes, each with
its parent's, so that the first violation found is told as a shortest story.

What the model leaves out: there is one partition, a batch is one record, and logs begin at offset 0
(no retention, no merging); one controller, whose tick is atomic; no reassignment. Time is a choice:
any session may expire and any follower behind the log end may be lagging. A broker that lost its
tail is found out when it registers. An older process of a broker that was started anew writes
nothing (its root is fenced), so it is not followed any further.
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
    broker_restarts,
    broker_stops,
    client_sends,
    controller_acts,
    controller_elects_by_hand,
    controller_fences,
    zombie_rewrites_row,
)
from tests.model.follower import follower_continues, follower_reads
from tests.model.invariants import INVARIANTS, TRANSITION_INVARIANTS, Relation
from tests.model.leader import LEADER_ACTIONS, Step, broker_settles, leader_becomes
from tests.model.state import IDLE, Mutation, Setting, State, canonical, forgotten, initial_state

_CHECKPOINTS = {"FollowerCheckpoints", "FollowerTicks", "LeaderCheckpoints", "ZombieRewritesRow"}


def next_states(setting: Setting, state: State) -> Iterator[Step]:
    """Everything that can happen next: the whole protocol on one screen."""
    yield from client_sends(setting, state)
    for broker, replica in enumerate(state.replicas):
        if state.alive >> broker & 1:
            yield from broker_crashes(setting, state, broker)
            yield from broker_announces_stop(setting, state, broker)
            yield from broker_stops(setting, state, broker)
            yield from broker_heartbeats(setting, state, broker)
            if replica.is_uncertain:
                yield from broker_settles(setting, state, broker)
                continue
            if replica.leading.epoch >= 0:
                for action in LEADER_ACTIONS:
                    yield from action(setting, state, broker)
            elif replica.tick is not IDLE:
                yield from follower_continues(setting, state, broker)
            else:
                yield from follower_reads(setting, state, broker)
            yield from leader_becomes(setting, state, broker)
        else:
            yield from broker_restarts(setting, state, broker)
        yield from zombie_rewrites_row(setting, state, broker)
    yield from controller_fences(setting, state)
    yield from controller_acts(setting, state)
    yield from controller_elects_by_hand(setting, state)


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold, and a shortest way there."""

    invariant: str
    story: tuple[Step, ...]

    @property
    def length(self) -> int:
        """The number of steps."""
        return len(self.story)


@dataclass(frozen=True)
class Exploration:
    """What an exploration found; `seconds` are this process's own, on its core."""

    states: int
    transitions: int
    depth: int
    seconds: float
    is_complete: bool
    violation: Violation | None


Progress: TypeAlias = "Callable[[Exploration, int], None]"
"""Told after each level: what was found up to there, and how many states wait."""


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
        # A mistake may be just that somebody reads what the protocol reads no more.
        self.forgets = setting.reduces and setting.mutation == Mutation()
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
                if label[0] in _CHECKPOINTS:
                    for relation in TRANSITION_INVARIANTS:
                        if not relation(setting, state, after):
                            return Violation(relation.__name__, self._story(here, relation))
                reached = canonical(self._forget(after))
                key = hash(reached)
                if key in parents:
                    continue
                parents[key] = here
                for invariant in INVARIANTS:
                    if not invariant(setting, reached):
                        return Violation(invariant.__name__, self._story(key))
                following.append(reached)
        return following

    def _forget(self, state: State) -> State:
        return forgotten(self.setting, state) if self.forgets else state

    def _story(self, key: int, broken: Relation | None = None) -> tuple[Step, ...]:
        """Walk the way again under the brokers' first names, and a step more that is `broken`."""
        way = [key]
        while self.parents[way[-1]]:
            way.append(self.parents[way[-1]])
        state = initial_state(self.setting)
        story: list[Step] = []
        for wanted in reversed(way[:-1]):
            label, state = next(
                step
                for step in next_states(self.setting, state)
                if hash(canonical(self._forget(step[1]))) == wanted
            )
            story.append((label, state))
        if broken is not None:
            story += [
                step
                for step in next_states(self.setting, state)
                if step[0][0] in _CHECKPOINTS and not broken(self.setting, state, step[1])
            ][:1]
        return tuple(story)
