"""Writes to local file systems: each file that sparklog itself creates, links, syncs or removes.

A file survives a power loss only if its content was synced, and after that the folder that names
it. Tests replace `FILES` by an object that fails or that loses unsynced data.
"""

from __future__ import annotations

import os
from typing import IO


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
