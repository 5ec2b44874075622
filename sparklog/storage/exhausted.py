"""Limits of a process and of its disks: the sentence that says what to do when one is reached."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable

try:
    import resource
except ImportError:  # pragma: no cover - only on Windows
    resource = None  # type: ignore[assignment]

LEAST_DESCRIPTORS = 256
"""A limit of open files that is enough for every process of sparklog without Spark."""


def _descriptors() -> str:
    allowed = ""
    if resource is not None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = f"this process may have {soft} files and sockets open (RLIMIT_NOFILE): "
    return f"{allowed}raise the limit with ulimit -n, to {LEAST_DESCRIPTORS} or more"


def _space() -> str:
    return "free space or inodes on this disk; work goes on then without a restart"


def _read_only() -> str:
    return "remount the file system writable"


def _memory() -> str:
    return "give this process more memory, or reduce batches and fetches"


_REMEDIES: tuple[tuple[int, Callable[[], str]], ...] = (
    (errno.EMFILE, _descriptors),
    (errno.ENOSPC, _space),
    (errno.EDQUOT, _space),
    (errno.EROFS, _read_only),
    (errno.ENOMEM, _memory),
)
_PATTERNS = [
    (re.compile(rf"{re.escape(os.strerror(number))}(?! in system)", re.IGNORECASE), remedy)
    for number, remedy in _REMEDIES
]


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error comes from a limit of this process or of a disk, and not from damage.

    Such an error says nothing about the object that was to be read or written.
    """
    return isinstance(error, MemoryError) or any(
        pattern.search(str(error)) for pattern, _ in _PATTERNS
    )


def with_remedy(text: str) -> str:
    """Return the text of an error, and what to do if it names a limit of the process or disk.

    The texts of the operating system are searched: engines give them without their numbers.
    """
    for pattern, remedy in _PATTERNS:
        if pattern.search(text):
            clause = remedy()
            return text if clause in text else f"{text}; {clause}"
    return text
