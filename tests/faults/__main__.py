"""The torture: `make torture TORTURE_OPTIONS="--minutes 60 --seed 1 --only processes"`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tests.faults.parts import PARTS
from tests.faults.results import Results, summary

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def torture(
    minutes: Annotated[float, typer.Option(help="The time after which no round begins.")] = 60,
    seed: Annotated[int, typer.Option(help="The seed; rounds of one seed are numbered.")] = 0,
    folder: Annotated[
        Path, typer.Option(resolve_path=True, help="Results and logs; a next run continues.")
    ] = Path("sparklog-torture"),
    only: Annotated[list[str] | None, typer.Option(help=f"Parts: {', '.join(PARTS)}.")] = None,
) -> None:
    """Run rounds of each part in turn; exit with 1 if any result of the folder has an anomaly."""
    for part in only or []:
        if part not in PARTS:
            raise typer.BadParameter(f"there is no part {part}: choose from {', '.join(PARTS)}")
    chosen = only or list(PARTS)
    for part in chosen:
        results = Results(folder / f"{part}.jsonl")
        PARTS[part](folder / part, results, seed, minutes / len(chosen))
    has_anomaly = False
    for part in chosen:
        results = Results(folder / f"{part}.jsonl")
        typer.echo(f"{part}: {summary(results.load())}")
        has_anomaly |= any(one["anomalies"] for one in results.load())
    raise typer.Exit(has_anomaly)


if __name__ == "__main__":
    app()
