"""Writes to local file systems: each file that sparklog itself creates, links, syncs or removes.

A file survives a power loss only if its content was synced, and after that the folder that names
it. Tests replace `FILES` by an object that fails or that loses unsynced data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, NamedTuple


class StoredFile(NamedTuple):
    """A file in a listing: its path below the listed folder, size and time in ms since 1970."""

    path: str
    size_bytes: int
    modified_at_ms: int


class LocalFiles:
    """The file system's own calls."""

    def create(self, path: str) -> IO[bytes]:
        """Create a file and open it for writing; raises `FileExistsError` if the path exists."""
        return open(path, "xb")

    def link(self, source: str, target: str) -> None:
        """Give the file at `source` a second name; raises `FileExistsError` if it is taken."""
        os.link(source, target)

    def replace(self, source: str, target: str) -> None:
        """Rename `source` to `target` atomically; an existing file there is replaced."""
        os.replace(source, target)

    def sync(self, path: str) -> None:
        """Sync the file or folder at `path` to the disk by fsync."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: str) -> None:
        """Remove a file; does nothing if it does not exist."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


FILES = LocalFiles()
"""The writer to local file systems in this process. Read this name at each call."""


def files_below(folder: str) -> Iterator[StoredFile]:
    """Yield the regular files below a folder at any depth; none if the folder does not exist.

    A file that is removed meanwhile may be left out.
    """
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with suppress(FileNotFoundError):
                found = os.lstat(path)
                modified_at_ms = found.st_mtime_ns // 1_000_000
                yield StoredFile(os.path.relpath(path, folder), found.st_size, modified_at_ms)
