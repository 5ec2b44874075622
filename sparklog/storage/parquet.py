"""Reading Parquet files from memory, without Arrow's threads.

These threads may abort a short process at exit. The files are small, so handing them to a thread
takes longer than reading them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from sparklog.storage.parquet_pages import data_pages

_ROWS_AT_ONCE, _PLAIN_ROWS_AT_ONCE = 1 << 16, 1 << 13
"""The number of rows of a producer's file that are read at once, which bounds memory use."""

_SMALL_BYTES = 64 << 10
"""Files below this size, in bytes, are read faster than their page headers are checked."""

_MOST_EXPANSION = 20
"""The largest ratio of a plain file's decompressed size to its stored size."""

_MOST_COLUMNS = 8
"""The most columns of a producer's file, with nested ones counted separately; a record batch has
six. Each column that may be dictionary-encoded makes opening a file slower.
"""

_PLAIN, _DELTA_BINARY_PACKED = 0, 5
"""Parquet's encodings that store separate bytes for each value."""


class ParquetContent:
    """A Parquet file; its footer is read by the constructor, its rows by `read`.

    Raises `pa.ArrowException` or `OSError` if the content is not Parquet.
    """

    def __init__(self, content: bytes) -> None:
        with _of_arrow():
            self._file = _opened(content)

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """Return the rows with all columns, or with `columns`."""
        with _of_arrow():
            return self._file.read(columns, use_threads=False)


class ForeignParquet:
    """A Parquet file from any writer, read in pieces of a bounded number of rows.

    Only the schema and the row count of its footer are read: pyarrow aborts the process if the rest
    of a footer is malformed. Raises `pa.ArrowException`, `OSError` or `ValueError` if the content
    is not Parquet.
    """

    def __init__(self, content: bytes) -> None:
        self._is_plain = _is_plain(content)
        # Columns are selected by number, since the footer may give one column two names.
        self._file = _opened(content, () if self._is_plain else range(_MOST_COLUMNS))

    @property
    def columns(self) -> pa.Schema:
        """The columns, with the Arrow types of their unencoded values."""
        # Not `metadata.schema`, which refers to the metadata that caches it: a reference cycle per
        # file.
        return pq.ParquetSchema(self._file.metadata).to_arrow_schema()

    @property
    def row_count(self) -> int:
        """The row count in the footer."""
        return int(self._file.metadata.num_rows)

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in pieces.

        Text and bytes are dictionary-encoded if a few bytes of the file may represent a long value
        more often than fits in memory. Raises as the constructor does.
        """
        if self._file.metadata.num_columns > _MOST_COLUMNS:
            raise ValueError(f"it has more than {_MOST_COLUMNS} columns")
        at_once = _PLAIN_ROWS_AT_ONCE if self._is_plain else _ROWS_AT_ONCE
        # Arrow reserves memory for as many rows as are requested.
        at_once = max(1, min(at_once, self.row_count))
        yield from self._file.iter_batches(at_once, use_threads=False)


@contextmanager
def _of_arrow() -> Iterator[None]:
    """Raise `pa.ArrowInvalid` where pyarrow raises the error of a conversion.

    Names in a damaged footer that are not UTF-8 are a `UnicodeDecodeError` of pyarrow.
    """
    try:
        yield
    except ValueError as error:
        if isinstance(error, pa.ArrowException):
            raise
        raise pa.ArrowInvalid(str(error)) from error


def _opened(content: bytes, dictionary_encoded: Iterable[int] = ()) -> pq.ParquetFile:
    """Open a file; columns of bytes with these numbers are read dictionary-encoded."""
    return pq.ParquetFile(
        pa.BufferReader(content),
        pre_buffer=False,
        read_dictionary=dictionary_encoded,
        page_checksum_verification=True,
    )


def _is_plain(content: bytes) -> bool:
    """Return whether a file stores bytes for each value and expands to a bounded size.

    Such a file is read without dictionary encoding, which takes four times as long.
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
