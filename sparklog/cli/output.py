"""Printing the rows of an answer: for terminals to be read, JSON or CSV for programs.

The form is decided here for all commands: rows that fit are a table, wider ones in a terminal are
records, one line per value. Output to a file or another program is never folded, coloured or paged.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import IO, Any

import pyarrow as pa
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from sparklog.cli.times import is_instant, time_text

_WIDE = 100_000
"""The width in columns of output to a file or another program, so that lines are not folded."""


def console_of(file: IO[str]) -> Console:
    """Return the console of an output; without colours if it is no terminal or NO_COLOR is set."""
    is_terminal = file.isatty()
    has_colours = is_terminal and not os.environ.get("NO_COLOR")
    return Console(
        file=file,
        force_terminal=is_terminal,
        color_system="auto" if has_colours else None,
        width=None if is_terminal else _WIDE,
        highlight=False,
    )


def print_table(rows: pa.Table, *, utc: bool = False, as_records: bool = False) -> None:
    """Print `rows` and their number, as a table or as records; columns of times as times."""
    console = console_of(sys.stdout)
    cells = [[_cell(value, name, utc=utc) for name, value in row] for row in _named_rows(rows)]
    parts: list[RenderableType] = [_table(rows.schema, cells)]
    everything = console.options.update(max_width=_WIDE)
    width = Measurement.get(console, everything, parts[0]).maximum
    if cells and (as_records or width > console.width):
        parts = _records(rows.column_names, cells)
    count = f"({rows.num_rows} row{'' if rows.num_rows == 1 else 's'})"
    show(*parts, Text(count), console=console)


def _table(schema: pa.Schema, cells: Sequence[Sequence[Text]]) -> Table:
    """Return a table with right-aligned numbers."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for field in schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        is_number = is_number or pa.types.is_decimal(field.type)
        table.add_column(Text(field.name), justify="right" if is_number else "left")
    for row in cells:
        table.add_row(*row)
    return table


def _records(names: Sequence[str], cells: Sequence[Sequence[Text]]) -> list[RenderableType]:
    """Return for each row a head and its values, with the names at their left."""
    parts: list[RenderableType] = []
    for number, row in enumerate(cells, start=1):
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, cell in zip(names, row, strict=True):
            grid.add_row(Text(name), cell)
        parts += [Text(f"-[ {number} ]".ljust(40, "-"), "bold"), grid]
    return parts


def show(*parts: RenderableType, console: Console | None = None) -> None:
    """Print `parts` on standard output, through a pager if a terminal has fewer lines."""
    console = console or console_of(sys.stdout)
    with console.capture() as captured:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text))
    text = re.sub(r" +$", "", captured.get(), flags=re.MULTILINE)
    is_long = text.count("\n") >= console.height
    if not (console.is_terminal and is_long and sys.stdin.isatty() and _page(text)):
        console.file.write(text)


def _page(text: str) -> bool:
    """Show `text` in the pager that PAGER names, by default less; False without one."""
    command = shlex.split(os.environ.get("PAGER", "less"))
    if not command or shutil.which(command[0]) is None:
        return False
    # As git does: quit if it fits, keep colours, leave the text on the screen.
    environment = {"LESS": "FRX"} | dict(os.environ)
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as pager:
        while True:
            try:
                pager.communicate(text.encode(errors="backslashreplace"))
            except KeyboardInterrupt:
                # The pager handles it.
                continue
            return True


def print_rows(
    rows: Iterable[Sequence[Any]],
    columns: Mapping[str, str],
    *,
    as_json: bool,
    utc: bool = False,
) -> None:
    """Print rows as JSON or for people; `columns` maps their names to names of Arrow types."""
    lists = {"list<string>": pa.list_(pa.string())}
    schema = pa.schema([pa.field(name, lists.get(of, of)) for name, of in columns.items()])
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    table = pa.Table.from_pylist(named, schema)
    if as_json:
        print_json(table)
    else:
        print_table(table, utc=utc)


def print_outcome(outcome: Mapping[str, Any], text: str | None, *, as_json: bool) -> None:
    """Print the outcome of an action: as a JSON object, or as `text` if there is one."""
    if as_json:
        print_value(outcome)
    elif text is not None:
        typer.echo(text)


def print_value(value: Any) -> None:
    """Print a JSON value of several lines."""
    typer.echo(json.dumps(value, indent=2))


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


def _named_rows(rows: pa.Table) -> Iterator[list[tuple[str, Any]]]:
    """Yield each row as pairs of a column's name and a value; names may be equal."""
    for row in _rows(rows):
        yield list(zip(rows.column_names, row, strict=True))


def _cell(value: Any, name: str, *, utc: bool) -> Text:
    """Return a value for people; a Text object, since brackets in a value are not markup."""
    if value is None:
        return Text("NULL", "dim")
    is_time = isinstance(value, datetime) and value.tzinfo is not None
    if is_time or (type(value) is int and is_instant(name)):
        return Text(time_text(value, utc=utc))
    return Text(_text(value))


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
