"""docs/reliability.md: each attack has a row, and each row names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
ROWS = [
    line.strip().strip("|").split(" | ")
    for line in (CHECKOUT / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d", line)
]


def names(file: Path) -> set[str]:
    """Return the classes, tests and tests of classes of a file, as pytest names them."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)
            }
            found |= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def test_every_attack_has_a_row() -> None:
    assert {int(cells[0]) for cells in ROWS} == set(range(1, 27))


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_the_tests_of_a_row_exist(number: int) -> None:
    cells = ROWS[number]
    assert len(cells) == 5
    file = CHECKOUT
    tests = re.findall(r"`((?:tests/|::)[^`]*)`", cells[-1])
    assert tests, cells[-1]
    for test in tests:
        path, _, name = test.partition("::")
        file = CHECKOUT / path if path else file
        assert file.is_file(), test
        plain = re.sub(r"\[.*\]$", "", name)
        for one in re.split(r"[{},]", plain.removesuffix("::")) if "{" in plain else [plain]:
            assert not one or one in names(file), test
