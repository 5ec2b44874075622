"""Small disks that can be filled, freed and remounted: tmpfs mounts, which need root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparklog.clock import wait_until

_CHUNK_BYTES = 64 << 10
_REMOUNT_MS = 20_000
"""A file system with a file that is open for writing cannot be remounted read-only."""


class Disk:
    """A tmpfs mount at `folder`, with a limit of bytes and, if given, of inodes."""

    def __init__(self, folder: Path, size_bytes: int, inodes: int | None = None) -> None:
        self.folder = folder
        self._limits = f"size={size_bytes}" + (f",nr_inodes={inodes}" if inodes else "")
        self._ballast = folder / "ballast"

    def mount(self) -> None:
        """Create the folder and mount the disk there."""
        self.folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", self._limits, "tmpfs", str(self.folder)]
        subprocess.run(command, check=True)

    def unmount(self) -> None:
        """Unmount the disk; at once for others, and for those who use it when they end."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def remount(self, *, is_writable: bool) -> None:
        """Remount the disk writable or read-only, as soon as no file is open for writing."""
        option = f"remount,{'rw' if is_writable else 'ro'}"
        command = ["mount", "-o", option, str(self.folder)]

        def remounted() -> bool:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        if not wait_until(remounted, _REMOUNT_MS, pause_ms=1):
            raise AssertionError(f"{self.folder} is in use: it was not remounted")

    def fill(self) -> None:
        """Write a file until nothing fits any more."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while file.write(bytes(_CHUNK_BYTES)):
                pass

    def fill_inodes(self) -> None:
        """Create empty files until there is no inode left."""
        self._ballast.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):
            for number in range(1 << 20):
                (self._ballast / str(number)).touch()

    def free(self) -> None:
        """Remove everything that `fill` or `fill_inodes` wrote."""
        if self._ballast.is_dir():
            for one in self._ballast.iterdir():
                one.unlink()
            self._ballast.rmdir()
        else:
            self._ballast.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """Return the bytes that can still be written."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize


@contextmanager
def mounted(disk: Disk) -> Iterator[Disk]:
    """Mount a disk, and unmount it at the end."""
    disk.mount()
    try:
        yield disk
    finally:
        disk.unmount()


def can_mount(folder: Path) -> bool:
    """Return whether this process may mount a tmpfs."""
    probe = Disk(folder / "probe-of-a-mount", 1 << 20)
    try:
        probe.mount()
    except (OSError, subprocess.CalledProcessError):
        return False
    probe.unmount()
    return True
