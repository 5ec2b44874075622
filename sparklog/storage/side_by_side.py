"""Acting on several files at once in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

_THREADS = 8
"""How many files are read or copied at once where they wait for a store mostly."""

_BYTES_PER_THREAD = 1 << 20
"""Bytes of files in a folder that make a thread worth its start."""

_BYTES_PER_FILE = 16 << 10
"""Bytes of a file in a folder from which on it takes more time without the interpreter's lock."""

_SYNCING_THREADS = 16
"""Files synced in parallel. On ext4 two threads take three times as long."""

_SYNCED_ALONE = 8
"""Fewer files than these are synced in sequence."""

_Of = TypeVar("_Of")
_Result = TypeVar("_Result")


def side_by_side(
    action: Callable[[_Of], _Result], of: Sequence[_Of], size_bytes: int, *, is_local: bool
) -> list[_Result]:
    """Act on each of some files, on a few at once; the results are in their order.

    `size_bytes` is what they have together; `is_local` says that they lie in folders.
    """
    is_small = size_bytes < max(_BYTES_PER_THREAD, len(of) * _BYTES_PER_FILE)
    if len(of) < 2 or (is_local and is_small):
        return [action(one) for one in of]
    if is_local:
        return list(_processors(os.getpid()).map(action, of))
    with ThreadPoolExecutor(min(len(of), _THREADS)) as pool:
        return list(pool.map(action, of))


def sync_side_by_side(sync: Callable[[str], None], paths: Sequence[str]) -> None:
    """Sync local files in parallel: a file system writes its journal once for all of them.

    Raises the first failure.
    """

    def sync_each(share: Sequence[str]) -> None:
        for path in share:
            sync(path)

    if len(paths) < _SYNCED_ALONE:
        sync_each(paths)
    else:
        shares = [paths[first::_SYNCING_THREADS] for first in range(_SYNCING_THREADS)]
        list(_syncing(os.getpid()).map(sync_each, shares))


@cache
def _syncing(_process: int) -> ThreadPoolExecutor:
    """Return the threads that wait for disks, for a whole process; a forked one has none."""
    return ThreadPoolExecutor(_SYNCING_THREADS, thread_name_prefix="syncing")


@cache
def _processors(_process: int) -> ThreadPoolExecutor:
    """Return as many threads as there are processors, for a whole process; a forked one has none.

    In folders files wait for a processor, so that more threads, as when three brokers act at once,
    only take more memory and wait for each other.
    """
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="files")
