"""docs/tables.md documents every table and column, and is what `table_documentation` generates.

Rewrite it with `REWRITE=1 python -m pytest tests/test_tables_document.py`.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sparklog import model
from sparklog.cli.sql import SPARKS_FUNCTIONS
from sparklog.cluster.operations import CAUSES, GROUP_CAUSES, OPERATIONS
from sparklog.cluster.past import CLUSTER_PAST
from sparklog.cluster.views import BROKER_VIEWS, RECORDS, SQL_VIEWS
from sparklog.table_documentation import (
    BROKER_ROOT,
    CLUSTER_ROOT,
    EVERY_ROOT,
    TABLES,
    VIEWS,
    TableDocumentation,
)
from sparklog.testing import LocalCluster

DOCUMENT = Path(__file__).parents[1] / "docs" / "tables.md"
SCHEMAS = (*model.CLUSTER_TABLES, *model.BROKER_TABLES, model.FORMAT)

INTRODUCTION = """\
<!-- Generated from sparklog/table_documentation.py by
     REWRITE=1 python -m pytest tests/test_tables_document.py -->

# Tables

Every table and column. All are Delta tables (reader version 1, writer version 2). The schemas are
in `sparklog/model.py`. Offsets that end something are exclusive. Times are ms since 1970 unless a
column names another unit. A column that a later release adds is null in the rows of earlier
releases. `sparklog query` and `create_views` show the tables of all brokers with the column
`broker_id` in front.

A primary key identifies a row. Writers of a table with a conflict key conflict only where both
change rows with equal values in its columns; in a table without one any two overwrites conflict.
"""

SECTIONS = (
    ("The cluster root", "Brokers, administrators and clients share these tables.", CLUSTER_ROOT),
    ("Each broker root", "A broker root is one log directory of one broker.", BROKER_ROOT),
    ("Every root", "The cluster root and every broker root have this table.", EVERY_ROOT),
)

VIEWS_TEXT = """\
## Views

`sparklog query` and `create_views` have these names besides those of the tables. The queries of
[questions.md](questions.md) use them.
"""

HISTORY = """\
## Operations and causes

Each commit to a table of the cluster root names its operation, and in its parameters what it
concerns and its cause: `DESCRIBE HISTORY` and Delta's other tools show them. The views and tables
of the past have them as columns. Every table also has commits with `CREATE TABLE`, `FENCE` (an
older process may write no more), `SET TRANSACTIONS`, `RECREATE TABLE` and `REPAIR`.
"""

BY_NAME = {schema.name: schema for schema in SCHEMAS}

TYPES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.timestamp("us", "UTC"): "timestamp",
    model.RECORD_COLUMNS.field("headers").type: "`array<struct<key: string, value: binary>>`",
}


OF_DUCKDB = {
    "VARCHAR": "string",
    "INTEGER": "int",
    "BIGINT": "bigint",
    "BOOLEAN": "boolean",
    "DOUBLE": "double",
}


def as_markdown() -> str:
    """Return the text of docs/tables.md."""
    parts = [INTRODUCTION]
    for title, introduction, tables in SECTIONS:
        parts.append(f"## {title}\n\n{introduction}\n")
        parts += [table_section(BY_NAME[name], of_table) for name, of_table in tables.items()]
    parts.append(VIEWS_TEXT)
    parts += [view_section(name, columns) for name, columns in view_columns().items()]
    parts += [HISTORY, "| operation | tables | meaning |", "|---|---|---|"]
    parts += [f"| `{one.name}` | {quoted(one.tables)} | {one.meaning} |" for one in OPERATIONS]
    parts += ["", "| cause | meaning |", "|---|---|"]
    parts += [f"| `{name}` | {meaning} |" for name, meaning in CAUSES.items()]
    parts += ["", "| cause of `CHANGE GROUP` | meaning |", "|---|---|"]
    parts += [f"| `{name}` | {meaning} |" for name, meaning in GROUP_CAUSES.items()]
    return "\n".join([*parts, ""])


def table_section(schema: model.TableSchema, documentation: TableDocumentation) -> str:
    facts = [
        ("Row", documentation.rows),
        ("Written by", documentation.writers),
        ("Primary key", quoted(schema.key) or "none"),
        ("Conflict key", quoted(schema.conflict_key)),
        ("Partition columns", quoted(schema.partition_by)),
        ("Properties", ", ".join(f"`{key}={text}`" for key, text in schema.properties.items())),
    ]
    lines = [f"### {schema.name}", ""]
    for name, text in facts:
        lines += textwrap.wrap(f"- {name}: {text}", 118, subsequent_indent="  ") if text else []
    lines += ["", "| column | type | description |", "|---|---|---|"]
    lines += [
        f"| `{column.name}` | {TYPES[column.type]} | {documentation.columns[column.name]} |"
        for column in schema.columns
    ]
    return "\n".join([*lines, ""])


def view_columns() -> dict[str, dict[str, str]]:
    """Return the types of the columns of each view, as DuckDB has them."""
    found = {}
    with duckdb.connect() as connection:
        tables = {schema.name: schema.columns for schema in model.CLUSTER_TABLES} | BROKER_VIEWS
        tables |= {name: past.columns for name, past in CLUSTER_PAST.items()}
        for name, columns in tables.items():
            connection.register(name, columns.empty_table())
        for macro in SPARKS_FUNCTIONS:
            connection.execute(f"create macro {macro}")
        for name, text in SQL_VIEWS.items():
            connection.execute(f"create view {name} as {text}")
        for name in VIEWS.keys() - {"records"}:
            described = connection.sql(f"describe {name}").fetchall()
            found[name] = {row[0]: OF_DUCKDB[row[1]] for row in described}
    found["records"] = {column.name: TYPES[column.type] for column in RECORDS}
    return {name: found[name] for name in VIEWS}


def view_section(name: str, types: Mapping[str, str]) -> str:
    documentation = VIEWS[name]
    lines = [f"### {name}", "", f"- Row: {documentation.rows}", ""]
    lines += ["| column | type | description |", "|---|---|---|"]
    lines += [f"| `{one}` | {kind} | {documentation.columns[one]} |" for one, kind in types.items()]
    return "\n".join([*lines, ""])


def quoted(columns: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in columns)


def faults(
    tables: Mapping[str, TableDocumentation], schemas: Iterable[model.TableSchema] = SCHEMAS
) -> list[str]:
    """Return a sentence for each table or column of which the documentation is not as it must be:
    there, in the order of the schema, one sentence a column, with the unit of times and sizes.
    """
    of_schemas = {schema.name: schema.columns.names for schema in schemas}
    found = [f"table {name}: no schema" for name in tables if name not in of_schemas]
    for name, columns in of_schemas.items():
        if name not in tables:
            found.append(f"table {name}: not documented")
            continue
        documented = tables[name].columns
        found += [f"{name}.{one}: no such column" for one in documented if one not in columns]
        found += [f"{name}.{one}: not documented" for one in columns if one not in documented]
        if not found and list(documented) != columns:
            found.append(f"table {name}: not in the order of the schema")
        for column, text in documented.items():
            if not re.fullmatch(r"[A-Z0-9`][^|\n]*[.…]", text) or re.search(r"\. [A-Z]", text):
                found.append(f"{name}.{column}: not one sentence")
            if column.endswith("_ms") and not re.search(r"\bms\b", text):
                found.append(f"{name}.{column}: no unit")
            if column.endswith("_bytes") and not re.search(r"\bbytes\b", text, re.IGNORECASE):
                found.append(f"{name}.{column}: no unit")
    return found


def test_every_column_of_every_table_is_documented() -> None:
    assert faults(TABLES) == []
    assert CLUSTER_ROOT.keys() == {schema.name for schema in model.CLUSTER_TABLES}
    assert BROKER_ROOT.keys() == {schema.name for schema in model.BROKER_TABLES}
    assert EVERY_ROOT.keys() == {model.FORMAT.name}


def test_the_document_is_as_generated() -> None:
    if os.environ.get("REWRITE"):
        DOCUMENT.write_text(as_markdown(), encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == as_markdown(), "run this test with REWRITE=1"


def test_the_document_has_a_line_for_every_column() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").split("\n## Views\n")[0]
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    for section, schema in zip(sections, SCHEMAS, strict=True):
        assert section.splitlines()[0] == schema.name
        assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == schema.columns.names


def test_every_column_of_every_view_is_documented() -> None:
    """The views over others are those that DuckDB creates; a table that is read is no view."""
    tables = {schema.name for schema in SCHEMAS}
    assert VIEWS.keys() | tables == {*CLUSTER_PAST, *BROKER_VIEWS, *SQL_VIEWS, "records"} | tables
    assert {name: list(columns) for name, columns in view_columns().items()} == {
        name: list(one.columns) for name, one in VIEWS.items()
    }
    schemas = [
        model.FORMAT._replace(
            name=name, columns=pa.schema([(column, pa.string()) for column in columns])
        )
        for name, columns in view_columns().items()
    ]
    assert faults(VIEWS, schemas) == []


def test_columns_that_are_null_in_a_cluster_are_documented_as_such(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, brokers=[0, 1])
    cluster.create_topic("t", partitions=1, replication_factor=2)
    cluster.idempotent_producer("id")
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.close()
    nullable = set()
    for log in tmp_path.rglob("_delta_log"):
        rows = DeltaTable(log.parent).to_pyarrow_table()
        nullable |= {(log.parent.name, name) for name in rows.column_names if rows[name].null_count}
    assert ("format", "broker_id") in nullable
    assert {one for one in nullable if "null" not in TABLES[one[0]].columns[one[1]]} == set()


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({}, "t.a_ms: not documented"),
        ({"a_ms": "Time in ms.", "b": "Other."}, "t.b: no such column"),
        ({"a_ms": "Time in ms"}, "t.a_ms: not one sentence"),
        ({"a_ms": "Time in ms. It is long."}, "t.a_ms: not one sentence"),
        ({"a_ms": "Time | in ms."}, "t.a_ms: not one sentence"),
        ({"a_ms": "Time."}, "t.a_ms: no unit"),
    ],
)
def test_a_fault_of_the_documentation_is_found(columns: dict[str, str], sentence: str) -> None:
    schema = model.FORMAT._replace(name="t", columns=pa.schema([("a_ms", pa.int64())]))
    documented = TableDocumentation("A row.", "Nobody.", columns)
    assert faults({"t": documented}, [schema]) == [sentence]
    assert faults({"t": documented._replace(columns={"a_ms": "Time in ms."})}, [schema]) == []
    assert faults({}, [schema]) == ["table t: not documented"]
    assert faults({"t": documented}, []) == ["table t: no schema"]
