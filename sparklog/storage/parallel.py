"""Parallel work on several files in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_THREADS = 8
"""The number of files that are read or copied in parallel if they mostly wait for a store."""

_BYTES_PER_THREAD = 1 << 20
"""Bytes of local files for which starting a thread pays."""

_BYTES_PER_FILE = 16 << 10
"""Bytes of a local file from which on most of its time is spent outside the interpreter's lock."""

_SYNCING_THREADS = 16
"""Files synced in parallel. On ext4 two threads take three times as long."""

_SYNCED_ALONE = 8
"""The number of files below which they are synced in sequence."""

_pools: dict[tuple[int, str, int], ThreadPoolExecutor] = {}

_Of = TypeVar("_Of")
_Result = TypeVar("_Result")


def map_in_parallel(
    action: Callable[[_Of], _Result], of: Sequence[_Of], size_bytes: int, *, is_local: bool
) -> list[_Result]:
    """Apply `action` to each file, in parallel if that pays; return the results in their order.

    Parameters: `size_bytes`, the total size of the files; `is_local`, whether they are in local
    folders.
    """
    is_small = size_bytes < max(_BYTES_PER_THREAD, len(of) * _BYTES_PER_FILE)
    if len(of) < 2 or (is_local and is_small):
        return [action(one) for one in of]
    if is_local:
        # Work on local files is limited by processors. More threads, such as those of three brokers
        # that run at once, only use more memory and wait for each other.
        return list(process_threads("files", os.cpu_count() or 1).map(action, of))
    # Threads of its own, since an action may work on several files in parallel as well.
    with ThreadPoolExecutor(min(len(of), _THREADS)) as pool:
        return list(pool.map(action, of))


def in_parallel(actions: Sequence[Callable[[], object]], *, is_local: bool) -> None:
    """Run independent actions, in parallel on an object store and in sequence locally.

    Raises the first failure, after all actions have ended.
    """
    map_in_parallel(lambda action: action(), actions, 0, is_local=is_local)


def sync_in_parallel(sync: Callable[[str], None], paths: Sequence[str]) -> None:
    """Sync local files in parallel, so that the file system writes its journal once for all.

    Raises the first failure.
    """

    def sync_each(share: Sequence[str]) -> None:
        for path in share:
            sync(path)

    if len(paths) < _SYNCED_ALONE:
        sync_each(paths)
    else:
        shares = [paths[first::_SYNCING_THREADS] for first in range(_SYNCING_THREADS)]
        list(process_threads("syncing", _SYNCING_THREADS).map(sync_each, shares))


MOST_AHEAD = 32
"""The most commits of a table that are requested in parallel from an object store."""


def reading_threads() -> ThreadPoolExecutor:
    """Return the process's thread pool for requests to object stores."""
    return process_threads("reading", 4 * MOST_AHEAD)


def process_threads(name: str, count: int) -> ThreadPoolExecutor:
    """Return the thread pool of this name, which this process has once.

    Work in a pool must not wait for other work in the same pool: all threads could wait.
    """
    # Threads do not survive a fork.
    of = os.getpid(), name, count
    pool = _pools.get(of)
    # Of two threads that come first, one creates a pool without threads that nobody uses.
    return pool or _pools.setdefault(of, ThreadPoolExecutor(count, thread_name_prefix=name))


_COPYING_LANES = 4
"""The threads that write second copies to object stores."""


def copying_threads() -> Sequence[ThreadPoolExecutor]:
    """Return the threads that write second copies to object stores, each of them in order."""
    return [process_threads(f"second-copies-{lane}", 1) for lane in range(_COPYING_LANES)]


def background_thread(name: str) -> ThreadPoolExecutor:
    """Return a new thread that runs what is submitted to it in order, one action at a time."""
    return ThreadPoolExecutor(1, thread_name_prefix=name)
