"""RLIMIT_NOFILE: the descriptors that processes need, and running out of them under load."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.faults.limits.load import (
    Load,
    descriptors,
    errors,
    running_load,
    set_descriptors,
)
from tests.jobs.processes import ROOT, Process

Row = dict[str, Any]

TOO_FEW = 12
"""Below what an idle broker has open."""

STARTS = (8, 12, 16, 24, 32, 64, 128, 256)
_SECONDS = 8.0
_PLENTY = 1 << 20


def run(folder: Path) -> Iterator[Row]:
    """Yield what processes have open, what a shortage does under load, and which starts fail."""
    roots = [folder / "roots" / name for name in ("cluster", "b0", "b1", "b2")]
    with running_load(folder, roots) as load:
        groups: dict[str, list[Process]] = {
            "one broker": [load.brokers.brokers[0]],
            "all brokers": [*load.brokers.brokers.values()],
            "producer": load.clients.producers,
            "group member": load.clients.consumers,
        }
        yield {
            "limit": "open files",
            "what": "descriptors of processes under load",
            **{name: max(map(descriptors, of)) for name, of in groups.items()},
        }
        for name, processes in groups.items():
            yield _shortage(load, name, processes)
        yield {"limit": "open files", "what": "verdict", **load.verdict()}
    yield from _starts(folder)


def _shortage(load: Load, name: str, processes: list[Process]) -> Row:
    for process in processes:
        set_descriptors(process, TOO_FEW)
    before = load.acknowledged()
    time.sleep(_SECONDS)
    acknowledged = load.acknowledged() - before
    for process in processes:
        set_descriptors(process, _PLENTY)
    back = load.await_progress()
    load.brokers.await_in_sync()
    return {
        "limit": "open files",
        "what": f"{TOO_FEW} descriptors for {_SECONDS:.0f} s: {name}",
        "acknowledged": acknowledged,
        "ended": [one.popen.poll() for one in processes if one.popen.poll() is not None],
        "back_after_s": round(back, 1),
        "messages": sorted({line for one in processes for line in errors(one)})[:3],
    }


def _starts(folder: Path) -> Iterator[Row]:
    """Yield the outcomes of `jobs.cluster --until-idle` with few descriptors from the start."""
    file = folder / "small.yaml"
    listed = [{"broker.id": one, "log.dirs": str(folder / f"small-{one}")} for one in range(3)]
    values = {"cluster.root": str(folder / "small"), "brokers": listed}
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    job = [sys.executable, "-m", "jobs.cluster", "--config", str(file)]
    job += ["--without-spark", "--until-idle"]
    for most in (_PLENTY, *STARTS):
        command = job if most == _PLENTY else ["prlimit", f"--nofile={most}:{most}", *job]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        last = done.stderr.splitlines()[-1] if done.returncode else ""
        yield {
            "limit": "open files",
            "what": f"start of three brokers with {most} descriptors",
            "exit_code": done.returncode,
            "message": last,
            "traceback": "Traceback" in done.stderr,
        }
