"""Opening tables on an object store: equal to delta-rs, with one read of each object."""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparklog.errors import DamagedError, StorageError, UnreachableError
from sparklog.model import CONTROLLER, LOG
from sparklog.storage import delta_log_files, delta_snapshots
from sparklog.storage.commits import BROKER_EPOCH
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.delta_checkpoints import write_store_checkpoint
from sparklog.storage.delta_log_files import commit_path, newest_version
from sparklog.storage.delta_snapshots import (
    OpenedTable,
    open_delta_table,
    open_in_place,
    open_snapshot,
)
from sparklog.storage.location import Location
from sparklog.storage.object_store import ObjectStore
from sparklog.storage.record_log import RecordLog
from sparklog.storage.request_table import RequestTable
from tests.storage.batches import FENCE, P0, batch, chain
from tests.storage.requests import appending, ids_in, request
from tests.storage.test_s3 import at, pytestmark, store

__all__ = ["at", "pytestmark", "store"]

At = Callable[[str], Location]

CHECKPOINT = f"_delta_log/{13:020}.checkpoint.parquet"
"""The file of the checkpoint that `checkpointed` writes."""


@pytest.fixture
def log(at: At) -> RecordLog:
    """A log of 13 versions with a fence and twelve batches."""
    create_table(at("broker"), LOG)
    log = RecordLog(at("broker"), FENCE)
    for one in chain(0, *[10] * 12):
        log.commit([one])
    return log


@pytest.fixture
def checkpointed(log: RecordLog) -> RecordLog:
    """The log with a checkpoint, after which the first batches are removed and others added."""
    write_store_checkpoint(log.location)
    log.commit(removed=log.batches(P0)[:2])
    for one in chain(log.log_end_offset(P0), 5, 5):
        log.commit([one])
    return log


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of requests by method and the name of the object."""
    counts: Counter[str] = Counter()
    for name in ("get", "pages", "names", "size_bytes"):
        original = getattr(ObjectStore, name)

        def counted(
            of: ObjectStore, key: str, *more: object, name: str = name, original: object = original
        ) -> object:
            counts[f"{name} {key.rpartition('/')[2]}"] += 1
            assert callable(original)
            return original(of, key, *more)

        monkeypatch.setattr(ObjectStore, name, counted)
    return counts


def told(snapshot: DeltaTable) -> dict[str, object]:
    """Return the content of a snapshot."""
    metadata = snapshot.metadata()
    actions = pa.table(snapshot.get_add_actions(flatten=True))
    return {
        "version": snapshot.version(),
        "id": metadata.id,
        "configuration": metadata.configuration,
        "partition columns": metadata.partition_columns,
        "schema": snapshot.schema().to_json(),
        "protocol": str(snapshot.protocol()),
        "files": {row["path"]: row for row in actions.to_pylist()},
    }


def check_equal(table: Location, version: int | None = None) -> None:
    """Compare a snapshot with the table that delta-rs opens in place."""
    opened, in_place = open_snapshot(table, version), open_in_place(table, version)
    assert opened.transactions is not None, "it was opened in place"
    assert told(opened.snapshot) == told(in_place)
    assert opened.transaction(BROKER_EPOCH) == in_place.transaction_version(BROKER_EPOCH)
    assert opened.transaction("unknown") is None


def test_it_is_the_table_that_delta_rs_opens(log: RecordLog) -> None:
    """A snapshot without a checkpoint is equal to the table that delta-rs opens."""
    check_equal(log.location)


@pytest.mark.parametrize("version", [None, 0, 1, 7, 13, 14, 16])
def test_with_a_checkpoint_too_at_any_version(checkpointed: RecordLog, version: int | None) -> None:
    """A snapshot with a checkpoint is equal to delta-rs' table at any version."""
    check_equal(checkpointed.location, version)


def test_the_commits_before_a_checkpoint_may_be_gone(checkpointed: RecordLog) -> None:
    """A table whose commits before the checkpoint are removed can be opened."""
    for version in range(13):
        checkpointed.location.remove(commit_path(version))
    check_equal(checkpointed.location)
    with pytest.raises(DeltaError):
        open_snapshot(checkpointed.location, 5)


def test_each_object_is_read_once_after_one_listing(
    checkpointed: RecordLog, requests: Counter[str]
) -> None:
    """Opening takes two rounds of requests; the transactions cost no further request."""
    opened = open_snapshot(checkpointed.location)
    assert opened.transaction(BROKER_EPOCH) == FENCE.epoch
    read = [CHECKPOINT, *map(commit_path, range(13, 17))]
    assert requests == {
        "pages _delta_log": 1,
        **{f"get {path.rpartition('/')[2]}": 1 for path in read},
    }


@pytest.mark.parametrize("page", [3, 17, 18, 19])
def test_a_long_log_is_listed_from_its_last_checkpoint_on(
    checkpointed: RecordLog, page: int, monkeypatch: pytest.MonkeyPatch, requests: Counter[str]
) -> None:
    """A log that needs several pages is listed from its last checkpoint on, here with 17
    commits.
    """
    for module in ("sparklog.storage.object_store", "sparklog.storage.delta_log_files"):
        monkeypatch.setattr(f"{module}.PAGE_NAMES", page)
    assert newest_version(checkpointed.location) == 16
    requests.clear()
    opened = open_snapshot(checkpointed.location)
    assert opened.snapshot.version() == 16
    assert requests["get _last_checkpoint"] == 1
    assert requests[f"get {0:020}.json"] == 0
    # For a version below the checkpoint, or without a hint, the complete log is listed.
    check_equal(checkpointed.location, 5)
    checkpointed.location.remove("_delta_log/_last_checkpoint")
    check_equal(checkpointed.location)


def test_a_hint_that_is_no_hint_is_passed_over(checkpointed: RecordLog) -> None:
    """An invalid checkpoint hint is ignored."""
    for content in (b"", b"[]", b"{}", b'{"version": "x"}', b"\xff"):
        checkpointed.location.overwrite_object("_delta_log/_last_checkpoint", content)
        assert newest_version(checkpointed.location) == 16
        assert delta_log_files.last_checkpoint(checkpointed.location) == -1
        check_equal(checkpointed.location)


def test_a_file_that_clean_up_takes_meanwhile_is_not_missed(
    checkpointed: RecordLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was listed; then a newer checkpoint was written, and the old one removed."""
    read_files = Location.read_files

    def taken(self: Location, paths: list[str]) -> list[bytes]:
        monkeypatch.setattr(Location, "read_files", read_files)
        write_store_checkpoint(self)
        for path in (CHECKPOINT, *map(commit_path, range(15))):
            self.remove(path)
        return read_files(self, paths)

    monkeypatch.setattr(Location, "read_files", taken)
    opened = open_snapshot(checkpointed.location)
    assert opened.snapshot.version() == 16
    assert opened.transaction(BROKER_EPOCH) == FENCE.epoch
    assert len(opened.snapshot.file_uris()) == 12


def test_a_damaged_checkpoint_is_reported_as_before(at: At) -> None:
    """The message has the checkpoint's path, and not that of a copy."""
    create_table(at("cluster"), CONTROLLER)
    table = ControlTable(at("cluster"), CONTROLLER)
    for _ in range(3):
        table.update(lambda rows: (rows, None))
    write_store_checkpoint(table.location)
    checkpoint = f"_delta_log/{3:020}.checkpoint.parquet"
    table.location.overwrite_object(checkpoint, b"PAR1 not")
    with pytest.raises(DamagedError, match=checkpoint) as refused:
        ControlTable(at("cluster"), CONTROLLER)
    assert "/tmp" not in str(refused.value)


def test_where_there_is_no_table_that_is_said(at: At) -> None:
    """Opening a missing table raises `StorageError`."""
    with pytest.raises(StorageError, match=r"there is no table at s3://.*/nothing/controller"):
        ControlTable(at("nothing"), CONTROLLER)


def test_a_store_that_does_not_answer_is_asked_once(
    log: RecordLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs does not repeat the request with all its attempts."""

    def away(*_: object) -> object:
        raise OSError("the store is away")

    monkeypatch.setattr(ObjectStore, "pages", away)
    monkeypatch.setattr(delta_snapshots, "open_in_place", lambda *_: pytest.fail("asked again"))
    with pytest.raises(StorageError, match="cannot be opened: the store is away"):
        RecordLog(Location(log.location.uri.rpartition("/")[0], log.location.options))


def test_a_table_in_a_folder_is_opened_in_place(tmp_path: object) -> None:
    """A table on a local file system is opened in place; delta-rs reads no transaction."""
    root = Location.of(str(tmp_path), {"/": {"sync": "false"}})
    create_table(root, LOG)
    opened = open_snapshot(root.child(LOG.name))
    assert isinstance(opened, OpenedTable)
    assert opened.transactions == {}
    assert opened.transaction(BROKER_EPOCH) is None
    log = RecordLog(root, FENCE)
    for offset in range(3):
        log.commit([batch(offset, 1)])
    check_equal(log.location)
    for version in range(log.version + 1):
        check_equal(log.location, version)
    open_delta_table(log.location).create_checkpoint()
    log.commit([batch(3, 1)])
    check_equal(log.location)
    assert open_snapshot(log.location).transactions == {BROKER_EPOCH: FENCE.epoch}


def test_a_local_log_that_cannot_be_read_leaves_its_transactions_to_delta_rs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clean-up may remove a commit after delta-rs has opened the table."""
    root = Location.of(str(tmp_path))
    create_table(root, LOG)
    log = RecordLog(root, FENCE)

    def gone(*_: object) -> dict[str, bytes]:
        raise FileNotFoundError("commit 0 of the log or one after it is missing")

    monkeypatch.setattr(delta_snapshots, "fetch_log", gone)
    opened = open_snapshot(log.location)
    assert opened.transactions is None
    assert opened.transaction(BROKER_EPOCH) == FENCE.epoch


@pytest.mark.parametrize(
    "action",
    [
        {"txn": 5},
        {"txn": {}},
        {"txn": {"appId": None, "version": 1}},
        {"txn": {"appId": "an-id", "version": "9"}},
        {"txn": {"appId": "an-id", "version": True}},
    ],
)
def test_a_malformed_app_transaction_leaves_the_table_to_delta_rs(
    log: RecordLog, action: dict[str, object]
) -> None:
    """A malformed app transaction makes the copy unusable; a client may commit one."""
    log.location.put_new(commit_path(14), json.dumps(action).encode() + b"\n")
    assert delta_snapshots._open_copy(log.location, None) is None


def test_a_full_local_disk_leaves_the_table_to_delta_rs(
    log: RecordLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that cannot be written to the local disk is not an error of the store."""

    def full(*_: object) -> list[str]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(delta_snapshots, "write_log", full)
    opened = open_snapshot(log.location)
    assert (opened.snapshot.version(), opened.transactions) == (13, None)


def test_an_incomplete_checkpoint_is_not_used(checkpointed: RecordLog) -> None:
    """A checkpoint of which a part is missing is passed over, also for the next checkpoint."""
    part = f"_delta_log/{15:020}.checkpoint.{1:010}.{2:010}.parquet"
    checkpointed.location.put_new(part, b"PAR1")
    checkpointed.location.put_new(f"_delta_log/{16:020}.checkpoint.parquet.tmp", b"PAR1")
    check_equal(checkpointed.location)
    write_store_checkpoint(checkpointed.location)
    for version in range(16):
        checkpointed.location.remove(commit_path(version))
    assert len(open_snapshot(checkpointed.location).snapshot.file_uris()) == 12


def test_a_gap_in_the_commits_is_an_error(checkpointed: RecordLog) -> None:
    """A missing commit is not taken for the end of the table."""
    checkpointed.location.remove(commit_path(15))
    assert delta_snapshots._open_copy(checkpointed.location, None) is None
    with pytest.raises((DeltaError, OSError)):
        open_snapshot(checkpointed.location)
    with pytest.raises(FileNotFoundError, match="commit 14 of the log or one after it is missing"):
        write_store_checkpoint(checkpointed.location)


def test_a_hint_of_a_checkpoint_that_does_not_exist_is_not_believed(log: RecordLog) -> None:
    """The newest version is that of the newest commit, whatever the hint says."""
    log.location.overwrite_object("_delta_log/_last_checkpoint", b'{"version":99,"size":1}')
    assert newest_version(log.location) == 13


def test_a_request_table_is_kept_while_its_store_does_not_answer(
    at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing request while a request table is opened does not recreate the table."""
    appends = appending(at("broker"))
    appends.append([request("a")])
    table_id = RequestTable(at("broker")).table_id
    failing = [ObjectStore.pages]

    def once(self: ObjectStore, folder: str, after: str | None = None) -> object:
        if failing:
            failing.pop()
            raise OSError("503 Slow Down")
        return pages(self, folder, after)

    pages = ObjectStore.pages
    monkeypatch.setattr(ObjectStore, "pages", once)
    with pytest.raises(UnreachableError, match="cannot be opened: 503 Slow Down"):
        RequestTable(at("broker"))
    again = RequestTable(at("broker"))
    assert (again.table_id, ids_in(again)) == (table_id, ["a"])
