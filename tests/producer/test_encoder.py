"""The files that a task writes are ones that leaders accept."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.producer import encoder
from sparklog.producer.encoder import Encoder
from sparklog.producer.partitioner import DefaultPartitioner
from sparklog.storage import parquet
from sparklog.storage.batch_files import file_fault
from sparklog.storage.location import Location


def test_equal_records_are_shared_among_files_that_a_leader_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed, all of them would fit into one file, whose records no leader lets take as much.

    The bounds are those of the product, divided by 128.
    """
    assert encoder._RECORDS_BYTES * 2 <= parquet._DECODED_BYTES
    monkeypatch.setattr(encoder, "_RECORDS_BYTES", encoder._RECORDS_BYTES >> 7)
    monkeypatch.setattr(parquet, "_DECODED_BYTES", parquet._DECODED_BYTES >> 7)
    log = Location.of(str(tmp_path / "log"), {str(tmp_path): {"sync": "false"}})
    task = Encoder({0: log}, DefaultPartitioner(1))
    records = pa.RecordBatch.from_pydict({"key": [None] * 1_000, "value": [b"v" * 1_000] * 1_000})
    files = [file for _ in range(20) for file in task.add(records)] + list(task.close())
    assert sum(one.file.record_count for one in files) == 20_000
    assert len(files) == 4
    assert [file_fault(log, one.file) for one in files] == [None] * 4
    # In one file they are refused.
    monkeypatch.setattr(encoder, "_RECORDS_BYTES", 1 << 40)
    files = [file for _ in range(20) for file in task.add(records)] + list(task.close())
    [fault] = [file_fault(log, one.file) for one in files]
    assert fault is not None
    assert "its records take more than" in fault
