"""Batch files: writing, checking and reading the Parquet files that hold records.

A file is written once, under a name that was never used, and its checksum covers its bytes. Copies
can therefore be compared without decoding their records.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from sparklog.errors import AccessDeniedError, DamagedError, StorageError
from sparklog.model import RECORD_COLUMNS, Batch, Record, is_batch_path, new_batch_path
from sparklog.storage.batch_actions import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from sparklog.storage.location import Location, one_line
from sparklog.storage.new_file import discard_file, new_file
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.parquet import ForeignParquet, ParquetContent

if TYPE_CHECKING:
    from sparklog.storage.record_log import RecordLog

# Keys and values seldom repeat, so dictionaries and value statistics cost more than they save.
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": False,
    "write_statistics": ["offset_delta", "timestamp"],
    # Arrow's schema would be a quarter of a small file and only repeat Parquet's types.
    "store_schema": False,
}

_UNCOMPRESSED = _PARQUET | {"compression": "none", "compression_level": None}

_UNCOMPRESSED_BYTES = 4 << 10
"""The largest size of records, in bytes, that are stored uncompressed.

A file takes a disk block of 4 KiB anyway, and decompressing its pages takes as long as the rest of
reading it.
"""


def _parquet_options(records_bytes: int) -> dict[str, Any]:
    """Return pyarrow's options for a file with `records_bytes` bytes of records."""
    return _PARQUET if records_bytes > _UNCOMPRESSED_BYTES else _UNCOMPRESSED


class PassingFault(str):
    """A fault of a file that may be temporary: the file or its store is not available yet."""

    __slots__ = ()


class MissingKey(str):
    """A fault of a file for a compacted topic: one of its records has no key."""

    __slots__ = ()


class BatchFile(NamedTuple):
    """Properties of a batch's file before the batch has a header; times are in ms since 1970."""

    path: str
    size_bytes: int
    checksum: str
    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int


class _HashingFile(io.RawIOBase):
    """A file that is written sequentially and hashed while it is written."""

    def __init__(self, target: IO[bytes], chunk_bytes: int) -> None:
        self._target = target
        self._chunk_bytes = chunk_bytes
        self._hash = xxhash.xxh3_64()
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, view.nbytes, self._chunk_bytes):
            piece = view[start : start + self._chunk_bytes]
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

    Parameters: `log`, the location of the log table; `path`, relative to it, from `new_batch_path`.
    """

    def __init__(self, log: Location, path: str) -> None:
        self.path = path
        self.record_count = 0
        self._is_stored = False
        self._min_ms, self._max_ms = 1 << 62, -(1 << 62)
        self._log = log
        self._target = log.create(path)
        self._file = _HashingFile(self._target, log.chunk_bytes)
        self._parquet: pq.ParquetWriter | None = None
        # The first records, held until it is known whether more follow (small files stay
        # uncompressed).
        self._held: pa.Table | None = None

    @property
    def size_bytes(self) -> int:
        """The number of bytes written so far; `finish` writes the last ones."""
        return self._file.size_bytes

    def write(self, records: pa.Table, deltas: pa.Array[Any] | None = None) -> None:
        """Write `records`, which has the columns of `RECORD_COLUMNS` except offset_delta.

        Parameters: `deltas`, the records' offset deltas, by default numbers without a gap. Raises
        `StorageError` if a record has no usable timestamp; nothing is written in that case.
        """
        count = records.num_rows
        if not count:
            return
        extent = _usable_extent_ms(records["timestamp"])
        if isinstance(extent, str):
            raise StorageError(f"{extent}: give every record a time between the years 1 and 9999")
        first, last = extent
        if deltas is None:
            deltas = pa.array(np.arange(self.record_count, self.record_count + count), pa.int32())
        columns = [deltas, *(records.column(name) for name in RECORD_COLUMNS.names[1:])]
        numbered = pa.Table.from_arrays(columns, schema=RECORD_COLUMNS)
        if not self.record_count and numbered.nbytes <= _UNCOMPRESSED_BYTES:
            self._held = numbered
        else:
            self._write(numbered)
        self._min_ms, self._max_ms = min(self._min_ms, first), max(self._max_ms, last)
        self.record_count += count

    def _write(self, numbered: pa.Table) -> None:
        try:
            self._begun(_PARQUET).write_table(numbered)
        except BaseException:
            self.discard()
            raise

    def _begun(self, options: dict[str, Any]) -> pq.ParquetWriter:
        """Return the Parquet writer; create it, and write the held records, on the first call."""
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(self._file, RECORD_COLUMNS, **options)
            if self._held is not None:
                self._parquet.write_table(self._held)
                self._held = None
        return self._parquet

    def close(self) -> BatchFile:
        """Finish and store the file, and return its properties; a failure leaves no file."""
        file = self.finish()
        try:
            self.upload()
        except FileExistsError:
            # On an object store the existing file belongs to another writer: keep it.
            raise
        except BaseException:
            self.discard()
            raise
        return file

    def upload(self) -> None:
        """Store the finished file; on an object store this is one request.

        A file that an object store may have in spite of a failure stays: a request for it may have
        been sent beside the upload, and its leader may have appended it.
        """
        self._target.close()
        self._is_stored = True

    def finish(self) -> BatchFile:
        """Finish the content and return its properties; the file exists only after `upload`."""
        try:
            self._begun(_UNCOMPRESSED).close()
        except BaseException:
            self.discard()
            raise
        return BatchFile(
            self.path,
            self._file.size_bytes,
            self._file.checksum(),
            self.record_count,
            self._min_ms,
            self._max_ms,
        )

    def discard_unless_stored(self) -> None:
        """Remove the unfinished local file; on an object store no file exists before `upload`."""
        if self._log.is_local and not self._is_stored:
            self.discard()

    def discard(self) -> None:
        """Abandon the unfinished file and remove it; a failure to write it does so, too."""
        for part in (self._parquet, self._target):
            with suppress(OSError, pa.ArrowException):
                if part is not None:
                    part.close()
        discard_file(self._log, self.path)


def records_table(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamp_ms: int,
) -> pa.Table:
    """Return plain keys and values as a table for `BatchFileWriter.write`."""
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


def file_checksum(log: Location, path: str) -> str:
    """Read a file and return the checksum of its bytes."""
    digest = xxhash.xxh3_64()
    with log.open(path) as source:
        while chunk := source.read(log.chunk_bytes):
            digest.update(chunk)
    return digest.hexdigest()


def file_damage(log: RecordLog, batch: Batch) -> DamagedError | None:
    """Return the damage to the file of a live batch, or `None` if its checksum matches.

    Raises `OSError` if the file cannot be read for another reason, or if the whole log is missing.
    """
    location = log.location
    try:
        checksum = file_checksum(location, batch.path)
    except FileNotFoundError:
        if not log.is_in_place():
            raise
        fault = "it is missing"
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        fault = f"it cannot be read: {one_line(error)}"
    else:
        if checksum == batch.checksum:
            return None
        fault = f"its bytes have checksum {checksum}, its header names {batch.checksum}"
    return DamagedError(
        f"{location.uri}/{batch.path}",
        fault,
        f"it holds offsets {batch.base_offset} to {batch.next_offset - 1} of {batch.topic}-"
        f"{batch.partition}: its broker copies them again from another replica in sync, and needs "
        "one to be running",
    )


def file_fault(log: Location, file: BatchFile, keyed: Collection[str] = frozenset()) -> str | None:
    """Return the fault of a file that a request names, in a few words, or `None` (3.5, 3.7).

    Parameters: `keyed`, the paths of the files whose records need keys. Each claim of the request
    is checked against the stored bytes. A fault is returned and never raised, whatever a producer
    has sent.
    """
    if not is_batch_path(file.path):
        return "its path is not one of the inbox"
    try:
        if log.is_local and not log.is_regular_file(file.path):
            return "its path is a link or something else that is no file"
        stream, size_bytes = log.open_with_size(file.path)
        with stream:
            # Checked before the content is loaded: a producer may name a file of any kind and size.
            if size_bytes != file.size_bytes:
                return f"it has {size_bytes} bytes, not {file.size_bytes}"
            content = stream.read(size_bytes)
    except FileNotFoundError:
        return PassingFault("there is no such file")
    except OSError as error:
        return PassingFault(f"it cannot be read: {one_line(error)}")
    if xxhash.xxh3_64_hexdigest(content) != file.checksum:
        return "its bytes do not match the checksum"
    try:
        return _content_fault(content, file, needs_keys=file.path in keyed)
    except (OSError, pa.ArrowException, ValueError) as error:
        return f"it cannot be read: {one_line(error)}"


def _content_fault(content: bytes, file: BatchFile, *, needs_keys: bool) -> str | None:
    parquet = ForeignParquet(content)
    if not parquet.columns.equals(RECORD_COLUMNS):
        return "its columns are not those of a record batch"
    named_count = parquet.row_count
    if named_count != file.record_count or not file.record_count:
        return f"it holds {named_count} records, not {file.record_count}"
    count, extents = 0, []
    for records in parquet.pieces():
        if not records.num_rows:
            continue
        # Rejects invalid values, such as text that is not UTF-8, which would break later readers.
        records.validate(full=True)
        # The row count in the file's footer may be wrong.
        if count + records.num_rows > file.record_count:
            return f"it holds more than {file.record_count} records"
        if not _are_numbered(records["offset_delta"], count):
            return "its records are not numbered from 0 without a gap"
        if _most_headers(records["headers"]) > MOST_HEADERS:
            return f"it has a record with more than {MOST_HEADERS} headers"
        if needs_keys and records["key"].null_count:
            return MissingKey("it has a record without a key, and its topic is compacted")
        extent = _usable_extent_ms(records["timestamp"])
        if isinstance(extent, str):
            return extent
        extents.append(extent)
        count += records.num_rows
    if count != file.record_count:
        return f"it holds {count} records, not {file.record_count}"
    firsts, lasts = zip(*extents, strict=True)
    if (min(firsts), max(lasts)) != (file.min_timestamp_ms, file.max_timestamp_ms):
        return "its records' timestamps do not span what the request names"
    return None


def _most_headers(headers: pa.ListArray[Any]) -> int:
    """Return the number of headers of the record with the most, or an upper bound within it."""
    count = len(headers.values)
    return count if count <= MOST_HEADERS else pc.max(pc.list_value_length(headers)).as_py() or 0


def _are_numbered(deltas: pa.Array[Any], first: int) -> bool:
    """Return whether the offset deltas are consecutive from `first` on."""
    past = first + len(deltas)
    if past <= _FEW_NUMBERS:
        return bool(deltas.equals(_few_numbers().slice(first, len(deltas))))
    is_valid = not deltas.null_count
    return is_valid and bool((deltas.to_numpy() == np.arange(first, past)).all())


MOST_HEADERS = 1 << 20
"""The most headers of a record. A consumer makes objects of 200 bytes of each, and a file of 1 KiB
may stand for any number of equal ones."""

_FEW_NUMBERS = 1 << 10


@cache
def _few_numbers() -> pa.Array[Any]:
    """Return the offset deltas of a small batch: 0, 1, 2 and so on."""
    return pa.array(range(_FEW_NUMBERS), pa.int32())


def _usable_extent_ms(timestamps: pa.Array[Any] | pa.ChunkedArray) -> tuple[int, int] | str:
    """Return the earliest and latest timestamp in ms, or the reason why they cannot be used."""
    if timestamps.null_count:
        return "it has records without a timestamp"
    first, last = _extent_ms(timestamps)
    if first < MIN_TIMESTAMP_MS or last > MAX_TIMESTAMP_MS:
        return "it has timestamps outside the years 1 to 9999"
    return first, last


def _extent_ms(timestamps: pa.Array[Any] | pa.ChunkedArray) -> tuple[int, int]:
    times_us = timestamps.to_numpy().view(np.int64)
    return int(times_us.min()) // 1000, int(times_us.max()) // 1000


def files_faults(
    log: Location, files: Sequence[BatchFile], keyed: Collection[str] = frozenset()
) -> list[str | None]:
    """Check files in parallel; return the fault of each, or `None` (see `file_fault`)."""
    size_bytes = sum(file.size_bytes for file in files)
    check = partial(file_fault, log, keyed=keyed)
    return map_in_parallel(check, files, size_bytes, is_local=log.is_local)


def rewrite_slice(
    source: Location, batch: Batch, from_offset: int, below_offset: int, target: Location
) -> Batch:
    """Write the records of `batch` with from_offset <= offset < below_offset as a new batch.

    The new file is stored in the inbox of the log at `target`. The header keeps the batch's
    identity and starts at the slice (rules 6.3, 6.5: a batch that straddles an offset).
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
    pq.write_table(kept, buffer, **_parquet_options(kept.nbytes))
    content = buffer.getvalue().to_pybytes()
    path = new_batch_path(batch.batch_id)
    with new_file(target, path) as file:
        file.write(content)
    # Compaction may have removed all records of the slice, which is still a range of offsets.
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


def rebuild_batch(source: Location, batches: Sequence[Batch], of: Batch) -> tuple[Batch, bytes]:
    """Return a batch with the records of `of`, taken from the batches of another log, and its file.

    Parameters: `batches`, those of the log at `source` that contain the offsets of `of`, by
    ascending offset. The header stays that of `of`, except for the file. The file is not stored; it
    has the checksum of `of` if the same writer would write the same bytes. Raises `StorageError` if
    the batches do not contain the records, or cannot be read.
    """
    where = f"{source.uri} has no sound copy of offsets {of.base_offset} to {of.next_offset - 1}"
    if any(batch.leader_epoch != of.leader_epoch for batch in batches):
        raise StorageError(f"{where}: its batches there have another leader epoch")
    parts = [RECORD_COLUMNS.empty_table()]
    # Compaction may have removed all records of a batch: they need no source.
    for batch in batches if of.record_count else ():
        records = read_batch(source, batch)
        offsets = pc.add(records["offset_delta"].cast(pa.int64()), batch.base_offset)
        deltas = pc.subtract(offsets, of.base_offset)
        inside = pc.and_(pc.greater_equal(deltas, 0), pc.less_equal(deltas, of.last_offset_delta))
        kept = records.filter(inside)
        parts.append(kept.set_column(0, "offset_delta", deltas.filter(inside).cast(pa.int32())))
    if sum(part.num_rows for part in parts) != of.record_count:
        raise StorageError(f"{where}: it does not have {of.record_count} records there")
    kept = pa.concat_tables(parts).cast(RECORD_COLUMNS).combine_chunks()
    buffer = pa.BufferOutputStream()
    pq.write_table(kept, buffer, **_parquet_options(kept.nbytes))
    content = buffer.getvalue().to_pybytes()
    first_ms, last_ms = (
        _extent_ms(kept["timestamp"])
        if kept.num_rows
        else (of.min_timestamp_ms, of.max_timestamp_ms)
    )
    rebuilt = of._replace(
        path=new_batch_path(of.batch_id),
        size_bytes=len(content),
        checksum=xxhash.xxh3_64_hexdigest(content),
        min_timestamp_ms=first_ms,
        max_timestamp_ms=last_ms,
    )
    return rebuilt, content


def _sequence_after(base_sequence: int, count: int) -> int:
    """Advance a producer's sequence number by `count`; it wraps to 0 after 2^31 - 1."""
    return (base_sequence + count) % (1 << 31) if base_sequence >= 0 else base_sequence


def read_batch(log: Location, batch: Batch) -> pa.Table:
    """Return the records of a batch with the columns of `RECORD_COLUMNS`.

    Raises `StorageError` if the file is missing, damaged or unreadable.
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
    except AccessDeniedError:
        raise
    except OSError as error:
        raise StorageError(f"{where} cannot be read: {one_line(error)}") from error
    if xxhash.xxh3_64_hexdigest(content) != batch.checksum:
        raise StorageError(f"{where} is damaged: it does not have its checksum")
    return content


def read_records(
    log: Location, batches: Iterable[Batch], from_offset: int, below_offset: int
) -> Iterator[Record]:
    """Yield the records with from_offset <= offset < below_offset, in the order of `batches`.

    Parameters: `batches`, by ascending offset. Raises as `read_batch` does, when the iterator
    reaches the batch.
    """
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
