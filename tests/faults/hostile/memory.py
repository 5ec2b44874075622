"""Files that are small and stand for much: each is read in a process whose memory is measured.

`python -m tests.faults.hostile.memory NAME FOLDER` makes one of them, and reads it when it is
called again. Then it prints the size of the file, the growth of the process's largest resident
size in bytes, and the fault that a leader or an owner finds.
"""

from __future__ import annotations

import io
import json
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from sparklog.errors import DamagedError
from sparklog.model import RECORD_COLUMNS, new_batch_path
from sparklog.storage.batch_files import BatchFile, file_fault
from sparklog.storage.commits import parse_commit
from sparklog.storage.location import Location
from sparklog.storage.request_commits import read_request_commit

_TIME_MS = 1_000_000


# --- files --------------------------------------------------------------------------------------


def batch(**columns: Any) -> pa.Table:
    """Return one record, of which some columns are given."""
    of_record = {
        "offset_delta": pa.array([0], pa.int32()),
        "timestamp": pa.array([_TIME_MS * 1_000]).cast(RECORD_COLUMNS.field("timestamp").type),
        "key": pa.nulls(1, pa.binary()),
        "value": pa.array([b"v"], pa.binary()),
        "headers": pa.nulls(1, RECORD_COLUMNS.field("headers").type),
    }
    return pa.table(of_record | columns)


def written(table: pa.Table, **options: Any) -> bytes:
    """Return a table as Parquet, with zstd and without dictionaries unless `options` differ."""
    target = io.BytesIO()
    settings = {"compression": "zstd", "use_dictionary": False, "store_schema": False}
    pq.write_table(table, target, **(settings | options))
    return target.getvalue()


def _zeros(size_bytes: int) -> bytes:
    """Return a zstd frame of zeros, without compressing them: a block of 4 bytes each 128 KiB."""
    most = 128 << 10
    # A frame without a window descriptor of its own: single segment, content size of 8 bytes.
    frame = bytes.fromhex("28b52ffd") + bytes([0b11100000]) + size_bytes.to_bytes(8, "little")
    while size_bytes:
        size = min(most, size_bytes)
        size_bytes -= size
        header = (size << 3) | (1 << 1) | (not size_bytes)
        frame += header.to_bytes(3, "little") + b"\0"
    return frame


def expanding_page(size_bytes: int) -> bytes:
    """Return a batch whose value is a page that expands to `size_bytes`.

    A sound file of a short value is written, and the page is replaced by one with other sizes; the
    footer's places of later columns are moved.
    """
    from sparklog.storage import parquet_footer as footer

    content = written(batch(value=pa.array([b"v" * 64], pa.binary())))
    end = len(content) - 8
    start = end - int.from_bytes(content[end : end + 4], "little")
    chunks = next(footer._row_groups(content))
    value = chunks[3]
    _, data_at = footer._struct(content, value.start, start, 0)
    page = _zeros(size_bytes)
    # type DATA_PAGE, sizes, and the inner header: one value, PLAIN, levels RLE.
    header = b"\x15\0\x15" + _varint(size_bytes) + b"\x15" + _varint(len(page))
    header += b"\x2c\x15\x02\x15\0\x15\x06\x15\x06\0\0"
    made = header + page
    moved = len(made) - value.size_bytes
    assert data_at < value.start + value.size_bytes
    new_footer = content[start:end]
    # The places and sizes of the footer, each after the header of its field.
    new_footer = new_footer.replace(
        b"\x16" + _varint(value.size_bytes) + b"\x26" + _varint(value.start),
        b"\x16" + _varint(len(made)) + b"\x26" + _varint(value.start),
    )
    for chunk in chunks[4:]:
        new_footer = new_footer.replace(
            b"\x26" + _varint(chunk.start), b"\x26" + _varint(chunk.start + moved)
        )
    body = content[: value.start] + made + content[value.start + value.size_bytes : start]
    return body + new_footer + len(new_footer).to_bytes(4, "little") + b"PAR1"


def _varint(value: int) -> bytes:
    """Return a number as Thrift's compact protocol has it."""
    value <<= 1
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def many_headers(count: int) -> bytes:
    """Return a batch of one record with `count` equal headers; their dictionary has one entry."""
    indices = pa.array(np.zeros(count, np.int32))
    fields = list(RECORD_COLUMNS.field("headers").type.value_type)
    entries = pa.StructArray.from_arrays(
        [
            pa.DictionaryArray.from_arrays(indices, pa.array(["k"], pa.string())).cast("string"),
            pa.DictionaryArray.from_arrays(indices, pa.array([b"v"], pa.binary())).cast("binary"),
        ],
        fields=fields,
    )
    offsets = pa.array([0, count], pa.int32())
    headers = pa.ListArray.from_arrays(offsets, entries)
    headers = headers.cast(RECORD_COLUMNS.field("headers").type)
    return written(batch(headers=headers), use_dictionary=True, data_page_size=1 << 30)


def lying_footer(change: Callable[[bytes, int], bytes]) -> bytes:
    """Return a sound batch whose footer was changed: a function of it and of the value's place."""
    from sparklog.storage import parquet_footer as footer

    content = written(batch(value=pa.array([b"v" * 64], pa.binary())))
    end = len(content) - 8
    start = end - int.from_bytes(content[end : end + 4], "little")
    value = next(footer._row_groups(content))[3]
    made = change(content[start:end], value.start)
    return content[:start] + made + len(made).to_bytes(4, "little") + b"PAR1"


LYING: dict[str, Callable[[bytes, int], bytes]] = {
    "footer with a billion rows": lambda footer, _: footer.replace(
        b"\x16\x02\x19", b"\x16" + _varint(10**9) + b"\x19", 1
    ),
    "footer with a place outside": lambda footer, at: footer.replace(
        b"\x26" + _varint(at), b"\x26" + _varint(1 << 40)
    ),
    "footer with a negative place": lambda footer, at: footer.replace(
        b"\x26" + _varint(at), b"\x26\x01"
    ),
    "footer that places a column on another one": lambda footer, at: footer.replace(
        b"\x26" + _varint(at), b"\x26" + _varint(4)
    ),
}

FILES: dict[str, Callable[[], bytes]] = {
    "page of 2 GB": lambda: expanding_page((1 << 31) - 1),
    "page of 64 MB": lambda: expanding_page(64 << 20),
    "record with 20 million headers": lambda: many_headers(20_000_000),
    "record with 2 million headers": lambda: many_headers(2_000_000),
    **{
        name: lambda change=change: lying_footer(change)  # type: ignore[misc]
        for name, change in LYING.items()
    },
}


# --- commits ------------------------------------------------------------------------------------


def _lines() -> Iterator[bytes]:
    add = {"path": "x", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
    line = json.dumps({"add": add}).encode()
    for _ in range((100 << 20) // (len(line) + 1)):
        yield line


COMMITS: dict[str, Callable[[], bytes]] = {
    "commit of 100 MB": lambda: b"\n".join(_lines()),
    "commit of deep JSON": lambda: b"[" * (10 << 20),
    "commit with a deep action": lambda: b'{"add":' * (1 << 20) + b"1" + b"}" * (1 << 20),
    "commit with a number of 10 MB": lambda: b'{"add":' + b"9" * (10 << 20) + b"}",
}


# --- the process that is measured ---------------------------------------------------------------


def _read_file(folder: Path, content: bytes) -> str | None:
    path = new_batch_path()
    (folder / "_inbox").mkdir()
    (folder / path).write_bytes(content)
    checksum = xxhash.xxh3_64_hexdigest(content)
    file = BatchFile(path, len(content), checksum, 1, _TIME_MS, _TIME_MS)
    return file_fault(Location.of(str(folder)), file)


def _read_commit(folder: Path, content: bytes) -> str | None:
    table = Location.of(str(folder))
    log = folder / "_delta_log"
    log.mkdir()
    (log / f"{0:020}.json").write_bytes(content)
    commit = read_request_commit(table, 0)
    assert commit is not None
    if commit.added:
        return f"{len(commit.added)} files"
    try:
        parse_commit(table, 0, content if len(content) < 50 << 20 else b"")
    except DamagedError as error:
        return error.fault[:200]
    return None


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main(name: str, folder: Path) -> None:
    """Make the file in another process, read it in this one, and print the outcome as JSON."""
    made = folder / "content"
    if not made.exists():
        made.write_bytes((FILES | COMMITS)[name]())
        return
    content = made.read_bytes()
    # Everything that is loaded once is loaded before.
    (folder / "first").mkdir()
    _read_file(folder / "first", written(batch()))
    before = _peak_bytes()
    read = _read_file if name in FILES else _read_commit
    (folder / "second").mkdir()
    fault = read(folder / "second", content)
    print(json.dumps([len(content), _peak_bytes() - before, fault]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
