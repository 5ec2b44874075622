"""Runs the protocol's rules: one SQL text per rule, on DuckDB in the driver or on Spark.

A rule's file begins with comments that people and this module read:

    -- <what it states, with the numbers of the rules in docs/protocol.md>
    -- takes <table>: <column> <type>, ...
    -- gives: <column> <type>, ...

A list continues in the next comment lines, indented; a list of more than eight columns begins below
its head and has one column a line. A type with a question mark, as in `bigint?`, allows nulls.
Inputs are checked against `takes` before the text runs, outputs against `gives` afterwards.
Invariant: a rule reads and returns only columns that its head names, with nulls only where the head
allows them.
"""

from __future__ import annotations

import os
import re
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import duckdb
import pyarrow as pa

from sparklog.errors import SparklogError
from sparklog.session import is_connect
from sparklog.spark_jobs import own_session, spark_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
}
_DUCKDB_TYPES = {
    pa.string(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.bool_(): "BOOLEAN",
}


class Rule(NamedTuple):
    """One rule: its name, its SQL text, the tables it takes and the columns it gives."""

    name: str
    text: str
    takes: Mapping[str, pa.Schema]
    gives: pa.Schema


class RuleError(SparklogError):
    """The inputs or the output of a rule differ from its head: a programming error."""


class RowTuples:
    """Rows as tuples, under the names of their columns.

    They take a third of the time and memory of a mapping for each row.
    """

    def __init__(self, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        self._count = len(rows)
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        self._columns = dict(zip(names, columns, strict=True))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in zip(*self._columns.values(), strict=True):
            yield dict(zip(self._columns, row, strict=True))

    def column(self, name: str) -> Sequence[Any]:
        """Return the values of a column; `KeyError` if there is no column of this name."""
        return self._columns[name]


RuleInput: TypeAlias = "pa.Table | Sequence[Mapping[str, Any]] | RowTuples"
"""Rows that a rule takes: an Arrow table, a mapping for each row, or tuples. Further columns are
ignored.
"""


class Rules(Protocol):
    """An engine that runs rules."""

    def run(self, name: str, **inputs: RuleInput) -> list[dict[str, Any]]:
        """Run the rule `name` over its inputs and return the rows that it gives."""
        ...


@cache
def rule(name: str) -> Rule:
    """Load a rule by the name of its file; `RuleError` if it is missing or malformed."""
    if name not in rule_names():
        raise RuleError(f"there is no rule {name}: the rules are {', '.join(rule_names())}")
    return parse_rule(name, _texts()[name])


def parse_rule(name: str, text: str) -> Rule:
    """Parse the head of a rule's text; `RuleError` if it does not have the form shown above."""
    takes: dict[str, pa.Schema] = {}
    gives: list[pa.Schema] = []
    for table, columns in _declarations(text):
        schema = _schema(name, columns)
        if table is None:
            gives.append(schema)
        elif takes.setdefault(table, schema) is not schema:
            raise RuleError(f"the head of rule {name} has the table {table} twice")
    if not takes or len(gives) != 1:
        raise RuleError(f"the head of rule {name} must have lines `takes`, and one line `gives`")
    return Rule(name, text, takes, gives[0])


@cache
def rule_names() -> tuple[str, ...]:
    """Return the names of all rules, sorted."""
    return tuple(sorted(_texts()))


RULE_FOLDERS = ("audit", "consume", "controller", "produce", "replication")
"""The folders of the texts, by who runs them."""


@cache
def _texts() -> dict[str, str]:
    """Return the texts of all rules by their names."""
    package = resources.files(__package__)
    return {
        file.name.removesuffix(".sql"): file.read_text(encoding="utf-8")
        for folder in RULE_FOLDERS
        for file in package.joinpath(folder).iterdir()
        if file.name.endswith(".sql")
    }


_DECLARATION = re.compile(r"-- (?:takes (?P<table>\w+)|gives):(?P<columns>| .+)")
_COLUMN = re.compile(rf"(?P<name>\w+) (?P<type>{'|'.join(_TYPES)})(?P<nullable>\??)")


def _declarations(text: str) -> Iterator[tuple[str | None, str]]:
    """Yield the tables that a head declares with their columns; `None` stands for the output."""
    table: str | None = None
    columns: str | None = None
    for line in text.splitlines():
        begun = _DECLARATION.fullmatch(line)
        if columns is not None and (begun or not line.startswith("--   ")):
            yield table, columns
            columns = None
        if begun:
            table, columns = begun["table"], begun["columns"]
        elif columns is not None:
            columns += line.removeprefix("--")
        if not line.startswith("--"):
            return


def _schema(name: str, columns: str) -> pa.Schema:
    fields = []
    for column in columns.split(","):
        found = _COLUMN.fullmatch(column.strip())
        if found is None:
            raise RuleError(
                f"the head of rule {name} has {column.strip()!r} for a column: write its name and "
                f"one of {', '.join(_TYPES)}, with a question mark if it may be null"
            )
        fields.append(pa.field(found["name"], _TYPES[found["type"]], bool(found["nullable"])))
    return pa.schema(fields)


def checked_tables(of_rule: Rule, inputs: Mapping[str, RuleInput]) -> Mapping[str, RuleInput]:
    """Return the inputs of a rule; `RuleError` if they are not the tables that it takes."""
    if inputs.keys() != of_rule.takes.keys():
        raise _wrong_tables(of_rule, inputs)
    return inputs


def _wrong_tables(of_rule: Rule, inputs: Mapping[str, object]) -> RuleError:
    return RuleError(
        f"rule {of_rule.name} takes {sorted(of_rule.takes)}, but was given {sorted(inputs)}"
    )


def _checked_inputs(of_rule: Rule, inputs: Mapping[str, RuleInput]) -> dict[str, pa.Table]:
    tables = checked_tables(of_rule, inputs)
    return {
        table: checked_input(f"rule {of_rule.name}, table {table}", schema, tables[table])
        for table, schema in of_rule.takes.items()
    }


def checked_input(where: str, schema: pa.Schema, rows: RuleInput) -> pa.Table:
    """Return an input as an Arrow table of this schema; `RuleError` if it has another one.

    `where`: the rule and the table, for the error.
    """
    if not isinstance(rows, pa.Table):
        try:
            columns = {name: column_of(rows, name) for name in schema.names}
        except KeyError as missing:
            raise RuleError(f"{where}: the column {missing.args[0]} is missing") from None
        return pa.Table.from_arrays(_typed(where, columns, schema), schema=schema)
    missing_names = set(schema.names) - set(rows.column_names)
    if missing_names:
        raise RuleError(f"{where}: the column {min(missing_names)} is missing")
    try:
        table = rows.select(schema.names).cast(_nullable(schema))
    except pa.ArrowException as error:
        raise _wrong_type(where, error) from error
    for field in schema:
        check_nulls(where, field, table[field.name].null_count)
    return table.cast(schema)


def column_of(rows: Sequence[Mapping[str, Any]] | RowTuples, name: str) -> Sequence[Any]:
    """Return the values of a column of some rows; `KeyError` if a row lacks it."""
    return rows.column(name) if isinstance(rows, RowTuples) else [row[name] for row in rows]


def checked_output(
    of_rule: Rule, names: list[str], rows: Sequence[Sequence[Any]]
) -> list[dict[str, Any]]:
    """Return the output of a rule as rows; `RuleError` if it differs from the head."""
    if names != of_rule.gives.names:
        raise RuleError(f"rule {of_rule.name} gives {names}, its head says {of_rule.gives.names}")
    given = zip(*rows, strict=True) if rows else [()] * len(names)
    columns = dict(zip(names, map(list, given), strict=True))
    typed = _typed(f"rule {of_rule.name}, output", columns, of_rule.gives)
    values = zip(*(column.to_pylist() for column in typed), strict=True)
    return [dict(zip(names, row, strict=True)) for row in values]


def _checked_rows(of_rule: Rule, rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return output of the head's columns and types as rows; `RuleError` for a forbidden null."""
    names = of_rule.gives.names
    for number, field in enumerate(of_rule.gives):
        if not field.nullable:
            null_count = sum(row[number] is None for row in rows)
            check_nulls(f"rule {of_rule.name}, output", field, null_count)
    return [dict(zip(names, row, strict=True)) for row in rows]


def _duckdb_types(schema: pa.Schema) -> list[str]:
    return [_DUCKDB_TYPES[field.type] for field in schema]


def _typed(
    where: str, columns: Mapping[str, Sequence[Any]], schema: pa.Schema
) -> list[pa.Array[Any]]:
    arrays = []
    for field in schema:
        try:
            array = pa.array(columns[field.name], field.type)
        except (pa.ArrowException, OverflowError) as error:
            raise _wrong_type(where, error) from error
        check_nulls(where, field, array.null_count)
        arrays.append(array)
    return arrays


def _wrong_type(where: str, error: Exception) -> RuleError:
    return RuleError(f"{where}: a value does not have the type of the rule's head: {error}")


def check_nulls(where: str, field: pa.Field[Any], null_count: int) -> None:
    """Raise `RuleError` if a column has nulls but must not; `where`: the rule and the table."""
    if null_count and not field.nullable:
        raise RuleError(f"{where}: the column {field.name} is null in a row, but must not be")


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


class DuckDBRules:
    """Runs rules on DuckDB in this process, over Arrow tables, in 1 ms or less.

    Planning a text takes several times as long as running it, so each thread prepares a rule once.
    All instances of a process share one database, since each database starts threads of its own.
    """

    def run(self, name: str, **inputs: RuleInput) -> list[dict[str, Any]]:
        """Run a rule; see `Rules.run`."""
        of_rule = rule(name)
        checked = _checked_inputs(of_rule, inputs)
        prepared = _prepared.rules
        key = os.getpid(), of_rule.text
        if key not in prepared:
            prepared[key] = _PreparedRule(of_rule, _database(os.getpid()).cursor())
        names, types, rows = prepared[key].run(checked)
        if names == of_rule.gives.names and types == _duckdb_types(of_rule.gives):
            return _checked_rows(of_rule, rows)
        return checked_output(of_rule, names, rows)


class _PreparedRules(threading.local):
    """The rules that a thread has prepared, by process (a fork has its own) and text."""

    def __init__(self) -> None:
        self.rules: dict[tuple[int, str], _PreparedRule] = {}


_prepared = _PreparedRules()


@cache
def _database(_process: int) -> duckdb.DuckDBPyConnection:
    # One thread per query: the inputs are small, and brokers tick in parallel. Without
    # replacements a text reads only its inputs, never a Python variable of that name.
    return duckdb.connect(config={"threads": 1, "python_enable_replacements": False})


class _PreparedRule:
    """One rule, planned once, on a connection of its own: no other rule uses its names."""

    def __init__(self, of_rule: Rule, connection: duckdb.DuckDBPyConnection) -> None:
        self._inputs = {table: _Input(schema) for table, schema in of_rule.takes.items()}
        self._connection = connection
        for table, rows in self._inputs.items():
            connection.register(table, rows)
        connection.execute(f"prepare rule as {of_rule.text}")

    def run(
        self, inputs: Mapping[str, pa.Table]
    ) -> tuple[list[str], list[str], list[tuple[Any, ...]]]:
        """Return the names and DuckDB types of the columns that the text gives, and its rows."""
        for table, rows in inputs.items():
            self._inputs[table].rows = rows
        try:
            result = self._connection.execute("execute rule")
            names = [column[0] for column in result.description]
            return names, [str(column[1]) for column in result.description], result.fetchall()
        finally:
            for given in self._inputs.values():
                given.clear()


class _Input:
    """A table that a prepared text reads: the rows that were assigned last."""

    def __init__(self, schema: pa.Schema) -> None:
        self._none = schema.empty_table()
        self.rows = self._none

    def clear(self) -> None:
        self.rows = self._none

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


class SparkRules:
    """Runs rules on Spark, each as one job: for state that outgrows a driver, and for audits.

    The rows of a rule can also be a part of a larger plan, which then is one job (`planned`).

    The session is one of its own, with settings under which a rule is one job: broadcasts, range
    sampling and adaptive execution each start further ones.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = own_session(spark, _ONE_JOB)

    def run(self, name: str, **inputs: RuleInput) -> list[dict[str, Any]]:
        """Run a rule; see `Rules.run`."""
        with self.planned(name, **inputs) as given, spark_job(self._spark, name.replace("_", " ")):
            output = given.toArrow()
        rows = list(zip(*(column.to_pylist() for column in output.columns), strict=True))
        return checked_output(rule(name), output.column_names, rows)

    @property
    def session(self) -> SparkSession:
        """The session of the plans, of which inputs that are DataFrames must be."""
        return self._spark

    @contextmanager
    def planned(self, name: str, **inputs: RuleInput | DataFrame) -> Iterator[DataFrame]:
        """Yield the rows that a rule gives, as a part of a larger plan that the block runs.

        Inputs may be parts of that plan themselves. Nothing is run here. The caller runs the plan,
        and checks the rows with `checked_output`.
        """
        of_rule = rule(name)
        if inputs.keys() != of_rule.takes.keys():
            raise _wrong_tables(of_rule, inputs)
        # The session may be the user's (Spark Connect), so names of views are used once.
        views = {table: f"sparklog_{table}_{uuid.uuid4().hex}" for table in inputs}
        try:
            for table, schema in of_rule.takes.items():
                rows = inputs[table]
                if not hasattr(rows, "createOrReplaceTempView"):
                    checked = checked_input(f"rule {name}, table {table}", schema, rows)
                    rows = self._table(checked)
                rows.createOrReplaceTempView(views[table])
            yield self._spark.sql(_reading(of_rule.text, views))
        finally:
            for view in views.values():
                self._spark.catalog.dropTempView(view)

    def _table(self, rows: pa.Table) -> DataFrame:
        """Return rows of the driver for a plan, in one partition if they are few."""
        if not rows.num_rows and is_connect(self._spark):
            # Spark Connect infers no schema from an empty Arrow table.
            from pyspark.sql.pandas.types import from_arrow_schema

            return self._spark.createDataFrame([], from_arrow_schema(rows.schema))
        frame = self._spark.createDataFrame(rows)
        if rows.num_rows <= _ROWS_PER_PARTITION:
            # Otherwise the rows have as many tasks as Spark has cores.
            return frame.coalesce(1)
        return frame


_ROWS_PER_PARTITION = 100_000
"""Rows of an input for which one task is enough."""

_ONE_JOB = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # Sorting into one partition needs no sample of the rows, which would be a job.
    "spark.sql.shuffle.partitions": "1",
}


def _reading(text: str, views: Mapping[str, str]) -> str:
    """Return a rule's text with its tables read from these views."""
    query = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    tables = ", ".join(f"{table} as (select * from {view})" for table, view in views.items())
    return f"with {tables}" + (f", {query[5:]}" if query.startswith("with ") else f"\n{query}")
