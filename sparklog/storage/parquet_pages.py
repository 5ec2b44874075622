"""The data pages of a Parquet file, by their own headers (Apache Parquet format, PageHeader).

pyarrow reports only the footer's description of the pages, and aborts the process if a footer is
damaged. The page headers decide how pages are decoded. A page header is a struct in Thrift's
compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_MAGIC = b"PAR1"
# Field numbers of PageHeader.
_TYPE, _UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 1, 2, 3
_ENCODINGS = {0: (5, 2), 3: (8, 4)}
"""Of each type of data page (V1, V2): the field of its header, and the encoding's field within."""

# Thrift's compact types; page headers need no others.
_TRUE, _FALSE, _INTEGERS, _BINARY, _STRUCT = 1, 2, (4, 5, 6), 8, 12
_MOST_DEPTH, _MOST_FIELDS = 3, 32
_MOST_PAGES = 10_000
"""More pages than a valid producer's file has; the limit bounds the time of a check."""

_Struct = dict[int, "int | _Struct"]


class Page(NamedTuple):
    """A data page: the encoding of its values, and its decompressed size in bytes."""

    encoding: int
    uncompressed_bytes: int


def data_pages(content: bytes) -> Iterator[Page]:
    """Yield the pages of a Parquet file that has only data pages before its footer.

    Raises `ValueError` if it has other pages there, such as dictionaries or indexes, or if it is
    not a Parquet file.
    """
    end = len(content) - 8
    if content[:4] != _MAGIC or content[-4:] != _MAGIC:
        raise ValueError("it is no Parquet file")
    end -= int.from_bytes(content[end : end + 4], "little")
    at = 4
    for _ in range(_MOST_PAGES):
        if at >= end:
            break
        header, at = _struct(content, at, 0)
        kind = _number(header, _TYPE)
        if kind not in _ENCODINGS:
            raise ValueError("it has pages that are no data pages")
        within, field = _ENCODINGS[kind]
        data = header.get(within)
        encoding = _number(data if isinstance(data, dict) else {}, field)
        yield Page(encoding, _number(header, _UNCOMPRESSED_SIZE))
        at += _number(header, _COMPRESSED_SIZE)
    if at != end:
        raise ValueError("its pages do not end where its footer begins")


def _number(struct: _Struct, field: int) -> int:
    value = struct.get(field)
    if not isinstance(value, int) or value < 0:
        raise ValueError("it has a page without a type, an encoding or a size")
    return value


def _struct(content: bytes, at: int, depth: int) -> tuple[_Struct, int]:
    """Return the fields of the struct at position `at`, and the position after it."""
    if depth > _MOST_DEPTH:
        raise ValueError("a page's header is nested too deeply")
    fields: _Struct = {}
    number = 0
    for _ in range(_MOST_FIELDS):
        if at >= len(content):
            break
        head = content[at]
        at += 1
        if head == 0:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(content, at)
        kind = head & 15
        if kind in _INTEGERS:
            fields[number], at = _integer(content, at)
        elif kind == _STRUCT:
            fields[number], at = _struct(content, at, depth + 1)
        elif kind == _BINARY:
            length, at = _varint(content, at)
            at += length
        elif kind not in (_TRUE, _FALSE):
            raise ValueError("a page's header has a field of an unknown type")
    raise ValueError("a page's header has no end")


def _integer(content: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(content, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            break
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a page's header has a number without an end")
