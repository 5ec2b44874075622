"""Searches for failures for a given time.

    python -m tests.state_machine.run --minutes 10

Failures are printed as scripts that repeat the story; the search goes on.
"""

from __future__ import annotations

import logging
import random
import time
from pathlib import Path
from typing import Annotated

import hypothesis
import pytest
import typer
from hypothesis.stateful import run_state_machine_as_test

from sparklog.logger import ROOT as LOGGER
from tests.state_machine.faults import FAULTS
from tests.state_machine.machine import ClusterMachine


def main(
    minutes: Annotated[float, typer.Option(help="How long to look.")] = 10.0,
    steps: Annotated[int, typer.Option(help="How many steps a story has at most.")] = 60,
    seed: Annotated[int | None, typer.Option(help="Where chance begins.")] = None,
    found: Annotated[Path | None, typer.Option(help="The folder for what is found.")] = None,
    fault: Annotated[str | None, typer.Option(help="A seeded fault to be found.")] = None,
) -> None:
    """Search for failures."""
    if fault is not None:
        FAULTS[fault](pytest.MonkeyPatch())
    logging.getLogger(LOGGER).setLevel(logging.CRITICAL)
    chance = random.Random(seed)
    settings = hypothesis.settings(
        max_examples=20,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    end = time.monotonic() + minutes * 60
    runs = failures = 0
    while time.monotonic() < end:
        number = chance.randrange(1 << 32)
        runs += 1
        machine = hypothesis.seed(number)(ClusterMachine)
        try:
            run_state_machine_as_test(machine, settings=settings)
        except Exception as error:  # noqa: BLE001 - any error is a found failure
            failures += 1
            typer.echo(f"--- seed {number}: {type(error).__name__}\n{ClusterMachine.last_failure}")
            if found is not None:
                found.mkdir(parents=True, exist_ok=True)
                script = ClusterMachine.last_failure
                (found / f"seed_{number}.py").write_text(script, encoding="utf-8")
    typer.echo(f"{runs} runs of {settings.max_examples} stories, {failures} with a failure")
    raise typer.Exit(code=1 if failures else 0)


if __name__ == "__main__":
    typer.run(main)
