"""The figures of docs/benchmarks.md, for documents that repeat them."""

from __future__ import annotations

import re

from tests.examples import CHECKOUT


def figures(heading: str) -> dict[str, dict[str, str]]:
    """Return the medians of a work's last table: by row, then by column."""
    text = (CHECKOUT / "docs/benchmarks.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    previous: list[str] = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if re.match(r"\|-+\|", line):
            columns = previous
        elif line.startswith("|") and columns:
            medians = [re.sub(r" \(.*\)$", "", cell) for cell in cells[1:]]
            found[cells[0]] = dict(zip(columns[1:], medians, strict=False))
        elif not line.startswith("|"):
            columns = []
        previous = cells
    return found


def number(text: str) -> float:
    """Return the number at the beginning of a figure."""
    return float(text.split(maxsplit=1)[0].replace(",", ""))


def replaced(document: str, generated: str) -> str:
    """Return a document with another text between its marks `figures` and `end of figures`."""
    text = (CHECKOUT / document).read_text(encoding="utf-8")
    before, rest = text.split("<!-- figures -->\n")
    _, after = rest.split("<!-- end of figures -->")
    return f"{before}<!-- figures -->\n\n{generated}\n\n<!-- end of figures -->{after}"
