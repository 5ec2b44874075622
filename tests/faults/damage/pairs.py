"""Two files damaged at once: random pairs of cases, of the same cluster in the same state.

Another replica is sound, so no record may be lost. Damage of the cluster root may keep the first
scrub from reading the rest, so that it takes two scrubs and repairs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.faults.damage.cases import Case
from tests.faults.damage.judgement import Verdict, judge_pair
from tests.faults.damage.sound_cluster import Place
from tests.faults.damage.trial import play


class PairResult(NamedTuple):
    """A pair of cases by its seed, and the verdict."""

    seed: int
    first: Case
    second: Case
    verdict: Verdict

    def line(self) -> str:
        """Return the result as a line of JSON."""
        values = {"first": str(self.first), "second": str(self.second)}
        return json.dumps({"seed": self.seed, **values, "verdict": self.verdict})


def verdicts(file: Path) -> dict[int, str]:
    """Return the verdicts in a file by seed."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {one["seed"]: one["verdict"] for one in map(json.loads, lines)}


def pair_of(cases: Sequence[Case], seed: int) -> tuple[Case, Case]:
    """Return the pair of a seed; a file and a second copy of the same table are no pair."""
    random = Random(seed)
    while True:
        first, second = random.choice(cases), random.choice(cases)
        is_same_table = first[:4] == second[:4]
        has_copy = "copy of a file" in (first.kind, second.kind)
        if first[:2] == second[:2] and first != second and not (is_same_table and has_copy):
            return first, second


def play_pair(place: Place, cases: Sequence[Case], seed: int) -> PairResult | None:
    """Play the pair of a seed; return its result, or `None` if nothing was damaged."""
    first, second = pair_of(cases, seed)
    trial = play(place, first, seed, second)
    return None if trial is None else PairResult(seed, first, second, judge_pair(trial))
