"""Second copies of the files of tables on object stores: what is copied, when, and what it shows.

The cases of `python -m tests.faults.damage --storage s3` that nothing showed before there were
copies: a table without its newest commit is a sound table of the version before.
"""

from __future__ import annotations

import logging
from uuid import uuid4

import pytest

from benchmarks.s3_store import Store
from sparklog.errors import DamagedError, StorageError
from sparklog.model import (
    CONSUMER_GROUP_HEARTBEATS,
    CONSUMER_OFFSETS,
    PRODUCER_IDS,
    STREAM_WRITES,
    TableSchema,
)
from sparklog.storage import file_copies
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.control_table_damage import set_aside
from sparklog.storage.delta_checkpoints import write_checkpoint
from sparklog.storage.delta_log_check import check_log
from sparklog.storage.delta_log_files import commit_path
from sparklog.storage.fence import Fence
from sparklog.storage.file_copies import (
    await_copies,
    copy_file,
    copy_path,
    find_faults,
    missing_copies,
    restore_from_copies,
    write_copy,
)
from sparklog.storage.location import SECOND_COPIES, Location


@pytest.fixture
def root(store: Store) -> Location:
    """A root in a bucket of its own."""
    return Location.of(store.bucket(f"copies-{uuid4().hex[:8]}"), store.options())


def created(root: Location, schema: TableSchema, commits: int = 2) -> ControlTable:
    """Create a table with some commits, each of which replaces the file of the one before."""
    create_table(root, schema)
    table = ControlTable(root, schema)
    for number in range(commits):
        write(table, number)
    await_copies()
    return table


def write(table: ControlTable, number: int) -> None:
    [column] = [one for one in table.schema.columns.names if one.endswith("_id")][:1]
    is_number = str(table.schema.columns.field(column).type).startswith("int")
    row = dict.fromkeys(table.schema.columns.names) | {column: number if is_number else str(number)}
    table.compare_and_set(table.schema.rows([row]))


def copies(table: ControlTable) -> list[str]:
    return table.location.names(file_copies.FOLDER)


def live(table: ControlTable) -> str:
    [path] = table._files
    return path


def test_the_newest_version_has_copies(root: Location) -> None:
    """The commits after the checkpoint, the checkpoint, and the live file are copied."""
    table = created(root, PRODUCER_IDS)
    of_commits = [f"{version:020}.json" for version in range(3)]
    assert copies(table) == [*of_commits, live(table)]
    write_checkpoint(table.location)
    of_commits = [f"{2:020}.checkpoint.parquet", f"{2:020}.json"]
    assert copies(table) == [*of_commits, live(table)]
    write(table, 2)
    await_copies()
    assert copies(table) == [*of_commits, f"{3:020}.json", live(table)]
    assert find_faults(table.location, [live(table)]) == []


def test_tables_that_are_written_every_few_seconds_have_none(root: Location) -> None:
    """A copy is a request to pay for: heartbeats are written again anyway."""
    assert copies(created(root, CONSUMER_GROUP_HEARTBEATS)) == []


def test_a_root_can_do_without_copies(store: Store) -> None:
    """The option second_copies, which no client of a store knows, turns them off."""
    uri = store.bucket("without-copies")
    options = {"s3://": {**store.options()["s3://"], SECOND_COPIES: "false"}}
    table = created(Location.of(uri, options), PRODUCER_IDS)
    assert copies(table) == []
    assert table.rows().num_rows == 1
    with pytest.raises(StorageError, match="second_copies of s3://b is 'no': write true or false"):
        Location.of("s3://b", {"s3://": {SECOND_COPIES: "no"}})


def test_a_table_without_its_newest_commit_is_not_opened(root: Location) -> None:
    """It would be the sound table of the version before: an id could be allotted twice."""
    table = created(root, PRODUCER_IDS)
    table.location.remove(commit_path(2))
    with pytest.raises(DamagedError, match=rf"{2:020}\.json is damaged: it is missing, and its"):
        ControlTable(root, PRODUCER_IDS)
    [fault] = check_log(table.location).damaged
    assert (fault.kind, fault.path) == ("missing_commit", commit_path(2))
    [restored] = restore_from_copies(table.location)
    assert restored.path == commit_path(2)
    assert ControlTable(root, PRODUCER_IDS).rows() == table.rows()


def test_opening_compares_copies_without_a_further_round_trip(store: Store, root: Location) -> None:
    """The copies are requested with the log: one that may follow, and that of the checkpoint."""
    table = created(root, PRODUCER_IDS)
    with store.logged() as requests:
        ControlTable(root, PRODUCER_IDS)
    asked = [(one.kind, one.key.rsplit("/", 2)[1:]) for one in requests]
    assert sorted(asked[1:]) == [
        ("GET", ["_delta_log", f"{0:020}.json"]),
        ("GET", ["_delta_log", f"{1:020}.json"]),
        ("GET", ["_delta_log", f"{2:020}.json"]),
        ("GET", ["_second_copies", f"{3:020}.json"]),
    ]
    write_checkpoint(table.location)
    with store.logged() as requests:
        ControlTable(root, PRODUCER_IDS)
    assert {one.key for one in requests if "_second_copies" in one.key} == {
        f"{root.uri.removeprefix('s3://')}/producer_ids/{copy_path(name)}"
        for name in (f"{2:020}.checkpoint.parquet", commit_path(3))
    }


@pytest.mark.parametrize("damage", ["removed", "emptied", "of another table"])
def test_each_file_is_restored(root: Location, damage: str) -> None:
    """Commits, the checkpoint and the live file get the bytes that were written."""
    table, other = created(root, STREAM_WRITES), created(root, PRODUCER_IDS, 4)
    for one in (table, other):
        write_checkpoint(one.location)
        write(one, 7)
    await_copies()
    live_file = live(table)
    newest = table.version
    checkpoint = f"_delta_log/{newest - 1:020}.checkpoint.parquet"
    for path in (commit_path(newest), checkpoint, live_file):
        content = table.location.read_bytes(path)
        if damage == "removed":
            table.location.remove(path)
        elif damage == "emptied":
            table.location.replace(path, b"")
        else:
            table.location.replace(path, other.location.read_bytes(live(other)))
        found = restore_from_copies(table.location, [live_file])
        assert [one.path for one in found] == [path]
        assert table.location.read_bytes(path) == content


@pytest.mark.parametrize("commits", [1, 2])
def test_a_copy_of_another_table_is_the_damaged_one(root: Location, commits: int) -> None:
    """A repair wrote another table's first commit over a sound one.

    Of two copies with different ids that of the first counted; a single one was believed.
    """
    table, other = created(root, STREAM_WRITES, 0), created(root, PRODUCER_IDS, 0)
    if commits == 2:
        table.take_fence(Fence("broker_epoch", 1))
    await_copies()
    assert copies(table) == [f"{version:020}.json" for version in range(commits)]
    first, copy = table.location.read_bytes(commit_path(0)), copy_path(commit_path(0))
    table.location.replace(copy, other.location.read_bytes(copy))
    [fault] = restore_from_copies(table.location)
    assert (fault.path, fault.is_of_copy) == (copy, True)
    assert table.location.read_bytes(commit_path(0)) == first
    assert copies(table) == [f"{version:020}.json" for version in range(1, commits)]


def test_of_two_copies_that_which_equals_its_file_is_sound(root: Location) -> None:
    """The other one is that of another broker's table of the same name."""
    table, other = created(root, STREAM_WRITES, 0), created(root.child("other"), STREAM_WRITES, 0)
    table.take_fence(Fence("broker_epoch", 1))
    await_copies()
    first, copy = table.location.read_bytes(commit_path(0)), copy_path(commit_path(0))
    table.location.replace(copy, other.location.read_bytes(copy))
    [fault] = restore_from_copies(table.location)
    assert (fault.path, fault.is_of_copy) == (copy, True)
    assert table.location.read_bytes(commit_path(0)) == first


def test_a_checkpoint_that_differs_from_its_copy_is_not_opened(root: Location) -> None:
    """Delta's checkpoints have no checksum: an older state would be read as the newest one."""
    table = created(root, PRODUCER_IDS)
    write_checkpoint(table.location)
    older = table.location.read_bytes(f"_delta_log/{2:020}.checkpoint.parquet")
    write(table, 5)
    write_checkpoint(table.location)
    path = f"_delta_log/{3:020}.checkpoint.parquet"
    table.location.replace(path, older)
    with pytest.raises(DamagedError, match=f"{path} is damaged: it differs from its second copy"):
        ControlTable(root, PRODUCER_IDS)
    with pytest.raises(DamagedError, match="it differs from its second copy"):
        write_checkpoint(table.location)
    assert [one.path for one in restore_from_copies(table.location)] == [path]
    ControlTable(root, PRODUCER_IDS)


def test_a_process_that_ends_before_the_copy_leaves_a_commit_without_one(
    root: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit counts; the copies that are missing are written by a repair."""
    table = created(root, PRODUCER_IDS)
    with monkeypatch.context() as killed:
        killed.setattr("sparklog.storage.delta_log.beside", lambda _table, _write: None)
        write(table, 2)
    assert commit_path(3).rsplit("/", 1)[-1] not in copies(table)
    assert ControlTable(root, PRODUCER_IDS).rows() == table.rows()
    assert find_faults(table.location, [live(table)]) == []
    missing = missing_copies(table.location, [live(table)])
    for path in missing:
        copy_file(table.location, table.table_id, path)
    assert {commit_path(3).rsplit("/", 1)[-1], live(table)} <= set(copies(table))


def test_commits_do_not_depend_on_their_copies(
    root: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store, or a policy, that refuses copies refuses nothing else."""
    table = created(root, PRODUCER_IDS)
    before = copies(table)

    def refuse(_location: Location, path: str, *_: object) -> None:
        raise PermissionError(path)

    with monkeypatch.context() as refused:
        refused.setattr(file_copies, "_put_copy", refuse)
        write(table, 2)
        await_copies()
    assert set(copies(table)) <= set(before)
    assert ControlTable(root, PRODUCER_IDS).rows() == table.rows()


def test_a_commit_that_takes_the_version_of_a_lost_one_is_reported(
    root: Location, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that had not yet read the lost commit cannot know of it before its own commit."""
    table, behind = created(root, PRODUCER_IDS), ControlTable(root, PRODUCER_IDS)
    write(table, 8)
    await_copies()
    lost = table.location.read_bytes(commit_path(3))
    table.location.remove(commit_path(3))
    with caplog.at_level(logging.ERROR, logger="sparklog"):
        write(behind, 9)
        await_copies()
    [record] = caplog.records
    assert "a commit was lost, and another one has its version" in record.getMessage()
    [kept] = table.location.names(file_copies.LOST_COMMITS)
    assert table.location.read_bytes(f"{file_copies.LOST_COMMITS}/{kept}") == lost
    assert find_faults(table.location) == []


def test_copies_of_a_table_that_was_set_aside_do_not_count(root: Location) -> None:
    """A table in its place starts at version 0, and the lost table's later commits are not its."""
    table = created(root, CONSUMER_OFFSETS, 0)
    write_copy(table.location, table.table_id, commit_path(1), b"a commit")
    with pytest.raises(DamagedError):
        ControlTable(root, CONSUMER_OFFSETS)
    set_aside(table.location)
    create_table(root, CONSUMER_OFFSETS)
    await_copies()
    # Written late, by a process that had not noticed.
    write_copy(table.location, table.table_id, commit_path(1), b"a commit")
    opened = ControlTable(root, CONSUMER_OFFSETS)
    assert (opened.version, opened.table_id == table.table_id) == (0, False)
