"""Random scripts: each seed stands for one shape of a cluster and one list of steps."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.faults.simulation.disturbances import Disturbances
from tests.faults.simulation.script import Event, Step
from tests.faults.simulation.world import BROKERS, PRODUCERS, READER, Shape, process_names

_OUTCOMES = (
    *("suspend",) * 4,
    *("kill", "died"),
    *("refused", "refused", "landed", "repeated", "unknown", "unknown"),
)
"""The outcomes of commits; other calls fail in their own ways."""

_OUTCOMES_ON_STORES = (*_OUTCOMES, "late", "late")
"""Those of requests to a store, which may be carried out after they were given up."""

_KINDS = {
    "any": (0.3, 8),
    "link": (0.3, 1),
    "commit": (0.3, 0.4),
    "sync": (0.05, 2),
    "write": (0.05, 2),
}
"""The share of events at operations of a kind, and the mean number of operations before them."""

_KINDS_ON_STORES = {
    "any": (0.3, 20),
    "link": (0.3, 1),
    "commit": (0.25, 0.4),
    "list": (0.15, 0.5),
    "read": (0.1, 8),
}
"""Those of requests to a store, which has no syncs and no writes of parts of files."""

_SHORT_PAUSES_MS = (10, 200, 1_000, 3_000)
_MOST_DRIFT_PPM = 20_000
_RETENTION_MS = 90_000
"""The age at which records are deleted where they are: a few of the longer pauses."""
_COMPACTED = 0.4
"""The share of the other clusters without retention whose logs are compacted."""
FIRST_WITH_BIT_FLIPS = 1_000
"""The first seed with bit flips. The stories of those before are the ones by which the mutations
were measured."""
FIRST_WITH_HOURS = 10_000
"""The first seed whose longest pause is not ten minutes, but three hours."""
_HOURS_MS = 3 * 3_600_000
FIRST_ON_STORES = 20_000
"""The first seed with object stores, and with processes that are replaced between two reads."""
FIRST_WITH_DAMAGED_TABLES = 40_000
"""The first seed with damaged tables, in half of the clusters with three replicas that sync."""
FIRST_WITH_CUT_LEADERS = 50_000
"""The first seed in which leaders cut their logs while a `Consumer` reads by older metadata."""
_ON_STORES = 0.6
_OUTDATED_LISTS = (0.0, 0.3)
_PUBLIC_CLIENTS = 0.5
_WITH_BIT_FLIPS = 0.5
_WITH_DAMAGED_TABLES = 0.5
_UNSYNCED = 0.2
"""The share of clusters whose roots leave writing to the disk to the operating system."""


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
    shape = _drawn_shape(seed)
    if seed >= FIRST_WITH_HOURS:
        shape = shape._replace(longest_pause_ms=_HOURS_MS)
    if seed >= FIRST_ON_STORES:
        shape = shape._replace(has_replaced_processes=True)
        # A store has stored what it has answered.
        place = random.Random(f"place {seed}")
        if shape.is_synced and place.random() < _ON_STORES:
            shape = shape._replace(is_on_store=True, outdated_lists=place.choice(_OUTDATED_LISTS))
        shape = shape._replace(has_public_clients=place.random() < _PUBLIC_CLIENTS)
    if seed >= FIRST_WITH_DAMAGED_TABLES and shape.replication_factor == BROKERS:
        is_damaged = random.Random(f"tables {seed}").random() < _WITH_DAMAGED_TABLES
        shape = shape._replace(has_damaged_tables=shape.is_synced and is_damaged)
    # On a store brokers do not verify files by default.
    if seed >= FIRST_WITH_CUT_LEADERS and shape.has_bit_flips and not shape.is_on_store:
        shape = shape._replace(has_cut_leaders=True, has_public_clients=True)
    return shape


def _drawn_shape(seed: int) -> Shape:
    chance = random.Random(f"shape {seed}")
    drifts = tuple(chance.randrange(_MOST_DRIFT_PPM) for _ in process_names())
    partitions, replicas = chance.choice((1, 1, 2)), chance.choice((2, 3, 3))
    if chance.random() < _UNSYNCED:
        # What one machine has not synced, another one has.
        return Shape(partitions, BROKERS, drifts, min_isr=2, is_synced=False)
    min_isr, retention_ms = chance.choice((1, 1, 2)), chance.choice((-1, -1, _RETENTION_MS))
    is_compacted = retention_ms < 0 and chance.random() < _COMPACTED
    may_flip = seed >= FIRST_WITH_BIT_FLIPS and replicas == BROKERS
    return Shape(
        partitions,
        replicas,
        drifts,
        min_isr,
        retention_ms=retention_ms,
        is_compacted=is_compacted,
        has_bit_flips=may_flip and chance.random() < _WITH_BIT_FLIPS,
    )


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
        self._disturbances = Disturbances(self._chance, self._shape, self._events, focus=seed)

    def steps(self, count: int) -> list[Step]:
        """Return so many steps."""
        steps: list[Step] = []
        while len(steps) < count:
            steps += self._one_round()
            if self._happens(self._weather.disturbed):
                steps += self._disturbances.any()
        return steps[:count]

    def _one_round(self) -> Iterator[Step]:
        """A round of those brokers that are not absent; every third one has heartbeats."""
        chance = self._chance
        self._round += 1
        for one in list(self._absent):
            self._absent[one] -= 1
            if self._absent[one] == 0:
                del self._absent[one]
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
        if self._shape.has_public_clients and self._happens(0.3):
            yield Step(READER, "poll", (), self._events())
        yield from self._revivals()

    def _sends(self) -> Iterator[Step]:
        for name in PRODUCERS:
            if self._happens(0.7):
                acks = self._chance.choice((0, 0, 0, 1, 2))
                sent = self._partition(), self._chance.randint(1, 3), acks
                yield Step(name, "send", sent, self._events())

    def _revivals(self) -> Iterator[Step]:
        """Let some of the processes that a fault has suspended or ended go on."""
        readers = ("consumer-0", READER) if self._shape.has_public_clients else ("consumer-0",)
        for name in (*PRODUCERS, *readers, "admin"):
            if self._happens(0.4):
                yield Step(name, "resume")
        for one in range(BROKERS):
            if self._happens(0.25):
                yield Step(f"broker-{one}a", "resume")
                yield Step(f"broker-{one}a", "start", (), self._events())

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
        is_on_store = self._shape.is_on_store
        kinds = _KINDS_ON_STORES if is_on_store else _KINDS
        [kind] = self._chance.choices([*kinds], [share for share, _ in kinds.values()])
        number = int(self._chance.expovariate(1 / kinds[kind][1])) + 1
        outcomes = _OUTCOMES_ON_STORES if is_on_store else _OUTCOMES
        return Event(number, self._chance.choice(outcomes), kind)
