"""Compaction of batch files: some of the records of adjacent batches in one file (rule 8.3).

Records keep their offsets, and the new batch has the range of offsets of those that it replaces. So
it may lack offsets inside, and it may have no record at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import StorageError
from sparklog.model import RECORD_COLUMNS, Batch
from sparklog.storage.batch_files import BatchFileWriter, verified_bytes
from sparklog.storage.batch_rewriting import BatchRewrite
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.parquet import ParquetContent

_DIGEST_BYTES = 16
"""The bytes of a digest, and of the shortest key that is represented by one."""

RECORD_KEYS = pa.schema(
    [
        ("base_offset", pa.int64()),
        ("record_offset", pa.int64()),
        ("key_digest", pa.string()),
        ("is_tombstone", pa.bool_()),
    ]
)
"""The keys of records: the base offset of the batch into which a record is written, its offset, the
digest of its key (null without a key), and whether it is a tombstone."""

_KEY_COLUMNS = ["offset_delta", "key", "value"]
_LATEST_COLUMNS = ["key_digest", "record_offset"]


class Compaction(BatchRewrite):
    """Adjacent batches of which some records become one batch."""

    __slots__ = ()

    @property
    def base_offset(self) -> int:
        """The first offset of the batches, which identifies a compaction within its log."""
        return self.batches[0].base_offset

    @property
    def record_count(self) -> int:
        """The number of records in the batches."""
        return sum(batch.record_count for batch in self.batches)


def record_keys(log: Location, batches: Sequence[Batch], base_offsets: Sequence[int]) -> pa.Table:
    """Return the keys of all records of some batches, as `RECORD_KEYS`.

    Parameters: `base_offsets`, for each batch that of the batch into which it is written. Each file
    is read once, in parallel on an object store. Raises `StorageError` if a file is missing,
    damaged or unreadable.
    """
    tables = [
        _keys(records, _offsets(batch, records), base_offset)
        for (batch, records), base_offset in zip(
            _read(log, batches, _KEY_COLUMNS), base_offsets, strict=True
        )
    ]
    return pa.concat_tables(tables)


def key_offsets(log: Location, batches: Sequence[Batch]) -> pa.Table:
    """Return the key digests and offsets of all records of some batches; see `record_keys`.

    Columns: key_digest, record_offset. Values are not decoded.
    """
    tables = [
        pa.table([_digests(records["key"]), _offsets(batch, records)], _LATEST_COLUMNS)
        for batch, records in _read(log, batches, _KEY_COLUMNS[:2])
    ]
    return pa.concat_tables(tables)


def compact_batches(
    compaction: Compaction, retain: Callable[[pa.Table], Any]
) -> Batch | str | None:
    """Write the records that stay as one batch; return it, or the failure.

    Parameters: `retain`, returns the offsets of the records that stay, in ascending order, of
    records as `RECORD_KEYS`. Each file is read once. Checksums are verified before anything is
    written. `None`: one batch that loses no record, so it stays as it is.
    """
    log, batches = compaction.log, compaction.batches
    try:
        records = [table for _, table in _read(log, batches, RECORD_COLUMNS.names)]
        offsets = [_offsets(*of) for of in zip(batches, records, strict=True)]
        base_offset = compaction.base_offset
        keys = [_keys(*of, base_offset) for of in zip(records, offsets, strict=True)]
        retained = retain(pa.concat_tables(keys))
        if _is_unchanged(compaction, len(retained)):
            return None
        return _written(compaction, records, offsets, retained)
    except (OSError, pa.ArrowException, StorageError) as error:
        return one_line(error)


def compact_retained(compaction: Compaction, retained: Any) -> Batch | str | None:
    """Write the records with these offsets as one batch; see `compact_batches`.

    Parameters: `retained`, the offsets in ascending order, as 64-bit integers. No file is read if
    there are none, or if nothing changes.
    """
    if _is_unchanged(compaction, len(retained)):
        return None
    try:
        if not len(retained):
            return _written(compaction, [], [], retained)
        read = list(_read(compaction.log, compaction.batches, RECORD_COLUMNS.names))
        records, offsets = [table for _, table in read], [_offsets(*of) for of in read]
        return _written(compaction, records, offsets, retained)
    except (OSError, pa.ArrowException, StorageError) as error:
        return one_line(error)


def _is_unchanged(compaction: Compaction, retained_count: int) -> bool:
    return len(compaction.batches) == 1 and retained_count == compaction.record_count


def _written(
    compaction: Compaction, records: Sequence[pa.Table], offsets: Sequence[Any], retained: Any
) -> Batch:
    """Write the records of the batches whose offsets are retained."""
    tables, deltas = [], []
    for table, of_table in zip(records, offsets, strict=True):
        is_kept = np.isin(of_table.to_numpy(), retained, assume_unique=True)
        tables.append(table if is_kept.all() else table.filter(pa.array(is_kept)))
        deltas.append(of_table.to_numpy()[is_kept] - compaction.base_offset)
    writer = BatchFileWriter(compaction.log, compaction.path)
    if tables:
        try:
            # As one row group: the batches may be many, and small.
            numbers = pa.array(np.concatenate(deltas), pa.int32())
            writer.write(pa.concat_tables(tables).combine_chunks(), numbers)
        except BaseException:
            writer.discard()
            raise
    return compaction.batch(writer.close())


def _read(
    log: Location, batches: Sequence[Batch], columns: list[str]
) -> Iterator[tuple[Batch, pa.Table]]:
    """Yield batches with some columns of their records."""
    size_bytes = sum(batch.size_bytes for batch in batches)
    contents = map_in_parallel(
        partial(verified_bytes, log), batches, size_bytes, is_local=log.is_local
    )
    for batch, content in zip(batches, contents, strict=True):
        try:
            records = ParquetContent(content).read(columns)
        except (OSError, pa.ArrowException) as error:
            where = f"{log.uri}/{batch.path}"
            raise StorageError(f"{where} cannot be read: {one_line(error)}") from error
        yield batch, records


def _keys(records: pa.Table, offsets: pa.Array[Any], base_offset: int) -> pa.Table:
    columns = [
        pa.array(np.full(records.num_rows, base_offset, dtype=np.int64)),
        offsets,
        _digests(records["key"]),
        pc.is_null(records["value"]).combine_chunks(),
    ]
    return pa.Table.from_arrays(columns, schema=RECORD_KEYS)


def _offsets(batch: Batch, records: pa.Table) -> pa.Array[Any]:
    offsets = pc.add(records["offset_delta"].cast(pa.int64()), batch.base_offset)
    return offsets.combine_chunks()


def _digests(keys: pa.ChunkedArray) -> pa.Array[Any]:
    """Return texts that stand for keys; Kafka's cleaner compares MD5 digests of keys.

    A short key is its own digest, which is no text of the length of others.
    """
    texts = [
        None
        if key is None
        else key.hex()
        if len(key) < _DIGEST_BYTES
        else blake2b(key, digest_size=_DIGEST_BYTES).hexdigest()
        for key in keys.to_pylist()
    ]
    return pa.array(texts, pa.string())
