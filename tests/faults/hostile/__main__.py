"""Hostile input: `python -m tests.faults.hostile --inputs 1000000 --seed 1 --target NAME`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from tests.faults.hostile.runner import run_all, share
from tests.faults.hostile.targets import all_targets

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def hostile(
    inputs: Annotated[int, typer.Option(help="The number of inputs, shared by weight.")] = 10_000,
    seed: Annotated[int, typer.Option(help="The seed; inputs of one seed are numbered.")] = 1,
    target: Annotated[list[str] | None, typer.Option(help="Only these targets.")] = None,
    least: Annotated[int, typer.Option(help="The least number of inputs of a target.")] = 2_000,
) -> None:
    """Give hostile input to the parsers; exit with 1 if there is a finding."""
    with tempfile.TemporaryDirectory() as folder:
        known = all_targets(Path(folder))
    names = [one.name for one in known]
    for name in target or []:
        if name not in names:
            raise typer.BadParameter(f"there is no target {name}: {', '.join(names)}")
    chosen = [one for one in known if not target or one.name in target]
    of_each = share(chosen, inputs, min(least, inputs))
    began = time.monotonic()
    run = run_all(names, [of_each.get(name, 0) for name in names], seed)
    for outcome in run.outcomes:
        if outcome.inputs:
            count = sum(one.target == outcome.target for one in run.findings)
            typer.echo(
                f"{outcome.target:28} {outcome.inputs:8} inputs {outcome.cpu_s:8.1f} s "
                f"{count:3} findings"
            )
    for one in run.findings:
        typer.echo(f"\n{one.target}, input {one.number} of seed {seed}, {one.times} times")
        typer.echo(f"  {one.fault}\n  at {one.place}\n  {one.content}")
    total = sum(one.inputs for one in run.outcomes)
    typer.echo(f"{total} inputs, {time.monotonic() - began:.0f} s, {len(run.findings)} findings")
    raise typer.Exit(bool(run.findings))


if __name__ == "__main__":
    app()
