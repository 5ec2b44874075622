"""The wording of the tree: docstrings begin with the thing, and words that were banned are gone.

Checked are docstrings, comments, documents, the heads of rules, the names of tests, and the texts
that users see: errors, events of the log, help and output of commands, descriptions of settings.
The rules are in docs/glossary.md and CONTRIBUTING.md. Counts are zero, so that nothing has to be
judged: rewrite the sentence.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

SOURCES = ("sparklog", "pyspark_sparklog", "jobs", "benchmarks", "tests")
MESSAGES = ("bootstrap.py", *(f"{folder}/**/*.py" for folder in SOURCES[:-1]))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md")

OPENINGS = ("What", "Whoever", "Whatever", "Where", "Which", "Who", "How", "When", "Of what")
"""With these no docstring begins: it begins with a noun or with an imperative verb."""

BANNED = {
    r"\bwhoever\b": "name the actor: a client, a broker, a reader, the caller",
    r"\banew\b": "again, or restart, recreate, reload",
    r"\bside by side\b": "in parallel",
    r"\blet(s|ting)? go\b": "release, close, drop",
    r"\bbears?\b|\bbearing\b": "has, carries",
    r"\bwhat waits\b": "pending, delayed",
    r"(?<!there )\b(is|are|has) none\b": "say the property",
    r"\blook(s|ed|ing)?\b(?![ -]ups?\b)": "poll, read, check, search",
    r"\btells?\b|\btold\b|\btelling\b": "report, return, show, distinguish",
    r"\bl(ie|ies|ay)\b": "is, is stored",
}
"""Words and phrases, and what stands in their place."""


class Text(NamedTuple):
    """A docstring, a comment or a message, and the line in which it begins."""

    line: int
    text: str
    is_docstring: bool


def texts(source: str) -> Iterator[Text]:
    """Yield the docstrings of a module, those of attributes among them, and its comments."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield Text(node.lineno, node.value.value, is_docstring=True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string.lstrip("# "), is_docstring=False)


def messages(source: str) -> Iterator[Text]:
    """Yield the string literals of a module that have two words or more, except docstrings.

    Errors and events may be composed anywhere, so that a literal's place does not matter. The
    values in an f-string are left out.
    """
    tree = ast.parse(source)
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {part for node in ast.walk(tree) for part in _parts(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or node in docstrings or node in parts:
            continue
        text = _literal(node)
        if text is not None and re.search(r"[a-z{}][.,:;]? [a-z{]", text):
            yield Text(node.lineno, text, is_docstring=False)


def _parts(node: ast.AST) -> list[ast.expr]:
    return node.values if isinstance(node, ast.JoinedStr) else []


def _literal(node: ast.AST) -> str | None:
    """Return the text of a string literal, with {} in the place of values; otherwise `None`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(part) or "{}" for part in node.values)
    return None


def names_of_tests(source: str) -> Iterator[Text]:
    """Yield the names of tests as texts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            text = node.name.removeprefix("test_").replace("_", " ")
            yield Text(node.lineno, text, is_docstring=False)


def head(sql: str) -> Text:
    """Return the comments of a rule as one text."""
    lines = [line.removeprefix("-- ") for line in sql.splitlines() if line.startswith("--")]
    return Text(1, " ".join(lines), is_docstring=True)


def faults(text: Text) -> list[str]:
    """Return a sentence for each fault of a text."""
    found = []
    if text.is_docstring:
        found += [
            f"it begins with {opening!r}: begin with a noun or an imperative verb"
            for opening in OPENINGS
            if re.match(rf"{opening}\b", text.text)
        ]
    for pattern, better in BANNED.items():
        match = re.search(pattern, text.text, re.IGNORECASE)
        if match is not None:
            found.append(f"it has {match[0]!r}: write {better}")
    return found


def faults_in(files: list[Path]) -> list[str]:
    """Return the faults of the docstrings and comments of some modules."""
    return [
        f"{file.relative_to(ROOT)}:{text.line}: {fault}"
        for file in files
        for text in texts(file.read_text(encoding="utf-8"))
        for fault in faults(text)
    ]


@pytest.mark.parametrize("folder", SOURCES)
def test_docstrings_and_comments_are_worded_as_agreed(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    found = faults_in([file for file in files if file != Path(__file__)])
    assert not found, "\n".join(found)


def test_documents_are_worded_as_agreed() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {fault}"
        for pattern in DOCUMENTS
        for file in sorted(ROOT.glob(pattern))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        for fault in faults(Text(number, re.sub(r"`[^`]*`", "", line), is_docstring=False))
    ]
    assert not found, "\n".join(found)


def test_messages_are_worded_as_agreed() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{text.line}: {fault}: {text.text}"
        for pattern in MESSAGES
        for file in sorted(ROOT.glob(pattern))
        for text in messages(file.read_text(encoding="utf-8"))
        for fault in faults(text)
    ]
    assert not found, "\n".join(found)


def test_names_of_tests_are_worded_as_agreed() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{text.line}: {fault}: {text.text}"
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        for text in names_of_tests(file.read_text(encoding="utf-8"))
        for fault in faults(text)
    ]
    assert not found, "\n".join(found)


def test_the_heads_of_rules_are_worded_as_agreed() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {fault}"
        for file in sorted((ROOT / "sparklog/protocol").rglob("*.sql"))
        for fault in faults(head(file.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""What is there."""', 1),
        ('"""Return what is there."""', 0),
        ('x = 1\n"""Where it lies."""', 2),
        ("# whoever looks at it", 2),
        ('# a comment\nx = "what lies in a string is no matter"', 0),
        ('"""Whatever happens."""', 1),
        ('"""Relies on a believable outlook, and looks it up."""', 1),
        ('"""Return an offset where there is none, after a look-up."""', 0),
    ],
)
def test_a_fault_is_found(source: str, count: int) -> None:
    assert sum(len(faults(text)) for text in texts(source)) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('raise Error("poll, to join it anew")', 1),
        ('raise Error(f"group {name} is " f"assigned {what(1)} anew")', 1),
        ('log.warning("file let go", path="anew")', 1),
        ('typer.Option(help="Where it lies on the disk.")', 1),
        ('x = f"{a}, which {b} tells"', 1),
        ('"""A docstring tells."""', 0),
        ('x = "look"', 0),
    ],
)
def test_a_fault_of_a_message_is_found(source: str, count: int) -> None:
    assert sum(len(faults(text)) for text in messages(source)) == count


def test_faults_of_the_names_of_tests_and_of_the_heads_of_rules_are_found() -> None:
    [name] = names_of_tests("class TestA:\n    def test_begins_anew(self): ...\n")
    assert len(faults(name)) == 1
    sql = "-- What a reader\n-- is told.\nselect 'anew'"
    assert len(faults(head(sql))) == 2
