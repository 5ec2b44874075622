"""Compaction of batch files: some of the records of adjacent batches in one file (rule 8.3).

Records keep their offsets, and the new batch has the range of offsets of those that it replaces. So
it may lack offsets inside, and it may have no record at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import StorageError
from sparklog.model import RECORD_COLUMNS, Batch
from sparklog.storage.batch_files import BatchFileWriter, verified_bytes
from sparklog.storage.location import Location, one_line
from sparklog.storage.parquet import ParquetContent

_DIGEST_BYTES = 16


class Compaction(NamedTuple):
    """Adjacent batches of one log of which some records become one batch in a new file at `path`.

    `retained` has the offsets of the records that stay, in ascending order, as 64-bit integers.
    """

    log: Location
    batches: tuple[Batch, ...]
    retained: Any
    path: str

    @property
    def size_bytes(self) -> int:
        """The sum of the batches' file sizes, in bytes."""
        return sum(batch.size_bytes for batch in self.batches)


def record_keys(log: Location, batches: Sequence[Batch]) -> pa.Table:
    """Return the offset, the digest of the key and whether it is a tombstone, for each record.

    Columns: record_offset bigint, key_digest string (null without a key), is_tombstone boolean.
    Raises `StorageError` if a file is missing, damaged or unreadable.
    """
    tables = []
    for batch in batches:
        records = _read(log, batch, ["offset_delta", "key", "value"])
        tables.append(
            pa.table(
                {
                    "record_offset": _offsets(batch, records),
                    "key_digest": pa.array(map(_digest, records["key"].to_pylist()), pa.string()),
                    "is_tombstone": pc.is_null(records["value"]),
                }
            )
        )
    return pa.concat_tables(tables)


def compact_batches(compaction: Compaction) -> Batch | str:
    """Write the retained records of adjacent batches as one batch; return it, or the failure.

    Checksums are verified before anything is written. The header is the first batch's, without its
    producer fields: the batches may have several producers.
    """
    first, last = compaction.batches[0], compaction.batches[-1]
    try:
        kept = [
            _kept(compaction, batch, _read(compaction.log, batch, RECORD_COLUMNS.names))
            for batch in compaction.batches
        ]
        writer = BatchFileWriter(compaction.log, compaction.path)
        try:
            for records, deltas in kept:
                writer.write(records, deltas)
        except BaseException:
            writer.discard()
            raise
        file = writer.close()
    except (OSError, pa.ArrowException, StorageError) as error:
        return one_line(error)
    times = file.min_timestamp_ms, file.max_timestamp_ms
    if not file.record_count:
        times = (
            min(batch.min_timestamp_ms for batch in compaction.batches),
            max(batch.max_timestamp_ms for batch in compaction.batches),
        )
    return first._replace(
        path=file.path,
        size_bytes=file.size_bytes,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        checksum=file.checksum,
        record_count=file.record_count,
        last_offset_delta=last.next_offset - 1 - first.base_offset,
        min_timestamp_ms=times[0],
        max_timestamp_ms=times[1],
    )


def _kept(
    compaction: Compaction, batch: Batch, records: pa.Table
) -> tuple[pa.Table, pa.Array[Any]]:
    """Return a batch's records that stay, and their offset deltas in the new batch."""
    offsets = _offsets(batch, records).to_numpy()
    retained = compaction.retained
    places = np.searchsorted(retained, offsets)
    inside = places < len(retained)
    is_kept = np.zeros(len(offsets), dtype=bool)
    is_kept[inside] = retained[places[inside]] == offsets[inside]
    deltas = offsets[is_kept] - compaction.batches[0].base_offset
    return records.filter(pa.array(is_kept)), pa.array(deltas, pa.int32())


def _read(log: Location, batch: Batch, columns: list[str]) -> pa.Table:
    content = verified_bytes(log, batch)
    try:
        return ParquetContent(content).read(columns)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{log.uri}/{batch.path} cannot be read: {one_line(error)}") from error


def _offsets(batch: Batch, records: pa.Table) -> Any:
    offsets = pc.add(records["offset_delta"].cast(pa.int64()), batch.base_offset)
    return offsets.combine_chunks()


def _digest(key: bytes | None) -> str | None:
    """Return a text that stands for a key; Kafka's cleaner compares MD5 digests of keys."""
    if key is None:
        return None
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES).hexdigest()
