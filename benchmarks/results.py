"""The stored results: one file with the figures of each work's last run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figures

CHECKOUT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results.json"


@dataclass(frozen=True)
class Result:
    """The figures of one work, with their time, scale, number of runs and machine."""

    figures: Figures
    measured_at: str
    scale: float
    runs: int
    machine: dict[str, str]


def load(path: Path = RESULTS) -> dict[str, Result]:
    """Return the results by work; empty if the file does not exist."""
    if not path.is_file():
        return {}
    noted = json.loads(path.read_text(encoding="utf-8"))
    found = {}
    for name, one in noted.items():
        figures = Figures.from_json(one.pop("figures"), one.pop("tables", None))
        found[name] = Result(figures, **one)
    return found


def note(name: str, result: Result, path: Path = RESULTS) -> None:
    """Replace one work's stored result; those of other works stay."""
    results = load(path) | {name: result}
    noted = {}
    for work, one in sorted(results.items()):
        noted[work] = {**vars(one), "figures": one.figures.to_json()}
        if one.figures.tables:
            noted[work]["tables"] = one.figures.tables
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(noted, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.replace(path)
