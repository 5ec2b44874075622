"""The bounds that are explored: each configuration has other faults, because all of them together
have too many states. `QUICK` runs with the tests, `FULL` by `python -m tests.model.explore`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.model.state import Mutation, Setting

QUICK: Mapping[str, Setting] = {
    "pauses": Setting(replicas=3, records=2, epochs=2),
    "crashes": Setting(replicas=2, records=2, epochs=3, crashes=1, partial_fetches=True),
    "lost tails": Setting(replicas=2, records=2, epochs=2, crashes=1, lost_tails=1),
    "unclean elections": Setting(replicas=2, records=1, epochs=3, crashes=1, fences=1, uncleans=1),
    "min ISR": Setting(replicas=2, records=1, epochs=3, min_isr=2, fences=1, crashes=1),
    "eligible replicas": Setting(replicas=3, records=1, epochs=2, min_isr=2, fences=1),
    "lost logs": Setting(
        replicas=3, records=1, epochs=2, min_isr=2, pauses=0, crashes=1, lost_tails=1
    ),
    "planned stops": Setting(replicas=2, records=1, epochs=3, stops=1),
    "parked brokers": Setting(replicas=2, records=1, epochs=3, parks=3, fences=1),
    "parked brokers and a crash": Setting(replicas=2, records=1, epochs=3, parks=2, crashes=1),
    "three parked brokers": Setting(replicas=3, records=1, epochs=2, pauses=0, parks=3),
    "a parked broker's restored log": Setting(
        replicas=3, records=1, epochs=2, min_isr=2, pauses=0, parks=1, lost_tails=1
    ),
    "retries": Setting(replicas=2, records=2, epochs=3, retries=True),
    "requests in inboxes": Setting(replicas=2, records=2, epochs=3, requests=True),
    "unknown outcomes": Setting(replicas=3, records=1, epochs=2, unknown_outcomes=True),
    "lost answers": Setting(replicas=3, records=1, epochs=2, lost_answers=2),
    "lost answers and a crash": Setting(replicas=2, records=1, epochs=3, lost_answers=1, crashes=1),
    "checkpoints": Setting(replicas=2, records=1, epochs=2, crashes=1, checkpoints=2),
    "checkpoints and clean-up": Setting(replicas=2, records=1, epochs=2, checkpoints=3),
    "lag in messages": Setting(
        replicas=3,
        records=2,
        epochs=2,
        pauses=0,
        slow_high_watermark=True,
        partial_fetches=True,
        lag_max_messages=1,
    ),
    "slow joiners": Setting(
        replicas=3, records=1, epochs=2, slow_high_watermark=True, partial_fetches=True
    ),
}

FULL: Mapping[str, Setting] = {
    "three, three, three, a pause": Setting(replicas=3, records=3, epochs=3),
    "three, two, two, a crash and a lost tail": Setting(
        replicas=3, records=2, epochs=2, pauses=0, crashes=1, lost_tails=1
    ),
    "three, two, two, a crash": Setting(replicas=3, records=2, epochs=2, crashes=1),
    "three, one, three, min ISR 2": Setting(
        replicas=3, records=1, epochs=3, min_isr=2, crashes=1, fences=1
    ),
    "two, three, three, unclean elections": Setting(
        replicas=2, records=3, epochs=3, crashes=1, fences=1, uncleans=1
    ),
    "two, two, three, a lost answer and a crash": Setting(
        replicas=2, records=2, epochs=3, lost_answers=1, crashes=1
    ),
    "three, one, two, min ISR 2, a lost tail": Setting(
        replicas=3, records=1, epochs=2, min_isr=2, pauses=0, crashes=1, lost_tails=1, fences=1
    ),
    "three, two, two, a lost answer": Setting(replicas=3, records=2, epochs=2, lost_answers=1),
    "two, three, three, every fault": Setting(
        replicas=2,
        records=3,
        epochs=3,
        pauses=2,
        crashes=2,
        lost_tails=1,
        partial_fetches=True,
    ),
}


def mutated(name: str) -> Mutation:
    """Return the mutation with one mistake, given by its name."""
    return Mutation(**{name: True})
