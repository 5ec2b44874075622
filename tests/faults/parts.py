"""The parts of the torture by name; each runs rounds and appends their results."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import datetime, timezone
from pathlib import Path

from tests.faults.results import Results
from tests.faults.rounds import CONFIGURATIONS, run_round
from tests.faults.simulation.runner import known_results, run

ROUND_SECONDS = 120.0
"""The time under load of a round of processes."""

SIMULATED_STEPS, SIMULATED_SEEDS = 500, 10_000
"""The steps of a seed of the simulation, and the seeds of the simulation that a seed stands for."""


def processes(folder: Path, results: Results, seed: int, minutes: float) -> None:
    """Run rounds of real processes, one configuration after the other.

    The number of a round is that of the seed's results before it, and gives its configuration and
    its own seed. A round that did not end has no result, and is run again.
    """
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        number = sum(one["torture_seed"] == seed for one in results.load())
        configuration = CONFIGURATIONS[number % len(CONFIGURATIONS)]
        begun = datetime.now(timezone.utc)
        # The time makes the folder new where an earlier round of the number was interrupted.
        name = f"{seed}-{number}-{begun:%Y%m%dT%H%M%S}"
        seconds = min(ROUND_SECONDS, end - time.monotonic())
        # Processes print their logs when they are closed; the files of these logs are enough here.
        with redirect_stdout(io.StringIO()):
            result = run_round(folder / name, configuration, seed * 100_000 + number, seconds)
        results.append(
            {"torture_seed": seed, "round": number, "begun": f"{begun:%Y-%m-%d %H:%M}", **result}
        )


def simulation(folder: Path, results: Results, seed: int, minutes: float) -> None:
    """Play seeds of the simulation on all cores: the first ones of this seed that have no result.

    A result is that of all seeds that one run has played. Failing ones leave a short script each.
    """
    own = folder / str(seed)
    before = known_results(own, SIMULATED_STEPS)
    begun = datetime.now(timezone.utc)
    first = seed * SIMULATED_SEEDS
    after = run(
        range(first, first + SIMULATED_SEEDS), SIMULATED_STEPS, minutes, own, os.cpu_count() or 1
    )
    failing = sorted(after.failures.keys() - before.failures.keys())
    results.append(
        {
            "torture_seed": seed,
            "begun": f"{begun:%Y-%m-%d %H:%M}",
            "seeds": after.seeds - before.seeds,
            "steps": SIMULATED_STEPS,
            "counts": dict(after.counts - before.counts),
            "failing": failing,
            "anomalies": len(failing),
        }
    )


Part = Callable[[Path, Results, int, float], None]
"""A part: runs rounds in a folder for some minutes with a seed, and appends their results."""

PARTS: dict[str, Part] = {"processes": processes, "simulation": simulation}
"""All parts. A result of any part has at least `torture_seed` and `anomalies`, their number."""
