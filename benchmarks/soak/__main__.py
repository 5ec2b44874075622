"""Soaks: `python -m benchmarks.soak simulate`, `processes`, and `plot`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.soak.simulation import Simulation

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def simulate(
    samples: Annotated[Path, typer.Argument(help="A new file for the samples.")],
    ticks: Annotated[int, typer.Option(help="Ticks of all brokers and roles.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Of all random choices.")] = 0,
) -> None:
    """Run a soak on a manual clock."""
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(Path(folder), seed, samples, typer.echo)
        simulation.run(ticks)
        simulation.close()
        for what, count in sorted(simulation.counts.items()):
            typer.echo(f"{what}: {count}")


@app.command()
def plot(
    samples: Annotated[Path, typer.Argument(help="The samples of a soak.")],
    target: Annotated[Path, typer.Argument(help="The SVG to write.")],
) -> None:
    """Plot the samples of a soak."""


if __name__ == "__main__":
    app()
