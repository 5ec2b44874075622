"""The places of a Parquet file's pages, read from its footer without pyarrow.

pyarrow aborts the process if a footer is malformed beyond its schema and row count, and it
decompresses a page at once into memory of the size that the page's header claims. So the sizes are
read here before pyarrow reads a page. The footer is a FileMetaData of the Apache Parquet format, in
Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

# Field numbers of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_ROW_GROUPS, _COLUMNS, _ROW_COUNT, _FILE_PATH, _META_DATA = 4, 1, 3, 1, 3
_COMPRESSED_BYTES, _DATA_OFFSET, _DICTIONARY_OFFSET = 7, 9, 11
# Field numbers of PageHeader.
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE, _DATA_PAGES = 2, 3, (5, 8)
_VALUE_COUNT = 1
"""The field of both kinds of data pages with the number of values, nulls among them."""

# Thrift's compact types.
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE = 1, 2, 3, (4, 5, 6), 7
_BINARY, _LISTS, _STRUCT = 8, (9, 10), 12
_MOST_DEPTH = 12
_MOST_PAGES = 100_000
"""More pages than a valid producer's file has; the limit bounds the time of a check."""

_MAGIC = b"PAR1"

_OFFSET_BYTES = 8
"""Bytes of a value in memory beyond its own: an offset, or a number that its page repeats."""


class Extent(NamedTuple):
    """The memory that reading a file takes, as its page headers claim it.

    `page_bytes` is the decompressed size of the largest pages, one of each column of a row group,
    which pyarrow holds at the same time. `value_count` is the largest number of values of a column
    in a row group; one record may have all of them as its headers. `most_decoded_bytes` is an upper
    bound of the size of all records without dictionaries: no value is larger than a page.
    """

    page_bytes: int
    value_count: int
    most_decoded_bytes: int


class _Chunk(NamedTuple):
    """The pages of a column in a row group: their place in the file, as the footer claims it."""

    start: int
    size_bytes: int


def extent(content: bytes) -> Extent:
    """Return the extent of a file; pyarrow reads no page that is not counted here.

    Raises `ValueError` if the footer is malformed, or if the pages do not fill their place exactly.
    """
    try:
        page_bytes = value_count = decoded_bytes = 0
        for group in _row_groups(content):
            pages = [_pages(content, chunk) for chunk in group]
            page_bytes = max(page_bytes, sum(size for size, _ in pages))
            value_count = max([value_count, *(count for _, count in pages)])
            decoded_bytes += sum(count * (size + _OFFSET_BYTES) for size, count in pages)
        return Extent(page_bytes, value_count, decoded_bytes)
    except IndexError:
        raise ValueError("its footer or a page's header has no end") from None


def _pages(content: bytes, chunk: _Chunk) -> tuple[int, int]:
    """Return the size of a chunk's largest page, and the number of values in its pages."""
    page_bytes = value_count = count = 0
    at, end = chunk.start, chunk.start + chunk.size_bytes
    while at < end:
        header, at = _struct(content, at, end, 0)
        size, stored = header.get(_UNCOMPRESSED_SIZE), header.get(_COMPRESSED_SIZE)
        if type(size) is not int or type(stored) is not int or size < 0 or stored < 0:
            raise ValueError("it has a page without a size")
        for field in _DATA_PAGES:
            inner = header.get(field)
            values = inner.get(_VALUE_COUNT) if isinstance(inner, dict) else 0
            if type(values) is not int or values < 0:
                raise ValueError("it has a page without a number of values")
            value_count += values
        page_bytes = max(page_bytes, size)
        at += stored
        count += 1
        if count > _MOST_PAGES:
            raise ValueError(f"it has more than {_MOST_PAGES} pages")
    if at != end:
        raise ValueError("its pages do not end where its footer says")
    return page_bytes, value_count


def _row_groups(content: bytes) -> Iterator[list[_Chunk]]:
    """Yield the chunks of each row group; raises `ValueError` for one outside of the file."""
    end = len(content) - 8
    if end < 4 or content[:4] != _MAGIC or content[-4:] != _MAGIC:
        raise ValueError("it is no Parquet file")
    start = end - int.from_bytes(content[end : end + 4], "little")
    if start < 4:
        raise ValueError("its footer is longer than the file")
    footer, _ = _struct(content, start, end, 0)
    for group in _structs(footer.get(_ROW_GROUPS, [])):
        # Writers give the columns of a row group without rows any place; no page of it is read.
        columns = group.get(_COLUMNS, []) if group.get(_ROW_COUNT) else []
        yield [_chunk(column, start) for column in _structs(columns)]


def _chunk(column: dict[int, Any], below: int) -> _Chunk:
    data = column.get(_META_DATA)
    if not isinstance(data, dict) or _FILE_PATH in column:
        raise ValueError("it has a column that is not in the file")
    first, size = data.get(_DATA_OFFSET), data.get(_COMPRESSED_BYTES)
    dictionary = data.get(_DICTIONARY_OFFSET, 0)
    if type(first) is not int or type(size) is not int or type(dictionary) is not int:
        raise ValueError("it has a column without a place")
    # As in pyarrow, a dictionary counts only before the data.
    place = dictionary if 0 < dictionary < first else first
    if place < 4 or size < 0 or place + size > below:
        raise ValueError("it has a column outside of its pages")
    return _Chunk(place, size)


def _structs(values: Any) -> list[dict[int, Any]]:
    if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
        raise ValueError("its footer has a value in the place of a list")
    return values


def _struct(content: bytes, at: int, end: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return the fields of the struct at `at` by their numbers, and the position after it.

    Texts are returned as `None` and booleans not at all; of a field that is there twice, the last
    one, as in Thrift. Called for each request of a producer, so numbers of one byte are read here.
    """
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = content[at]
        at += 1
        if not head:
            if at > end:
                raise ValueError("its footer or a page's header has no end")
            return fields, at
        if head > 15:
            number += head >> 4
        else:
            number, at = _integer(content, at)
        kind = head & 15
        if kind in _INTEGERS:
            byte = content[at]
            if byte < 128:
                at += 1
                fields[number] = (byte >> 1) ^ -(byte & 1)
            else:
                fields[number], at = _integer(content, at)
        elif kind == _BINARY:
            size, at = _varint(content, at)
            at += size
            fields[number] = None
        elif kind not in (_TRUE, _FALSE):
            fields[number], at = _value(content, at, end, kind, depth)


def _value(content: bytes, at: int, end: int, kind: int, depth: int) -> tuple[Any, int]:
    """Return the value at `at` of any type, `None` for text, and the position after it."""
    if kind == _STRUCT:
        if depth > _MOST_DEPTH:
            raise ValueError("its footer or a page's header is nested too deeply")
        return _struct(content, at, end, depth + 1)
    if kind in _LISTS:
        return _list(content, at, end, depth)
    if kind in _INTEGERS:
        return _integer(content, at)
    if kind == _BINARY:
        size, at = _varint(content, at)
        return None, at + size
    if kind in (_TRUE, _FALSE, _BYTE):
        # Booleans are bytes in lists only.
        return None, at + 1
    if kind == _DOUBLE:
        return None, at + 8
    raise ValueError("its footer or a page's header has a field of an unknown type")


def _list(content: bytes, at: int, end: int, depth: int) -> tuple[list[Any], int]:
    if depth > _MOST_DEPTH:
        raise ValueError("its footer or a page's header is nested too deeply")
    head = content[at]
    count, at = head >> 4, at + 1
    if count == 15:
        count, at = _varint(content, at)
    if count > end - at:
        # Each element has a byte at least.
        raise ValueError("its footer or a page's header has no end")
    values = []
    for _ in range(count):
        value, at = _value(content, at, end, head & 15, depth + 1)
        values.append(value)
    return values, at


def _integer(content: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(content, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(content: bytes, at: int) -> tuple[int, int]:
    byte = content[at]
    if byte < 128:
        return byte, at + 1
    value = byte & 127
    for shift in range(7, 70, 7):
        at += 1
        byte = content[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + 1
    raise ValueError("its footer or a page's header has a number without an end")
