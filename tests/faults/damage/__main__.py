"""Damage: `python -m tests.faults.damage --processes 2`.

Damages each kind of file of each table of a cluster, at rest and at work, and writes the outcomes
to docs/benchmarks/damage.jsonl and the tables of docs/damage.md. With `--match` only some cases are
played, and printed. With `--storage s3` the cluster is in a bucket of the project's own server of
the S3 API, and the outcomes are in docs/benchmarks/damage_on_stores.jsonl.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from tests.faults.damage.cases import DAMAGES
from tests.faults.damage.matrix import (
    Result,
    cases_of,
    in_turn,
    new_place,
    read_results,
    run,
    sample,
)
from tests.faults.damage.pairs import play_pair, verdicts
from tests.faults.damage.storage import StorageKind
from tests.faults.damage.table import DOCUMENT, with_tables

_FOLDER = Path(__file__).parents[3] / "docs" / "benchmarks"
RESULTS: dict[StorageKind, Path] = {
    "folder": _FOLDER / "damage.jsonl",
    "s3": _FOLDER / "damage_on_stores.jsonl",
}
"""The files of the outcomes by kind of storage."""

PAIRS = _FOLDER / "damage_pairs.jsonl"
"""The file of the verdicts of pairs."""


def main(
    match: Annotated[
        list[str] | None, typer.Option(help="Only cases whose names contain this; may be repeated.")
    ] = None,
    count: Annotated[
        int, typer.Option(help="Damages of each file, at rest and at work; 7 are all.")
    ] = 7,
    seed: Annotated[int, typer.Option(help="The seed of positions and files.")] = 1,
    processes: Annotated[int, typer.Option(help="Cases that are played in parallel.")] = 1,
    storage: Annotated[StorageKind, typer.Option(help="The storage of the cluster.")] = "folder",
    results: Annotated[Path | None, typer.Option(help="The file of the outcomes.")] = None,
    pairs: Annotated[
        int, typer.Option(help="Play this number of random pairs in folders instead.")
    ] = 0,
) -> None:
    """Play the cases whose outcome is not in the file yet; exit with 1 if a promise is broken."""
    if pairs:
        raise typer.Exit(_play_pairs(range(seed, seed + pairs), results or PAIRS))
    of_storage = RESULTS[storage]
    results = results or of_storage
    with new_place(storage) as place:
        cases = sample(cases_of(place, match or ()), count)
    known = {one.case for one in read_results(results)}
    with results.open("a", encoding="utf-8") as file:

        def done(result: Result) -> None:
            file.write(result.line() + "\n")
            file.flush()
            if match or result.outcome.verdict != "kept":
                typer.echo(f"{result.case}: {result.outcome}")

        run(storage, in_turn(cases, known, seed), seed, processes, done)
    order = {case: number for number, case in enumerate(cases)}
    found = [one for one in read_results(results) if one.case in order]
    if not match and count == len(DAMAGES):
        found.sort(key=lambda one: order[one.case])
        results.write_text("".join(one.line() + "\n" for one in found), encoding="utf-8")
    if results == of_storage:
        document = DOCUMENT.read_text(encoding="utf-8")
        text = with_tables(document, read_results(results), storage)
        DOCUMENT.write_text(text, encoding="utf-8")
    counts = Counter(one.outcome.verdict for one in found)
    typer.echo(f"{len(found)} cases: {dict(counts.most_common())}")
    raise typer.Exit(not counts.keys() <= {"kept"})


def _play_pairs(seeds: range, results: Path) -> bool:
    """Play the pairs of the seeds without a verdict; return whether one is broken."""
    known = verdicts(results)
    with new_place("folder") as place, results.open("a", encoding="utf-8") as file:
        cases = cases_of(place)
        for seed in (one for one in seeds if one not in known):
            result = play_pair(place, cases, seed)
            if result is not None:
                file.write(result.line() + "\n")
                file.flush()
                if result.verdict != "kept":
                    typer.echo(result.line())
    counts = Counter(verdicts(results).values())
    typer.echo(f"{counts.total()} pairs: {dict(counts.most_common())}")
    return counts.keys() != {"kept"}


if __name__ == "__main__":
    typer.run(main)
