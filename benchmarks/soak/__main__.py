"""Soaks: `python -m benchmarks.soak simulate`, `run` and `plot`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.soak.plots import plot_samples
from benchmarks.soak.processes import RealTime
from benchmarks.soak.samples import load
from benchmarks.soak.simulation import Simulation

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_Samples = Annotated[Path, typer.Argument(help="The file to which samples are appended.")]
_Seed = Annotated[int, typer.Option(help="The seed of all random choices.")]


@app.command()
def simulate(
    samples: _Samples,
    ticks: Annotated[int, typer.Option(help="Ticks of all brokers and roles.")] = 100_000,
    seed: _Seed = 0,
) -> None:
    """Run a soak on a manual clock."""
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(Path(folder), seed, samples, typer.echo)
        simulation.run(ticks)
        simulation.close()
        for what, count in sorted(simulation.counts.items()):
            typer.echo(f"{what}: {count}")


@app.command()
def run(
    samples: _Samples,
    minutes: Annotated[float, typer.Option(help="The time for which records are sent.")] = 60,
    records_per_second: Annotated[float, typer.Option(help="Records sent, one by one.")] = 10,
    seed: _Seed = 0,
) -> None:
    """Run a soak with brokers in processes."""
    with tempfile.TemporaryDirectory() as folder:
        soak = RealTime(Path(folder) / "soak", seed, samples, typer.echo)
        try:
            soak.run(minutes * 60, records_per_second)
        finally:
            soak.close()


@app.command()
def plot(
    samples: Annotated[Path, typer.Argument(help="The samples of a soak.")],
    target: Annotated[Path, typer.Argument(help="The SVG to write.")],
    title: Annotated[str, typer.Option(help="What was run.")] = "",
    unit: Annotated[str, typer.Option(help="What the samples count: ticks or seconds.")] = "ticks",
) -> None:
    """Plot the samples of a soak."""
    plot_samples(load(samples), title, unit, target)


if __name__ == "__main__":
    app()
