"""Random scripts: each seed stands for one shape of a cluster and one list of steps."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.faults.simulation.script import Event, Step
from tests.faults.simulation.world import BROKERS, PRODUCERS, Shape, process_names

_OUTCOMES = (
    *("suspend",) * 4,
    *("kill", "died"),
    *("refused", "refused", "landed", "repeated", "unknown", "unknown"),
)
"""The outcomes of commits; other calls fail in their own ways."""

_KINDS = {
    "any": (0.3, 8),
    "link": (0.3, 1),
    "commit": (0.3, 0.4),
    "sync": (0.05, 2),
    "write": (0.05, 2),
}
"""The share of events at operations of a kind, and the mean number of operations before them."""

_SHORT_PAUSES_MS = (10, 200, 1_000, 3_000)
_LONG_PAUSES_MS = (7_000, 12_000, 12_000, 70_000, 600_000)
_JUMPS_MS = (0, 0, -3_600_000, -5_000, 5_000, 3_600_000)
_MOST_DRIFT_PPM = 20_000
_SECOND = "b"
"""The slot of a broker's second process, which may run beside the first one."""


class Weather(NamedTuple):
    """The rates of a seed's faults, each a probability.

    `storm` is that of an event in a tick or call; `disturbed` that of a disturbance after a round;
    `absent` that of a broker that has no ticks for some rounds; `quiet` that of a role that is left
    out of a round.
    """

    storm: float
    disturbed: float
    absent: float
    quiet: float


_WEATHERS = (
    Weather(0.02, 0.2, 0.1, 0.05),
    Weather(0.06, 0.3, 0.2, 0.1),
    Weather(0.12, 0.4, 0.1, 0.2),
    Weather(0.03, 0.6, 0.3, 0.3),
    Weather(0.25, 0.2, 0.1, 0.1),
)


def shape_of(seed: int) -> Shape:
    """Return the shape of a seed's cluster."""
    chance = random.Random(f"shape {seed}")
    drifts = tuple(chance.randrange(_MOST_DRIFT_PPM) for _ in process_names())
    return Shape(chance.choice((1, 1, 2)), chance.choice((2, 3, 3)), drifts)


def steps_of(seed: int, count: int) -> list[Step]:
    """Return the script of a seed."""
    return Story(seed).steps(count)


class Story:
    """Rounds of a cluster at work, with brokers that are absent for some of them, and disturbances.

    A script is written before it is played, so it does not know which broker leads or has ended: it
    starts ended brokers again some rounds later, and resumes suspended processes.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"steps {seed}")
        self._shape = shape_of(seed)
        self._weather = self._chance.choice(_WEATHERS)
        self._absent: dict[int, int] = {}
        self._round = 0

    def steps(self, count: int) -> list[Step]:
        """Return so many steps."""
        steps: list[Step] = []
        while len(steps) < count:
            steps += self._one_round()
            if self._happens(self._weather.disturbed):
                steps += self._disturbance()
        return steps[:count]

    def _one_round(self) -> Iterator[Step]:
        """A round of those brokers that are not absent; every third one has heartbeats."""
        chance = self._chance
        self._round += 1
        self._absent = {of: left - 1 for of, left in self._absent.items() if left > 1}
        if self._happens(self._weather.absent):
            self._absent[chance.randrange(BROKERS)] = chance.choice((1, 2, 4, 8))
        present = [one for one in range(BROKERS) if one not in self._absent]
        yield self._advance(_SHORT_PAUSES_MS)
        yield from self._sends()
        roles = ["leader_tick", "follower_tick", "leader_tick"]
        if self._round % 3 == 0:
            roles = ["heartbeat", "controller_tick", *roles]
        for role in roles:
            chance.shuffle(present)
            for one in present:
                if not self._happens(self._weather.quiet):
                    yield Step(f"broker-{one}a", role, (), self._events())
        for name in PRODUCERS:
            yield Step(name, "poll", (), self._events())
        if self._happens(0.3):
            yield Step("consumer-0", "read", (self._partition(),), self._events())
        yield from self._revivals()

    def _sends(self) -> Iterator[Step]:
        for name in PRODUCERS:
            if self._happens(0.7):
                acks = self._chance.choice((0, 0, 0, 1, 2))
                sent = self._partition(), self._chance.randint(1, 3), acks
                yield Step(name, "send", sent, self._events())

    def _revivals(self) -> Iterator[Step]:
        """Let some of the processes that a fault has suspended or ended go on."""
        for name in (*PRODUCERS, "consumer-0", "admin"):
            if self._happens(0.4):
                yield Step(name, "resume")
        for one in range(BROKERS):
            if self._happens(0.25):
                yield Step(f"broker-{one}a", "resume")
                yield Step(f"broker-{one}a", "start", (), self._events())

    def _disturbance(self) -> Sequence[Step]:
        chance = self._chance
        broker = chance.randrange(BROKERS)
        name = f"broker-{broker}a"
        [kind] = chance.choices(
            ("pause", "kill", "stop", "second", "power", "jump", "elect", "upkeep", "client"),
            (5, 4, 1, 2, 2, 1, 2, 2, 1),
        )
        if kind == "pause":
            return [self._advance(_LONG_PAUSES_MS), *self._elections()]
        if kind == "kill":
            self._absent[broker] = chance.choice((1, 3, 6))
            killed = [Step(name, "kill")]
            if self._happens(0.5):
                killed += [self._advance(_LONG_PAUSES_MS), *self._elections()]
            return [*killed, *([Step(name, "start")] if self._happens(0.5) else [])]
        if kind == "stop":
            return [Step(name, "stop", (), self._events()), *self._elections()]
        if kind == "second":
            return self._second_process(broker)
        if kind == "power":
            lost = broker, chance.randrange(3), chance.randrange(3)
            return [Step("machine", "power", lost), Step(name, "start")]
        if kind == "jump":
            jumped = chance.choice(process_names())
            return [Step(jumped, "jump", (chance.choice(_JUMPS_MS),))]
        if kind == "elect":
            return [Step("admin", "elect", (self._partition(),), self._events())]
        if kind == "client":
            return [Step(chance.choice((*PRODUCERS, "consumer-0")), "kill")]
        self_made = [Step(name, chance.choice(("merge", "clean")), (), self._events())]
        return [Step("clock", "advance", (70_000,)), *self._heartbeats(), *self_made]

    def _second_process(self, broker: int) -> list[Step]:
        """Start a broker's second process beside its first one, and let both act."""
        chance = self._chance
        first, second = f"broker-{broker}a", f"broker-{broker}{_SECOND}"
        sends = [Step(one, "send", (self._partition(), 1, 0)) for one in PRODUCERS]
        polls = [Step(one, "poll") for one in PRODUCERS]
        before = [*sends]
        if self._happens(0.6):
            at = Event(int(chance.expovariate(1 / 20)) + 1, "suspend")
            if self._happens(0.5):
                at = Event(1, "suspend", "commit")
            role = chance.choice(("leader_tick", "leader_tick", "follower_tick"))
            before.append(Step(first, role, (), (at,)))
        others = [
            Step(f"broker-{one}a", role)
            for role in ("follower_tick", "leader_tick")
            for one in range(BROKERS)
            if one != broker
        ]
        of_second = [Step(second, one) for one in ("leader_tick", "follower_tick", "leader_tick")]
        elections = self._elections() if self._happens(0.7) else []
        late = [Step(first, "resume"), *(Step(first, "leader_tick") for _ in range(2))]
        steps = [*before, Step(second, "start"), *elections, *of_second[:1], *sends, *of_second]
        steps += [
            *others,
            *of_second[:1],
            *polls,
            *sends,
            *late,
            *others,
            *of_second,
            *polls,
            *sends,
        ]
        ended = [Step(second, "kill"), Step(first, "kill"), Step(first, "start")]
        return [*steps, *late, Step(first, "follower_tick"), *ended]

    def _elections(self) -> list[Step]:
        """The ticks after which the brokers that are present have replaced silent leaders."""
        present = [one for one in range(BROKERS) if one not in self._absent]
        ticks = [*self._heartbeats()]
        for _ in range(2):
            ticks += [
                Step(f"broker-{one}a", "controller_tick", (), self._events()) for one in present
            ]
        return ticks

    def _heartbeats(self) -> list[Step]:
        present = [one for one in range(BROKERS) if one not in self._absent]
        return [Step(f"broker-{one}a", "heartbeat") for one in present]

    def _advance(self, pauses_ms: Sequence[int]) -> Step:
        return Step("clock", "advance", (self._chance.choice(pauses_ms),))

    def _partition(self) -> int:
        return self._chance.randrange(self._shape.partitions)

    def _happens(self, probability: float) -> bool:
        return self._chance.random() < probability

    def _events(self) -> tuple[Event, ...]:
        if not self._happens(self._weather.storm):
            return ()
        return tuple(self._event() for _ in range(self._chance.choice((1, 1, 2))))

    def _event(self) -> Event:
        [kind] = self._chance.choices([*_KINDS], [share for share, _ in _KINDS.values()])
        number = int(self._chance.expovariate(1 / _KINDS[kind][1])) + 1
        return Event(number, self._chance.choice(_OUTCOMES), kind)
