"""Runs the protocol's rules: one SQL text a rule, on DuckDB in the driver or on Spark.

A rule's file begins with comments that people and this module read alike:

    -- <what it states, with the numbers of the rules in docs/protocol.md>
    -- takes <table>: <column> <type>, ...
    -- gives: <column> <type>, ...

A list may go on in the next comment line. Inputs are checked against `takes` before, outputs
against `gives` after the text ran, so a rule never sees or makes a column that it does not name.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import duckdb
import pyarrow as pa

from sparklog.errors import SparklogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
}


class Rule(NamedTuple):
    """One rule: its name, its SQL text, the tables it takes and the columns it gives."""

    name: str
    text: str
    takes: Mapping[str, pa.Schema]
    gives: pa.Schema


class RuleError(SparklogError):
    """A rule was given, or gave, something else than its head says: a programmer's fault."""


RuleInput: TypeAlias = "pa.Table | Sequence[Mapping[str, Any]]"
"""Rows that a rule takes: an Arrow table, or one mapping a row; further columns are left out."""


class Rules(Protocol):
    """What runs rules."""

    def run(self, name: str, **inputs: RuleInput) -> list[dict[str, Any]]:
        """Run the rule `name` over its inputs and return the rows that it gives."""
        ...


@cache
def rule(name: str) -> Rule:
    """Load a rule by the name of its file."""
    text = resources.files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    takes: dict[str, pa.Schema] = {}
    gives: pa.Schema | None = None
    for kind, table, columns in _declarations(text):
        schema = _schema(columns)
        if kind == "takes":
            takes[table] = schema
        else:
            gives = schema
    if not takes or gives is None:
        raise RuleError(f"rule {name} does not say what it takes and gives")
    return Rule(name, text, takes, gives)


@cache
def rule_names() -> tuple[str, ...]:
    """Return the names of all rules, sorted."""
    files = resources.files(__package__).iterdir()
    names = [file.name.removesuffix(".sql") for file in files if file.name.endswith(".sql")]
    return tuple(sorted(names))


def _declarations(text: str) -> list[tuple[str, str, str]]:
    head = []
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        head.append(line.removeprefix("--").strip())
    joined = " ".join(head)
    found = re.findall(
        r"\b(takes|gives)(?: (\w+))?: ((?:\w+ (?:string|int|bigint|boolean)(?:, |\b))+)", joined
    )
    return [(str(kind), str(table), str(columns)) for kind, table, columns in found]


def _schema(columns: str) -> pa.Schema:
    pairs = [column.split() for column in columns.strip().strip(",").split(", ")]
    return pa.schema([(name, _TYPES[kind]) for name, kind in pairs])


def _checked_inputs(of_rule: Rule, inputs: Mapping[str, RuleInput]) -> dict[str, pa.Table]:
    if inputs.keys() != of_rule.takes.keys():
        raise RuleError(
            f"rule {of_rule.name} takes {sorted(of_rule.takes)}, but was given {sorted(inputs)}"
        )
    checked = {}
    for name, schema in of_rule.takes.items():
        rows = inputs[name]
        table: Any = rows if isinstance(rows, pa.Table) else None
        present = table.column_names if table is not None else (rows[0] if rows else schema.names)
        missing = [column for column in schema.names if column not in present]
        if missing:
            raise RuleError(f"rule {of_rule.name} misses the column {missing[0]} in {name}")
        if table is not None:
            checked[name] = table.select(schema.names).cast(schema)
        else:
            checked[name] = pa.Table.from_pylist(list(rows), schema=schema)
    return checked


def _checked_output(of_rule: Rule, output: pa.Table) -> list[dict[str, Any]]:
    if output.column_names != of_rule.gives.names:
        raise RuleError(
            f"rule {of_rule.name} gives {output.column_names}, its head says {of_rule.gives.names}"
        )
    rows: list[dict[str, Any]] = output.cast(of_rule.gives).to_pylist()
    return rows


class DuckDBRules:
    """Runs rules on DuckDB in this process, over Arrow tables: milliseconds."""

    def __init__(self) -> None:
        # One thread a query: the inputs are small, and brokers tick side by side.
        self._connections = threading.local()

    def run(self, name: str, **inputs: RuleInput) -> list[dict[str, Any]]:
        """Run a rule; see `Rules.run`."""
        of_rule = rule(name)
        connection = self._connection()
        for table, rows in _checked_inputs(of_rule, inputs).items():
            connection.register(table, rows)
        output = connection.sql(of_rule.text).to_arrow_table()
        for table in of_rule.takes:
            connection.unregister(table)
        return _checked_output(of_rule, output)

    def _connection(self) -> duckdb.DuckDBPyConnection:
        if not hasattr(self._connections, "connection"):
            self._connections.connection = duckdb.connect(config={"threads": 1})
        connection: duckdb.DuckDBPyConnection = self._connections.connection
        return connection


class SparkRules:
    """Runs rules on Spark, where state outgrows a driver, and for audits."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()

    def run(self, name: str, **inputs: RuleInput) -> list[dict[str, Any]]:
        """Run a rule; see `Rules.run`."""
        of_rule = rule(name)
        frames = {
            table: self._spark.createDataFrame(rows)
            for table, rows in _checked_inputs(of_rule, inputs).items()
        }
        # View names are the session's, so one rule runs at a time.
        with self._lock:
            for table, frame in frames.items():
                frame.createOrReplaceTempView(table)
            output = self._spark.sql(of_rule.text).toArrow()
            for table in frames:
                self._spark.catalog.dropTempView(table)
        return _checked_output(of_rule, output)
