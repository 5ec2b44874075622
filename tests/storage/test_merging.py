"""Merging batch files: the same records in one file, verified while merging (rule 8.4)."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from sparklog.model import RECORD_COLUMNS, Batch, new_batch_path
from sparklog.storage import batch_merging
from sparklog.storage.batch_files import (
    BatchFile,
    BatchFileWriter,
    file_fault,
    read_batch,
    read_records,
    verified_bytes,
)
from sparklog.storage.batch_merging import Merge, merge_batches
from sparklog.storage.execution import DriverExecution
from sparklog.storage.location import Location
from sparklog.storage.parquet import ForeignParquet
from tests.storage.batches import batch_of_file, write_file

if TYPE_CHECKING:
    pass

TIMES = RECORD_COLUMNS.field("timestamp").type


@pytest.fixture
def log(root: Location) -> Location:
    return root.child("log")


def adjacent(log: Location, *files: BatchFile) -> tuple[Batch, ...]:
    """Return these files as batches from offset 10 on."""
    batches: list[Batch] = []
    for file in files:
        begin = batches[-1].next_offset if batches else 10
        batches.append(batch_of_file(file, begin, leader_epoch=3, producer_id=1, base_sequence=0))
    return tuple(batches)


def merged(log: Location, *batches: Batch) -> Batch:
    found = merge_batches(Merge(log, batches, new_batch_path()))
    assert isinstance(found, Batch), found
    return found


def odd_records(count: int) -> pa.Table:
    """Return records with null keys and values, headers, and decreasing times with microseconds."""
    numbers = range(count)
    return pa.table(
        {
            "timestamp": pa.array([n * 1_000_001 % 7_777_777 for n in numbers]).cast(TIMES),
            "key": pa.array([None if n % 3 else b"k%d" % n for n in numbers], pa.binary()),
            "value": pa.array([None if n % 2 else b"\xff" * n for n in numbers], pa.binary()),
            "headers": pa.array(
                [[{"key": "h", "value": None}] * (n % 3) if n % 4 else None for n in numbers],
                RECORD_COLUMNS.field("headers").type,
            ),
        }
    )


def test_the_records_are_the_same_and_renumbered(log: Location) -> None:
    """A merged file has the records of its sources with new numbers, and no producer id."""
    files = []
    for count in (3, 1, 20):
        writer = BatchFileWriter(log, new_batch_path())
        writer.write(odd_records(count))
        files.append(writer.close())
    batches = adjacent(log, *files)
    one = merged(log, *batches)
    assert (one.base_offset, one.next_offset, one.leader_epoch) == (10, 34, 3)
    assert (one.producer_id, one.producer_epoch, one.base_sequence) == (-1, -1, -1)
    assert [*read_records(log, [one], 0, 99)] == [*read_records(log, batches, 0, 99)]
    parts = pa.concat_tables(read_batch(log, batch) for batch in batches)
    whole = read_batch(log, one)
    assert whole.drop_columns("offset_delta").equals(parts.drop_columns("offset_delta"))
    assert whole["offset_delta"].to_pylist() == list(range(24))
    times = (one.min_timestamp_ms, one.max_timestamp_ms)
    assert times == (min(f.min_timestamp_ms for f in files), max(f.max_timestamp_ms for f in files))
    claimed = BatchFile(one.path, one.size_bytes, one.checksum, one.record_count, *times)
    assert file_fault(log, claimed) is None


@pytest.mark.parametrize("fault", ["gone", "damaged"])
def test_nothing_is_written_where_a_batch_cannot_be_read(log: Location, fault: str) -> None:
    """A run with an unreadable batch is not merged, and no file is left."""
    batches = adjacent(log, *(write_file(log, [b"v"] * 3) for _ in range(3)))
    file = Path(log.uri, batches[1].path)
    if fault == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    before = set(file.parent.iterdir())
    found = merge_batches(Merge(log, batches, new_batch_path()))
    assert isinstance(found, str)
    assert batches[1].path in found
    assert set(file.parent.iterdir()) == before


def test_a_small_file_of_large_values_is_decoded_piece_by_piece(
    log: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer may repeat one long value many times in a few bytes."""
    monkeypatch.setattr(batch_merging, "_ROW_GROUP_BYTES", 1 << 20)
    count, value = 300, b"v" * 100_000
    columns = {
        "offset_delta": pa.array(range(count), pa.int32()),
        "timestamp": pa.array([0] * count, pa.int64()).cast(TIMES),
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array([value] * count, pa.binary()),
        "headers": pa.nulls(count, RECORD_COLUMNS.field("headers").type),
    }
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, RECORD_COLUMNS), buffer, use_dictionary=True)
    content = buffer.getvalue().to_pybytes()
    assert len(content) < 3 * len(value)
    path = new_batch_path()
    with log.create(path) as file:
        file.write(content)
    checksum = xxhash.xxh3_64_hexdigest(content)
    small = BatchFile(path, len(content), checksum, count, 0, 0)
    one = merged(log, *adjacent(log, small, write_file(log, [b"w"])))
    metadata = pq.ParquetFile(Path(log.uri, one.path)).metadata
    groups = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    assert sum(groups) == count + 1
    assert max(groups) * len(value) <= 2 << 20


def test_small_files_and_larger_ones_are_merged_into_one(log: Location) -> None:
    """Larger files are read as they are, small ones dictionary-encoded: such a run failed once."""
    larger = [b"%07d" % n + secrets.token_bytes(1000) for n in range(100)]
    batches = adjacent(
        log,
        write_file(log, [b"small"] * 3),
        write_file(log, larger),
        write_file(log, [b"small again"]),
    )
    kinds = {
        piece["value"].type
        for batch in batches
        for piece in ForeignParquet(verified_bytes(log, batch)).pieces()
    }
    assert len(kinds) == 2
    one = merged(log, *batches)
    assert [*read_records(log, [one], 0, 999)] == [*read_records(log, batches, 0, 999)]
    assert read_batch(log, one)["value"].to_pylist() == [
        *([b"small"] * 3),
        *larger,
        b"small again",
    ]


def test_many_merges_fail_one_by_one(log: Location) -> None:
    """A failed merge does not affect the other merges of the same call."""
    good = adjacent(log, write_file(log, [b"a"]), write_file(log, [b"b"]))
    bad = adjacent(log, write_file(log, [b"c"]), write_file(log, [b"d"]))
    Path(log.uri, bad[0].path).unlink()
    merges = [Merge(log, batches, new_batch_path()) for batches in (bad, good)]
    failed, well = DriverExecution().merge(merges)
    assert isinstance(failed, str)
    assert isinstance(well, Batch)
    assert well.record_count == 2
