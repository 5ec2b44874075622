"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

UtcOption = Annotated[
    bool, typer.Option("--utc", help="Times in UTC; by default in the local time zone.")
]

RecordsOption = Annotated[
    bool,
    typer.Option(
        "--records",
        help="A line per value, as a terminal gets rows that are wider than itself.",
    ),
]
