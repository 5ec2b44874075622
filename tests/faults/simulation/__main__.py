"""Runs seeds of the simulation.

    python -m tests.faults.simulation --seeds 0:10000 --steps 500 --minutes 60 --processes 2

With the same folder a second run goes on after the seeds that are done.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tests.faults.simulation.mutations import MUTATIONS
from tests.faults.simulation.runner import run, seeds_needed


def main(
    seeds: Annotated[
        str, typer.Option(help="The first seed, and the one after the last.")
    ] = "0:100",
    steps: Annotated[int, typer.Option(help="Steps of each seed.")] = 500,
    minutes: Annotated[float, typer.Option(help="Minutes after which no seed is begun.")] = 10.0,
    processes: Annotated[int, typer.Option(help="Seeds that run in parallel.")] = 1,
    folder: Annotated[Path, typer.Option(help="The folder of the results.")] = Path("simulation"),
    mutations: Annotated[bool, typer.Option(help="Measure the seeds each mutation needs.")] = False,
) -> None:
    """Run seeds, or measure how many seeds each mutation of the product needs."""
    first, end = map(int, seeds.split(":"))
    if mutations:
        folder.mkdir(parents=True, exist_ok=True)
        needed: dict[str, int | None] = {}
        for name in MUTATIONS:
            needed[name] = seeds_needed(name, steps, end - first, first)
            typer.echo(f"{name}: {needed[name]}")
            (folder / "mutations.json").write_text(json.dumps(needed, indent=2) + "\n")
        return
    results = run(range(first, end), steps, minutes, folder, processes)
    typer.echo(f"{results.seeds} seeds of {steps} steps: {len(results.failures)} failed")
    for name, count in sorted(results.counts.items()):
        typer.echo(f"{count:>10} {name}")
    for seed, problems in sorted(results.failures.items()):
        typer.echo(f"--- seed {seed}: {problems[0]}")
        typer.echo((folder / f"seed-{seed}.txt").read_text(encoding="utf-8"))
    raise typer.Exit(code=1 if results.failures else 0)


if __name__ == "__main__":
    typer.run(main)
