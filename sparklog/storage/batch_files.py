"""Batch files: writing, checking, copying and reading the Parquet files that hold records.

A file is written once, under a name that was never used, and its checksum is that of its bytes;
so copies are compared without being read as records.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from sparklog.errors import StorageError
from sparklog.model import RECORD_COLUMNS, Batch, Record, is_batch_path, new_batch_path
from sparklog.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHUNK_BYTES = 4 << 20
_BYTES_PER_TASK = 32 << 20
"""Bytes that make a copying task worth its start."""


class BatchFile(NamedTuple):
    """What is known of a batch's file before it gets a header; times are ms since 1970."""

    path: str
    size_bytes: int
    checksum: str
    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int


class _HashingFile(io.RawIOBase):
    """A file that is written front to back and hashed on the way."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._hash = xxhash.xxh3_64()
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._hash.update(data)
        self._target.write(data)
        length = memoryview(data).nbytes
        self.size_bytes += length
        return length

    def tell(self) -> int:
        return self.size_bytes

    def checksum(self) -> str:
        return self._hash.hexdigest()


def _create(log: Location, path: str) -> IO[bytes]:
    """Open a new file for writing; a local one that exists already is refused (3.7)."""
    if log.is_local:
        target = Path(log.uri, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.open("xb", buffering=0)
    stream: IO[bytes] = log.filesystem().open_output_stream(path)
    return stream


class BatchFileWriter:
    """Writes one batch file, piece by piece.

    Parameters: `log`, where the log table lies; `path`, relative to it, from `new_batch_path`.
    """

    def __init__(self, log: Location, path: str) -> None:
        self.path = path
        self.record_count = 0
        self._min_ms, self._max_ms = 1 << 62, -(1 << 62)
        self._target = _create(log, path)
        self._file = _HashingFile(self._target)
        # Keys and values seldom repeat, so dictionaries and value statistics cost and do not pay.
        self._parquet = pq.ParquetWriter(
            self._file,
            RECORD_COLUMNS,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            write_statistics=["offset_delta", "timestamp"],
        )

    @property
    def size_bytes(self) -> int:
        """How many bytes the file has so far."""
        return self._file.size_bytes

    def write(self, records: pa.Table) -> None:
        """Write `records`, which has the columns of `RECORD_COLUMNS` but for offset_delta."""
        count = records.num_rows
        if not count:
            return
        deltas = pa.array(range(self.record_count, self.record_count + count), pa.int32())
        columns = [deltas, *(records.column(name) for name in RECORD_COLUMNS.names[1:])]
        self._parquet.write_table(pa.Table.from_arrays(columns, schema=RECORD_COLUMNS))
        extent = pc.min_max(records.column("timestamp").cast(pa.int64()))
        self._min_ms = min(self._min_ms, extent["min"].as_py() // 1000)
        self._max_ms = max(self._max_ms, extent["max"].as_py() // 1000)
        self.record_count += count

    def close(self) -> BatchFile:
        """Finish the file and return what is known of it."""
        self._parquet.close()
        self._target.close()
        return BatchFile(
            self.path,
            self._file.size_bytes,
            self._file.checksum(),
            self.record_count,
            self._min_ms,
            self._max_ms,
        )


def records_table(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamp_ms: int,
) -> pa.Table:
    """Return plain keys and values as a table that `BatchFileWriter.write` takes."""
    count = len(values)
    moment = datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc)
    return pa.table(
        {
            "timestamp": pa.array([moment] * count, RECORD_COLUMNS.field("timestamp").type),
            "key": pa.array(keys if keys is not None else [None] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.nulls(count, RECORD_COLUMNS.field("headers").type),
        }
    )


def file_fault(log: Location, file: BatchFile) -> str | None:
    """Say in a few words what is wrong with a file that a request names, or `None` (3.5, 3.7).

    Everything that the request claims is checked against the bytes that are there; nothing that
    a producer sends makes this raise.
    """
    if not is_batch_path(file.path):
        return "its path is not one of the inbox"
    if log.is_local and Path(log.uri, file.path).is_symlink():
        return "its path is a link"
    try:
        content = log.read_bytes(file.path)
        if len(content) != file.size_bytes:
            return f"it has {len(content)} bytes, not {file.size_bytes}"
        if xxhash.xxh3_64_hexdigest(content) != file.checksum:
            return "its bytes do not match the checksum"
        parquet = pq.ParquetFile(pa.BufferReader(content))
        if not parquet.schema_arrow.equals(RECORD_COLUMNS):
            return "its columns are not those of a record batch"
        if parquet.metadata.num_rows != file.record_count or not file.record_count:
            return f"it holds {parquet.metadata.num_rows} records, not {file.record_count}"
    except FileNotFoundError:
        return "there is no such file"
    except (OSError, pa.ArrowException, ValueError) as error:
        return f"it cannot be read: {error}".replace("\n", " ")
    return None


class Copy(NamedTuple):
    """One file to be copied from one log table to another, byte for byte."""

    source: Location
    source_path: str
    target: Location
    target_path: str
    size_bytes: int
    checksum: str


def copy_file(copy: Copy) -> str | None:
    """Copy one file and verify its checksum on the way; say what went wrong, or `None`."""
    digest = xxhash.xxh3_64()
    try:
        with (
            _open(copy.source, copy.source_path) as source,
            _create(copy.target, copy.target_path) as target,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                target.write(chunk)
    except OSError as error:
        return f"{copy.source.uri}/{copy.source_path} was not copied: {error}"
    if digest.hexdigest() != copy.checksum:
        return f"{copy.source.uri}/{copy.source_path} does not have its checksum {copy.checksum}"
    return None


def file_checksum(log: Location, path: str) -> str:
    """Read a file and return the checksum of its bytes."""
    digest = xxhash.xxh3_64()
    with _open(log, path) as source:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _open(log: Location, path: str) -> IO[bytes]:
    if log.is_local:
        return Path(log.uri, path).open("rb", buffering=0)
    stream: IO[bytes] = log.filesystem().open_input_stream(path)
    return stream


class ProcessCopier:
    """Copies files in this process: no JVM, milliseconds, for tests and small clusters."""

    jobs = 0
    """Spark jobs so far: none."""

    def copy(self, copies: Sequence[Copy]) -> list[str | None]:
        """Copy all; the results are in the order of `copies`, `None` where it went well."""
        return [copy_file(copy) for copy in copies]


class SparkCopier:
    """Copies files in the tasks of one Spark job, sized by bytes."""

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
        most = min(len(copies), self._context.defaultParallelism * 4)
        tasks = max(1, min(most, -(-total // _BYTES_PER_TASK)))
        with self._lock:
            self.jobs += 1
        return list(self._context.parallelize(copies, tasks).map(copy_file).collect())


def files_faults(log: Location, files: Sequence[BatchFile]) -> list[str | None]:
    """Check many files at once; see `file_fault`."""
    if len(files) < 2:
        return [file_fault(log, file) for file in files]
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(lambda file: file_fault(log, file), files))


def rewrite_slice(
    source: Location, batch: Batch, from_offset: int, below_offset: int, target: Location
) -> Batch:
    """Write the records of `batch` with from_offset <= offset < below_offset as a new batch.

    The new file goes to the inbox of the log at `target`; the header keeps what identifies the
    batch and begins at the slice (rules 6.3, 6.5: a batch that straddles a point).
    """
    first = max(from_offset, batch.base_offset)
    records = _read_table(source, batch)
    offsets = pc.add(records["offset_delta"].cast(pa.int64()), batch.base_offset)
    inside = pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, below_offset))
    kept = records.filter(inside)
    shift = first - batch.base_offset
    deltas = pc.subtract(kept["offset_delta"], pa.scalar(shift, pa.int32()))
    kept = kept.set_column(0, "offset_delta", deltas)
    buffer = pa.BufferOutputStream()
    pq.write_table(kept, buffer, compression="zstd", compression_level=1, use_dictionary=False)
    content = buffer.getvalue().to_pybytes()
    path = new_batch_path(batch.batch_id)
    with _create(target, path) as file:
        file.write(content)
    times_us = kept["timestamp"].cast(pa.int64())
    return batch._replace(
        path=path,
        size_bytes=len(content),
        base_offset=first,
        base_sequence=batch.base_sequence + shift if batch.base_sequence >= 0 else -1,
        checksum=xxhash.xxh3_64_hexdigest(content),
        record_count=kept.num_rows,
        last_offset_delta=min(below_offset, batch.next_offset) - 1 - first,
        min_timestamp_ms=pc.min(times_us).as_py() // 1000,
        max_timestamp_ms=pc.max(times_us).as_py() // 1000,
    )


def _read_table(log: Location, batch: Batch) -> pa.Table:
    try:
        return pq.read_table(pa.BufferReader(log.read_bytes(batch.path)))
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{log.uri}/{batch.path} cannot be read: {error}") from error


def read_records(
    log: Location, batches: Iterable[Batch], from_offset: int, below_offset: int
) -> Iterator[Record]:
    """Yield the records with from_offset <= offset < below_offset, in order of offset."""
    for batch in batches:
        if batch.base_offset >= below_offset or batch.next_offset <= from_offset:
            continue
        table = _read_table(log, batch)
        times = table["timestamp"].cast(pa.int64()).to_pylist()
        columns = (table[name].to_pylist() for name in ("offset_delta", "key", "value"))
        for delta, key, value, time_us in zip(*columns, times, strict=True):
            offset = batch.base_offset + delta
            if from_offset <= offset < below_offset:
                yield Record(offset, batch.leader_epoch, key, value, time_us // 1000)
