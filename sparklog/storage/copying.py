"""Copying batch files byte for byte, and merging them, in this process or in Spark's tasks."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from sparklog.model import Batch
from sparklog.storage.batch_merging import Merge, merge_batches
from sparklog.storage.location import Location, one_line
from sparklog.storage.new_file import new_file
from sparklog.storage.side_by_side import side_by_side

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BYTES_PER_TASK = 32 << 20
"""Bytes that make a copying task worth its start."""

_BYTES_PER_JOB = 128 << 20
"""Bytes that the driver copies by itself in less time than Spark's tasks do, start included."""


class Copy(NamedTuple):
    """One file to be copied from one log table to another, byte for byte."""

    source: Location
    source_path: str
    target: Location
    target_path: str
    size_bytes: int
    checksum: str


class _ChecksumError(Exception):
    """A file does not have the checksum that the log names."""


def copy_file(copy: Copy) -> str | None:
    """Copy one file and verify its checksum on the way; say what went wrong, or `None`.

    A copy that failed is removed: a full disk must not be filled by attempts.
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
    """Copies files in this process: no JVM, milliseconds, for tests and small clusters."""

    jobs = 0
    """Spark jobs so far: none."""

    def copy(self, copies: Sequence[Copy]) -> list[str | None]:
        """Copy all; the results are in the order of `copies`, `None` where it went well."""
        return _copy_files(copies)

    def merge(self, merges: Sequence[Merge]) -> list[Batch | str]:
        """Merge batches; in the order of `merges`, what they became or what went wrong."""
        return [merge_batches(merge) for merge in merges]


class SparkCopier:
    """Copies files in the tasks of one Spark job, or on the driver where that takes less time."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._lock = threading.Lock()
        self.jobs = 0
        """Spark jobs so far."""

    def copy(self, copies: Sequence[Copy]) -> list[str | None]:
        """Copy all; the results are in the order of `copies`, `None` where it went well."""
        if not copies:
            return []
        total = sum(copy.size_bytes for copy in copies)
        if total < _BYTES_PER_JOB:
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
        """Merge batches, in this process where that takes less time than a Spark job's start.

        The results are, in the order of `merges`, what they became or what went wrong.
        """
        total = sum(merge.size_bytes for merge in merges)
        if total < _BYTES_PER_TASK:
            return [merge_batches(merge) for merge in merges]
        with self._lock:
            self.jobs += 1
        tasks = min(len(merges), self._context.defaultParallelism * 4)
        return list(self._context.parallelize(merges, tasks).map(merge_batches).collect())


def _copy_files(copies: Sequence[Copy]) -> list[str | None]:
    is_local = all(copy.source.is_local and copy.target.is_local for copy in copies)
    size_bytes = sum(copy.size_bytes for copy in copies)
    return side_by_side(copy_file, copies, size_bytes, is_local=is_local)


def _shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Deal numbers of files out to at most `count` tasks that have about as many bytes each."""
    shares: list[list[int]] = [[] for _ in range(min(count, len(sizes)))]
    dealt = [(0, number) for number in range(len(shares))]
    for file in sorted(range(len(sizes)), key=lambda file: -sizes[file]):
        size, least = heapq.heappop(dealt)
        shares[least].append(file)
        heapq.heappush(dealt, (size + sizes[file], least))
    return shares
