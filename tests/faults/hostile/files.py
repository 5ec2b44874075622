"""Targets: batch files and other Parquet files that a client may write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import xxhash

from sparklog.model import TOPICS, Batch, new_batch_path
from sparklog.storage.batch_files import BatchFile, file_fault, read_batch
from sparklog.storage.control_table import rows_in_file
from sparklog.storage.location import Location
from sparklog.storage.parquet import ForeignParquet
from sparklog.storage.parquet_pages import data_pages
from tests.faults.hostile.samples import Samples
from tests.faults.hostile.target import Target


def file_targets(folder: Path, samples: Samples) -> list[Target]:
    """Return the targets about Parquet files; `folder` is theirs."""
    batches = samples.batch_files()
    return [
        Target("parquet_pages", _pages, batches, permitted=(ValueError,), weight=40),
        Target("batch_file", _batch_file(folder), batches, permitted=(), weight=60),
        Target("table_file", _table_file(folder), [samples.table_file("topics")], weight=30),
    ]


def _pages(content: bytes) -> None:
    for page in data_pages(content):
        assert page.uncompressed_bytes >= 0


def _batch_file(folder: Path) -> Callable[[bytes], object]:
    """Check a batch as a leader does; a batch that it accepts can be read by consumers."""
    log = Location.of(str(folder / "batches"))
    path = new_batch_path()
    (folder / "batches" / "_inbox").mkdir(parents=True, exist_ok=True)

    def run(content: bytes) -> None:
        (folder / "batches" / path).write_bytes(content)
        checksum = xxhash.xxh3_64_hexdigest(content)
        count, first_ms, last_ms = _claims(content)
        file = BatchFile(path, len(content), checksum, count, first_ms, last_ms)
        if file_fault(log, file) is not None:
            return
        batch = Batch(
            path=path,
            size_bytes=len(content),
            topic_id="t",
            topic="t",
            partition=0,
            leader_epoch=0,
            base_offset=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            checksum=checksum,
            record_count=count,
            last_offset_delta=count - 1,
            min_timestamp_ms=first_ms,
            max_timestamp_ms=last_ms,
        )
        records = read_batch(log, batch)
        assert records.num_rows == count
        records.validate(full=True)

    return run


def _claims(content: bytes) -> tuple[int, int, int]:
    """Return the record count and times that a producer claims: those in the file if possible."""
    try:
        file = ForeignParquet(content)
        count, times = file.row_count, []
        for piece in file.pieces():
            times += piece["timestamp"].cast(pa.int64()).to_pylist()
        known = [one // 1000 for one in times if one is not None]
        return count, min(known), max(known)
    except (OSError, pa.ArrowException, ValueError, LookupError):
        return 3, 1_000_000, 1_000_000


def _table_file(folder: Path) -> Callable[[bytes], object]:
    table = Location.of(str(folder / "topics"))
    (folder / "topics").mkdir(exist_ok=True)

    def run(content: bytes) -> None:
        (folder / "topics" / "part.parquet").write_bytes(content)
        rows, _ = rows_in_file(table, "part.parquet", TOPICS)
        rows.validate(full=True)
        rows.to_pylist()

    return run
