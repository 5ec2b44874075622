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

_Of = TypeVar("_Of")
_Result = TypeVar("_Result")


def side_by_side(
    action: Callable[[_Of], _Result], of: Sequence[_Of], size_bytes: int, *, is_local: bool
) -> list[_Result]:
    """Act on each of some files, on a few at once; the results are in their order.

    `size_bytes` is what they have together; `is_local` says that they lie in folders.
    """
    if len(of) < 2 or (is_local and size_bytes < _BYTES_PER_THREAD):
        return [action(one) for one in of]
    if is_local:
        return list(_processors(os.getpid()).map(action, of))
    with ThreadPoolExecutor(min(len(of), _THREADS)) as pool:
        return list(pool.map(action, of))


@cache
def _processors(_process: int) -> ThreadPoolExecutor:
    """Return as many threads as there are processors, for a whole process; a forked one has none.

    In folders files wait for a processor, so that more threads, as when three brokers act at once,
    only take more memory and wait for each other.
    """
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="files")
