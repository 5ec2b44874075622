"""Runs seeds, shrinks those that fail, and measures how many seeds each mutation needs."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest

from sparklog.logger import ROOT as LOGGER
from sparklog.protocol.rules import rule
from tests.faults.simulation import script
from tests.faults.simulation.mutations import MUTATIONS
from tests.faults.simulation.script import Step
from tests.faults.simulation.shrinking import shrink
from tests.faults.simulation.stories import shape_of, steps_of
from tests.faults.simulation.world import Outcome, World

RESULTS = "results.json"


class Results(NamedTuple):
    """The results of all runs with one folder: seeds, counts, and problems by failing seed."""

    seeds: int
    counts: Counter[str]
    failures: dict[int, list[str]]


def play(seed: int, steps: Sequence[Step], mutation: str | None = None) -> Outcome:
    """Play a script in the cluster of a seed, with a mutation of the product if one is named."""
    with _mutated(mutation), _quiet():
        return World(shape_of(seed)).play(steps)


def shrunk(seed: int, steps: Sequence[Step], mutation: str | None = None) -> list[Step]:
    """Return a short script that fails with the same kind of problem as `steps`."""
    kind = _kind(play(seed, steps, mutation))

    def fails(candidate: Sequence[Step]) -> bool:
        return _kind(play(seed, candidate, mutation)) == kind

    return shrink(steps, fails)


def seeds_needed(mutation: str, steps: int, most: int, first: int = 0) -> int | None:
    """Return the number of seeds until one finds a mutation, or `None` if `most` do not."""
    for seed in range(first, first + most):
        if play(seed, steps_of(seed, steps), mutation).problems:
            return seed - first + 1
    return None


def run(
    seeds: Iterable[int], steps: int, minutes: float, folder: Path, processes: int = 1
) -> Results:
    """Run seeds for a time, go on after those that `folder` has, and keep the results in it.

    Failing seeds leave a shrunk script `seed-N.json` and its text `seed-N.txt` in `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / RESULTS
    known = _load(file, steps)
    done = set(known["done"])
    _, counts, failures = known_results(folder, steps)
    end = time.monotonic() + minutes * 60
    left = iter([(seed, steps) for seed in seeds if seed not in done])
    for seed, outcome in _outcomes(left, processes, end):
        done.add(seed)
        counts += outcome.counts
        if outcome.problems:
            failures[seed] = outcome.problems
        known = {"steps": steps, "done": sorted(done), "counts": counts, "failures": failures}
        file.write_text(json.dumps(known, sort_keys=True), encoding="utf-8")
    for seed in sorted(failures):
        if not (folder / f"seed-{seed}.json").exists():
            short = shrunk(seed, steps_of(seed, steps))
            script.save(short, folder / f"seed-{seed}.json")
            (folder / f"seed-{seed}.txt").write_text("\n".join(map(str, short)), encoding="utf-8")
    return Results(len(done), counts, failures)


def known_results(folder: Path, steps: int) -> Results:
    """Return the results of earlier runs with a folder, which had seeds of so many steps."""
    known = _load(folder / RESULTS, steps)
    failures = {int(seed): problems for seed, problems in known["failures"].items()}
    return Results(len(known["done"]), Counter(known["counts"]), failures)


def _load(file: Path, steps: int) -> dict[str, Any]:
    if not file.exists():
        return {"steps": steps, "done": [], "counts": {}, "failures": {}}
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if known["steps"] != steps:
        raise ValueError(f"{file} is of {known['steps']} steps a seed: use another folder")
    return known


def _outcomes(
    left: Iterator[tuple[int, int]], processes: int, end: float
) -> Iterator[tuple[int, Outcome]]:
    """Play seeds in processes, each on its own core, until a time; yield each outcome.

    The threads of a simulation run one at a time: on one core they take about a fifth less time.
    """
    found: SimpleQueue[tuple[Pool, tuple[int, Outcome] | BaseException]] = SimpleQueue()

    def submit(pool: Pool) -> int:
        item = next(left, None) if time.monotonic() < end else None
        if item is None:
            return 0
        pool.apply_async(
            _played,
            [item],
            callback=lambda outcome: found.put((pool, outcome)),
            error_callback=lambda error: found.put((pool, error)),
        )
        return 1

    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    with ExitStack() as stack:
        # New processes for every 50 seeds: caches of the product grow with the roots it has seen.
        pools = [
            stack.enter_context(
                get_context("spawn").Pool(1, _stay_on, [cores[one % len(cores)]], 50)
            )
            for one in range(processes)
        ]
        running = sum(submit(pool) for pool in pools)
        while running:
            pool, outcome = found.get()
            running += submit(pool) - 1
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome


def _stay_on(core: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [core])


def _played(item: tuple[int, int]) -> tuple[int, Outcome]:
    seed, steps = item
    return seed, play(seed, steps_of(seed, steps))


def _kind(outcome: Outcome) -> str | None:
    """The kind of the first problem, without its details."""
    return outcome.problems[0].split(":")[0] if outcome.problems else None


@contextmanager
def _mutated(mutation: str | None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if mutation is not None:
            change: Callable[[pytest.MonkeyPatch], None] = MUTATIONS[mutation]
            change(patch)
        yield
    # A mutation of a rule's text is in the cache of the rules.
    rule.cache_clear()


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger(LOGGER)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
