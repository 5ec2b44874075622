"""Small files that stand for much take little memory, and are refused by a sentence.

Each is read in a process of its own, whose largest resident size is measured.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparklog.errors import DamagedError
from sparklog.model import CONSUMER_OFFSETS
from sparklog.storage.control_table import rows_in_file
from sparklog.storage.location import Location
from sparklog.storage.request_commits import read_request_commit, refusals
from tests.faults.hostile.memory import COMMITS, FILES, batch, expanding_page, written

CHECKOUT = Path(__file__).parents[3]

FAULTS = {
    "page of 2 GB": "its pages take 2147483",
    "page of 64 MB": "levels do not match",
    "record with 20 million headers": "20000000 values in a row group",
    "record with 2 million headers": "more than 1048576 headers",
    "footer with a billion rows": "it holds 1000000000 records, not 1",
    "footer with a place outside": "outside of its pages",
    "footer with a negative place": "outside of its pages",
    "footer that places a column on another one": "do not end where",
    "commit of 100 MB": "it is empty",
    "commit of deep JSON": "nested too deeply",
    "commit with a deep action": "nested too deeply",
    "commit with a number of 10 MB": "10485760 digits",
}
MOST_BYTES = 160 << 20
"""The memory that each may take beyond a sound batch: a page may have 128 MiB."""


def test_every_file_has_its_fault() -> None:
    assert FAULTS.keys() == FILES.keys() | COMMITS.keys()


@pytest.mark.parametrize("name", FAULTS)
def test_it_takes_bounded_memory_and_is_refused(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", "tests.faults.hostile.memory", name, str(tmp_path)]
    subprocess.run(command, check=True, cwd=CHECKOUT)
    done = subprocess.run(command, check=True, cwd=CHECKOUT, capture_output=True, text=True)
    size_bytes, grown_bytes, fault = json.loads(done.stdout)
    assert FAULTS[name] in fault
    assert grown_bytes < MOST_BYTES
    if name in FILES:
        assert size_bytes < 100_000


def test_the_page_that_expands_is_one_that_pyarrow_decompresses() -> None:
    """Otherwise the attack would show nothing: the page is sound but for its size."""
    content = expanding_page(1 << 20)
    with pytest.raises(OSError, match="levels do not match"):
        pq.ParquetFile(io.BytesIO(content)).read(["value"])
    sound = written(batch())
    assert pq.ParquetFile(io.BytesIO(sound)).read().num_rows == 1


def test_a_file_that_a_client_wrote_to_a_table_is_bounded(tmp_path: Path) -> None:
    """One of 30 KB whose rows take 20 GB is damage, reported with its path.

    Before, a member of any group that read `consumer_offsets` decoded it, as did the controller
    when a topic was deleted.
    """
    count = 20_000
    indices = pa.array([0] * count, pa.int32())
    metadata = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 1_000_000]))
    table = pa.table({"group_id": pa.array(["g"] * count), "metadata": metadata})
    target = tmp_path / "part.parquet"
    pq.write_table(
        table, target, compression="zstd", store_schema=False, dictionary_pagesize_limit=4 << 20
    )
    assert target.stat().st_size < 100_000
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(DamagedError, match=r"part.parquet is damaged.*take more than 1073741824"):
        rows_in_file(Location.of(str(tmp_path)), "part.parquet", CONSUMER_OFFSETS)
    assert pa.default_memory_pool().max_memory() - before < MOST_BYTES


NESTED = b"[" * 100 + b"]" * 100


@pytest.mark.parametrize(
    "line",
    [
        b'{"commitInfo":{"userMetadata":[%s]}}',
        (
            b'{"add":{"path":"x","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true,'
            b'"stats":"[%s]"}}'
        ),
        b'{"commitInfo":{"userMetadata":"[%s]"}}',
    ],
    ids=["nested", "nested statistics", "nested metadata"],
)
def test_a_long_commit_of_nested_lists_does_not_hold_its_owner(tmp_path: Path, line: bytes) -> None:
    """A parser in C lets no other thread run, and one of them makes the broker's heartbeats.

    Found by hostile input: 16 MiB of deeper lists took 32 s of CPU, and a commit may have 64 MiB.
    """
    (tmp_path / "_delta_log").mkdir()
    content = line % b",".join([NESTED] * ((16 << 20) // len(NESTED)))
    (tmp_path / "_delta_log" / f"{0:020}.json").write_bytes(content)
    began = time.process_time()
    commit = read_request_commit(Location.of(str(tmp_path)), 0)
    assert commit is not None
    assert refusals(commit) == 0
    assert time.process_time() - began < 1
