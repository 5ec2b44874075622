"""Writing a new file completely or not at all: an unfinished file is removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

from sparklog.clock import is_ago
from sparklog.errors import StorageError
from sparklog.storage.location import Location

SUSPENDED_S = 1_800
"""Seconds between writing a file and committing it after which the process must have been
suspended. A vacuum keeps files that no commit names for an hour at least.
"""


@contextmanager
def new_file(location: Location, path: str) -> Iterator[IO[bytes]]:
    """Create a file and yield its stream; remove the file if the block or closing it fails.

    Raises `FileExistsError` if a file of this name exists, which stays unchanged: at once in a
    local folder, on closing on an object store. Other errors of a local folder name the file.
    """
    target = location.create(path)
    try:
        with target:
            yield target
    except FileExistsError:
        raise
    except BaseException as error:
        discard_file(location, path)
        # A write to an open file fails without its name: which disk is full has to be known.
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = f"{location.uri}/{path}"
        raise


def discard_file(location: Location, path: str) -> None:
    """Remove a file that no commit names; a missing file or a failed removal is ignored."""
    with suppress(OSError):
        location.remove(path)


def check_present(location: Location, paths: Iterable[str], since: tuple[float, float]) -> None:
    """Raise `StorageError` if a file to be committed was removed while this process was suspended.

    Parameters: `since`, the `clocks` at or before the time when the files were written. Costs
    nothing if that is less than `SUSPENDED_S` ago.
    """
    if not is_ago(since, SUSPENDED_S):
        return
    for path in paths:
        if not location.exists(path):
            raise StorageError(
                f"{location.uri}/{path} was removed before it was committed: this process was "
                "suspended for longer than files stay that no commit names; try again"
            )
