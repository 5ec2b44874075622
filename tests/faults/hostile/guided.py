"""Hostile input that coverage chooses: `python -m tests.faults.hostile.guided --seconds 30`.

libFuzzer keeps each input that reaches new branches of the product's Python code, and changes it
further. So it comes to branches behind a condition that a blind change of a valid input seldom
meets. It needs atheris (`pip install "sparklog[fuzz]"`), and runs each target in a process of its
own, since libFuzzer ends it.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Annotated, NamedTuple

import typer

from tests.faults.hostile.runner import CHECKOUT, Finding, fault_of, pasted
from tests.faults.hostile.target import Target

MOST_BYTES = 200_000
"""The size of the largest input."""

_REPORTED = 100
"""The number of inputs between two reports."""

_RESULT = "result of a guided run: "

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Guided(NamedTuple):
    """The inputs of a target, those among them that reached new branches, and the findings."""

    target: str
    inputs: int
    kept: int
    findings: list[Finding]


@app.command()
def guided(
    seconds: Annotated[int, typer.Option(help="The time of each target.")] = 30,
    seed: Annotated[int, typer.Option(help="The seed of libFuzzer.")] = 1,
    target: Annotated[list[str] | None, typer.Option(help="Only these targets.")] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="Keeps the inputs for a next run, a folder a target.")
    ] = None,
) -> None:
    """Fuzz the parsers by coverage; exit with 1 if there is a finding."""
    from tests.faults.hostile.targets import all_targets  # not instrumented here

    with tempfile.TemporaryDirectory() as folder:
        names = [one.name for one in all_targets(Path(folder))]
    for name in target or []:
        if name not in names:
            raise typer.BadParameter(f"there is no target {name}: {', '.join(names)}")
    inputs = findings = 0
    for name in target or names:
        found = run_guided(name, seconds, seed, corpus)
        inputs += found.inputs
        findings += len(found.findings)
        typer.echo(
            f"{name:28} {found.inputs:8} inputs {found.kept:6} kept "
            f"{len(found.findings):3} findings"
        )
        for one in found.findings:
            typer.echo(f"\n{one.target}, {one.times} times\n  {one.fault}\n  at {one.place}")
            typer.echo(f"  {one.content}")
    typer.echo(f"{inputs} inputs, {findings} findings")
    raise typer.Exit(findings > 0)


def run_guided(target: str, seconds: int, seed: int, corpus: Path | None = None) -> Guided:
    """Fuzz a target for a time in s, in a process of its own.

    A crash, a hang, and more memory than libFuzzer permits are findings of libFuzzer: it leaves the
    input in a file.
    """
    with tempfile.TemporaryDirectory() as folder:
        kept = corpus / target if corpus is not None else Path(folder, "corpus")
        kept.mkdir(parents=True, exist_ok=True)
        crashes = Path(folder, "crashes")
        crashes.mkdir()
        arguments = [
            f"-max_total_time={seconds}",
            f"-seed={seed}",
            f"-max_len={MOST_BYTES}",
            "-rss_limit_mb=4096",
            "-timeout=30",
            f"-artifact_prefix={crashes}/",
            str(kept),
        ]
        process = subprocess.run(
            [sys.executable, "-m", "tests.faults.hostile.guided_process", target, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            cwd=CHECKOUT,
            # The folders of the targets are removed with this one.
            env={**os.environ, "TMPDIR": folder},
            check=False,
        )
        lines = process.stdout.splitlines()
        results = [one.removeprefix(_RESULT) for one in lines if one.startswith(_RESULT)]
        if not results:
            raise RuntimeError(f"the process of {target} has failed: {process.stderr[-2_000:]}")
        inputs, samples, found = json.loads(results[-1])
        findings = [Finding(*one) for one in found]
        findings += [
            Finding(
                target, -1, f"libFuzzer: {one.name.split('-')[0]}", "", pasted(one.read_bytes())
            )
            for one in sorted(crashes.iterdir())
        ]
        return Guided(target, inputs, len([*kept.iterdir()]) - samples, findings)


def fuzz(name: str, arguments: Sequence[str]) -> None:
    """Fuzz a target in this process, which ends with it; print its findings."""
    import atheris  # an extra of its own

    logging.disable()
    with atheris.instrument_imports(include=["sparklog"]):
        # All modules of the product are imported here for the first time.
        targets = import_module("tests.faults.hostile.targets")
    corpus = Path(arguments[-1])
    folder = Path(tempfile.mkdtemp())
    target: Target = next(one for one in targets.all_targets(folder) if one.name == name)
    samples = {sha256(sample).hexdigest(): sample for sample in target.samples}
    for digest, sample in samples.items():
        (corpus / digest).write_bytes(sample)
    known: dict[str, Finding] = {}
    inputs = 0

    def report() -> None:
        result = inputs, len(samples), list(known.values())
        print(f"\n{_RESULT}{json.dumps(result)}", flush=True)

    def one_input(data: bytes) -> None:
        nonlocal inputs
        inputs += 1
        content = target.finish(Random(0), data) if target.finish is not None else data
        found = fault_of(target, content)
        if found is not None:
            fault, place = found
            before = known.get(place) or Finding(name, inputs, fault, place, pasted(content), 0)
            known[place] = before._replace(times=before.times + 1)
            report()
        elif inputs % _REPORTED == 0:
            # libFuzzer ends the process without a return.
            report()

    atheris.Setup([name, *arguments], one_input)
    report()
    atheris.Fuzz()


if __name__ == "__main__":
    app()
