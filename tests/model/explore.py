"""Explores the model at its full bounds: `python -m tests.model.explore [--out FILE] [NAME ...]`.

Prints a line per level and, for each configuration, the result. It writes results as JSON after
each configuration, so that an interrupted run keeps them. Exits with 1 if an invariant breaks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from tests.model.configurations import FULL, QUICK
from tests.model.explorer import Exploration, explore
from tests.model.replay import collected_cases
from tests.model.state import Mutation, Setting
from tests.model.story import told

RESULTS = Path(__file__).with_name("explored.json")


def main() -> int:
    """Explore the requested configurations, or all of them."""
    every = {**QUICK, **FULL}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(every))
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go, as JSON")
    parser.add_argument(
        "--max-states",
        type=int,
        help="give up a configuration beyond this many; 8 GB hold 20 million",
    )
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in every]
    if unknown:
        parser.error(f"there is no configuration {unknown[0]!r}: there are {', '.join(every)}")

    results = _written_before(asked.out)
    is_sound = True
    for name in asked.names or every:
        found = explore(every[name], asked.max_states, _say)
        print(f"{name}: {_summary(found)}", flush=True)
        if found.violation is not None:
            print(told(found.violation), flush=True)
            is_sound = False
        results[name] = _result(every[name], found)
        asked.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    decisions = sum(map(len, collected_cases().values()))
    print(f"{decisions:,} distinct decisions were taken on the way")
    return 0 if is_sound else 1


def _written_before(out: Path) -> dict[str, Any]:
    if not out.exists():
        return {}
    before: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return before


def _say(found: Exploration, waiting: int) -> None:
    print(f"  depth {found.depth}: {found.states:,} states, {waiting:,} to expand", flush=True)


def _summary(found: Exploration) -> str:
    end = "complete" if found.is_complete else "not complete"
    return (
        f"{found.states:,} states, {found.transitions:,} transitions, depth {found.depth}, "
        f"{found.seconds:.0f} s, {end}"
    )


def bounds_of(setting: Setting) -> dict[str, Any]:
    """Return a setting as it is written to a file: all fields except the mistake that is built
    in.
    """
    bounds = dataclasses.asdict(setting)
    del bounds["mutation"]
    return bounds


def _result(setting: Setting, found: Exploration) -> dict[str, Any]:
    assert setting.mutation == Mutation()
    return {
        "bounds": bounds_of(setting),
        "states": found.states,
        "transitions": found.transitions,
        "depth": found.depth,
        "seconds": round(found.seconds),
        "is_complete": found.is_complete,
        "broken": found.violation.invariant if found.violation else None,
    }


if __name__ == "__main__":
    sys.exit(main())
