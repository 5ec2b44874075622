"""sparklog/protocol/actions.md is complete: every rule, table and crash point has an action."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from sparklog.model import BROKER_TABLES, CLUSTER_TABLES, FORMAT, REQUEST_TABLES
from sparklog.protocol.rules import rule_names

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "sparklog" / "protocol" / "actions.md").read_text(encoding="utf-8")
NUMBERS = set(
    re.findall(
        r"^- \*\*(\d+\.\d+)\*\*",
        (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)
AUDIT_RULES = {path.stem for path in (ROOT / "sparklog" / "protocol" / "audit").glob("*.sql")}
RULES = set(rule_names()) - AUDIT_RULES
TABLES = {schema.name for schema in (*CLUSTER_TABLES, *BROKER_TABLES, FORMAT)}
FURTHER_TABLES = {schema.name for schema in REQUEST_TABLES}
ACTOR_OF = {
    "damage": "repairs",
    "failed_directories": "broker",
    "log_starts": "retention",
    "repair_requests": "repairs",
}
"""The actors whose modules have another name."""
ACTORS_OF = {"rewriter": ("merger", "cleaner")}
"""The actors that share a module."""
HEADER = ["actor", "action", "guard", "rule", "effect", "crash point"]

CrashPoint = tuple[str, str]
"""An actor and the name of one of its effects."""


class Code(NamedTuple):
    """The names that the page has to contain, and further ones that it may contain."""

    rules: Collection[str]
    numbers: Collection[str]
    tables: Collection[str]
    further_tables: Collection[str]
    crash_points: Collection[CrashPoint]


def crash_points(folder: Path) -> set[CrashPoint]:
    """Return the effects that the modules below a folder mark as done."""
    return {
        (actor, str(node.args[0].value))
        for file in folder.rglob("*.py")
        for actor in ACTORS_OF.get(file.stem, (ACTOR_OF.get(file.stem, file.stem),))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "effects.done"
        and isinstance(node.args[0], ast.Constant)
    }


def rules_run(folder: Path) -> set[str]:
    """Return the rules that the modules below a folder run by a name that stands in the call."""
    return {
        str(node.args[0].value)
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("rules.run")
        and isinstance(node.args[0], ast.Constant)
    }


CODE = Code(RULES, NUMBERS, TABLES, FURTHER_TABLES, crash_points(ROOT / "sparklog"))


def lines(text: str) -> list[list[str]]:
    """Return the cells of each line of the table, the header first."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    ]


def quoted(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def faults(text: str, code: Code) -> list[str]:
    """Return a sentence for each name that is missing from the page, or is on it and nowhere else.

    A line has all of its cells, but for the crash point, and a rule by its name or number.
    """
    header, *actions = lines(text)
    found = [] if header == HEADER else [f"the header is not {HEADER}"]
    malformed = [cells for cells in actions if len(cells) != len(HEADER) or not all(cells[:5])]
    found += [f"malformed line: {cells[:2]}" for cells in malformed]
    sound = [cells for cells in actions if cells not in malformed]
    rules = {name for cells in sound for name in quoted(cells[3])}
    numbers = {one for cells in sound for one in re.findall(r"\d+\.\d+", cells[3])}
    tables = {name for cells in sound for name in quoted(cells[4])}
    points = {(cells[0], name) for cells in sound for name in quoted(cells[5])}
    found += _compared("rule", rules, code.rules, code.rules)
    found += _compared("rule number", numbers, (), code.numbers)
    found += _compared("table", tables, code.tables, {*code.tables, *code.further_tables})
    found += _compared("crash point", points, code.crash_points, code.crash_points)
    return found


def _compared(
    kind: str, named: Iterable[object], needed: Iterable[object], known: Iterable[object]
) -> list[str]:
    unknown, missing = set(named) - set(known), set(needed) - set(named)
    return [
        *(f"{kind} {one} does not exist" for one in sorted(map(str, unknown))),
        *(f"{kind} {one} has no action" for one in sorted(map(str, missing))),
    ]


def test_the_page_is_complete_and_names_nothing_else() -> None:
    assert faults(DOCUMENT, CODE) == []


def test_the_code_has_rules_and_crash_points() -> None:
    """Otherwise the comparison with the code would say nothing."""
    run = rules_run(ROOT / "sparklog")
    assert len(run - AUDIT_RULES) > 20
    assert run - AUDIT_RULES <= RULES
    assert {actor for actor, _ in CODE.crash_points} == {
        "broker",
        "leader",
        "follower",
        "controller",
        "cleaner",
        "merger",
        "vacuum",
        "repairs",
        "retention",
    }
    assert len(NUMBERS) > 50


SMALL = Code({"cut", "copy"}, {"1.1", "10.6"}, {"log"}, {"log_1"}, {("leader", "commit")})
SMALL_TEXT = """\
| actor | action | guard | rule | effect | crash point |
|---|---|---|---|---|---|
| leader | cut | always | `cut`; 1.1 | commit of `log` | `commit` |
| follower | copy | always | `copy`; 10.6 | `log_1` | |
"""


@pytest.mark.parametrize(
    ("old", "new", "sentences"),
    [
        ("`cut`", "`cat`", ["rule cat does not exist", "rule cut has no action"]),
        ("`copy`; ", "", ["rule copy has no action"]),
        ("1.1", "1.2", ["rule number 1.2 does not exist"]),
        ("10.6", "10.5", ["rule number 10.5 does not exist"]),
        ("`log`", "`logs`", ["table logs does not exist", "table log has no action"]),
        ("of `log`", "of it", ["table log has no action"]),
        ("`log_1`", "`log_2`", ["table log_2 does not exist"]),
        ("`commit`", "", ["crash point ('leader', 'commit') has no action"]),
        ("| |", "| `commit` |", ["crash point ('follower', 'commit') does not exist"]),
        ("copy | always", "copy | ", ["malformed line: ['follower', 'copy']"]),
        ("| `log_1` |", "|", ["malformed line: ['follower', 'copy']"]),
        ("guard", "when", [f"the header is not {HEADER}"]),
    ],
)
def test_a_fault_of_the_page_is_found(old: str, new: str, sentences: list[str]) -> None:
    assert faults(SMALL_TEXT, SMALL) == []
    changed = SMALL_TEXT.replace(old, new)
    assert changed != SMALL_TEXT
    found = faults(changed, SMALL)
    assert [one for one in found if one in sentences] == sentences


def test_crash_points_are_found_in_the_source(tmp_path: Path) -> None:
    (tmp_path / "damage.py").write_text('effects.done("cut")\nother.done("copy")\n')
    (tmp_path / "leader.py").write_text('def tick():\n    effects.done("commit")\n')
    assert crash_points(tmp_path) == {("repairs", "cut"), ("leader", "commit")}
