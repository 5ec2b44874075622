"""Limits at full size: `python -m tests.faults.limits --only "full disks"`.

Each outcome is printed and appended as a JSON line to docs/benchmarks/limits.jsonl. Small versions
run with the tests. Disks and control groups need root.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from tests.faults.limits import (
    backlog,
    descriptors,
    full_disks,
    memory,
    partitions,
    slow_disks,
)
from tests.faults.results import Result, Results
from tests.jobs.processes import ROOT

MEASURES: dict[str, Callable[[Path], Iterator[Result]]] = {
    "descriptors": descriptors.run,
    "memory": memory.run,
    "full disks": full_disks.run,
    "slow disks": slow_disks.run,
    "partitions": partitions.run,
    "backlog": backlog.run,
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def limits(
    only: Annotated[list[str] | None, typer.Option(help=f"{', '.join(MEASURES)}.")] = None,
    results: Annotated[Path, typer.Option(help="The file of results.")] = (
        ROOT / "docs" / "benchmarks" / "limits.jsonl"
    ),
    folder: Annotated[Path | None, typer.Option(help="Where data is written.")] = None,
) -> None:
    """Run each limit, print its outcomes and append them to the results."""
    for name in only or ():
        if name not in MEASURES:
            raise typer.BadParameter(f"there is no limit {name!r}: name {', '.join(MEASURES)}")
    file = Results(results)
    for name, measure in MEASURES.items():
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory(dir=folder) as own:
            for measured in measure(Path(own)):
                load = round(os.getloadavg()[0], 1)
                at = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
                # Messages name files: results do not depend on where they were.
                row = json.loads(json.dumps(measured).replace(own, "FOLDER"))
                file.append({"at": at, "cores": os.cpu_count(), "load_average": load, **row})
                typer.echo(json.dumps(row))


if __name__ == "__main__":
    app()
