"""Inputs of the log cleaner that a real Kafka and sparklog both clean, and what Kafka kept of them.

A case has phases. After the records of a phase comes one with the key `roll`: Kafka leaves the
active segment alone, and that record begins it. Between two phases delete.retention.ms pass.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

OUTCOMES = Path(__file__).with_name("cleaner_outcomes.json")
"""The records that Kafka 4.3 kept, by the names of the cases."""

ROLL = "roll"
DELETE_RETENTION_MS = 1_000


class KeyValue(NamedTuple):
    """A record; a value of `None` is a tombstone."""

    key: str
    value: str | None


class Kept(NamedTuple):
    """A record that was kept, with its offset."""

    offset: int
    key: str
    value: str | None


Phases = list[list[KeyValue]]


def cases() -> dict[str, Phases]:
    """Return the phases of each case, by name."""
    found: dict[str, Phases] = {
        "each key once": [[KeyValue(f"k{n}", "v") for n in range(50)]],
        "one key": [[KeyValue("k", f"v{n}") for n in range(50)]],
        "a tombstone of a key that was written": [
            [KeyValue("a", "1"), KeyValue("b", "1"), KeyValue("a", None)],
            [KeyValue("c", "1")],
        ],
        "a tombstone of a key that was never written": [
            [KeyValue("a", None), KeyValue("b", "1")],
            [KeyValue("c", "1")],
        ],
        "a key that comes again after its tombstone": [
            [KeyValue("a", "1"), KeyValue("a", None)],
            [KeyValue("a", "2")],
            [KeyValue("b", "1")],
        ],
        "a tombstone that is replaced by another": [
            [KeyValue("a", None)],
            [KeyValue("a", None)],
            [KeyValue("b", "1")],
        ],
        "a young tombstone stays": [[KeyValue("a", "1")], [KeyValue("a", None)]],
    }
    for seed in range(6):
        found[f"random {seed}"] = list(_random_phases(random.Random(seed)))
    return found


def _random_phases(chance: random.Random) -> Iterator[list[KeyValue]]:
    keys = [f"k{n}" for n in range(chance.choice([3, 20, 200]))]
    for _ in range(chance.randint(1, 3)):
        yield [
            KeyValue(
                chance.choice(keys), None if chance.random() < 0.2 else str(chance.randrange(1000))
            )
            for _ in range(chance.choice([10, 100, 400]))
        ]


def outcomes() -> dict[str, list[Kept]]:
    """Return what Kafka kept of each case, by name."""
    stored = json.loads(OUTCOMES.read_text(encoding="utf-8"))
    return {name: without_rolls(Kept(*one) for one in records) for name, records in stored.items()}


def without_rolls(records: Iterable[Kept]) -> list[Kept]:
    """Return the records of a case alone: Kafka's cleaner does not read the active segment."""
    return [one for one in records if one.key != ROLL]
