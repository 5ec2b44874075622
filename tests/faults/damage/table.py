"""The tables of docs/damage.md, from the outcomes of the cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.faults.damage.cases import DAMAGES, FILE_KINDS, STATES
from tests.faults.damage.matrix import Result

DOCUMENT = Path(__file__).parents[3] / "docs" / "damage.md"
BEGIN, END = "<!-- outcomes: begin -->\n", "<!-- outcomes: end -->\n"

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


def outcome_tables(results: Sequence[Result]) -> str:
    """Return a table for each kind of root and state, with a row for each outcome of a file."""
    text = ""
    for root in ("cluster", "broker"):
        for state in STATES:
            of_table = [
                one for one in results if one.case.root.startswith(root) and one.case.state == state
            ]
            if of_table:
                text += f"\n### Files of {_TITLES[root]}, {_TITLES[state]}\n\n{_HEAD}"
                text += "".join(_rows(of_table))
    return text + "\n"


def _rows(results: Sequence[Result]) -> Iterable[str]:
    every = {one.case.damage for one in results}
    for kind in FILE_KINDS:
        of_kind = [one for one in results if one.case.kind == kind]
        tables = {one.case.table for one in of_kind}
        groups: dict[tuple[str, ...], list[Result]] = {}
        for one in of_kind:
            groups.setdefault(one.outcome[:-1], []).append(one)
        for outcome, members in sorted(groups.items(), key=lambda one: (-len(one[1]), one[0])):
            named = {one.case.table for one in members}
            is_all = named == tables and len(tables) > 1
            of = f"all {len(tables)}" if is_all else ", ".join(f"`{one}`" for one in sorted(named))
            damages = {one.case.damage for one in members}
            how = ", ".join(one for one in DAMAGES if one in damages)
            if damages == every:
                how = "all"
            yield f"| {kind} | {of} | {how} | {' | '.join(outcome)} |\n"


def with_tables(document: str, results: Sequence[Result]) -> str:
    """Return the text of the document with the tables of these results."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{outcome_tables(results)}{END}{after}"
