"""The comparison as a table for readers: `python -m tests.kafka_comparison.table` writes it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kafka_comparison.programs import PROGRAMS, Outcome, Program

OUTCOMES = Path(__file__).with_name("kafka_outcomes.json")
KAFKA_PYTHON = Path(__file__).with_name("kafka_python.md")
TABLE = Path(__file__).parents[2] / "docs" / "kafka-compatibility.md"

_HEAD = """\
# Compared with Spark's Kafka connector

Each line is a program that was run on a real Kafka 4.3 through Spark 4.2's own connector, and that
the tests run on sparklog: but for the format and for where the cluster is, both run the same lines,
on the same records. *Same* means the same columns, types, rows, offsets and micro-batches, or that
both refuse; what Kafka's connector says then is quoted. The programs are in
[`tests/kafka_comparison/programs.py`](../tests/kafka_comparison/programs.py).

| Options | What the program does | On sparklog |
|---|---|---|
"""


def noted_outcomes() -> dict[str, Outcome]:
    """Return the outcome of every program on Kafka."""
    outcomes: dict[str, Outcome] = json.loads(OUTCOMES.read_text(encoding="utf-8"))
    return outcomes


def is_same(one: Outcome, other: Outcome) -> bool:
    """Return whether two outcomes are the same; sentences of refusals may differ."""
    if "refused" in one and "refused" in other:
        return True
    return one == other


def rendered() -> str:
    """Return the whole page."""
    outcomes = noted_outcomes()
    lines = [_line(program, outcomes[program.name]) for program in PROGRAMS]
    return _HEAD + "\n".join(lines) + "\n\n" + KAFKA_PYTHON.read_text(encoding="utf-8")


def _line(program: Program, outcome: Outcome) -> str:
    verdict = "same" if program.differs is None else f"differs: {program.differs}"
    if program.differs is None and "refused" in outcome:
        verdict = f"same: refused ({outcome['refused'].rstrip('.')})"
    cells = (f"`{program.options}`", program.name, verdict)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    TABLE.write_text(rendered(), encoding="utf-8")
