"""The pages of a Parquet file, read from their own headers, against those that pyarrow has
written.
"""

from __future__ import annotations

import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparklog.storage.parquet import ForeignParquet
from sparklog.storage.parquet_pages import data_pages

ROWS = 5_000
# A data page of 0 bytes: type, sizes, and the inner header with its encoding.
PAGE = bytes([0x15, 0, 0x15, 0, 0x15, 0, 0x2C, 0x15, 0, 0x15, 0, 0, 0])
PLAIN, DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY = 0, 5, 7


def table() -> pa.Table:
    values = random.Random(1)
    return pa.table(
        {
            "number": pa.array(range(ROWS), pa.int32()),
            "value": pa.array([values.randbytes(100) for _ in range(ROWS)], pa.binary()),
        }
    )


def written(**options: Any) -> bytes:
    target = io.BytesIO()
    settings = {"compression": "zstd", "use_dictionary": False, **options}
    pq.write_table(table(), target, **settings)
    return target.getvalue()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
@pytest.mark.parametrize("statistics", [True, False])
def test_pages_are_those_that_were_written(
    version: str, compression: str, statistics: bool
) -> None:
    """All pages are found, and the sum of their sizes is the size in the footer."""
    content = written(
        data_page_version=version,
        compression=compression,
        write_statistics=statistics,
        data_page_size=50_000,
        row_group_size=2_000,
    )
    pages = list(data_pages(content))
    assert {page.encoding for page in pages} == {PLAIN}
    assert len(pages) == 8
    footer = pq.ParquetFile(io.BytesIO(content)).metadata
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    named = sum(group.column(n).total_uncompressed_size for group in groups for n in range(2))
    # The footer's size includes the headers of pages.
    headers = named - sum(page.uncompressed_bytes for page in pages)
    assert 0 < headers < 200 * len(pages)


def test_an_encoding_is_the_page_s_own() -> None:
    """The encoding is read from each page's header."""
    encodings = {"number": "DELTA_BINARY_PACKED", "value": "DELTA_BYTE_ARRAY"}
    pages = data_pages(written(column_encoding=encodings))
    assert [page.encoding for page in pages] == [DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda: written(use_dictionary=True), id="dictionaries"),
        pytest.param(lambda: written(write_page_index=True), id="an index"),
        pytest.param(lambda: b"", id="nothing"),
        pytest.param(lambda: b"PAR1" + bytes(8) + b"PAR1", id="no footer"),
        pytest.param(lambda: b"PAR1" + b"\x1c" * 100 + bytes(4) + b"PAR1", id="endless nesting"),
        # A struct in place of the type, which is not in the table of types.
        pytest.param(
            lambda: b"PAR1" + b"\x1c\x00\x00" + bytes(4) + b"PAR1", id="a type that is a struct"
        ),
        pytest.param(
            lambda: b"PAR1" + b"\x15\x00" * 50 + b"\x00" + bytes(4) + b"PAR1", id="many fields"
        ),
        pytest.param(lambda: b"PAR1" + PAGE * 20_000 + bytes(4) + b"PAR1", id="many pages"),
        pytest.param(lambda: b"PAR1" + b"\xff" * 100 + bytes(4) + b"PAR1", id="endless numbers"),
    ],
)
def test_what_is_not_data_pages_only_is_refused(content: Any) -> None:
    """Content other than data pages raises `ValueError`."""
    with pytest.raises(ValueError, match=r"it|page"):
        list(data_pages(content()))


def test_damage_is_an_error_or_another_page_and_nothing_else() -> None:
    """Damaged bytes raise `ValueError` or give other pages, and cause no other error."""
    sound = written(data_page_size=50_000)
    of = random.Random(2)
    for _ in range(500):
        content = bytearray(sound)
        for _ in range(of.randint(1, 4)):
            content[of.randrange(len(content))] = of.randrange(256)
        try:
            pages = list(data_pages(bytes(content)))
        except ValueError:
            continue
        assert all(page.uncompressed_bytes >= 0 for page in pages)


def test_a_page_of_no_bytes_is_one() -> None:
    """An empty page counts, so that too many of them are refused for their number."""
    assert len(list(data_pages(b"PAR1" + PAGE * 3 + bytes(4) + b"PAR1"))) == 3


@pytest.mark.parametrize(
    ("options", "is_dictionary"),
    [
        pytest.param({}, False, id="plain"),
        pytest.param({"use_dictionary": True}, True, id="dictionaries"),
    ],
)
def test_values_are_distinguished_only_where_bytes_may_stand_for_several(
    options: dict[str, Any], is_dictionary: bool
) -> None:
    """Values are read as a dictionary only if an encoding can repeat them."""
    pieces = list(ForeignParquet(written(**options)).pieces())
    assert pa.types.is_dictionary(pieces[0]["value"].type) == is_dictionary
    assert pa.Table.from_batches(pieces).cast(table().schema).equals(table())


def test_values_that_compress_too_well_are_distinguished() -> None:
    """Values in plain pages may be larger than memory once decompressed, so they are read as a
    dictionary.
    """
    target = io.BytesIO()
    rows = pa.table({"value": pa.array([bytes(100_000)] * 2_000, pa.binary())})
    noise = rows.append_column("noise", table().slice(0, 2_000)["value"])
    pq.write_table(noise, target, compression="zstd", use_dictionary=False)
    content = target.getvalue()
    expanded = sum(page.uncompressed_bytes for page in data_pages(content))
    assert len(content) > 1 << 16
    assert expanded > 20 * len(content)
    assert all(
        pa.types.is_dictionary(piece["value"].type) for piece in ForeignParquet(content).pieces()
    )


@pytest.mark.parametrize("count", [8, 9])
def test_every_column_of_bytes_is_distinguished(count: int) -> None:
    """Values of a file with more columns than a producer's are not read."""
    target = io.BytesIO()
    pq.write_table(pa.table({f"{one}": [b"v", b"v"] for one in range(count)}), target)
    file = ForeignParquet(target.getvalue())
    assert (len(file.columns), file.row_count) == (count, 2)
    if count > 8:
        with pytest.raises(ValueError, match="more than 8 columns"):
            next(file.pieces())
    else:
        [piece] = file.pieces()
        assert all(pa.types.is_dictionary(field.type) for field in piece.schema)
