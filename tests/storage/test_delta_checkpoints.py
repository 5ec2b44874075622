"""Delta's checkpoints of tables on an object store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from sparklog.model import LOG
from sparklog.storage.commits import BROKER_EPOCH
from sparklog.storage.control_table import create_table
from sparklog.storage.delta_checkpoints import await_checkpoints, write_store_checkpoint
from sparklog.storage.delta_log_files import commit_path
from sparklog.storage.location import Location
from sparklog.storage.object_store import ObjectStore
from sparklog.storage.record_log import RecordLog
from tests.storage.batches import FENCE, P0, chain
from tests.storage.test_s3 import Store, at, pytestmark, store

__all__ = ["Store", "at", "pytestmark", "store"]

At = Callable[[str], Location]


@pytest.fixture
def log(at: At) -> RecordLog:
    """A log with a fence and twelve batches, of which the first is removed."""
    create_table(at("broker"), LOG)
    log = RecordLog(at("broker"), FENCE)
    batches = chain(0, *[10] * 12)
    for one in batches:
        log.commit([one])
    log.commit(removed=batches[:1])
    return log


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The names of the objects that are read, with counts."""
    counts: Counter[str] = Counter()
    get = ObjectStore.get

    def counted(self: ObjectStore, key: str) -> bytes:
        counts[key.rpartition("/")[2]] += 1
        return get(self, key)

    monkeypatch.setattr(ObjectStore, "get", counted)
    return counts


def opened(log: RecordLog) -> DeltaTable:
    return DeltaTable(log.location.uri, storage_options=log.location.store_options)


def remove_commits(log: RecordLog, below: int) -> None:
    for version in range(below):
        log.location.remove(commit_path(version))


def test_it_stands_for_the_commits_before_it(at: At, log: RecordLog) -> None:
    """Live files and fences are the same without these commits."""
    write_store_checkpoint(log.location)
    remove_commits(log, log.version)
    table = opened(log)
    assert table.version() == log.version
    assert table.transaction_version(BROKER_EPOCH) == FENCE.epoch
    assert sorted(table.file_uris()) == sorted(
        f"{log.location.uri}/{one.path}" for one in log.batches(P0)
    )
    assert list(RecordLog(at("broker")).batches(P0)) == list(log.batches(P0))


def test_each_commit_is_read_once(log: RecordLog, read: Counter[str]) -> None:
    """The next checkpoint is made from the last one and the commits since then."""
    write_store_checkpoint(log.location)
    assert read == {f"{version:020}.json": 1 for version in range(log.version + 1)}
    before = log.version
    log.commit(chain(log.log_end_offset(P0), 5))
    read.clear()
    write_store_checkpoint(log.location)
    assert read == {
        f"{before:020}.checkpoint.parquet": 1,
        f"{before:020}.json": 1,
        f"{before + 1:020}.json": 1,
    }
    assert opened(log).version() == log.version


def test_one_that_is_not_written_to_the_end_changes_nothing(
    at: At, log: RecordLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint's file exists, and the hint still names the previous one."""
    write_store_checkpoint(log.location)
    hint = log.location.read_bytes("_delta_log/_last_checkpoint")
    log.commit(chain(log.log_end_offset(P0), 5))
    put = Location.overwrite_object

    def failing(self: Location, path: str, content: bytes) -> None:
        if path.endswith("_last_checkpoint"):
            raise OSError("the store is away")
        put(self, path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Location, "overwrite_object", failing)
        with pytest.raises(OSError, match="away"):
            write_store_checkpoint(log.location)
    assert log.location.read_bytes("_delta_log/_last_checkpoint") == hint
    assert sorted(opened(log).file_uris()) == sorted(
        f"{log.location.uri}/{one.path}" for one in log.batches(P0)
    )
    write_store_checkpoint(log.location)
    remove_commits(log, log.version)
    assert list(RecordLog(at("broker")).batches(P0)) == list(log.batches(P0))


@pytest.mark.parametrize(("batches", "expected"), [(1, [100, 200, 300]), (4_000, [100, 305])])
def test_large_checkpoints_are_rarer_in_local_folders(
    tmp_path: Path, batches: int, expected: list[int]
) -> None:
    """One with 4,100 actions is followed by as many commits as it has twenties of actions."""
    root = Location.of(str(tmp_path), {str(tmp_path): {"sync": "false"}})
    create_table(root, LOG)
    log = RecordLog(root, FENCE)
    log.commit(chain(0, *[1] * batches))
    written = []
    while log.version < 310:
        log.commit(chain(log.log_end_offset(P0), 1))
        await_checkpoints()
        names = tmp_path.glob(f"log/_delta_log/{log.version:020}.checkpoint.parquet")
        written += [log.version for _ in names]
    assert written == expected
