"""The arguments of `sparklog` commands in examples, checked by the command line itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from sparklog.cli import app


def parsed(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of a command and its parameters, without running it.

    The command's own errors are raised: unknown options, missing arguments, wrong values.
    """
    group: Any = typer.main.get_command(app)
    context = group.make_context("sparklog", [arguments[0], "--help"], resilient_parsing=True)
    name, command, rest = group.resolve_command(context, list(arguments))
    return name, command.make_context(name, rest, parent=context).params
