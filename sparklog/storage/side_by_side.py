"""Acting on several files at once in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    """Act on each of some files, on a few at once; the results are in their order."""
    # In folders they wait for the processor, and more of them only take more memory.
    threads = min(len(of), _THREADS, (os.cpu_count() or 1) if is_local else _THREADS)
    if threads < 2 or (is_local and size_bytes < _BYTES_PER_THREAD):
        return [action(one) for one in of]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(action, of))
