"""Reading Parquet files that are in memory, without Arrow's threads.

Those threads may abort a short process when it ends, and a file is small enough to take longer to
hand to them than to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from sparklog.storage.parquet_pages import data_pages

_ROWS_AT_ONCE, _PLAIN_ROWS_AT_ONCE = 1 << 16, 1 << 13
"""How many rows of a producer's file are read at once, which bounds the memory that it takes."""

_SMALL_BYTES = 64 << 10
"""A file that is read faster than its pages are looked at."""

_MOST_EXPANSION = 20
"""How many times its size a file may take in memory."""

_MOST_COLUMNS = 64
"""The most columns of a producer's file, nested ones counted each; a record batch has six."""

_PLAIN, _DELTA_BINARY_PACKED = 0, 5
"""Parquet's encodings that give each value its own bytes."""


class ParquetContent:
    """A Parquet file; its footer is read at once, its rows when they are asked for.

    Raises `pa.ArrowException` (an `OSError` or a `ValueError` among them) where it is none.
    """

    def __init__(self, content: bytes) -> None:
        self._file = _opened(content)

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """Return the rows, of all columns or of these."""
        return self._file.read(columns, use_threads=False)


class ForeignParquet:
    """A Parquet file that anybody may have written, of which some rows are read at a time.

    Of its footer nothing but the schema and the row count is read: pyarrow ends the process where
    the rest of it makes no sense. Raises as `ParquetContent` does.
    """

    def __init__(self, content: bytes) -> None:
        self._is_plain = _is_plain(content)
        # A column goes by its number, for it may have two names in the footer.
        self._file = _opened(content, () if self._is_plain else range(_MOST_COLUMNS))

    @property
    def columns(self) -> pa.Schema:
        """The columns, as the Arrow types that their values have when they are not encoded."""
        return self._file.metadata.schema.to_arrow_schema()

    @property
    def row_count(self) -> int:
        """How many rows the footer names."""
        return int(self._file.metadata.num_rows)

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, some at a time.

        Text and bytes come dictionary-encoded where a few bytes of the file may stand for the same
        long value over and over, more often than fits in memory. Raises as the constructor does.
        """
        if self._file.metadata.num_columns > _MOST_COLUMNS:
            raise ValueError(f"it has more than {_MOST_COLUMNS} columns")
        at_once = _PLAIN_ROWS_AT_ONCE if self._is_plain else _ROWS_AT_ONCE
        # Arrow reserves memory for all the rows that it is asked for.
        at_once = max(1, min(at_once, self.row_count))
        yield from self._file.iter_batches(at_once, use_threads=False)


def _opened(content: bytes, dictionary_encoded: Iterable[int] = ()) -> pq.ParquetFile:
    """Open a file; columns of these numbers are read dictionary-encoded if they are of bytes."""
    return pq.ParquetFile(
        pa.BufferReader(content),
        pre_buffer=False,
        read_dictionary=dictionary_encoded,
        page_checksum_verification=True,
    )


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
