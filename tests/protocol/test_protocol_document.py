"""docs/protocol.md names existing files, functions and tests, and explains every cited rule."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from sparklog.protocol.rules import rule_names

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
REFERENCES = sorted(set(re.findall(r"`((?:sparklog|tests|docs|jobs)/[^`\s]+)`", DOCUMENT)))
NUMBER = r"(?:10|[1-9])\.\d+\b"
EXPLAINED = re.findall(rf"^- \*\*({NUMBER})\*\*", DOCUMENT, re.MULTILINE)
LAST = {1: 5, 2: 7, 3: 9, 4: 4, 5: 3, 6: 7, 7: 10, 8: 4, 9: 7, 10: 8}
"""The number of rules in each section; section 7 begins with 7.0."""


@cache
def names(path: Path) -> frozenset[str]:
    """Return the names that a module defines, with the members of its classes as `Class::name`."""

    def defined(body: list[ast.stmt], prefix: str) -> list[str]:
        found = []
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found.append(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                found += defined(node.body, f"{prefix}{node.name}::")
        return found

    return frozenset(defined(ast.parse(path.read_text(encoding="utf-8")).body, ""))


def citations(text: str) -> set[str]:
    """Return the numbers in "rule 2.1", "rules 2.1, 2.3", "(2.1)" and "(2.1, 2.3; KIP-101)"."""
    places = re.findall(rf"[Rr]ules? ({NUMBER}(?:(?:, | and |-){NUMBER})*)", text)
    places += re.findall(rf"\(({NUMBER}(?:(?:, | and |-){NUMBER})*)(?=[),;:])", text)
    return set(re.findall(NUMBER, " ".join(places)))


@pytest.mark.parametrize("reference", REFERENCES)
def test_what_the_document_names_is_there(reference: str) -> None:
    """Every file and every function or test that the document names exists."""
    path, _, name = reference.partition("::")
    assert (ROOT / path).exists(), path
    assert not name or name in names(ROOT / path), reference


def test_every_rule_is_explained_once_and_in_order() -> None:
    """The document explains every rule once, in order."""
    first = {section: int(section != 7) for section in LAST}
    assert [
        f"{section}.{number}"
        for section, last in LAST.items()
        for number in range(first[section], last + 1)
    ] == EXPLAINED


def test_every_rule_text_is_named() -> None:
    """The document names every rule text and every module of `sparklog.protocol`."""
    for name in rule_names():
        assert any(one.endswith(f"/{name}.sql") for one in REFERENCES), name
    for path in (ROOT / "sparklog" / "protocol").glob("[!_]*.py"):
        assert f"sparklog/protocol/{path.name}" in REFERENCES


def test_every_rule_that_code_cites_is_explained() -> None:
    """The document explains every rule that the code cites."""
    cited = {
        number: path.name
        for path in (ROOT / "sparklog").rglob("*.*")
        if path.suffix in {".py", ".sql"}
        for number in citations(path.read_text(encoding="utf-8"))
    }
    assert len(cited) > 30
    assert {number: name for number, name in cited.items() if number not in EXPLAINED} == {}


def test_a_citation_is_found_in_every_form() -> None:
    """`citations` finds the numbers of rules in every form."""
    text = (
        "(rules 2.1, 2.3) rule 7.0. Rule 6.2 (5.3), (3.6, 3.7), (3.2, KIP-98), rules 4.1-4.3; 1.9"
    )
    assert citations(text) == {"2.1", "2.3", "7.0", "6.2", "5.3", "3.6", "3.7", "3.2", "4.1", "4.3"}


def test_every_rule_says_where_it_is_written_or_that_it_is_not_there_yet() -> None:
    """Every rule in the document has its text's place or says that it is not there yet."""
    rules = re.split(rf"^- \*\*{NUMBER}\*\*", DOCUMENT, flags=re.MULTILINE)[1:]
    for number, text in zip(EXPLAINED, rules, strict=True):
        assert "Text:" in text or "*Not there yet*" in text or "*Not there yet.*" in text, number


def test_every_mutant_that_the_document_names_is_one() -> None:
    """Every mutant that the document names is defined in `test_model.py`."""
    model = (ROOT / "tests" / "model" / "test_model.py").read_text(encoding="utf-8")
    sections = DOCUMENT.partition("## Where the rules pull apart")[2]
    mutants = re.findall(r"`([a-z_]+)`", " ".join(re.findall(r"Mutants?:[^.]*\.", sections)))
    assert len(mutants) >= 5
    for name in mutants:
        assert f'"{name}": (' in model
