"""The report docs/benchmarks.md: targets, measured figures, and whether the targets hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Target, Verdict
from benchmarks.plots import plot
from benchmarks.results import Result
from benchmarks.work import Work

_INTRODUCTION = """\
# Benchmarks

Written by `make bench`, which measures everything in one go: sparklog, a real Kafka of three \
brokers, and three plain Delta appends as the way without a log, on one machine, one after the \
other in turn, each warmed before. `python -m benchmarks WORK...` measures single works \
again and replaces their figures. Every figure was taken several times: tables give the median \
and, in brackets, the least and the greatest. A work's module in \
`benchmarks/works` says how it is done. Works on an object store run on an S3 API server of their \
own (`benchmarks/s3_server.py`), which adds latency and costs 0.1 ms of CPU time a request.
"""
_SYMBOLS = {"aim held": "aim held", "held": "held", "not held": "**not held**"}


def rendered(works: Sequence[Work], results: Mapping[str, Result]) -> str:
    """Return the report as Markdown."""
    known = [(work, results[work.name]) for work in works if work.name in results]
    parts = [_INTRODUCTION]
    if known:
        parts += [_machine([result for _, result in known]), _verdicts(known)]
    parts += [_section(work, result) for work, result in known]
    return "\n".join(parts)


def write(works: Sequence[Work], results: Mapping[str, Result], document: Path) -> None:
    """Write the report, and its plots and tables into the folder of the same name."""
    document.parent.mkdir(parents=True, exist_ok=True)
    document.write_text(rendered(works, results), encoding="utf-8")
    folder = document.with_suffix("")
    for work in works:
        if work.name not in results:
            continue
        figures = results[work.name].figures
        for name, lines in figures.tables.items():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
        if work.is_plotted:
            plot(figures, work.title, folder / f"{work.name}.svg")


def _machine(results: Sequence[Result]) -> str:
    # A row that the newest run lacks, such as Kafka's, comes from the newest run that has it.
    rows: dict[str, str] = {}
    for result in sorted(results, key=lambda one: one.measured_at):
        rows |= result.machine
    lines = ["## Machine", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in rows.items()]
    return "\n".join([*lines, ""])


def _verdicts(known: Sequence[tuple[Work, Result]]) -> str:
    lines = [
        "## What was asked, and what holds",
        "",
        "| work | figure | median | beside | target | |",
        "|---|---|---:|---|---|---|",
    ]
    for work, result in known:
        for target in work.targets:
            verdict = target.judge(result.figures)
            figure = result.figures.get(target.what, target.system)
            unit = "" if figure is None else figure.unit
            is_small = "" if result.scale == 1 else f" (at {result.scale:g} of the size)"
            lines.append(
                f"| {work.title}{is_small} | {target.what}: {target.system} | "
                f"{_median(verdict, unit)} | {_beside(verdict)} | {target.words(unit)} | "
                f"{_SYMBOLS.get(verdict.held, verdict.held)} |"
            )
    return "\n".join([*lines, ""])


def _median(verdict: Verdict, unit: str) -> str:
    return "" if verdict.median is None else f"{number(verdict.median)} {unit}"


def _beside(verdict: Verdict) -> str:
    if verdict.ratio is None:
        return ""
    return f"{verdict.ratio:.2f}x of {verdict.compared_with}"


def _section(work: Work, result: Result) -> str:
    runs = "1 run" if result.runs == 1 else f"{result.runs} runs"
    when = f"Measured {result.measured_at}, {runs}"
    if result.scale != 1:
        when += (
            f", **at {result.scale:g} of the full size**: enough to see that it runs, not to "
            "compare"
        )
    lines = [f"## {work.title}", "", work.measured, "", f"{when}.", ""]
    if work.is_plotted:
        lines += [f"![{work.title}](benchmarks/{work.name}.svg)", ""]
    if work.appendix is not None:
        lines += [work.appendix(result.figures), ""]
    if work.appendix is None or work.has_table:
        lines += _table(result)
    return "\n".join(lines)


def _table(result: Result) -> list[str]:
    figures = result.figures
    systems = list(dict.fromkeys(one.system for one in figures))
    lines = [f"| | {' | '.join(systems)} |", f"|---|{'---:|' * len(systems)}"]
    for what in figures.whats():
        cells = []
        for system in systems:
            one = figures.get(what, system)
            cells.append(
                ""
                if one is None
                else f"{number(one.median)} {one.unit} "
                f"({number(min(one.values))} to {number(max(one.values))})"
            )
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return [*lines, ""]


def number(value: float) -> str:
    """Return a number with three significant digits, or without decimals if it is large."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def not_held(
    works: Sequence[Work], results: Mapping[str, Result]
) -> list[tuple[Work, Target, Verdict]]:
    """Return the targets that were measured and do not hold."""
    return [
        (work, target, verdict)
        for work in works
        if work.name in results
        for target in work.targets
        if (verdict := target.judge(results[work.name].figures)).held == "not held"
    ]
