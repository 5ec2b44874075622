"""Reading Parquet files from memory, without Arrow's threads.

These threads may abort a short process at exit. The files are small, so handing them to a thread
takes longer than reading them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparklog.storage.parquet_footer import Extent, extent
from sparklog.storage.parquet_pages import data_pages

_ROWS_AT_ONCE, _PLAIN_ROWS_AT_ONCE = 1 << 16, 1 << 13
"""The number of rows of a producer's file that are read at once, which bounds memory use."""

_SMALL_BYTES = 64 << 10
"""Files below this size, in bytes, are read faster than their page headers are checked."""

_MOST_EXPANSION = 20
"""The largest ratio of a plain file's decompressed size to its stored size."""

_PAGE_BYTES, _PAGE_EXPANSION = 128 << 20, 4
"""The bytes, and the multiple of the file's size, that a page of each column may take at once: the
larger one counts. A page is never smaller than a record, so this bounds the records, too."""

_MOST_VALUES = 1 << 24
"""The most values of a column in a row group: all of them may be the headers of one record, which
is read at once, and take 40 bytes each."""

_DECODED_BYTES = 1 << 30
"""The bytes that the records of a file may take; more if the file is larger than 1/20 of it.

A file is fetched as a whole, and its records are decoded as a whole by consumers."""

_MOST_COLUMNS = 8
"""The most columns of a producer's file, with nested ones counted separately; a record batch has
six. Each column that may be dictionary-encoded makes opening a file slower.
"""

_MOST_COLUMNS_OF_A_TABLE = 100
"""The most columns of a table's file that a client wrote; the widest table has 20."""

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


def check_decoded_size(content: bytes) -> None:
    """Raise `ValueError` if reading a file takes much more memory than its size suggests.

    For files that any client may write, before `ParquetContent` reads them. Raises also as
    `ForeignParquet` does.
    """
    if _checked_extent(content).most_decoded_bytes > _DECODED_BYTES:
        for _ in ForeignParquet(content, _MOST_COLUMNS_OF_A_TABLE).pieces():
            pass


class ForeignParquet:
    """A Parquet file from any writer, read in pieces of a bounded number of rows.

    Only the schema and the row count of its footer are read: pyarrow aborts the process if the rest
    of a footer is malformed. Raises `pa.ArrowException`, `OSError` or `ValueError` if the content
    is not Parquet.
    """

    def __init__(self, content: bytes, most_columns: int = _MOST_COLUMNS) -> None:
        self._most_columns = most_columns
        found = _checked_extent(content)
        self._is_plain = _is_plain(content)
        self._decoded_bytes = max(_DECODED_BYTES, _MOST_EXPANSION * len(content))
        self._is_surely_small = found.most_decoded_bytes <= self._decoded_bytes
        # Columns are selected by number, since the footer may give one column two names.
        self._file = _opened(content, () if self._is_plain else range(most_columns))

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
        if self._file.metadata.num_columns > self._most_columns:
            raise ValueError(f"it has more than {self._most_columns} columns")
        at_once = _PLAIN_ROWS_AT_ONCE if self._is_plain else _ROWS_AT_ONCE
        # Arrow reserves memory for as many rows as are requested.
        at_once = max(1, min(at_once, self.row_count))
        decoded_bytes = 0
        for piece in self._file.iter_batches(at_once, use_threads=False):
            if not self._is_surely_small:
                decoded_bytes += sum(map(decoded_size, piece.columns))
            if decoded_bytes > self._decoded_bytes:
                raise ValueError(
                    f"its records take more than {self._decoded_bytes} bytes, too many for its size"
                )
            yield piece


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


def _checked_extent(content: bytes) -> Extent:
    """Return a file's extent; raises `ValueError` if a single record may take too much memory."""
    found = extent(content)
    most_bytes = max(_PAGE_BYTES, _PAGE_EXPANSION * len(content))
    if found.page_bytes > most_bytes:
        raise ValueError(f"its pages take {found.page_bytes} bytes at once, at most {most_bytes}")
    if found.value_count > _MOST_VALUES:
        raise ValueError(
            f"it has {found.value_count} values in a row group, at most {_MOST_VALUES}"
        )
    return found


def decoded_size(column: pa.Array[Any]) -> int:
    """Return the bytes that a column takes without dictionaries."""
    if pa.types.is_dictionary(column.type):
        sizes = pc.binary_length(column.dictionary)
        return int(pc.sum(sizes.take(column.indices)).as_py() or 0) + 4 * len(column)
    if pa.types.is_struct(column.type):
        return sum(map(decoded_size, column.flatten()))
    if pa.types.is_list(column.type):
        return 4 * len(column) + decoded_size(column.flatten())
    return int(column.nbytes)


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
