"""Whatever happens to a cluster, in any order, what was promised holds (protocol, section 9).

`SPARKLOG_STORIES` asks for more stories than these; `python -m tests.state_machine.run` looks for
new ones as long as it is told to.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import hypothesis
import pytest
import structlog
from hypothesis.stateful import run_state_machine_as_test

from tests.state_machine.machine import ClusterMachine

STORIES = int(os.environ.get("SPARKLOG_STORIES", "10"))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_promised_holds_whatever_happens(seed: int) -> None:
    """The same stories each time, so that a change that breaks one is the one that is at fault."""
    machine = hypothesis.seed(seed)(type("Machine", (ClusterMachine,), {}))
    settings = hypothesis.settings(
        max_examples=STORIES,
        stateful_step_count=30,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(machine, settings=settings)
