"""Hostile input: `python -m tests.faults.hostile --inputs 1000000 --seed 1 --target NAME`."""

from __future__ import annotations

import logging
import tempfile
import time
import traceback
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from tests.faults.hostile.runner import run_all, share
from tests.faults.hostile.targets import all_targets
from tests.faults.hostile.whole_broker import HostileCluster

ATTACKS = 12
"""The attacks of a round on a cluster."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def hostile(
    inputs: Annotated[int, typer.Option(help="The number of inputs, shared by weight.")] = 10_000,
    seed: Annotated[int, typer.Option(help="The seed; inputs of one seed are numbered.")] = 1,
    target: Annotated[list[str] | None, typer.Option(help="Only these targets.")] = None,
    least: Annotated[int, typer.Option(help="The least number of inputs of a target.")] = 2_000,
    rounds: Annotated[int, typer.Option(help="Rounds of attacks on a cluster afterwards.")] = 0,
) -> None:
    """Give hostile input to the parsers, then to a cluster; exit with 1 if there is a finding."""
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
    raise typer.Exit(bool(run.findings) | _attack(rounds, seed))


def _attack(rounds: int, seed: int) -> bool:
    """Attack a cluster in rounds of `ATTACKS`; return whether one did not withstand it."""
    if not rounds:
        return False
    began = time.monotonic()
    failed = 0
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        cluster = HostileCluster(Path(folder))
        for number in range(rounds):
            try:
                done = [*cluster.round(Random((seed << 40) + number), ATTACKS)]
            except Exception:  # noqa: BLE001 - whatever a broker or client raises is a finding
                failed += 1
                typer.echo(f"\nround {number} of seed {seed}\n{traceback.format_exc()}")
                continue
            assert len(done) == ATTACKS
    taken = time.monotonic() - began
    typer.echo(f"{rounds * ATTACKS} attacks on a cluster, {taken:.0f} s, {failed} findings")
    return failed > 0


if __name__ == "__main__":
    app()
