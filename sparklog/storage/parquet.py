"""Reading Parquet files that are in memory, without Arrow's threads.

Those threads may abort a short process when it ends, and a file is small enough to take longer to
hand to them than to read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from sparklog.storage.parquet_pages import data_pages

_ROWS_AT_ONCE, _PLAIN_ROWS_AT_ONCE = 1 << 16, 1 << 13
"""How many rows of a producer's file are read at once, which bounds the memory that it takes."""

_SMALL_BYTES = 64 << 10
"""A file that is read faster than its pages are looked at."""

_MOST_EXPANSION = 20
"""How many times its size a file may take in memory."""

_PLAIN, _DELTA_BINARY_PACKED = 0, 5
"""Parquet's encodings that give each value its own bytes."""


class ParquetContent:
    """A Parquet file; its footer is read at once, its rows when they are asked for.

    Raises `pa.ArrowException` (an `OSError` or a `ValueError` among them) where it is none.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._file = pq.ParquetFile(
            pa.BufferReader(content), pre_buffer=False, page_checksum_verification=True
        )

    @property
    def columns(self) -> pa.Schema:
        """The columns, as Arrow's types."""
        return self._file.schema_arrow

    @property
    def row_count(self) -> int:
        """How many rows the footer names."""
        return int(self._file.metadata.num_rows)

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """Return the rows, of all columns or of these."""
        return self._file.read(columns, use_threads=False)

    def pieces(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file that anybody may have written, some at a time.

        Text and bytes come dictionary-encoded where a few bytes of the file may stand for the same
        long value over and over, more often than fits in memory. Raises as the constructor does.
        """
        if _is_plain(self._content):
            yield from self._file.iter_batches(
                _PLAIN_ROWS_AT_ONCE, columns=columns, use_threads=False
            )
            return
        footer = self._file.metadata
        # Of a footer nothing but the schema is looked at: pyarrow ends the process where the rest
        # of it makes no sense. And a column goes by its number, for it may have two names there.
        lengthy = [
            number
            for number in range(footer.num_columns)
            if footer.schema.column(number).physical_type == "BYTE_ARRAY"
        ]
        file = pq.ParquetFile(
            pa.BufferReader(self._content),
            metadata=footer,
            pre_buffer=False,
            read_dictionary=lengthy,
            page_checksum_verification=True,
        )
        yield from file.iter_batches(_ROWS_AT_ONCE, columns=columns, use_threads=False)


def _is_plain(content: bytes) -> bool:
    """Whether a file certainly has bytes of its own for each value, and not too few of them.

    Then its values need not be told apart, which takes four times as long as reading them.
    """
    if len(content) < _SMALL_BYTES:
        return False
    expanded = 0
    try:
        for page in data_pages(content):
            if page.encoding not in (_PLAIN, _DELTA_BINARY_PACKED):
                return False
            expanded += page.uncompressed_bytes
    except ValueError:
        return False
    return expanded <= _MOST_EXPANSION * len(content)
