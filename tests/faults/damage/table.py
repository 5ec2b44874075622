"""The tables of docs/damage.md, from the outcomes of the cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.faults.damage.cases import DAMAGES, FILE_KINDS, STATES
from tests.faults.damage.matrix import Result
from tests.faults.damage.storage import StorageKind

DOCUMENT = Path(__file__).parents[3] / "docs" / "damage.md"
_MARKS: dict[StorageKind, tuple[str, str]] = {
    "folder": ("<!-- outcomes: begin -->\n", "<!-- outcomes: end -->\n"),
    "s3": ("<!-- outcomes on stores: begin -->\n", "<!-- outcomes on stores: end -->\n"),
}
"""The lines before and after the tables of a kind of storage."""

_HEAD = (
    "| file | tables | damage | brokers | clients | audit | scrub | repair | afterwards |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)
_TITLES = {
    "cluster": "the cluster root",
    "broker": "a broker root",
    "at rest": "damaged while all brokers are stopped, which are then started",
    "at work": "damaged while all brokers run",
}


def outcome_tables(results: Sequence[Result], kind: StorageKind) -> str:
    """Return a table for each kind of root and state, with a row for each outcome of a file."""
    text = "" if kind == "folder" else _counts(results)
    for root in ("cluster", "broker"):
        for state in STATES:
            of_table = [
                one for one in results if one.case.root.startswith(root) and one.case.state == state
            ]
            if of_table:
                where = "" if kind == "folder" else "On an object store: "
                what = "Files" if kind == "folder" else "files"
                text += f"\n### {where}{what} of {_TITLES[root]}, {_TITLES[state]}\n\n{_HEAD}"
                text += "".join(_rows(of_table, abbreviates=kind == "folder"))
    return text + "\n"


def _counts(results: Sequence[Result]) -> str:
    """Return a sentence with the number of cases by verdict."""
    kept = sum(one.outcome.verdict == "kept" for one in results)
    return f"\n{len(results)} cases were played: {kept} keep the promise.\n"


def _rows(results: Sequence[Result], *, abbreviates: bool) -> Iterable[str]:
    """Yield the rows of one table; a sample of the cases names its tables and damages."""
    every = {one.case.damage for one in results}
    for kind in FILE_KINDS:
        of_kind = [one for one in results if one.case.kind == kind]
        tables = {one.case.table for one in of_kind}
        groups: dict[tuple[str, ...], list[Result]] = {}
        for one in of_kind:
            groups.setdefault(one.outcome[:-1], []).append(one)
        for outcome, members in sorted(groups.items(), key=lambda one: (-len(one[1]), one[0])):
            named = {one.case.table for one in members}
            is_all = abbreviates and named == tables and len(tables) > 1
            of = f"all {len(tables)}" if is_all else ", ".join(f"`{one}`" for one in sorted(named))
            damages = {one.case.damage for one in members}
            how = ", ".join(one for one in DAMAGES if one in damages)
            if abbreviates and damages == every:
                how = "all"
            yield f"| {kind} | {of} | {how} | {' | '.join(outcome)} |\n"


def with_tables(document: str, results: Sequence[Result], kind: StorageKind) -> str:
    """Return the text of the document with the tables of these results."""
    begin, end = _MARKS[kind]
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}{outcome_tables(results, kind)}{end}{after}"
