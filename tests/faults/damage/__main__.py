"""Damage: `python -m tests.faults.damage --processes 2`.

Damages each kind of file of each table of a cluster, at rest and at work, and writes the outcomes
to docs/benchmarks/damage.jsonl and the tables of docs/damage.md. With `--match` only some cases are
played, and printed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from tests.faults.damage.cases import DAMAGES
from tests.faults.damage.matrix import (
    Result,
    cases_of,
    new_place,
    read_results,
    remove_place,
    run,
    sample,
)
from tests.faults.damage.table import DOCUMENT, with_tables

RESULTS = Path(__file__).parents[3] / "docs" / "benchmarks" / "damage.jsonl"


def main(
    match: Annotated[
        list[str] | None, typer.Option(help="Only cases whose names contain this; may be repeated.")
    ] = None,
    count: Annotated[
        int, typer.Option(help="Damages of each file, at rest and at work; 7 are all.")
    ] = 7,
    seed: Annotated[int, typer.Option(help="The seed of positions and files.")] = 1,
    processes: Annotated[int, typer.Option(help="Cases that are played in parallel.")] = 1,
    results: Annotated[Path, typer.Option(help="The file of the outcomes.")] = RESULTS,
) -> None:
    """Play the cases whose outcome is not in the file yet; exit with 1 if a promise is broken."""
    place = new_place()
    cases = sample(cases_of(place, match or ()), count)
    remove_place(place)
    known = {one.case for one in read_results(results)}
    with results.open("a", encoding="utf-8") as file:

        def done(result: Result) -> None:
            file.write(result.line() + "\n")
            file.flush()
            if match or result.outcome.verdict != "kept":
                typer.echo(f"{result.case}: {result.outcome}")

        # In another order, so that an interrupted run has outcomes of all tables.
        left = [one for one in cases if one not in known]
        Random(seed).shuffle(left)
        run(left, seed, processes, done)
    order = {case: number for number, case in enumerate(cases)}
    found = [one for one in read_results(results) if one.case in order]
    if not match and count == len(DAMAGES):
        found.sort(key=lambda one: order[one.case])
        results.write_text("".join(one.line() + "\n" for one in found), encoding="utf-8")
    if results == RESULTS:
        text = with_tables(DOCUMENT.read_text(encoding="utf-8"), read_results(RESULTS))
        DOCUMENT.write_text(text, encoding="utf-8")
    verdicts = Counter(one.outcome.verdict for one in found)
    typer.echo(f"{len(found)} cases: {dict(verdicts.most_common())}")
    raise typer.Exit(verdicts.keys() != {"kept"})


if __name__ == "__main__":
    typer.run(main)
