"""Printing the rows of an answer: a table for terminals, JSON or CSV for programs."""

from __future__ import annotations

import csv
import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 100_000
"""The width in columns of output to a file or another program, so that lines are not folded."""


def print_table(rows: pa.Table) -> None:
    """Print `rows` as a table with right-aligned numbers, and the number of rows."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for field in rows.schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        is_number = is_number or pa.types.is_decimal(field.type)
        # Text objects, since brackets in a value are not markup.
        table.add_column(Text(field.name), justify="right" if is_number else "left")
    for row in _rows(rows):
        cells = (Text("NULL", "dim") if value is None else Text(_text(value)) for value in row)
        table.add_row(*cells)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    console.print(table)
    console.print(f"({rows.num_rows} row{'' if rows.num_rows == 1 else 's'})")


def print_rows(rows: Iterable[Sequence[Any]], columns: Mapping[str, str], *, as_json: bool) -> None:
    """Print rows as JSON or as a table; `columns` maps their names to names of Arrow types."""
    lists = {"list<string>": pa.list_(pa.string())}
    schema = pa.schema([pa.field(name, lists.get(of, of)) for name, of in columns.items()])
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    table = pa.Table.from_pylist(named, schema)
    if as_json:
        print_json(table)
    else:
        print_table(table)


def print_csv(rows: pa.Table) -> None:
    """Print `rows` as CSV with a header; NULL is an empty field."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(rows.column_names)
    for row in _rows(rows):
        writer.writerow("" if value is None else _text(value) for value in row)


def print_json(rows: pa.Table) -> None:
    """Print `rows` as a JSON array, one object per line; a second column of a name gets `_1`."""
    names: list[str] = []
    for name in rows.column_names:
        candidates = (f"{name}_{number}" if number else name for number in itertools.count())
        names.append(next(candidate for candidate in candidates if candidate not in names))
    lines = [
        json.dumps({name: _json(value) for name, value in zip(names, row, strict=True)})
        for row in _rows(rows)
    ]
    typer.echo("[" + ",\n ".join(lines) + "]")


def _rows(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (bool, list, dict)):
        return json.dumps(_json(value))
    return str(value)


def _json(value: Any) -> Any:
    """Return `value` in JSON's types: DuckDB's sums are decimals, and JSON has no NaN."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_json(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _json(one) for key, one in value.items()}
    return _text(value)
