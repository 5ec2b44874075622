"""Random scripts: each seed stands for one shape of a cluster and one list of steps."""

from __future__ import annotations

import random

from tests.faults.simulation.script import Event, Step
from tests.faults.simulation.world import BROKERS, PRODUCERS, Shape, process_names

_BROKER_ACTIONS = {
    "controller_tick": 5,
    "leader_tick": 10,
    "follower_tick": 10,
    "heartbeat": 4,
    "poll": 3,
    "merge": 1,
    "clean": 1,
    "stop": 0.2,
    "start": 3,
}
_EVENTS = (
    *("suspend",) * 6,
    *("kill", "died"),
    *("refused", "landed", "repeated", "unknown"),
)
_PAUSES_MS = (10, 200, 1_000, 1_000, 3_000, 7_000, 12_000, 70_000, 600_000)
_JUMPS_MS = (0, 0, -3_600_000, -5_000, 5_000, 3_600_000)
_MOST_DRIFT_PPM = 20_000


def shape_of(seed: int) -> Shape:
    """Return the shape of a seed's cluster."""
    chance = random.Random(f"shape {seed}")
    drifts = tuple(chance.randrange(_MOST_DRIFT_PPM) for _ in process_names())
    return Shape(chance.randint(1, 3), chance.choice((2, 3, 3)), drifts)


def steps_of(seed: int, count: int) -> list[Step]:
    """Return the script of a seed."""
    chance = random.Random(f"steps {seed}")
    shape = shape_of(seed)
    storm = chance.choice((0.02, 0.08, 0.2))
    steps: list[Step] = []
    while len(steps) < count:
        kind = chance.random()
        if kind < 0.08:
            steps += _round()
        elif kind < 0.9:
            steps.append(_step(chance, shape, storm))
        else:
            steps.append(_disturbance(chance))
    return steps[:count]


def _round() -> list[Step]:
    """A round of all brokers without faults, in which requests are answered."""
    roles = ("heartbeat", "controller_tick", "leader_tick", "follower_tick", "leader_tick")
    brokers = [f"broker-{one}a" for one in range(BROKERS)]
    ticks = [Step(one, role) for role in roles for one in brokers]
    return [Step("clock", "advance", (1_000,)), *ticks, *(Step(one, "poll") for one in PRODUCERS)]


def _step(chance: random.Random, shape: Shape, storm: float) -> Step:
    events = _events(chance, storm)
    kind = chance.random()
    partition = chance.randrange(shape.partitions)
    if kind < 0.18:
        return Step(chance.choice(process_names()), "resume", (), events)
    if kind < 0.36:
        sent = partition, chance.randint(1, 3), chance.choice((0, 0, 1, 2))
        return Step(chance.choice(PRODUCERS), "send", sent, events)
    if kind < 0.42:
        return Step(chance.choice(PRODUCERS), "poll", (), events)
    if kind < 0.46:
        return Step("consumer-0", "read", (partition,), events)
    if kind < 0.475:
        return Step("admin", "elect", (partition,), events)
    slot = "a" if chance.random() < 0.92 else "b"
    [what] = chance.choices([*_BROKER_ACTIONS], [*_BROKER_ACTIONS.values()])
    return Step(f"broker-{chance.randrange(BROKERS)}{slot}", what, (), events)


def _events(chance: random.Random, storm: float) -> tuple[Event, ...]:
    if chance.random() >= storm:
        return ()
    return tuple(
        (int(chance.expovariate(1 / 8)) + 1, chance.choice(_EVENTS))
        for _ in range(chance.choice((1, 1, 2)))
    )


def _disturbance(chance: random.Random) -> Step:
    kind = chance.random()
    if kind < 0.72:
        return Step("clock", "advance", (chance.choice(_PAUSES_MS),))
    if kind < 0.82:
        return Step(chance.choice(process_names()), "jump", (chance.choice(_JUMPS_MS),))
    if kind < 0.92:
        return Step(chance.choice(process_names()), "kill")
    lost = chance.randrange(BROKERS), chance.randrange(3), chance.randrange(3)
    return Step("machine", "power", lost)
