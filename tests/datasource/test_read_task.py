"""Reading batch files: slices of large files, and files of an object store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from sparklog.datasource import read_task as module
from sparklog.datasource.read_task import OffsetRange, PlannedFile, ReadTask, read_task
from sparklog.errors import StorageError
from sparklog.model import RECORD_COLUMNS, TopicPartition, new_batch_path
from sparklog.storage.location import Location
from tests.storage.test_s3 import Store
from tests.storage.test_s3 import pytestmark as needs_s3

BASE = 1_000
ROWS = 100
T0 = TopicPartition("t", 0)


def records(deltas: np.ndarray) -> pa.Table:
    """Return records at these offset deltas; every other one has a header."""
    count = len(deltas)
    headers = [[{"key": "h", "value": b"x"}] if delta % 2 else [] for delta in deltas.tolist()]
    columns = [
        pa.array(deltas, pa.int32()),
        pa.array(deltas.astype(np.int64) * 1_000_000, pa.timestamp("us", "UTC")),
        pa.array([None] * count, pa.binary()),
        pa.array([f"value {delta}".encode() for delta in deltas], pa.binary()),
        pa.array(headers, RECORD_COLUMNS.field("headers").type),
    ]
    return pa.Table.from_arrays(columns, schema=RECORD_COLUMNS)


def store(log: Location, deltas: np.ndarray) -> PlannedFile:
    """Write a file of row groups of ten records."""
    path = new_batch_path()
    with log.create(path) as file:
        target = pa.BufferOutputStream()
        pq.write_table(records(deltas), target, row_group_size=10)
        content = target.getvalue().to_pybytes()
        file.write(content)
    checksum = xxhash.xxh3_64_hexdigest(content)
    return PlannedFile(path, len(content), checksum, BASE, BASE + ROWS)


def read(log: Location, file: PlannedFile, start: int, end: int) -> list[dict[str, object]]:
    task = ReadTask(OffsetRange(T0, start, end), log, (file,), True, log.uri, {}, "a-topic-id")
    return [row for batch in read_task(task) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Location, PlannedFile]:
    log = Location.of(str(tmp_path_factory.mktemp("log")))
    return log, store(log, np.arange(ROWS))


@pytest.mark.parametrize(
    ("start", "end"), [(0, 5000), (1000, 1100), (1037, 1042), (1039, 1041), (1099, 1100), (0, 1)]
)
def test_a_slice_has_just_its_records(
    local: tuple[Location, PlannedFile], start: int, end: int
) -> None:
    """A slice of a file has the records in its range, with values and headers."""
    expected = range(max(start, BASE), min(end, BASE + ROWS))
    rows = read(*local, start, end)
    assert [row["offset"] for row in rows] == list(expected)
    assert [row["value"] for row in rows] == [f"value {one - BASE}".encode() for one in expected]
    assert [row["headers"] for row in rows] == [
        [{"key": "h", "value": b"x"}] if one % 2 else None for one in expected
    ]


def test_a_slice_reads_only_its_own_row_groups(
    local: tuple[Location, PlannedFile],
) -> None:
    """A slice reads only the row groups that contain its records."""
    log, file = local
    with pq.ParquetFile(Path(log.uri, file.path)) as parquet:
        assert module._row_groups(parquet.metadata, 37, 42) == [3, 4]
        assert module._row_groups(parquet.metadata, 0, ROWS) == list(range(10))


def test_records_that_compaction_took_leave_gaps_and_move_no_others(tmp_path: Path) -> None:
    """Records that compaction removed leave gaps, and the others keep their offsets."""
    log = Location.of(str(tmp_path))
    file = store(log, np.array([0, 3, 4, 40, 99]))
    rows = read(log, file, BASE + 3, BASE + 99)
    assert [row["offset"] for row in rows] == [BASE + 3, BASE + 4, BASE + 40]
    assert [row["value"] for row in rows] == [b"value 3", b"value 4", b"value 40"]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store(tmp_path_factory.mktemp("s3") / "moto.log")
    yield store
    store.close()


@needs_s3
@pytest.mark.parametrize("in_memory", [True, False])
def test_files_of_an_object_store_are_read_whole_and_verified(
    s3: Store, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    """A file of an object store is held in memory or in a local file, and verified either way."""
    log = Location.of(f"{s3.bucket()}/log", s3.options())
    file = store(log, np.arange(ROWS))
    monkeypatch.setattr(module, "_IN_MEMORY_BYTES", 1 << 20 if in_memory else 0)
    assert [row["offset"] for row in read(log, file, 1037, 1042)] == list(range(1037, 1042))
    assert len(read(log, file, 0, 5000)) == ROWS
    content = bytearray(log.read_bytes(file.path))
    content[len(content) // 2] ^= 0xFF
    log.replace(file.path, bytes(content))
    with pytest.raises(StorageError, match="CORRUPT_MESSAGE"):
        read(log, file, 1037, 1042)
