"""Writing a new file whole, or not at all: one that could not be finished is removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from sparklog.storage.location import Location


@contextmanager
def new_file(location: Location, path: str) -> Iterator[IO[bytes]]:
    """Create a file and give its stream; remove the file where the block, or closing it, fails.

    Raises `FileExistsError` where there is a file of this name, which stays as it is: at once in a
    folder, when it is closed on an object store.
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
    """Remove a file that nothing names; one that cannot be removed stays, and none is no error."""
    with suppress(OSError):
        location.remove(path)
