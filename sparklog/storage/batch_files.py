"""Batch files: writing, checking, copying and reading the Parquet files that hold records.

A file is written once, under a name that was never used, and its checksum is that of its bytes;
so copies are compared without being read as records.
"""

from __future__ import annotations

import heapq
import io
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from sparklog.errors import StorageError
from sparklog.model import RECORD_COLUMNS, Batch, Record, is_batch_path, new_batch_path
from sparklog.storage.batch_actions import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from sparklog.storage.location import Location, one_line
from sparklog.storage.parquet import ParquetContent, parquet_pieces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STORE_CHUNK_BYTES = 4 << 20
"""What is read of an object at once: each time is a request."""

_CHUNK_BYTES = 256 << 10
"""What is read or written of a file in a folder at once: what a processor's cache holds.

From larger writes Linux makes large pages of its cache, which takes several times as long where it
has none free, as in virtual machines that give free memory back to their host.
"""

_BYTES_PER_TASK = 32 << 20
"""Bytes that make a copying task worth its start."""

_BYTES_PER_JOB = 128 << 20
"""Bytes that the driver copies by itself in less time than Spark's tasks do, start included."""

_THREADS = 8
"""How many files are read or copied at once in this process where they wait for a store mostly."""

_BYTES_PER_THREAD = 1 << 20
"""Bytes of files in a folder that make a thread worth its start."""

_Of = TypeVar("_Of")
_Result = TypeVar("_Result")

_ROW_GROUP_BYTES = 16 << 20
"""Bytes of decoded records that are held at once, and make a row group, when batches are merged."""

# Keys and values seldom repeat, so dictionaries and value statistics cost and do not pay.
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": False,
    "write_statistics": ["offset_delta", "timestamp"],
}


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
        view = memoryview(data).cast("B")
        for start in range(0, view.nbytes, _CHUNK_BYTES):
            piece = view[start : start + _CHUNK_BYTES]
            self._hash.update(piece)
            self._target.write(piece)
        self.size_bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size_bytes

    def checksum(self) -> str:
        return self._hash.hexdigest()


class BatchFileWriter:
    """Writes one batch file, piece by piece.

    Parameters: `log`, where the log table lies; `path`, relative to it, from `new_batch_path`.
    """

    def __init__(self, log: Location, path: str) -> None:
        self.path = path
        self.record_count = 0
        self._min_ms, self._max_ms = 1 << 62, -(1 << 62)
        self._target = log.create(path)
        self._file = _HashingFile(self._target)
        self._parquet = pq.ParquetWriter(self._file, RECORD_COLUMNS, **_PARQUET)

    @property
    def size_bytes(self) -> int:
        """How many bytes the file has so far."""
        return self._file.size_bytes

    def write(self, records: pa.Table) -> None:
        """Write `records`, which has the columns of `RECORD_COLUMNS` but for offset_delta.

        Raises `StorageError` where a record has no usable timestamp; nothing is written then.
        """
        count = records.num_rows
        if not count:
            return
        if fault := _timestamps_fault(records["timestamp"]):
            raise StorageError(f"{fault}: give every record a time between the years 1 and 9999")
        first, last = _extent_ms(records["timestamp"])
        deltas = pa.array(np.arange(self.record_count, self.record_count + count), pa.int32())
        columns = [deltas, *(records.column(name) for name in RECORD_COLUMNS.names[1:])]
        self._parquet.write_table(pa.Table.from_arrays(columns, schema=RECORD_COLUMNS))
        self._min_ms, self._max_ms = min(self._min_ms, first), max(self._max_ms, last)
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
    times = pa.array(np.full(count, timestamp_ms * 1000, dtype=np.int64))
    return pa.table(
        {
            "timestamp": times.cast(RECORD_COLUMNS.field("timestamp").type),
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
    try:
        if log.is_local and not stat.S_ISREG(Path(log.uri, file.path).lstat().st_mode):
            return "its path is a link or something else that is no file"
        with log.open(file.path) as stream:
            # Before it is loaded: it may be anything, and of any size.
            size_bytes = stream.seek(0, os.SEEK_END)
            if size_bytes != file.size_bytes:
                return f"it has {size_bytes} bytes, not {file.size_bytes}"
            stream.seek(0)
            content = stream.read(size_bytes)
        if xxhash.xxh3_64_hexdigest(content) != file.checksum:
            return "its bytes do not match the checksum"
        return _content_fault(content, file)
    except FileNotFoundError:
        return "there is no such file"
    except (OSError, pa.ArrowException, ValueError) as error:
        return f"it cannot be read: {one_line(error)}"


def _content_fault(content: bytes, file: BatchFile) -> str | None:
    parquet = ParquetContent(content)
    if not parquet.columns.equals(RECORD_COLUMNS):
        return "its columns are not those of a record batch"
    if parquet.row_count != file.record_count or not file.record_count:
        return f"it holds {parquet.row_count} records, not {file.record_count}"
    count, extents = 0, []
    for records in parquet_pieces(content):
        if not records.num_rows:
            continue
        # Text that is none, among others: whoever reads the log would stumble over it.
        records.validate(full=True)
        # Its footer may be wrong about how many there are.
        if count + records.num_rows > file.record_count:
            return f"it holds more than {file.record_count} records"
        deltas = pa.array(np.arange(count, count + records.num_rows), pa.int32())
        if not records["offset_delta"].equals(deltas):
            return "its records are not numbered from 0 without a gap"
        if fault := _timestamps_fault(records["timestamp"]):
            return fault
        extents.append(_extent_ms(records["timestamp"]))
        count += records.num_rows
    if count != file.record_count:
        return f"it holds {count} records, not {file.record_count}"
    firsts, lasts = zip(*extents, strict=True)
    if (min(firsts), max(lasts)) != (file.min_timestamp_ms, file.max_timestamp_ms):
        return "its records' timestamps do not span what the request names"
    return None


def _timestamps_fault(timestamps: pa.Array[Any] | pa.ChunkedArray) -> str | None:
    if timestamps.null_count:
        return "it has records without a timestamp"
    first, last = _extent_ms(timestamps)
    if first < MIN_TIMESTAMP_MS or last > MAX_TIMESTAMP_MS:
        return "it has timestamps outside the years 1 to 9999"
    return None


def _extent_ms(timestamps: pa.Array[Any] | pa.ChunkedArray) -> tuple[int, int]:
    extent = pc.min_max(timestamps.cast(pa.int64()))
    return extent["min"].as_py() // 1000, extent["max"].as_py() // 1000


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
            copy.source.open(copy.source_path) as source,
            copy.target.create(copy.target_path) as target,
        ):
            while chunk := source.read(_chunk_bytes(copy.source)):
                digest.update(chunk)
                target.write(chunk)
    except OSError as error:
        return f"{copy.source.uri}/{copy.source_path} was not copied: {one_line(error)}"
    if digest.hexdigest() != copy.checksum:
        return f"{copy.source.uri}/{copy.source_path} does not have its checksum {copy.checksum}"
    return None


def file_checksum(log: Location, path: str) -> str:
    """Read a file and return the checksum of its bytes."""
    digest = xxhash.xxh3_64()
    with log.open(path) as source:
        while chunk := source.read(_chunk_bytes(log)):
            digest.update(chunk)
    return digest.hexdigest()


def _chunk_bytes(source: Location) -> int:
    return _CHUNK_BYTES if source.is_local else _STORE_CHUNK_BYTES


class Merge(NamedTuple):
    """Adjacent batches of one log that become one batch in a new file at `path`."""

    log: Location
    batches: tuple[Batch, ...]
    path: str

    @property
    def size_bytes(self) -> int:
        """How many bytes the batches have."""
        return sum(batch.size_bytes for batch in self.batches)


def merge_batches(merge: Merge) -> Batch | str:
    """Write the records of adjacent batches as one batch; return it, or what went wrong.

    Checksums are verified before anything is written. The header is the first batch's, but for
    the producer: several may have written it (rule 8.4).
    """
    try:
        contents = [verified_bytes(merge.log, batch) for batch in merge.batches]
        writer = BatchFileWriter(merge.log, merge.path)
        pieces = (piece for content in contents for piece in parquet_pieces(content))
        for records in _gathered(small for piece in pieces for small in _decodable(piece)):
            writer.write(records)
        file = writer.close()
    except (OSError, pa.ArrowException, StorageError) as error:
        return one_line(error)
    first, last = merge.batches[0], merge.batches[-1]
    if file.record_count != last.next_offset - first.base_offset:
        return f"the batches from {merge.log.uri}/{first.path} on hold {file.record_count} records"
    return first._replace(
        path=file.path,
        size_bytes=file.size_bytes,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        checksum=file.checksum,
        record_count=file.record_count,
        last_offset_delta=file.record_count - 1,
        min_timestamp_ms=file.min_timestamp_ms,
        max_timestamp_ms=file.max_timestamp_ms,
    )


def _gathered(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the records of many files in tables of some MiB, so that many become a row group."""
    gathered: list[pa.RecordBatch] = []
    size_bytes = 0
    for piece in pieces:
        if gathered and size_bytes + _decoded_bytes(piece) > _ROW_GROUP_BYTES:
            yield _decoded(gathered)
            gathered, size_bytes = [], 0
        gathered.append(piece)
        size_bytes += _decoded_bytes(piece)
    if gathered:
        yield _decoded(gathered)


def _decoded(pieces: list[pa.RecordBatch]) -> pa.Table:
    """Return pieces as one table; some of them may be dictionary-encoded, and others plain."""
    alike = (list(run) for _, run in groupby(pieces, key=attrgetter("schema")))
    return pa.concat_tables(pa.Table.from_batches(run).cast(RECORD_COLUMNS) for run in alike)


def _decodable(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut dictionary-encoded records into pieces that fit in memory without the dictionary."""
    if _decoded_bytes(records) <= _ROW_GROUP_BYTES or records.num_rows < 2:
        yield records
        return
    half = records.num_rows // 2
    yield from _decodable(records.slice(0, half))
    yield from _decodable(records.slice(half))


def _decoded_bytes(records: pa.RecordBatch) -> int:
    """Return how many bytes records have at most where no dictionary stands for them."""
    at_most: int = records.nbytes * records.num_rows
    if at_most < _ROW_GROUP_BYTES // 256:
        # Small batches are many.
        return at_most
    lengths = (
        pc.binary_length(column.dictionary).take(column.indices)
        for column in (records["key"], records["value"], *records["headers"].flatten().flatten())
        if pa.types.is_dictionary(column.type)
    )
    total: int = sum(pc.sum(length.cast(pa.int64())).as_py() or 0 for length in lengths)
    own: int = records.nbytes
    return total + own


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
    return _side_by_side(copy_file, copies, size_bytes, is_local=is_local)


def _shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Deal numbers of files out to at most `count` tasks that have about as many bytes each."""
    shares: list[list[int]] = [[] for _ in range(min(count, len(sizes)))]
    dealt = [(0, number) for number in range(len(shares))]
    for file in sorted(range(len(sizes)), key=lambda file: -sizes[file]):
        size, least = heapq.heappop(dealt)
        shares[least].append(file)
        heapq.heappush(dealt, (size + sizes[file], least))
    return shares


def files_faults(log: Location, files: Sequence[BatchFile]) -> list[str | None]:
    """Check many files at once; see `file_fault`."""
    size_bytes = sum(file.size_bytes for file in files)
    return _side_by_side(partial(file_fault, log), files, size_bytes, is_local=log.is_local)


def _side_by_side(
    action: Callable[[_Of], _Result], of: Sequence[_Of], size_bytes: int, *, is_local: bool
) -> list[_Result]:
    """Act on each of some files, on a few at once; the results are in their order."""
    # In folders they wait for the processor, and more of them only take more memory.
    threads = min(len(of), _THREADS, (os.cpu_count() or 1) if is_local else _THREADS)
    if threads < 2 or (is_local and size_bytes < _BYTES_PER_THREAD):
        return [action(one) for one in of]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(action, of))


def rewrite_slice(
    source: Location, batch: Batch, from_offset: int, below_offset: int, target: Location
) -> Batch:
    """Write the records of `batch` with from_offset <= offset < below_offset as a new batch.

    The new file goes to the inbox of the log at `target`; the header keeps what identifies the
    batch and begins at the slice (rules 6.3, 6.5: a batch that straddles a point).
    """
    first = max(from_offset, batch.base_offset)
    records = read_batch(source, batch)
    offsets = pc.add(records["offset_delta"].cast(pa.int64()), batch.base_offset)
    inside = pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, below_offset))
    kept = records.filter(inside)
    shift = first - batch.base_offset
    deltas = pc.subtract(kept["offset_delta"], pa.scalar(shift, pa.int32()))
    kept = kept.set_column(0, "offset_delta", deltas)
    buffer = pa.BufferOutputStream()
    pq.write_table(kept, buffer, **_PARQUET)
    content = buffer.getvalue().to_pybytes()
    path = new_batch_path(batch.batch_id)
    with target.create(path) as file:
        file.write(content)
    # Compaction may have left no record in the slice, which is still a range of offsets.
    times = (batch.min_timestamp_ms, batch.max_timestamp_ms)
    first_ms, last_ms = _extent_ms(kept["timestamp"]) if kept.num_rows else times
    return batch._replace(
        path=path,
        size_bytes=len(content),
        base_offset=first,
        base_sequence=_sequence_after(batch.base_sequence, shift),
        checksum=xxhash.xxh3_64_hexdigest(content),
        record_count=kept.num_rows,
        last_offset_delta=min(below_offset, batch.next_offset) - 1 - first,
        min_timestamp_ms=first_ms,
        max_timestamp_ms=last_ms,
    )


def _sequence_after(base_sequence: int, count: int) -> int:
    """Count on from a producer's sequence number, which begins again at 0 after 2^31 - 1."""
    return (base_sequence + count) % (1 << 31) if base_sequence >= 0 else base_sequence


def read_batch(log: Location, batch: Batch) -> pa.Table:
    """Return the records of a batch with the columns of `RECORD_COLUMNS`.

    Raises `StorageError` where the file is missing, damaged or not readable.
    """
    content = verified_bytes(log, batch)
    try:
        return ParquetContent(content).read()
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{log.uri}/{batch.path} cannot be read: {one_line(error)}") from error


def verified_bytes(log: Location, batch: Batch) -> bytes:
    """Return the bytes of a batch's file; raises as `read_batch` does."""
    where = f"{log.uri}/{batch.path}"
    try:
        content = log.read_bytes(batch.path)
    except OSError as error:
        raise StorageError(f"{where} cannot be read: {one_line(error)}") from error
    if xxhash.xxh3_64_hexdigest(content) != batch.checksum:
        raise StorageError(f"{where} is damaged: it does not have its checksum")
    return content


def read_records(
    log: Location, batches: Iterable[Batch], from_offset: int, below_offset: int
) -> Iterator[Record]:
    """Yield the records with from_offset <= offset < below_offset, in order of offset."""
    for batch in batches:
        if batch.base_offset >= below_offset or batch.next_offset <= from_offset:
            continue
        table = read_batch(log, batch)
        times = table["timestamp"].cast(pa.int64()).to_pylist()
        columns = (table[name].to_pylist() for name in ("offset_delta", "key", "value"))
        for delta, key, value, time_us in zip(*columns, times, strict=True):
            offset = batch.base_offset + delta
            if from_offset <= offset < below_offset:
                yield Record(offset, batch.leader_epoch, key, value, time_us // 1000)
