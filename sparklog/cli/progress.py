"""Progress bars of long work, on standard error, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklog.storage.progress import OnProgress


@contextmanager
def progress_bars() -> Iterator[OnProgress | None]:
    """Yield a function that shows a bar per work; None if standard error is no terminal.

    The bars are removed at the end, so that they are not part of the output.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    from sparklog.cli.output import console_of

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    shown: dict[str, TaskID] = {}
    with Progress(*columns, console=console_of(sys.stderr), transient=True) as bars:

        def show(name: str, done: int, total: int | None) -> None:
            if name not in shown:
                for former in shown.values():
                    bars.remove_task(former)
                shown.clear()
                shown[name] = bars.add_task(name, total=total, count="")
            count = f"{done}" if total is None else f"{done}/{total}"
            bars.update(shown[name], completed=done, total=total, count=count)

        yield show
