"""Merging batch files: the records of several batches in one file (rule 8.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import StorageError
from sparklog.model import RECORD_COLUMNS, Batch
from sparklog.storage.batch_files import BatchFileWriter, verified_bytes
from sparklog.storage.batch_rewriting import BatchRewrite
from sparklog.storage.location import one_line
from sparklog.storage.new_file import discard_file
from sparklog.storage.parquet import ForeignParquet

_ROW_GROUP_BYTES = 16 << 20
"""Bytes of decoded records that are held in memory at once; they become one row group."""


class Merge(BatchRewrite):
    """Adjacent batches of one log that become one batch, with all of their records."""

    __slots__ = ()


def merge_batches(merge: Merge) -> Batch | str:
    """Write the records of adjacent batches as one batch; return it, or the failure as text.

    Checksums are verified before anything is written.
    """
    try:
        contents = [verified_bytes(merge.log, batch) for batch in merge.batches]
        writer = BatchFileWriter(merge.log, merge.path)
        pieces = (piece for content in contents for piece in ForeignParquet(content).pieces())
        try:
            for records in _gathered(small for piece in pieces for small in _decodable(piece)):
                writer.write(records)
        except BaseException:
            writer.discard()
            raise
        file = writer.close()
    except (OSError, pa.ArrowException, StorageError) as error:
        return one_line(error)
    first, last = merge.batches[0], merge.batches[-1]
    if file.record_count != last.next_offset - first.base_offset:
        discard_file(merge.log, merge.path)
        return f"the batches from {merge.log.uri}/{first.path} on hold {file.record_count} records"
    return merge.batch(file)


def _gathered(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the records of many files as tables of up to `_ROW_GROUP_BYTES`, one per row group."""
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
    """Return pieces as one table; some may be dictionary-encoded and others plain."""
    alike = (list(run) for _, run in groupby(pieces, key=attrgetter("schema")))
    return pa.concat_tables(pa.Table.from_batches(run).cast(RECORD_COLUMNS) for run in alike)


def _decodable(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halve dictionary-encoded records until each piece fits in memory when it is decoded."""
    if _decoded_bytes(records) <= _ROW_GROUP_BYTES or records.num_rows < 2:
        yield records
        return
    half = records.num_rows // 2
    yield from _decodable(records.slice(0, half))
    yield from _decodable(records.slice(half))


def _decoded_bytes(records: pa.RecordBatch) -> int:
    """Return an upper bound of the bytes that records have without dictionary encoding."""
    at_most: int = records.nbytes * records.num_rows
    if at_most < _ROW_GROUP_BYTES // 256:
        # The cheap bound is enough for small batches, which are the most frequent.
        return at_most
    lengths = (
        pc.binary_length(column.dictionary).take(column.indices)
        for column in (records["key"], records["value"], *records["headers"].flatten().flatten())
        if pa.types.is_dictionary(column.type)
    )
    total: int = sum(pc.sum(length.cast(pa.int64())).as_py() or 0 for length in lengths)
    own: int = records.nbytes
    return total + own
