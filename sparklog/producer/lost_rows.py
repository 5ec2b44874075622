"""Recovery of the rows of lost files of a micro-batch from another run of the micro-batch.

Another run has all rows of the micro-batch, possibly in other files and partitions. The rows of the
files that are not lost are stored, or will be. Each of them is subtracted once from the rows of the
run, and the lost rows remain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from sparklog.errors import SparklogError
from sparklog.model import TopicIdPartition, new_batch_path
from sparklog.producer.stream_writes import Files, SentFile
from sparklog.storage.batch_files import BatchFileWriter
from sparklog.storage.location import Location
from sparklog.storage.parquet import ParquetContent

_LENGTH_BYTES = 8


class OtherRowsError(SparklogError):
    """The rows of two runs of a micro-batch differ."""


def read_sent(log: Location, path: str) -> pa.Table:
    """Return the records of a batch file; raise `OSError` or `pa.ArrowException` if unreadable."""
    return ParquetContent(log.read_bytes(path)).read()


def lost_rows(
    run: Files, kept: Iterable[tuple[TopicIdPartition, pa.Table]], lost_count: int
) -> Files:
    """Return files with the `lost_count` rows of `run` that are not in `kept`.

    Rows are compared by key, value and headers. Of equal rows, those of the same partition are
    subtracted first. A file of `run` that has only lost rows is returned unchanged. The lost rows
    of other files are written to new files in the same log. Raises `OtherRowsError` if `run` does
    not consist of the rows of `kept` and `lost_count` others.
    """
    stored = Counter((key, digest) for key, table in kept for digest in _digests(table))
    if not stored:
        return run
    digests = {
        sent.file.path: [*_digests(read_sent(sent.log, sent.file.path))]
        for members in run.values()
        for sent in members
    }
    here = Counter(
        (key, digest)
        for key, members in run.items()
        for sent in members
        for digest in digests[sent.file.path]
    )
    same_partition = stored & here
    elsewhere: Counter[bytes] = Counter()
    for (_, digest), count in (stored - same_partition).items():
        elsewhere[digest] += count
    found: Files = {}
    for key, members in run.items():
        for sent in members:
            is_lost = [
                not _take(same_partition, (key, digest)) and not _take(elsewhere, digest)
                for digest in digests[sent.file.path]
            ]
            if any(is_lost):
                found.setdefault(key, []).append(_with_rows(sent, is_lost))
    unmatched = elsewhere.total()
    count = sum(sent.file.record_count for members in found.values() for sent in members)
    if unmatched or count != lost_count:
        raise OtherRowsError(
            f"{lost_count} rows were lost, and of the rows of this run {count} are not stored, "
            f"while {unmatched} rows are stored that this run does not have"
        )
    return found


def _take(left: Counter[Any], one: object) -> bool:
    """Decrement the count of `one`; return False if it is 0."""
    if not left[one]:
        return False
    left[one] -= 1
    return True


def _with_rows(sent: SentFile, mask: list[bool]) -> SentFile:
    if all(mask):
        return sent
    rows = read_sent(sent.log, sent.file.path).filter(pa.array(np.array(mask)))
    writer = BatchFileWriter(sent.log, new_batch_path())
    writer.write(rows)
    return sent._replace(file=writer.close())


def _digests(table: pa.Table) -> Iterator[bytes]:
    """Yield a digest of each row's key, value and headers."""
    columns = (table[name].to_pylist() for name in ("key", "value", "headers"))
    for key, value, headers in zip(*columns, strict=True):
        digest = xxhash.xxh3_128()
        for part in (key, value, *_header_parts(headers)):
            digest.update(_length(part))
            digest.update(part or b"")
        yield digest.digest()


def _length(part: bytes | None) -> bytes:
    # The length of a missing part is -1, so that it differs from an empty part.
    return (-1 if part is None else len(part)).to_bytes(_LENGTH_BYTES, "big", signed=True)


def _header_parts(headers: list[Mapping[str, Any]] | None) -> Iterator[bytes | None]:
    for header in headers or ():
        yield header["key"].encode() if header["key"] is not None else None
        yield header["value"]
