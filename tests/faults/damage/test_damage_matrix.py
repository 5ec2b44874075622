"""The matrix of damage: it has every table, its document is its results, and its outcomes recur."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.faults.damage.__main__ import PAIRS, RESULTS
from tests.faults.damage.cases import ANOTHER_BROKERS, ROOTS, Case, all_cases, files_of
from tests.faults.damage.judgement import judge
from tests.faults.damage.matrix import cases_of, in_turn, new_place, read_results
from tests.faults.damage.pairs import play_pair, verdicts
from tests.faults.damage.sound_cluster import AGES, Place, tables_of
from tests.faults.damage.storage import StorageKind
from tests.faults.damage.table import DOCUMENT, with_tables
from tests.faults.damage.trial import play

SAMPLE = (
    Case("young", "at rest", "cluster", "partition_state", "newest commit", "removed"),
    Case("young", "at work", "cluster", "consumer_offsets", "live file", "emptied"),
    Case("grown", "at rest", "cluster", "topics", "checkpoint", "cut"),
    Case("young", "at rest", "broker-1", "log", "a commit", "emptied"),
    Case("young", "at work", "broker-1", "log", "newest batch file", "cut"),
    Case("young", "at rest", "broker-1", "format", "live file", "removed"),
    Case("grown", "at rest", "broker-0", "log", "checkpoint", ANOTHER_BROKERS),
    Case(
        "young", "at work", "broker-1", "leader_epoch_checkpoint", "newest commit", ANOTHER_BROKERS
    ),
)
"""Cases without a random position in a file, so that they have one outcome."""


ON_STORE = (
    Case("young", "at rest", "cluster", "topics", "live file", "removed"),
    Case("young", "at work", "broker-1", "log", "newest batch file", "cut"),
    Case("young", "at rest", "broker-1", "log", "newest commit", "emptied"),
)
"""As `SAMPLE`, on an object store."""

STORAGE: tuple[StorageKind, ...] = ("folder", "s3")


Places = Mapping[StorageKind, Place]


# The clusters of all ages take a minute: one process makes them.
pytestmark = pytest.mark.xdist_group("damage")


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    """The sound clusters, in a file system in memory, and on an object store."""
    with new_place("folder") as folder, new_place("s3") as store:
        yield {"folder": folder, "s3": store}


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("kind", STORAGE)
def test_every_table_occurs_and_every_file_has_a_kind(
    places: Places, kind: StorageKind, age: str, root: str
) -> None:
    """A table that a release adds has to get rows in the sound cluster."""
    files = files_of(places[kind].trees[age], root)
    assert {one.table for one in files} == set(tables_of(root))
    if root == "cluster":
        assert {one.table for one in files if one.kind == "live file"} == set(tables_of(root))


@pytest.mark.parametrize("kind", STORAGE)
def test_the_results_are_of_cases_and_every_table_has_some(
    places: Places, kind: StorageKind
) -> None:
    """The results name no file that a cluster has not, and no table is left out."""
    cases = [one.case for one in read_results(RESULTS[kind])]
    assert set(cases) <= set(all_cases(places[kind].trees))
    for root in ("cluster", "broker-1"):
        assert {one.table for one in cases if one.root == root} == set(tables_of(root))


def test_kinds_of_files_without_an_outcome_come_first() -> None:
    """An interrupted run has outcomes of as many kinds of files as possible."""
    ends = ("removed", "emptied", "cut")
    first, second, third = (
        [Case("young", "at rest", "cluster", "topics", kind, end) for end in ends]
        for kind in ("first commit", "a commit", "live file")
    )
    found = in_turn([*first, *second, *third], {first[0], first[1], second[0]}, 1)
    kinds = [one.kind for one in found]
    assert kinds[0] == "live file"
    assert sorted(kinds[1:3]) == ["a commit", "live file"]
    assert sorted(kinds[3:]) == ["a commit", "first commit", "live file"]


@pytest.mark.parametrize("kind", STORAGE)
def test_the_document_shows_the_results(kind: StorageKind) -> None:
    """`python -m tests.faults.damage` writes both."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == with_tables(text, read_results(RESULTS[kind]), kind)


@pytest.mark.parametrize("kind", STORAGE)
def test_every_case_keeps_the_promise(kind: StorageKind) -> None:
    """Damage is named, costs nothing but its replica, and is repaired by one command."""
    assert {one.outcome.verdict for one in read_results(RESULTS[kind])} == {"kept"}


def test_two_damaged_files_cost_no_record_and_two_repairs_mend_them(places: Places) -> None:
    """The pairs of these seeds, and all that have been played."""
    cases = cases_of(places["folder"])
    for seed in (1, 3):
        result = play_pair(places["folder"], cases, seed)
        assert result is not None
        assert result.verdict == "kept", result
    assert set(verdicts(PAIRS).values()) == {"kept"}


@pytest.mark.parametrize(
    ("kind", "case"),
    [*(("folder", case) for case in SAMPLE), *(("s3", case) for case in ON_STORE)],
    ids=str,
)
def test_an_outcome_recurs(places: Places, kind: StorageKind, case: Case) -> None:
    """The outcome is that of the results, or of the same file where another damage was played."""
    trial = play(places[kind], case, seed=1)
    assert trial is not None
    outcome = judge(trial)
    assert outcome.verdict == "kept", outcome
    known = {one.case: one.outcome for one in read_results(RESULTS[kind])}
    if case in known:
        assert outcome == known[case]
