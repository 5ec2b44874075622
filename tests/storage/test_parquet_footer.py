"""The places and sizes of a Parquet file's pages, against those that pyarrow has written."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparklog.errors import DamagedError
from sparklog.model import TOPICS
from sparklog.storage.control_table import rows_in_file
from sparklog.storage.location import Location
from sparklog.storage.parquet import ForeignParquet, check_decoded_size, decoded_size
from sparklog.storage.parquet_footer import extent

ROWS = 5_000


def table() -> pa.Table:
    return pa.table(
        {
            "number": pa.array(range(ROWS), pa.int32()),
            "value": pa.array([b"%d" % one * 20 for one in range(ROWS)], pa.binary()),
            "nested": pa.array([[{"a": "x", "b": one}] * (one % 4) for one in range(ROWS)]),
            "flag": pa.array([True, None] * (ROWS // 2)),
        }
    )


def written(table: pa.Table, **options: Any) -> bytes:
    target = io.BytesIO()
    pq.write_table(table, target, **({"compression": "zstd"} | options))
    return target.getvalue()


@pytest.mark.parametrize("compression", ["none", "zstd", "snappy", "gzip", "brotli"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False},
        {"data_page_version": "2.0", "data_page_size": 10_000},
        {"row_group_size": 700, "write_page_index": True, "store_decimal_as_integer": True},
        {"write_statistics": False, "write_page_checksum": True},
    ],
    ids=str,
)
def test_the_extent_is_that_of_the_written_pages(compression: str, options: Any) -> None:
    """The footer's own sums, which a producer may falsify, bound it from both sides."""
    content = written(table(), compression=compression, **options)
    footer = pq.ParquetFile(io.BytesIO(content)).metadata
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = [[group.column(n) for n in range(group.num_columns)] for group in groups]
    found = extent(content)
    assert found.value_count == max(one.num_values for group in columns for one in group)
    most = max(sum(one.total_uncompressed_size for one in group) for group in columns)
    assert most // 30 < found.page_bytes < most
    decoded = pq.ParquetFile(io.BytesIO(content)).read().nbytes
    assert found.most_decoded_bytes >= decoded


def test_a_file_without_rows_has_no_extent() -> None:
    """Writers give such columns a place before the first page."""
    for options in ({}, {"use_dictionary": False}):
        assert extent(written(table().slice(0, 0), **options)) == (0, 0, 0)


def cut(content: bytes) -> bytes:
    return content[:-20] + content[-8:]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _: b"", id="nothing"),
        pytest.param(lambda _: b"PAR1" * 3, id="no footer"),
        pytest.param(lambda content: content[:-8] + b"\xff" * 4 + b"PAR1", id="a long footer"),
        pytest.param(cut, id="a cut footer"),
        pytest.param(lambda content: b"PAR1\0" + content[5:], id="another page"),
        pytest.param(lambda content: b"PAR1" + b"\x1c" * 50 + content[54:], id="deep nesting"),
        pytest.param(
            lambda content: b"PAR1" + b"\x15\xff" * 20 + content[44:], id="an endless number"
        ),
    ],
)
def test_a_malformed_file_is_a_value_error(change: Callable[[bytes], bytes]) -> None:
    content = change(written(table()))
    with pytest.raises(ValueError, match=r"^it|^its"):
        extent(content)


def test_every_cut_of_a_footer_is_refused_or_read() -> None:
    """No cut raises another exception than `ValueError`."""
    content = written(table().slice(0, 3))
    for size in range(len(content)):
        for one in (content[:size], content[:size] + content[-8:]):
            try:
                extent(one)
            except ValueError:
                continue


def repeated(count: int, value: bytes) -> bytes:
    """Return a column of equal values."""
    indices = pa.array([0] * count, pa.int32())
    values = pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.binary()))
    return written(pa.table({"value": values}), dictionary_pagesize_limit=8 << 20)


@pytest.mark.parametrize("read", [lambda content: list(ForeignParquet(content).pieces()),
                                  check_decoded_size])  # fmt: skip
def test_records_that_take_too_much_memory_are_refused(read: Callable[[bytes], object]) -> None:
    """The size without dictionaries counts, in which consumers hold them.

    Found by hostile input: 1,100 values of 1 MB were one value of 1 MB in the leader's memory, and
    1.1 GB in that of each consumer.
    """
    read(repeated(1_000, b"x" * 1_000_000))
    with pytest.raises(ValueError, match="records take more than 1073741824 bytes"):
        read(repeated(1_100, b"x" * 1_000_000))


def test_headers_count_as_well() -> None:
    """The dictionary of a nested column is within it."""
    indices = pa.array([0] * 1_000, pa.int32())
    values = pa.DictionaryArray.from_arrays(indices, pa.array([b"v" * 1_000_000], pa.binary()))
    entries = pa.StructArray.from_arrays([values], ["value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 400, 1_000], pa.int32()), entries)
    assert headers.nbytes < 2_000_000
    assert decoded_size(headers) > 1_000_000_000
    assert decoded_size(headers.slice(0, 1)) < 500_000_000


def test_a_name_in_a_footer_that_is_not_utf_8_is_damage(tmp_path: Path) -> None:
    """Found by hostile input: pyarrow raised UnicodeDecodeError, which readers did not expect."""
    content = written(TOPICS.rows([]), store_schema=False)
    assert content.count(b"topic_id") == 2
    (tmp_path / "part.parquet").write_bytes(content.replace(b"topic_id", b"topic\xff\xfe\xfd"))
    with pytest.raises(
        DamagedError, match=r"part.parquet is damaged: it cannot be read as Parquet"
    ):
        rows_in_file(Location.of(str(tmp_path)), "part.parquet", TOPICS)
