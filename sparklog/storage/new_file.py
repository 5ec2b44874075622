"""Writing a new file completely or not at all: an unfinished file is removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from sparklog.storage.location import Location


@contextmanager
def new_file(location: Location, path: str) -> Iterator[IO[bytes]]:
    """Create a file and yield its stream; remove the file if the block or closing it fails.

    Raises `FileExistsError` if a file of this name exists, which stays unchanged: at once in a
    local folder, on closing on an object store.
    """
    target = location.create(path)
    try:
        with target:
            yield target
    except FileExistsError:
        raise
    except BaseException:
        discard_file(location, path)
        raise


def discard_file(location: Location, path: str) -> None:
    """Remove a file that no commit names; a missing file or a failed removal is ignored."""
    with suppress(OSError):
        location.remove(path)
