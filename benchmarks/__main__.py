"""Measures works and writes the results: `make bench`, or `python -m benchmarks WORK...`."""

from __future__ import annotations

import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import results
from benchmarks.bench import Bench
from benchmarks.figures import Figures
from benchmarks.kafka_jars import KafkaJars, jars_in, kafka_jars
from benchmarks.machine import description
from benchmarks.report import not_held, write
from benchmarks.work import Work
from benchmarks.works import WORKS
from sparklog.cli.application import one_line_errors

DOCUMENT = results.CHECKOUT / "docs" / "benchmarks.md"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORK]...", help=f"{', '.join(work.name for work in WORKS)}."),
    ] = None,
    scale: Annotated[
        float, typer.Option(help="Of the full size; 0.01 to see that everything runs.")
    ] = 1.0,
    runs: Annotated[int, typer.Option(help="How often each figure is taken.")] = 3,
    cores: Annotated[int, typer.Option(help="Cores that Spark is given.")] = 2,
    without_kafka: Annotated[
        bool, typer.Option("--without-kafka", help="Measure sparklog and Delta alone.")
    ] = False,
    kafka_folders: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            "--kafka-jars",
            metavar="SERVER CONNECTOR",
            help="Folders with the JARs of a broker and of Spark's connector; fetched otherwise.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where data is written, on the disk to be measured.")
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(help="A folder for results.json and the report, in place of the project's."),
    ] = None,
) -> None:
    """Measure the named works, by default all but those that take longest."""
    with one_line_errors():
        works = chosen(names or [])
        jars: KafkaJars | None = None
        if not without_kafka:
            jars = jars_in(*kafka_folders) if kafka_folders else kafka_jars()
        noted = results.RESULTS if into is None else into / "results.json"
        document = DOCUMENT if into is None else into / "benchmarks.md"
        noted.parent.mkdir(parents=True, exist_ok=True)
        place = (folder or results.CHECKOUT / "sparklog-benchmarks").absolute()
        place.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=place) as own,
            Bench(Path(own), scale, runs, cores, jars) as bench,
        ):
            for work in works:
                measure(work, bench, noted)
                write(WORKS, results.load(noted), document)
    for work, target, verdict in not_held(works, results.load(noted)):
        words = f"{target.what}: {target.system}: {verdict.median}, {verdict.ratio or ''}"
        print(f"not held: {work.name}: {words}", file=sys.stderr)
    print(f"written: {noted} and {document}")


def chosen(names: list[str]) -> list[Work]:
    """Return the works of these names; without names, those of a whole run."""
    known = {work.name: work for work in WORKS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"there is no work {unknown[0]!r}: name any of {', '.join(known)}")
    return [known[name] for name in names] or [work for work in WORKS if not work.is_by_hand]


def measure(work: Work, bench: Bench, noted: Path) -> None:
    """Measure one work and store its results."""
    bench.say(f"{work.name}: {work.title}")
    started = time.monotonic()
    figures = Figures()
    wanted, bench.runs = bench.runs, min(bench.runs, work.most_runs)
    runs = bench.runs
    try:
        work.run(bench, figures)
    finally:
        bench.runs = wanted
    machine = description(bench.folder, bench.cores, with_kafka=bench.kafka_jars is not None)
    now = datetime.now(timezone.utc).isoformat(timespec="minutes")
    results.note(work.name, results.Result(figures, now, bench.scale, runs, machine), noted)
    bench.say(f"  {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    app()
