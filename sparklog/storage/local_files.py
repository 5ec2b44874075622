"""Writes to local file systems: every file that sparklog itself creates, links, syncs or removes.

A file counts after a power loss only if its content was synced and the folder that names it was
synced after that. Tests put another object in the place of `FILES`: one that fails, or that loses
what was not synced.
"""

from __future__ import annotations

import os
from typing import IO


class LocalFiles:
    """The file system's own calls."""

    def create(self, path: str) -> IO[bytes]:
        """Open a new file for writing; `FileExistsError` where there is one."""
        return open(path, "xb")

    def link(self, source: str, target: str) -> None:
        """Give the file at `source` a second name; `FileExistsError` where that name is taken."""
        os.link(source, target)

    def sync(self, path: str) -> None:
        """Return after the file or folder at `path` is on the disk: fsync."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens where there is none."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


FILES = LocalFiles()
"""The writer to local file systems in this process. Read this name at each call."""
