"""Mutations of the real code, as programming mistakes would be, for the simulation to find.

Those of the state machine, and some of its own. `python -m tests.faults.simulation --mutations`
measures how many seeds each needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sparklog.broker.leading.sequences import Sequences
from sparklog.broker.replicas import Replicas
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage.delta_log import DeltaLog
from tests.state_machine.faults import FAULTS

Patch = pytest.MonkeyPatch
Row = dict[str, Any]


def outcome_not_read_back(patch: Patch) -> None:
    """A commit whose name is taken counts as another process's, although it may be the own one."""
    patch.setattr(DeltaLog, "_is_by", lambda *_: False)


def duplicates_not_recognised(patch: Patch) -> None:
    """A leader forgets the batches of idempotent producers, and appends them twice."""
    patch.setattr(Sequences, "duplicates", lambda *_: {})


def sequences_not_checked(patch: Patch) -> None:
    """A leader forgets the sequence numbers of producers and recognises no retry."""
    patch.setattr(Sequences, "remembered", lambda *_: [])


def _change_output(patch: Patch, rule: str, change: Callable[[Row], Row | None]) -> None:
    """Let `change` replace each row of a rule's result; `None` leaves it out."""
    run = DriverRules.run

    def changed(self: DriverRules, name: str, **inputs: Any) -> list[Row]:
        rows = run(self, name, **inputs)
        if name != rule:
            return rows
        return [row for row in map(change, rows) if row is not None]

    patch.setattr(DriverRules, "run", changed)


def divergence_not_truncated(patch: Patch) -> None:
    """A follower never truncates, whatever the leader's epochs say."""
    _change_output(patch, "truncation_point", lambda _: None)


def no_return_to_the_isr(patch: Patch) -> None:
    """A follower that has caught up does not return to the ISR."""
    _change_output(patch, "isr_expand", lambda _: None)


def log_end_offset_too_small(patch: Patch) -> None:
    """The log end of a replica is taken to be one record too low."""
    end = Replicas.log_end_offset

    def short(self: Replicas, *arguments: Any) -> int:
        return max(end(self, *arguments) - 1, 0)

    patch.setattr(Replicas, "log_end_offset", short)


MUTATIONS: Mapping[str, Callable[[Patch], None]] = {
    **FAULTS,
    **{
        mutation.__name__: mutation
        for mutation in (
            outcome_not_read_back,
            duplicates_not_recognised,
            sequences_not_checked,
            divergence_not_truncated,
            no_return_to_the_isr,
            log_end_offset_too_small,
        )
    },
}
"""All mutations by their names."""
