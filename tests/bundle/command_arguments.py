"""The arguments of `sparklog` commands in examples, checked by the command line itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from sparklog.cli import app


def parsed(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of a command and its parameters, without running it.

    The command's own errors are raised: unknown options, missing arguments, wrong values. The
    commands of a group are separated by spaces, as in `topics create`.
    """
    command: Any = typer.main.get_command(app)
    context = command.make_context("sparklog", list(arguments[:1]), resilient_parsing=True)
    names, rest = [], list(arguments)
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, rest)
        names.append(name)
        if hasattr(command, "commands"):
            context = command.make_context(name, rest[:1], parent=context, resilient_parsing=True)
        else:
            context = command.make_context(name, rest, parent=context)
    return " ".join(names), context.params
