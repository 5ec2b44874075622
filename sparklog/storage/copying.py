"""Copying and merging of batch files, in this process or in Spark's tasks."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import xxhash

from sparklog.model import Batch
from sparklog.storage.batch_merging import Merge, merge_batches
from sparklog.storage.location import Location, one_line
from sparklog.storage.new_file import new_file
from sparklog.storage.parallel import map_in_parallel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BYTES_PER_TASK = 32 << 20
"""Bytes for which starting a copying task pays."""

_BYTES_PER_JOB = 128 << 20
"""Bytes below which the driver copies faster than executors do, including their start."""


class Copy(NamedTuple):
    """A file to be copied from one log table to another, byte for byte."""

    source: Location
    source_path: str
    target: Location
    target_path: str
    size_bytes: int
    checksum: str


class Copier(Protocol):
    """Copies and merges batch files, in this process or in the tasks of a Spark job."""

    jobs: int

    def copy(self, copies: Sequence[Copy]) -> list[str | None]:
        """Copy all files; return the failure of each, or `None`, in the order of `copies`."""
        ...

    def merge(self, merges: Sequence[Merge]) -> list[Batch | str]:
        """Merge batches; return the merged batch or the failure of each, by order of `merges`."""
        ...


class _ChecksumError(Exception):
    """A file's checksum differs from the one in the log."""


def copy_file(copy: Copy) -> str | None:
    """Copy one file and verify its checksum in the same pass; return the failure, or `None`.

    A failed copy is removed, so that repeated attempts do not fill the disk.
    """
    digest = xxhash.xxh3_64()
    try:
        with (
            copy.source.open(copy.source_path) as source,
            new_file(copy.target, copy.target_path) as target,
        ):
            while chunk := source.read(copy.source.chunk_bytes):
                digest.update(chunk)
                target.write(chunk)
            _check(digest.hexdigest() == copy.checksum)
    except _ChecksumError:
        return f"{copy.source.uri}/{copy.source_path} does not have its checksum {copy.checksum}"
    except OSError as error:
        return f"{copy.source.uri}/{copy.source_path} was not copied: {one_line(error)}"
    return None


def _check(has_checksum: bool) -> None:
    if not has_checksum:
        raise _ChecksumError


class ProcessCopier:
    """Copies files in this process, without starting a Spark job: for tests, small clusters."""

    jobs = 0
    """The number of Spark jobs so far, always 0."""

    def copy(self, copies: Sequence[Copy]) -> list[str | None]:
        """Copy all files; return the failure of each, or `None`, in the order of `copies`."""
        return _copy_files(copies)

    def merge(self, merges: Sequence[Merge]) -> list[Batch | str]:
        """Merge batches; return the merged batch or the failure of each, by order of `merges`."""
        return [merge_batches(merge) for merge in merges]


class SparkCopier:
    """Copies files in the tasks of one Spark job, or on the driver if that takes less time.

    Without executors (master `local`), Spark's tasks run on the driver's processors. The driver's
    threads copy twice as fast there.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._has_executors = _has_executors(self._context.master)
        self._lock = threading.Lock()
        self.jobs = 0
        """The number of Spark jobs so far."""

    def copy(self, copies: Sequence[Copy]) -> list[str | None]:
        """Copy all files; return the failure of each, or `None`, in the order of `copies`."""
        if not copies:
            return []
        total = sum(copy.size_bytes for copy in copies)
        if total < _BYTES_PER_JOB or not self._has_executors:
            return _copy_files(copies)
        tasks = min(self._context.defaultParallelism, -(-total // _BYTES_PER_TASK))
        shares = _shares([copy.size_bytes for copy in copies], tasks)
        with self._lock:
            self.jobs += 1
        given = [[copies[number] for number in share] for share in shares]
        copied = self._context.parallelize(given, len(given)).map(_copy_files).collect()
        faults: list[str | None] = [None] * len(copies)
        for share, of in zip(shares, copied, strict=True):
            for number, fault in zip(share, of, strict=True):
                faults[number] = fault
        return faults

    def merge(self, merges: Sequence[Merge]) -> list[Batch | str]:
        """Merge batches, in this process if that takes less time than starting a Spark job.

        Returns the merged batch or the failure of each, in the order of `merges`.
        """
        total = sum(merge.size_bytes for merge in merges)
        if total < _BYTES_PER_TASK:
            return [merge_batches(merge) for merge in merges]
        with self._lock:
            self.jobs += 1
        tasks = min(len(merges), self._context.defaultParallelism * 4)
        return list(self._context.parallelize(merges, tasks).map(merge_batches).collect())


def _has_executors(master: str | None) -> bool:
    return (master or "local").partition("[")[0] != "local"


def _copy_files(copies: Sequence[Copy]) -> list[str | None]:
    is_local = all(copy.source.is_local and copy.target.is_local for copy in copies)
    size_bytes = sum(copy.size_bytes for copy in copies)
    return map_in_parallel(copy_file, copies, size_bytes, is_local=is_local)


def _shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Distribute file indices to at most `count` tasks with about equal bytes each."""
    shares: list[list[int]] = [[] for _ in range(min(count, len(sizes)))]
    dealt = [(0, number) for number in range(len(shares))]
    for file in sorted(range(len(sizes)), key=lambda file: -sizes[file]):
        size, least = heapq.heappop(dealt)
        shares[least].append(file)
        heapq.heappush(dealt, (size + sizes[file], least))
    return shares
