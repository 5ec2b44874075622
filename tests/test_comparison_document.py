"""docs/comparison.md repeats figures of docs/benchmarks.md.

Rewrite them with `REWRITE=1 python -m pytest tests/test_comparison_document.py`.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from tests.benchmark_figures import figures, replaced
from tests.examples import CHECKOUT

DOCUMENT = "docs/comparison.md"


class Compared(NamedTuple):
    """A row: a figure's section and row in the benchmarks, and its columns there."""

    name: str
    heading: str
    row: str
    sparklog: str
    kafka: str = ""
    delta: str = ""


PRODUCED = "1,000,000 x 100 B and 500,000 x 1 KiB, produced and on all three replicas"
READ = "A batch read of the same rows, all bytes touched"
RECORD = "One record from the plain producer: send to acks=all"
HUNDRED = "100 records from a warm Spark: send to committed on all replicas"
STORE = "One record on an object store: send to acks=all"
SYNCED = "Kafka, tuned, each append synced"

ROWS = (
    Compared(
        "1,000,000 x 100 B from Spark onto three replicas, each append synced",
        PRODUCED,
        "100 B",
        "sparklog",
        SYNCED,
    ),
    Compared(
        "the same, not synced (plain Delta: three tables)",
        PRODUCED,
        "100 B",
        "sparklog, not synced",
        "Kafka, tuned",
        "three Delta appends",
    ),
    Compared(
        "the same rows read by Spark and hashed, `sparklog.read`",
        READ,
        "100 B, hash",
        "sparklog.read",
        "Kafka, written with defaults, fetch.max.wait.ms=10",
        "plain Delta scan",
    ),
    Compared(
        'the same, `format("sparklog")`',
        READ,
        "100 B, hash",
        'format("sparklog")',
        "Kafka, written with defaults, fetch.max.wait.ms=10",
        "plain Delta scan",
    ),
    Compared(
        "100 records from a warm Spark, acks=all",
        HUNDRED,
        "100 records, p50",
        "sparklog, embedded",
        SYNCED,
        "three Delta appends",
    ),
    Compared(
        "one record, acks=all, on a disk",
        RECORD,
        "one record, p50",
        "sparklog, resident",
        "Kafka, its Java producer, each append synced",
    ),
    Compared(
        "one record, acks=all, on an object store that answers in 30 ms",
        STORE,
        "one record, 30 ms a request, p50",
        "three brokers, a process each",
    ),
)


def measured() -> str:
    lines = ["| | sparklog | Kafka | plain Delta |", "|---|---:|---:|---:|"]
    for one in ROWS:
        row = figures(one.heading)[one.row]
        cells = (row[one.sparklog], row.get(one.kafka, ""), row.get(one.delta, ""))
        assert not one.kafka or cells[1], one
        assert not one.delta or cells[2], one
        lines.append(f"| {one.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_figures_are_those_of_the_benchmarks() -> None:
    document = replaced(DOCUMENT, measured())
    if os.environ.get("REWRITE"):
        (CHECKOUT / DOCUMENT).write_text(document, encoding="utf-8")
    assert (CHECKOUT / DOCUMENT).read_text(encoding="utf-8") == document, "run with REWRITE=1"
