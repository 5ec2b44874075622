"""A bound of memory for processes: a control group of the kernel, version 1 or 2; it needs root."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_VERSION_1 = Path("/sys/fs/cgroup/memory")
_VERSION_2 = Path("/sys/fs/cgroup")


class MemoryGroup:
    """A control group with a bound of resident memory, page cache included.

    The kernel frees the page cache first, and kills a process of the group by SIGKILL if that does
    not suffice.
    """

    def __init__(self, name: str, most_bytes: int) -> None:
        is_first = (_VERSION_1 / "memory.limit_in_bytes").exists()
        self._folder = (_VERSION_1 if is_first else _VERSION_2) / name
        self._limit = "memory.limit_in_bytes" if is_first else "memory.max"
        self._peak = "memory.max_usage_in_bytes" if is_first else "memory.peak"
        self._most_bytes = most_bytes

    def create(self) -> None:
        """Create the group without a process."""
        self._folder.mkdir()
        (self._folder / self._limit).write_text(str(self._most_bytes), "ascii")

    def remove(self) -> None:
        """Remove the group, whose processes have ended."""
        with suppress(OSError):
            self._folder.rmdir()

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a command that enters the group and then executes `command`."""
        enter = f'echo $$ > {self._folder}/cgroup.procs && exec "$@"'
        return ["sh", "-c", enter, "sh", *command]

    def peak_bytes(self) -> int:
        """Return the largest memory of the group so far, page cache included."""
        return int((self._folder / self._peak).read_text("ascii"))


@contextmanager
def memory_group(most_bytes: int) -> Iterator[MemoryGroup]:
    """Create a control group, and remove it at the end."""
    group = MemoryGroup(f"sparklog-limits-{os.getpid()}-{most_bytes >> 20}", most_bytes)
    group.create()
    try:
        yield group
    finally:
        group.remove()
