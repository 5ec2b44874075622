"""Every rule text gives the same rows on DuckDB, on SQLite and on Spark, including nulls.

A rule's head declares the columns that may be null (`bigint?`), and the generated inputs have nulls
in exactly those columns. Many partitions go through each rule in one query, so that Spark runs one
query per rule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml

from sparklog.protocol.rules import DuckDBRules, Rules, SparkRules, rule, rule_names
from sparklog.protocol.sqlite_rules import SQLiteRules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
Tables = dict[str, list[Row]]

EXAMPLES: dict[str, dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("rule_examples.yaml").read_text(encoding="utf-8")
)
PARTITIONS = 400

EVERY_RULE = pytest.mark.parametrize("name", rule_names())


@pytest.fixture(scope="module")
def spark_rules(spark: SparkSession) -> Rules:
    """The rules on Spark."""
    return SparkRules(spark)


def multiset(rows: list[Row]) -> Counter[tuple[tuple[str, Any], ...]]:
    return Counter(tuple(sorted(row.items())) for row in rows)


def assert_same(name: str, found: list[Row], expected: list[Row], inputs: Tables) -> None:
    """Compare as multisets; show the partitions that differ, with all of their inputs."""
    surplus, lack = multiset(found) - multiset(expected), multiset(expected) - multiset(found)
    if surplus or lack:
        topics = {dict(row).get("topic_id") for row in (*surplus, *lack)}
        culprits = {
            table: [row for row in rows if row.get("topic_id") in topics]
            for table, rows in inputs.items()
        }
        pytest.fail(f"{name}: surplus {surplus}, lack {lack}, from {culprits}")


# --- readable examples
# ------------------------------------------------------------------------------


def value(text: str, kind: pa.DataType) -> Any:
    if text == "-":
        return None
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[text]
    return int(text) if pa.types.is_integer(kind) else text


def parsed(schema: pa.Schema, text: str) -> list[Row]:
    """Read a table of the examples."""
    names, *lines = (line.split() for line in text.splitlines())
    defaults = {"topic_id": "t", "partition": 0}
    rows = []
    for line in lines:
        given = dict(zip(names, line, strict=True))
        row = {
            field.name: value(given[field.name], field.type)
            if field.name in given
            else defaults[field.name]
            for field in schema
        }
        assert given.keys() <= row.keys()
        rows.append(row)
    return rows


def example(name: str) -> tuple[Tables, list[Row]]:
    takes, gives = rule(name).takes, rule(name).gives
    inputs = {table: parsed(schema, EXAMPLES[name][table]) for table, schema in takes.items()}
    return inputs, parsed(gives, EXAMPLES[name]["gives"])


@EVERY_RULE
def test_the_example_of_a_rule_holds(rules: Rules, name: str) -> None:
    """Every rule has an example, and gives the expected rows for it."""
    inputs, expected = example(name)
    assert_same(name, rules.run(name, **inputs), expected, inputs)


# --- generated inputs
# -------------------------------------------------------------------------------

OF_THE_PARTITION = frozenset(
    {
        "allows",
        "epoch_start_offset",
        "high_watermark",
        "lag_max_messages",
        "lag_time_max_ms",
        "leader",
        "leader_epoch",
        "leader_is_valid",
        "leader_log_end_offset",
        "max_batch_bytes",
        "max_bytes",
        "max_total_bytes",
        "min_batches",
        "min_isr",
        "min_lag_ms",
        "now_ms",
    }
)
"""Columns with one value in all rows of a partition."""

UNIQUE: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("fetch", "positions"): ("topic_id", "partition"),
    ("fetch", "batches"): ("topic_id", "partition", "base_offset"),
    ("log_start_offset", "replicas"): ("topic_id", "partition"),
    ("log_start_offset", "batches"): ("topic_id", "partition", "base_offset"),
    ("mergeable_batches", "batches"): ("topic_id", "partition", "base_offset"),
    ("producer_sequences", "batches"): (
        "topic_id",
        "partition",
        "producer_id",
        "producer_epoch",
        "base_offset",
    ),
}
"""Keys without which a rule's order is undefined; other tables may have repeated rows."""

TEXTS: Mapping[str, tuple[str, ...]] = {
    "allows": ("clean", "unclean"),
    "key_digest": tuple("abcdefghijkl"),
    "state": ("alive", "fenced", "parked", "stopping", "stopped"),
}

RANGES: Mapping[str, tuple[int, int]] = {
    "acks": (-1, 2),
    "byte_rate": (1, 4),
    "log_size_bytes": (0, 30),
    "max_batch_bytes": (50, 3000),
    "max_bytes": (0, 20),
    "max_total_bytes": (100, 500),
    "min_batches": (1, 3),
    "min_lag_ms": (0, 2),
    "producer_id": (-1, 2),
    "retention_bytes": (-1, 20),
    "retention_ms": (-1, 4),
    "size_bytes": (0, 9),
}
"""Columns whose numbers are neither offsets nor times."""


class Generator:
    """Generates rows for a rule's tables: small numbers, so that joins find matches; nulls where
    allowed.
    """

    def __init__(self, name: str) -> None:
        self._rule = rule(name)
        self._random = random.Random(name)
        self._serial = 0

    def inputs(self) -> Tables:
        """Return the rows of many partitions."""
        tables: Tables = {table: [] for table in self._rule.takes}
        for number in range(PARTITIONS):
            # Some numbers exceed a double's precision, so that a conversion to double shows as a
            # difference.
            base = 2**53 + 1 if number % 10 == 9 else 0
            shared: Row = {"topic_id": f"t{number // 2}", "partition": number % 2}
            for table, schema in self._rule.takes.items():
                for _ in range(self._random.randint(0, 4)):
                    tables[table].append({f.name: self._value(f, base, shared) for f in schema})
        return {table: self._unique(table, rows) for table, rows in tables.items()}

    def _value(self, field: pa.Field, base: int, shared: Row) -> Any:
        if field.name in shared:
            return shared[field.name]
        made = self._made(field, base)
        if field.nullable and self._random.random() < 0.25:
            made = None
        if field.name in OF_THE_PARTITION and self._rule.name != "fetch":
            shared[field.name] = made
        return made

    def _made(self, field: pa.Field, base: int) -> Any:
        self._serial += 1
        if field.name == "position":
            return self._serial
        if field.name == "operation_id":
            return str(self._serial)
        if field.name in RANGES:
            return self._random.randint(*RANGES[field.name])
        if pa.types.is_boolean(field.type):
            return self._random.random() < 0.7
        if pa.types.is_string(field.type):
            return self._random.choice(TEXTS.get(field.name, ("a", "b", "c")))
        if field.type == pa.int64():
            return base + self._random.randint(0, 8)
        return self._random.randint(0, 3)

    def _unique(self, table: str, rows: list[Row]) -> list[Row]:
        key = UNIQUE.get((self._rule.name, table))
        if key is None:
            return rows
        return list({tuple(row[column] for column in key): row for row in rows}.values())


def inputs_of(name: str) -> Tables:
    """Return the example and the generated rows together."""
    inputs = Generator(name).inputs()
    for table, rows in example(name)[0].items():
        inputs[table] += rows
    return inputs


@EVERY_RULE
def test_spark_gives_the_same_rows_as_duckdb(spark_rules: Rules, name: str) -> None:
    """No row is missing or additional."""
    inputs = inputs_of(name)
    found = DuckDBRules().run(name, **inputs)
    assert len(found) >= 10, "the rows made up do not meet"
    assert_same(name, spark_rules.run(name, **inputs), found, inputs)


@EVERY_RULE
@pytest.mark.parametrize("as_arrow", [False, True], ids=["rows", "arrow"])
def test_sqlite_gives_the_same_rows_as_duckdb(name: str, as_arrow: bool) -> None:
    """No row is missing or additional, for any form of the inputs."""
    inputs = inputs_of(name)
    given: dict[str, Any] = dict(inputs)
    if as_arrow:
        given = {
            table: pa.Table.from_pylist(rows, schema=rule(name).takes[table])
            for table, rows in inputs.items()
        }
    found = SQLiteRules().run(name, **given)
    assert_same(name, found, DuckDBRules().run(name, **inputs), inputs)
    for row in found:
        kinds = [(field.name, field.type, row[field.name]) for field in rule(name).gives]
        wrong = [
            column
            for column, kind, value in kinds
            if pa.types.is_boolean(kind) and value is not None and type(value) is not bool
        ]
        assert not wrong


@EVERY_RULE
def test_the_rows_made_up_have_nulls_where_the_head_allows_them(name: str) -> None:
    """Otherwise nothing would be shown about nulls."""
    inputs = Generator(name).inputs()
    for table, schema in rule(name).takes.items():
        nullable = {field.name for field in schema if field.nullable}
        null = {column for row in inputs[table] for column in row if row[column] is None}
        assert null == nullable, table


@EVERY_RULE
def test_from_no_rows_come_no_rows(rules: Rules, name: str) -> None:
    """A broker that leads or follows no partition yet runs the rules as well."""
    assert rules.run(name, **{table: [] for table in rule(name).takes}) == []


def test_from_no_rows_come_no_rows_on_spark(spark_rules: Rules) -> None:
    """The rules are one with a grouping, one with windows, and one with several tables."""
    for name in ("high_watermark", "assigned_offsets", "fetch", "truncation_point"):
        assert spark_rules.run(name, **{table: [] for table in rule(name).takes}) == []
