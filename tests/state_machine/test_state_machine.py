"""The protocol's invariants (section 9) hold for any sequence of steps.

`SPARKLOG_STORIES` is the number of stories; `python -m tests.state_machine.run` searches for
failing ones for a given time.
"""

from __future__ import annotations

import os

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.state_machine.machine import ClusterMachine

STORIES = int(os.environ.get("SPARKLOG_STORIES", "10"))


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_promised_holds_whatever_happens(seed: int) -> None:
    """The stories are the same each time, so that a failing story was broken by the current
    change.
    """
    machine = hypothesis.seed(seed)(type("Machine", (ClusterMachine,), {}))
    settings = hypothesis.settings(
        max_examples=STORIES,
        stateful_step_count=45,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(machine, settings=settings)
