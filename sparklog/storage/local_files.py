"""Writes to local file systems: each file that sparklog itself creates, links, syncs or removes.

A file survives a power loss only if its content was synced, and after that the folder that names
it. Tests replace `FILES` by an object that fails or that loses unsynced data.

Processes of several users write to the same tables. A new file may be read by everyone who may read
its folder, and a new folder may be used like its parent, whatever the umask of the process. A
folder's default ACL takes precedence.
"""

from __future__ import annotations

import os
import stat
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
        file = open(path, "xb")  # noqa: SIM115 - the caller closes it
        try:
            share(path, _READ)
        except BaseException:
            file.close()
            raise
        return file

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


_READ = 0o444
_ALL = 0o777
_DEFAULT_ACL = "system.posix_acl_default"


def share(path: str, bits: int = _READ) -> None:
    """Give those of the permission `bits` of its folder to a file or folder of this user."""
    folder = os.path.dirname(path)
    mode = stat.S_IMODE(os.stat(path).st_mode)
    missing = stat.S_IMODE(os.stat(folder).st_mode) & bits & ~mode
    # With a default ACL the umask is not applied: the permissions are those of the ACL.
    if missing and not _has_default_acl(folder):
        os.chmod(path, mode | missing)


def _has_default_acl(folder: str) -> bool:
    try:
        return _DEFAULT_ACL in os.listxattr(folder)
    except (OSError, AttributeError):
        # The file system, or the operating system, has no such attributes.
        return False


def make_folders(folder: str) -> None:
    """Create a folder and its missing parents, with the permissions of the existing parent."""
    if os.path.isdir(folder):
        return
    make_folders(os.path.dirname(folder))
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    share(folder, _ALL)


def share_below(folder: str) -> None:
    """Share the files and folders that delta-rs has created in a new folder, and the folder.

    Those of other users are shared by them.
    """
    with suppress(PermissionError):
        share(folder, _ALL)
        for parent, folders, names in os.walk(folder):
            for name in folders:
                share(f"{parent}/{name}", _ALL)
            for name in names:
                share(f"{parent}/{name}")


def files_below(folder: str) -> Iterator[StoredFile]:
    """Yield the regular files below a folder at any depth; none if the folder does not exist.

    A file that is removed meanwhile may be left out. Raises `OSError` for a folder that cannot be
    read.
    """

    def check(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    for parent, _, names in os.walk(folder, onerror=check):
        for name in names:
            path = os.path.join(parent, name)
            with suppress(FileNotFoundError):
                found = os.lstat(path)
                modified_at_ms = found.st_mtime_ns // 1_000_000
                yield StoredFile(os.path.relpath(path, folder), found.st_size, modified_at_ms)
