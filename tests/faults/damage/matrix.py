"""All cases, in several processes, and their outcomes as lines of JSON."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.queues
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.faults.damage.cases import Case, all_cases
from tests.faults.damage.judgement import Outcome, judge
from tests.faults.damage.sound_cluster import Place
from tests.faults.damage.storage import StorageKind, new_storage
from tests.faults.damage.trial import play


class Result(NamedTuple):
    """A case, and its outcome."""

    case: Case
    outcome: Outcome

    def line(self) -> str:
        """Return the result as a line of JSON."""
        return json.dumps({**self.case._asdict(), **self.outcome._asdict()})


def read_results(file: Path) -> list[Result]:
    """Return the results in a file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    results = []
    for line in lines:
        found = json.loads(line)
        results.append(
            Result(
                Case(*(found[name] for name in Case._fields)),
                Outcome(*(found[name] for name in Outcome._fields)),
            )
        )
    return results


@contextmanager
def new_place(kind: StorageKind = "folder") -> Iterator[Place]:
    """Yield a new storage with the sound clusters, which is removed when the block ends."""
    with new_storage(kind) as storage:
        yield Place(storage)


def cases_of(place: Place, matches: Sequence[str] = ()) -> list[Case]:
    """Return the cases whose names contain all of `matches`."""
    return [case for case in all_cases(place.trees) if all(text in str(case) for text in matches)]


def sample(cases: Sequence[Case], count: int) -> list[Case]:
    """Return `count` damages of each kind of file of each table, others at rest than at work.

    Neighbouring kinds get different damages, so that each table gets all of them.
    """
    of_file: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        of_file.setdefault(case[:-1], []).append(case)
    chosen = []
    for number, members in enumerate(of_file.values()):
        step = max(1, len(members) // count)
        places = {(number + one * step) % len(members) for one in range(count)}
        chosen += [members[place] for place in sorted(places)]
    return chosen


def in_turn(cases: Sequence[Case], known: Collection[Case], seed: int) -> list[Case]:
    """Return the cases that are not known, in the order in which they are played.

    An interrupted run shall have outcomes of each kind of file of each table, at rest and at work:
    cases of which the fewest neighbours have an outcome come first, others in a random order.
    """
    left = [one for one in cases if one not in known]
    Random(seed).shuffle(left)
    played = Counter(one[:-1] for one in known)
    turns: dict[Case, int] = {}
    for one in left:
        turns[one] = played[one[:-1]]
        played[one[:-1]] += 1
    return sorted(left, key=turns.__getitem__)


def run(
    kind: StorageKind,
    cases: Sequence[Case],
    seed: int,
    processes: int,
    done: Callable[[Result], object],
) -> None:
    """Play cases in processes of their own; call `done` with each result."""
    shares = [cases[number::processes] for number in range(processes)]
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    cores = sorted(os.sched_getaffinity(0))
    workers = [
        context.Process(
            target=_play_share, args=(kind, share, seed, cores[number % len(cores)], results)
        )
        for number, share in enumerate(shares)
    ]
    for worker in workers:
        worker.start()
    running = len(workers)
    while running:
        result = results.get()
        if result is None:
            running -= 1
        else:
            done(result)
    for worker in workers:
        worker.join()


def _play_share(
    kind: StorageKind,
    cases: Sequence[Case],
    seed: int,
    core: int,
    results: multiprocessing.queues.SimpleQueue[Result | None],
) -> None:
    # A thread that waits for a request wakes up sooner on the core of those who answer: cases on an
    # object store take two thirds of the time.
    os.sched_setaffinity(0, {core})
    try:
        with new_place(kind) as place:
            for case in cases:
                trial = play(place, case, seed)
                if trial is not None:
                    results.put(Result(case, judge(trial)))
    finally:
        results.put(None)
