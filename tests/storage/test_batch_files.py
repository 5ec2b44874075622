"""Batch files: writing, checking a request's statements about them, slicing and reading."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from sparklog.errors import StorageError
from sparklog.model import RECORD_COLUMNS, Record, new_batch_path
from sparklog.storage.batch_actions import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from sparklog.storage.batch_files import (
    BatchFile,
    BatchFileWriter,
    file_checksum,
    file_fault,
    files_faults,
    read_records,
    records_table,
    rewrite_slice,
)
from sparklog.storage.location import Location
from tests.storage.batches import batch_of_file, file_size_limit, write_file

TIMES = RECORD_COLUMNS.field("timestamp").type
HEADERS = [{"key": "h", "value": b"\x00"}, {"key": "", "value": None}]


@pytest.fixture
def log(root: Location) -> Location:
    return root.child("log")


def on_disk(log: Location, file: BatchFile) -> Path:
    return Path(log.uri, file.path)


def records(*times_us: int | None, **columns: Any) -> pa.Table:
    """Return a table for `BatchFileWriter.write` with these times, in microseconds."""
    table = records_table([b"v"] * len(times_us), None, 0)
    table = table.set_column(0, "timestamp", pa.array(times_us, pa.int64()).cast(TIMES))
    for name, values in columns.items():
        index = table.column_names.index(name)
        table = table.set_column(index, name, pa.array(values, RECORD_COLUMNS.field(name).type))
    return table


def put(log: Location, content: bytes, path: str | None = None, **claimed: Any) -> BatchFile:
    """Write bytes to a path of the inbox; return a `BatchFile` that describes them correctly."""
    file = BatchFile(
        path or new_batch_path(),
        len(content),
        xxhash.xxh3_64_hexdigest(content),
        claimed.pop("record_count", 1),
        claimed.pop("min_timestamp_ms", 0),
        claimed.pop("max_timestamp_ms", 0),
    )
    on_disk(log, file).parent.mkdir(parents=True, exist_ok=True)
    on_disk(log, file).write_bytes(content)
    return file._replace(**claimed)


def put_table(log: Location, table: pa.Table, **claimed: Any) -> BatchFile:
    """Write a Parquet file with any content to the inbox."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    content = sink.getvalue().to_pybytes()
    return put(log, content, **{"record_count": table.num_rows} | claimed)


def table_of(deltas: list[int | None], times_us: list[int | None]) -> pa.Table:
    """Return a table with the columns of a batch file, right or wrong."""
    columns = records(*times_us).columns
    return pa.Table.from_arrays([pa.array(deltas, pa.int32()), *columns], schema=RECORD_COLUMNS)


class TestWriting:
    def test_what_is_known_of_a_file_is_true_of_its_bytes(self, log: Location) -> None:
        """A writer reports the size, checksum, record count and times of the bytes that it
        wrote.
        """
        writer = BatchFileWriter(log, new_batch_path())
        writer.write(records(5_000, 3_999))
        writer.write(records())
        writer.write(records(9_001, -1, key=[b"k", None], headers=[HEADERS, []]))
        file = writer.close()
        content = on_disk(log, file).read_bytes()
        assert file == BatchFile(
            writer.path, len(content), xxhash.xxh3_64_hexdigest(content), 4, -1, 9
        )
        assert (writer.size_bytes, writer.record_count) == (len(content), 4)
        assert file_checksum(log, file.path) == file.checksum
        assert file_fault(log, file) is None

    def test_a_file_holds_its_records(self, log: Location) -> None:
        """A file contains the records that were written, in the columns of a batch."""
        writer = BatchFileWriter(log, new_batch_path())
        values = [b"", None, b"\x00" * 1000, "é".encode()]
        writer.write(records(1, 2, 3, 4, value=values, key=values[::-1], headers=[HEADERS] * 4))
        path = on_disk(log, writer.close())
        assert pq.read_metadata(path).metadata is None
        table = pq.read_table(path)
        assert table.schema.equals(RECORD_COLUMNS)
        assert table["offset_delta"].to_pylist() == [0, 1, 2, 3]
        assert table["value"].to_pylist() == values
        assert table["key"].to_pylist() == values[::-1]
        assert table["headers"].to_pylist() == [HEADERS] * 4
        assert table["timestamp"].cast(pa.int64()).to_pylist() == [1, 2, 3, 4]

    def test_numbering_goes_on_over_row_groups(self, log: Location) -> None:
        """The numbering of records goes on over row groups."""
        writer = BatchFileWriter(log, new_batch_path())
        for _ in range(3):
            writer.write(records_table([b"v"] * 1000, None, 7))
        file = writer.close()
        parquet = pq.ParquetFile(on_disk(log, file))
        assert parquet.num_row_groups == 3
        assert parquet.read()["offset_delta"].to_pylist() == list(range(3000))
        assert file_fault(log, file) is None

    @pytest.mark.parametrize(
        ("sizes", "codec"),
        [
            ([100], "UNCOMPRESSED"),
            ([100, 100], "ZSTD"),
            ([10_000], "ZSTD"),
            ([100, 10_000], "ZSTD"),
            ([10_000, 100], "ZSTD"),
        ],
        ids=str,
    )
    def test_few_records_are_not_compressed(
        self, log: Location, sizes: list[int], codec: str
    ) -> None:
        """Few records are stored uncompressed, which takes one disk block either way; more records
        may follow.
        """
        values = [b"v" * size for size in sizes]
        writer = BatchFileWriter(log, new_batch_path())
        for value in values:
            writer.write(records_table([value], None, 7))
        file = writer.close()
        parquet = pq.ParquetFile(on_disk(log, file))
        groups = [parquet.metadata.row_group(one) for one in range(parquet.num_row_groups)]
        columns = range(parquet.metadata.num_columns)
        assert {one.column(column).compression for one in groups for column in columns} == {codec}
        assert parquet.read()["value"].to_pylist() == values
        assert file_fault(log, file) is None

    def test_a_path_is_written_once(self, log: Location) -> None:
        """An existing path is not written again."""
        file = write_file(log, [b"first"])
        with pytest.raises(FileExistsError):
            BatchFileWriter(log, file.path)
        assert file_fault(log, file) is None

    def test_a_full_disk_fails_a_writer(self, log: Location) -> None:
        """On a full disk a writer raises `OSError`."""

        def write() -> None:
            writer = BatchFileWriter(log, new_batch_path())
            writer.write(records_table([os.urandom(1 << 20)], None, 0))
            writer.close()

        with file_size_limit(300_000), pytest.raises(OSError, match="File too large"):
            write()

    @pytest.mark.parametrize(
        ("time_us", "why"),
        [
            (None, "it has records without a timestamp: give every record a time"),
            (2**62, "outside the years 1 to 9999: give every record a time"),
            (MIN_TIMESTAMP_MS * 1000 - 1, "outside the years 1 to 9999"),
            (MAX_TIMESTAMP_MS * 1000 + 1000, "outside the years 1 to 9999"),
        ],
    )
    def test_records_without_a_usable_time_are_refused_and_spoil_nothing(
        self, log: Location, time_us: int | None, why: str
    ) -> None:
        """Records without a valid time are refused, and the records before and after them are
        written.
        """
        writer = BatchFileWriter(log, new_batch_path())
        writer.write(records(1_000))
        with pytest.raises(StorageError, match=why):
            writer.write(records(2_000, time_us))
        writer.write(records(3_000))
        file = writer.close()
        assert (file.record_count, file.min_timestamp_ms, file.max_timestamp_ms) == (2, 1, 3)
        assert file_fault(log, file) is None

    @pytest.mark.parametrize("time_ms", [-1, 0, 1_760_000_000_123, MIN_TIMESTAMP_MS])
    def test_plain_records_have_the_time_to_the_millisecond(
        self, log: Location, time_ms: int
    ) -> None:
        """Plain records have their timestamps with millisecond precision."""
        file = write_file(log, [b"v"], timestamp_ms=time_ms)
        assert (file.min_timestamp_ms, file.max_timestamp_ms) == (time_ms, time_ms)

    def test_the_last_millisecond_of_the_year_9999_is_exact(self, log: Location) -> None:
        """A float of seconds would round it to the next year."""
        file = write_file(log, [b"v"], timestamp_ms=MAX_TIMESTAMP_MS)
        assert file.max_timestamp_ms == MAX_TIMESTAMP_MS
        assert file_fault(log, file) is None


UNUSED_PATH = "_inbox/0123456789abcdef0123456789abcdef.0123456789ab.parquet"
"""Paths like those of `new_batch_path`, but equal in every process that collects the tests."""


class TestFaults:
    def test_an_honest_file_is_accepted(self, log: Location) -> None:
        """A valid file has no fault."""
        assert file_fault(log, write_file(log, [b"a", None], [None, b"k"])) is None

    @pytest.mark.parametrize(
        ("claim", "why"),
        [
            ({"size_bytes": 1}, " bytes, not 1"),
            ({"size_bytes": 10**6}, " bytes, not 1000000"),
            ({"size_bytes": 0}, " bytes, not 0"),
            ({"size_bytes": -2}, " bytes, not -2"),
            ({"size_bytes": 2**62}, f" bytes, not {2**62}"),
            ({"checksum": "0" * 16}, "its bytes do not match the checksum"),
            ({"checksum": ""}, "its bytes do not match the checksum"),
            ({"record_count": 1}, "it holds 2 records, not 1"),
            ({"record_count": 0}, "it holds 2 records, not 0"),
            ({"record_count": -1}, "it holds 2 records, not -1"),
            ({"min_timestamp_ms": 999}, "timestamps do not span what the request names"),
            ({"max_timestamp_ms": 2**62}, "timestamps do not span what the request names"),
            ({"path": UNUSED_PATH}, "there is no such file"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_a_false_request_for_a_good_file(
        self, log: Location, claim: dict[str, Any], why: str
    ) -> None:
        """A request that describes a valid file wrongly has a fault."""
        file = write_file(log, [b"a", b"b"])
        fault = file_fault(log, file._replace(**claim))
        assert fault is not None
        assert why in fault

    @pytest.mark.parametrize(
        "path",
        [
            "",
            "_inbox/",
            "secret.parquet",
            "_inbox/../secret.parquet",
            "../secret.parquet",
            "/etc/passwd",
            f"_inbox/../{UNUSED_PATH}",
            f"/{UNUSED_PATH}",
            f"./{UNUSED_PATH}",
            UNUSED_PATH + "\n",
            UNUSED_PATH.upper(),
            UNUSED_PATH.replace(".parquet", ".PARQUET"),
            UNUSED_PATH.replace("_inbox/", "_inbox/x/"),
            UNUSED_PATH.replace("_inbox/", "_inbox%2F"),
            "_inbox/" + "\x00" * 53,
            "s3://bucket/" + UNUSED_PATH,
        ],
    )
    def test_a_path_that_is_not_one_of_the_inbox(self, log: Location, path: str) -> None:
        """A path outside the inbox is a fault."""
        file = write_file(log, [b"a"])
        assert file_fault(log, file._replace(path=path)) == "its path is not one of the inbox"

    def test_what_is_no_plain_file(self, log: Location, tmp_path: Path) -> None:
        """A link can lead anywhere and change later; a pipe would block the leader forever."""
        file = write_file(log, [b"a"])
        elsewhere = tmp_path / "elsewhere.parquet"
        elsewhere.write_bytes(on_disk(log, file).read_bytes())
        link, folder, pipe, broken = (file._replace(path=new_batch_path()) for _ in range(4))
        on_disk(log, link).symlink_to(elsewhere)
        on_disk(log, folder).mkdir()
        os.mkfifo(on_disk(log, pipe))
        on_disk(log, broken).symlink_to(tmp_path / "nowhere")
        found = files_faults(log, [link, folder, pipe, broken, file])
        assert found == ["its path is a link or something else that is no file"] * 4 + [None]

    @pytest.mark.parametrize(
        "content", [b"", b"PAR1", b"PAR1" * 3, b"hello", b"\x00" * 1000], ids=repr
    )
    def test_what_is_no_parquet_file(self, log: Location, content: bytes) -> None:
        """A file that is not Parquet is a fault of one line."""
        fault = file_fault(log, put(log, content))
        assert fault is not None
        assert fault.startswith("it cannot be read: ")
        assert "\n" not in fault

    def test_a_parquet_file_that_was_cut_off(self, log: Location) -> None:
        """A truncated Parquet file is a fault."""
        content = on_disk(log, write_file(log, [b"a" * 100])).read_bytes()
        for length in (4, len(content) // 2, len(content) - 1):
            fault = file_fault(log, put(log, content[:length]))
            assert fault is not None
            assert fault.startswith("it cannot be read: ")

    @pytest.mark.parametrize(
        "table",
        [
            table_of([0], [0]).drop_columns("headers"),
            table_of([0], [0]).select(RECORD_COLUMNS.names[::-1]),
            table_of([0], [0]).append_column("more", pa.array([1])),
            table_of([0], [0]).rename_columns(["offset", *RECORD_COLUMNS.names[1:]]),
            table_of([0], [0]).set_column(0, "offset_delta", pa.array([0], pa.int64())),
            table_of([0], [0]).set_column(1, "timestamp", pa.array([0], pa.int64())),
            table_of([0], [0]).set_column(1, "timestamp", pa.array([0], pa.timestamp("us"))),
            table_of([0], [0]).set_column(3, "value", pa.array(["text"])),
        ],
        ids=range(8),
    )
    def test_columns_that_are_not_those_of_a_batch(self, log: Location, table: pa.Table) -> None:
        """Columns that differ from those of a batch are a fault."""
        fault = file_fault(log, put_table(log, table))
        assert fault == "its columns are not those of a record batch"

    @pytest.mark.parametrize(
        "deltas", [[1, 2], [0, 0], [0, 2], [1, 0], [0, None], [None, None], [-1, 0], [5, 5]]
    )
    def test_records_that_are_not_numbered_from_0(
        self, log: Location, deltas: list[int | None]
    ) -> None:
        """Records that are not numbered from 0 are a fault: offsets would overlap or leave a
        gap.
        """
        fault = file_fault(log, put_table(log, table_of(deltas, [0, 0])))
        assert fault == "its records are not numbered from 0 without a gap"

    def test_timestamps_that_nobody_can_use(self, log: Location) -> None:
        """Missing timestamps and timestamps outside the years 1 to 9999 are a fault."""
        missing = put_table(log, table_of([0, 1], [0, None]))
        assert file_fault(log, missing) == "it has records without a timestamp"
        for time_us in (MAX_TIMESTAMP_MS * 1000 + 1000, MIN_TIMESTAMP_MS * 1000 - 1, -(2**63)):
            named = {"min_timestamp_ms": time_us // 1000, "max_timestamp_ms": time_us // 1000}
            far = put_table(log, table_of([0], [time_us]), **named)
            assert file_fault(log, far) == "it has timestamps outside the years 1 to 9999"

    def test_a_file_of_many_columns(self, log: Location) -> None:
        """The columns differ from those of a batch, whatever their number."""
        table = table_of([0], [0])
        for number in range(100):
            table = table.append_column(f"more {number}", pa.array([b"bytes"]))
        fault = file_fault(log, put_table(log, table))
        assert fault == "its columns are not those of a record batch"

    def test_an_empty_batch(self, log: Location) -> None:
        """A file without records is a fault."""
        empty = put_table(log, table_of([], []))
        assert file_fault(log, empty) == "it holds 0 records, not 0"
        assert file_fault(log, BatchFileWriter(log, new_batch_path()).close()) is not None

    def test_a_huge_file_that_claims_to_be_small_is_not_loaded(self, log: Location) -> None:
        """A file that is larger than its request states is not loaded."""
        file = write_file(log, [b"a"])
        os.truncate(on_disk(log, file), 1 << 40)
        assert file_fault(log, file) == f"it has {1 << 40} bytes, not {file.size_bytes}"

    def test_no_damage_under_a_true_checksum_makes_the_check_itself_fail(
        self, log: Location
    ) -> None:
        """A producer may send any file; a fault is returned as a sentence, never raised as an
        exception.
        """
        good = write_file(log, [b"a" * 50, b"b" * 50], [b"k", None])
        content = on_disk(log, good).read_bytes()
        chance = random.Random(0)
        faults = 0
        for _ in range(300):
            damaged = bytearray(content)
            for _ in range(chance.randint(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            named = {"record_count": 2, "min_timestamp_ms": 1_000, "max_timestamp_ms": 1_000}
            fault = file_fault(log, put(log, bytes(damaged), good.path, **named))
            assert fault is None or (fault and "\n" not in fault)
            faults += fault is not None
        assert faults > 100

    def test_many_are_checked_at_once_and_one_bad_file_spoils_no_other(self, log: Location) -> None:
        """Files are checked in parallel, and a bad file does not affect the others."""
        files = [write_file(log, [b"%d" % number]) for number in range(20)]
        files[7] = files[7]._replace(checksum="wrong")
        found = files_faults(log, files)
        assert [number for number, fault in enumerate(found) if fault is not None] == [7]
        assert files_faults(log, []) == []


class TestSlices:
    @pytest.mark.parametrize(
        ("from_offset", "below_offset", "offsets"),
        [
            (100, 104, range(100, 104)),
            (0, 104, range(100, 104)),
            (104, 110, range(104, 110)),
            (104, 2**62, range(104, 110)),
            (103, 107, range(103, 107)),
            (109, 110, range(109, 110)),
            (0, 2**62, range(100, 110)),
        ],
        ids=lambda value: "" if isinstance(value, range) else str(value),
    )
    def test_a_slice_is_a_batch_of_its_own(
        self, log: Location, tmp_path: Path, from_offset: int, below_offset: int, offsets: range
    ) -> None:
        """A slice is a valid batch with its own offsets, sequence and file."""
        target = Location.of(str(tmp_path / "target" / "log"))
        writer = BatchFileWriter(log, new_batch_path())
        writer.write(
            records(*range(10**6, 2 * 10**6, 10**5), value=[b"%d" % n for n in range(100, 110)])
        )
        whole = batch_of_file(writer.close(), 100, leader_epoch=4, producer_id=1, base_sequence=50)
        piece = rewrite_slice(log, whole, from_offset, below_offset, target)
        found = list(read_records(target, [piece], 0, 2**62))
        assert found == list(read_records(log, [whole], offsets.start, offsets.stop))
        assert [(one.offset, one.value) for one in found] == [(n, b"%d" % n) for n in offsets]
        assert (piece.base_offset, piece.next_offset) == (offsets.start, offsets.stop)
        assert piece.base_sequence == 50 + offsets.start - 100
        assert piece.batch_id == whole.batch_id
        assert piece.path != whole.path
        claimed = BatchFile(
            piece.path,
            piece.size_bytes,
            piece.checksum,
            piece.record_count,
            piece.min_timestamp_ms,
            piece.max_timestamp_ms,
        )
        assert file_fault(target, claimed) is None
        unchanged = ("topic_id", "topic", "partition", "leader_epoch", "producer_id")
        assert all(getattr(piece, name) == getattr(whole, name) for name in unchanged)

    def test_a_batch_with_gaps_keeps_its_offsets(self, log: Location) -> None:
        """Compaction leaves gaps, also slices without any record; the offset range stays (9.5)."""
        file = put_table(log, table_of([0, 5, 6], [7_000, 8_000, 9_000]))
        whole = batch_of_file(file, 10, record_count=3, last_offset_delta=9)
        piece = rewrite_slice(log, whole, 13, 20, log)
        assert [one.offset for one in read_records(log, [piece], 0, 99)] == [15, 16]
        assert (piece.base_offset, piece.next_offset, piece.record_count) == (13, 20, 2)
        assert (piece.min_timestamp_ms, piece.max_timestamp_ms) == (8, 9)
        empty = rewrite_slice(log, whole, 17, 20, log)
        assert list(read_records(log, [empty], 0, 99)) == []
        assert (empty.base_offset, empty.next_offset, empty.record_count) == (17, 20, 0)
        assert empty.min_timestamp_ms == whole.min_timestamp_ms

    @pytest.mark.parametrize(
        ("before", "after"), [(-1, -1), (2**31 - 2, 1), (2**31 - 4, 2**31 - 1)]
    )
    def test_a_producers_sequence_goes_on_as_kafkas_does(
        self, log: Location, before: int, after: int
    ) -> None:
        """A producer's sequence wraps from 2^31 - 1 to 0; a batch without a sequence gets none."""
        whole = batch_of_file(write_file(log, [b"v"] * 5), base_sequence=before)
        assert rewrite_slice(log, whole, 3, 5, log).base_sequence == after

    def test_a_damaged_batch_is_not_given_a_new_checksum(self, log: Location) -> None:
        """A slice of a damaged batch is refused, so that the damage does not get a new checksum."""
        file = write_file(log, [b"v" * 100] * 5)
        content = bytearray(on_disk(log, file).read_bytes())
        content[content.index(b"v" * 8) if b"v" * 8 in content else 30] ^= 1
        on_disk(log, file).write_bytes(content)
        before = set(on_disk(log, file).parent.iterdir())
        with pytest.raises(StorageError, match=rf"{file.path} is damaged: it does not have its"):
            rewrite_slice(log, batch_of_file(file), 1, 3, log)
        assert set(on_disk(log, file).parent.iterdir()) == before


class TestReading:
    def test_records_come_in_order_within_the_range(self, log: Location) -> None:
        """Records are read in order of their offsets within the requested range."""
        first = batch_of_file(write_file(log, [b"a", None], [None, b"k"], -1), 10, leader_epoch=1)
        second = batch_of_file(write_file(log, [b"", b"d"]), 12, leader_epoch=2)
        every = [
            Record(10, 1, None, b"a", -1),
            Record(11, 1, b"k", None, -1),
            Record(12, 2, None, b"", 1_000),
            Record(13, 2, None, b"d", 1_000),
        ]
        assert list(read_records(log, [first, second], 0, 99)) == every
        assert list(read_records(log, [first, second], 11, 13)) == every[1:3]
        assert list(read_records(log, [first, second], 13, 13)) == []

    def test_batches_outside_the_range_are_not_even_opened(self, log: Location) -> None:
        """Batches outside the requested range are not opened."""
        nowhere = batch_of_file(write_file(log, [b"a"]), 0)
        on_disk(log, BatchFile(nowhere.path, 0, "", 0, 0, 0)).unlink()
        there = batch_of_file(write_file(log, [b"b"]), 1)
        assert [one.value for one in read_records(log, [nowhere, there], 1, 2)] == [b"b"]

    @pytest.mark.parametrize(
        ("harm", "why"),
        [
            (Path.unlink, "cannot be read: .*No such file"),
            (lambda path: path.write_bytes(b"PAR1"), "is damaged: it does not have its checksum"),
        ],
        ids=["missing", "damaged"],
    )
    def test_a_file_that_is_missing_or_damaged_is_named(
        self, log: Location, harm: Callable[[Path], object], why: str
    ) -> None:
        """Reading a missing or damaged file raises `StorageError`, which names the file."""
        file = write_file(log, [b"a"])
        harm(on_disk(log, file))
        with pytest.raises(StorageError, match=f"{file.path} {why}"):
            list(read_records(log, [batch_of_file(file)], 0, 9))
