"""Progress bars of long work, on standard error, if that is a terminal."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

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
    running: set[str] = set()
    lock = threading.Lock()
    console = console_of(sys.stderr)
    # Rich would move standard output to standard error, also if it is a file.
    is_same = sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, redirect_stdout=is_same) as bars:

        def show(name: str, done: int, total: int | None) -> None:
            with lock:
                if name not in shown:
                    for former in [one for one in shown if one not in running]:
                        bars.remove_task(shown.pop(former))
                    shown[name] = bars.add_task(name, total=total, count="")
                # Tables are worked on in parallel: the bars of those that are not done stay.
                (running.discard if total in (None, done) else running.add)(name)
                count = f"{done}" if total is None else f"{done}/{total}"
                bars.update(shown[name], completed=done, total=total, count=count)

        yield show


def is_file(stream: IO[Any]) -> bool:
    """Return whether a stream is a regular file: no terminal, and not another program's."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def bytes_left(stream: IO[Any]) -> int | None:
    """Return the number of bytes from the position of a regular file to its end; `None` of others.

    Call it before anything is read, since a stream reads ahead.
    """
    if not is_file(stream):
        return None
    number = stream.fileno()
    return max(os.fstat(number).st_size - os.lseek(number, 0, os.SEEK_CUR), 0)
