"""A Delta table's log, followed and written by sparklog, and read by other engines."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparklog.errors import CommitConflictError, DamagedError, StorageError
from sparklog.model import CONTROLLER
from sparklog.storage import commits, local_files
from sparklog.storage.batch_actions import added_batches
from sparklog.storage.commits import AddedFile, RemovedFile, parse_commit, read_commit
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.control_table_damage import find_damage
from sparklog.storage.delta_checkpoints import (
    await_checkpoints,
    checkpoint_size,
    write_checkpoint,
)
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.delta_log_files import commit_path, last_checkpoint, log_names
from sparklog.storage.location import Location


def lease(sequence: int) -> pa.Table:
    row = {"broker_id": 0, "controller_epoch": 1, "lease_sequence": sequence}
    return CONTROLLER.rows([row])


@pytest.fixture
def table(root: Location) -> ControlTable:
    create_table(root, CONTROLLER)
    return ControlTable(root, CONTROLLER)


def commit_file(table: ControlTable, version: int) -> Path:
    return Path(table.location.uri, "_delta_log", f"{version:020}.json")


def test_delta_rs_reads_what_was_committed_and_says_by_whom(table: ControlTable) -> None:
    """delta-rs reads the committed rows, and its history names sparklog as the writer."""
    for sequence in (1, 2):
        table.compare_and_set(lease(sequence))
    opened = DeltaTable(table.location.uri)
    assert opened.to_pyarrow_table().equals(lease(2))
    newest, *_ = opened.history()
    assert newest["operation"] == "WRITE"
    assert newest["engineInfo"].startswith("sparklog ")
    assert opened.version() == 2


def test_of_two_commits_of_one_version_one_lands(table: ControlTable) -> None:
    """Of two commits of one version one lands, and the other writer sees it."""
    first, second = DeltaLog(table.location), DeltaLog(table.location)
    assert first.commit("FENCE", transactions={"broker_epoch": 1})
    assert not second.commit("FENCE", transactions={"broker_epoch": 2})
    assert (second.version, second.transactions) == (0, {})
    assert [one.transactions for one in second.follow()] == [{"broker_epoch": 1}]
    assert second.commit("FENCE", transactions={"broker_epoch": 2})
    assert DeltaLog(table.location).transactions == {"broker_epoch": 2}


def test_nothing_unfinished_is_left_behind(table: ControlTable) -> None:
    """A refused commit leaves no temporary file."""
    first, second = DeltaLog(table.location), DeltaLog(table.location)
    assert first.commit("DELETE", removed=[RemovedFile("a", 0)])
    assert not second.commit("DELETE", removed=[RemovedFile("a", 0)])
    names = sorted(path.name for path in Path(table.location.uri, "_delta_log").iterdir())
    assert names == [f"{version:020}.json" for version in (0, 1)]


def test_a_folder_without_hard_links_is_written_by_delta_rs(
    root: Location, table: ControlTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system without hard links, commits are written by delta-rs."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refused)
    other = ControlTable(root, CONTROLLER)
    table.compare_and_set(lease(1))
    with pytest.raises(CommitConflictError):
        other.compare_and_set(lease(2))
    other.refresh()
    other.compare_and_set(lease(2))
    assert table.refresh()
    assert table.rows().equals(lease(2))
    assert DeltaTable(table.location.uri).to_pyarrow_table().equals(lease(2))


def test_a_raised_protocol_is_refused_and_not_written_over(
    root: Location, table: ControlTable
) -> None:
    """An unknown feature may change the meaning of a file, or who may write."""
    reader = ControlTable(root, CONTROLLER)
    raised = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}}
    commit_file(table, 1).write_text(json.dumps(raised))
    with pytest.raises(StorageError, match="asks for reader version 3 and writer version 7"):
        reader.refresh()
    with pytest.raises(CommitConflictError):
        table.compare_and_set(lease(1))


def test_a_raised_protocol_is_refused_when_the_table_is_opened(
    root: Location, table: ControlTable
) -> None:
    """A raised protocol is refused also after a restart, and if only the writer version is raised.

    A restart does not read each commit.
    """
    raised = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 3}}
    commit_file(table, 1).write_text(json.dumps(raised))
    with pytest.raises(StorageError, match="writer version 3"):
        ControlTable(root, CONTROLLER)


def test_a_damaged_commit_is_named(table: ControlTable) -> None:
    """A damaged commit is named by a `StorageError`."""
    commit_file(table, 1).write_text('{"add": {"path": "x"}}')
    with pytest.raises(StorageError, match=r"/0*1\.json is damaged"):
        table.refresh()
    commit_file(table, 1).write_text("{nonsense")
    with pytest.raises(StorageError, match=r"/0*1\.json is damaged"):
        read_commit(table.location, 1)


def test_readers_in_one_process_share_a_sound_commit(table: ControlTable) -> None:
    """Readers in one process share a parsed commit as long as its bytes are valid."""
    table.compare_and_set(lease(1))
    commit = read_commit(table.location, 1)
    assert commit is not None
    assert read_commit(table.location, 1) is commit
    path = commit_file(table, 1)
    written = path.read_bytes()
    changed = written.replace(b'"operation":"WRITE"', b'"operation":"MERGE"')
    for damaged in (changed, written[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(DamagedError):
            read_commit(table.location, 1)
    path.write_bytes(written)
    assert read_commit(table.location, 1) is commit


def test_an_empty_commit_is_damage_to_every_reader(table: ControlTable) -> None:
    """A reader that accepts changed commits once took an empty one for a commit without effects."""
    table.compare_and_set(lease(1))
    commit_file(table, 1).write_bytes(b"")
    for explains in (None, lambda _: True):
        with pytest.raises(DamagedError, match="it is empty"):
            read_commit(table.location, 1, explains)


def test_a_damaged_commit_that_one_reader_takes_is_damaged_to_others(table: ControlTable) -> None:
    """Only the owner reads a commit with a damaged header, in order to report the damage."""
    table.compare_and_set(lease(1))
    path = commit_file(table, 1)
    path.write_bytes(path.read_bytes().replace(b'"size":', b'"size":1'))
    assert read_commit(table.location, 1, lambda _: True) is not None
    with pytest.raises(DamagedError):
        read_commit(table.location, 1)


def test_a_checkpoint_that_fails_does_not_undo_the_commit(
    root: Location,
    table: ControlTable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint that fails does not undo its commit."""
    failed: list[DeltaTable] = []

    def failing(opened: DeltaTable) -> None:
        failed.append(opened)
        raise DeltaError("the store is away")

    monkeypatch.setattr(DeltaTable, "create_checkpoint", failing)
    for sequence in range(101):
        table.compare_and_set(lease(sequence))
    await_checkpoints()
    assert len(failed) == 1
    assert ControlTable(root, CONTROLLER).rows().equals(lease(100))


def test_names_of_any_characters_come_back_as_they_were(table: ControlTable) -> None:
    """Other clients may name their files freely, and the files are removed by name."""
    name = "with space & 100% é#?.parquet"
    log = DeltaLog(table.location)
    Path(table.location.uri, name).touch()
    added = AddedFile(name, 1, 0, {}, {"numRecords": 1})
    assert log.commit("WRITE", [added])
    assert log.commit("DELETE", removed=[RemovedFile(name, 0)])
    commits = [read_commit(table.location, version) for version in (1, 2)]
    assert [one and ([file.path for file in one.added], one.removed) for one in commits] == [
        ([name], []),
        ([], [name]),
    ]
    assert not DeltaTable(table.location.uri).file_uris()


class TestBehindCleanUp:
    """A suspended process holds a version whose successors were cleaned up. A compare-and-set
    cannot detect commits that no longer exist, so the predecessor is checked (protocol rule 10.7).
    """

    @pytest.fixture
    def behind(self, table: ControlTable) -> DeltaLog:
        """A handle at version 1 of a table whose versions 0 to 4 are cleaned up."""
        table.compare_and_set(lease(1))
        behind = DeltaLog(table.location)
        for sequence in (2, 3, 4, 5):
            table.compare_and_set(lease(sequence))
        DeltaTable(table.location.uri).create_checkpoint()
        for version in range(5):
            commit_file(table, version).unlink()
        return behind

    def test_a_commit_is_withdrawn(self, table: ControlTable, behind: DeltaLog) -> None:
        """A commit after cleaned-up versions is withdrawn, and the log is lost to the handle."""
        assert not behind.commit("DELETE", removed=[RemovedFile("a", 0)])
        assert not commit_file(table, 2).exists()
        assert list(behind.follow()) == []
        assert behind.is_lost

    def test_a_commit_that_clean_up_has_kept_is_part_of_the_table(
        self, root: Location, table: ControlTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A process was suspended after its commit, and before the check of the predecessor. It
        removed its commit, which others had read: the version stayed in Delta's checkpoint, and no
        writer could commit after it (seed 4093 of the simulation).
        """
        table.compare_and_set(lease(1))
        writer, check = ControlTable(root, CONTROLLER), DeltaLog._is_predecessor_lost

        def after_clean_up(log: DeltaLog) -> bool:
            monkeypatch.undo()
            DeltaTable(table.location.uri).create_checkpoint()
            for version in range(2):
                commit_file(table, version).unlink()
            return check(log)

        monkeypatch.setattr(DeltaLog, "_is_predecessor_lost", after_clean_up)
        writer.compare_and_set(lease(2))
        assert commit_file(table, 2).exists()
        table.refresh()
        table.compare_and_set(lease(3))
        writer.refresh()
        assert (writer.version, writer.rows()) == (3, lease(3))

    def test_what_another_left_there_is_not_followed(
        self, root: Location, table: ControlTable, behind: DeltaLog
    ) -> None:
        """A process that is killed between its commit and the check leaves its commit there."""
        reader = ControlTable(root, CONTROLLER)
        reader._log = behind
        commit_file(table, 2).write_text(json.dumps({"commitInfo": {}}))
        assert reader.refresh()
        assert (reader.version, reader.rows()) == (5, lease(5))

    def test_a_controller_that_was_suspended_renews_no_lease(
        self, root: Location, behind: DeltaLog
    ) -> None:
        """A controller that was suspended until the clean-up cannot renew its lease."""
        suspended = ControlTable(root, CONTROLLER)
        suspended._log = behind
        with pytest.raises(CommitConflictError):
            suspended.compare_and_set(lease(2))
        suspended.refresh()
        assert suspended.rows() == lease(5)

    def test_a_handle_with_a_commit_of_unknown_outcome_goes_on(
        self, root: Location, behind: DeltaLog
    ) -> None:
        """A handle whose last commit has an unknown outcome goes on after the loaded version was
        cleaned up.
        """
        reader = ControlTable(root, CONTROLLER)
        reader._log = behind
        behind.is_uncertain = True
        assert reader.refresh()
        assert (reader.version, reader.rows()) == (5, lease(5))


class TestLostAnswers:
    @pytest.mark.parametrize("error", [OSError(errno.EIO, "lost"), FileExistsError("repeated")])
    def test_a_commit_that_landed_is_recognised_by_its_id(
        self, table: ControlTable, monkeypatch: pytest.MonkeyPatch, error: OSError
    ) -> None:
        """A commit whose answer was lost is recognised by its id."""

        def link(source: str, target: str) -> None:
            os.link(source, target)
            raise error

        monkeypatch.setattr(local_files.FILES, "link", link)
        table.compare_and_set(lease(1))
        monkeypatch.undo()
        assert table.version == 1
        table.compare_and_set(lease(2))

    def test_a_commit_of_another_process_is_not_taken_for_the_own_one(
        self, root: Location, table: ControlTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A commit of another process is not taken for the process's own."""
        other = ControlTable(root, CONTROLLER)

        def link(_source: str, _target: str) -> None:
            monkeypatch.undo()
            other.compare_and_set(lease(7))
            raise OSError(errno.EIO, "lost")

        monkeypatch.setattr(local_files.FILES, "link", link)
        with pytest.raises(OSError, match="lost"):
            table.compare_and_set(lease(1))
        table.refresh()
        assert table.rows() == lease(7)


class TestDurability:
    def test_files_and_folders_are_synced_before_a_commit_counts(
        self, table: ControlTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The order of a commit's effects: each is synced to the disk before the next one
        begins.
        """
        calls: list[str] = []

        def note(name: str) -> None:
            original = getattr(local_files.FILES, name)

            def noted(*paths: str) -> None:
                ends = [Path(path).name for path in paths]
                calls.append(" ".join([name, *(_kind(end) for end in ends)]))
                original(*paths)

            monkeypatch.setattr(local_files.FILES, name, noted)

        for name in ("sync", "link"):
            note(name)
        table.compare_and_set(lease(1))
        assert calls == [
            "sync data file",
            "sync controller",
            "sync temporary file",
            "link temporary file commit",
            "sync _delta_log",
        ]

    @pytest.mark.usefixtures("table")
    def test_nothing_is_synced_where_the_option_says_so(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With `sync` = false no file or folder is synced."""
        unsynced = ControlTable(Location.of(root.uri, {root.uri: {"sync": "false"}}), CONTROLLER)

        def refuse(path: str) -> None:
            raise AssertionError(f"{path} was synced")

        monkeypatch.setattr(local_files.FILES, "sync", refuse)
        unsynced.compare_and_set(lease(1))

    def test_a_disk_that_cannot_sync_refuses_the_commit(
        self, table: ControlTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If syncing fails, the commit is refused and does not exist."""

        def fail(_path: str) -> None:
            raise OSError(errno.EIO, "the disk failed")

        monkeypatch.setattr(local_files.FILES, "sync", fail)
        with pytest.raises(OSError, match="the disk failed"):
            table.compare_and_set(lease(1))
        assert not commit_file(table, 1).exists()

    @pytest.mark.parametrize("cut", [0, 1, 200])
    def test_a_commit_that_is_not_whole_is_damage_when_opened_and_when_followed(
        self, root: Location, table: ControlTable, cut: int
    ) -> None:
        """A truncated commit is damage, both for opening and for following a table."""
        reader = ControlTable(root, CONTROLLER)
        table.compare_and_set(lease(1))
        text = commit_file(table, 1).read_bytes()
        commit_file(table, 1).write_bytes(text[:cut])
        for action in (reader.refresh, lambda: ControlTable(root, CONTROLLER)):
            with pytest.raises(DamagedError, match=r"/0*1\.json is damaged"):
                action()

    def test_a_damaged_newest_commit_is_not_needed_beside_its_checkpoint(
        self, root: Location, table: ControlTable
    ) -> None:
        """A broker that had written the checkpoint from memory could not be started again."""
        table.compare_and_set(lease(1))
        write_checkpoint(table.location)
        commit_file(table, 1).write_bytes(b"")
        opened = ControlTable(root, CONTROLLER)
        assert opened.rows().equals(lease(1))
        opened.compare_and_set(lease(2))
        assert ControlTable(root, CONTROLLER).rows().equals(lease(2))

    def test_a_changed_digit_of_a_commit_is_damage(
        self, root: Location, table: ControlTable
    ) -> None:
        """A commit with a changed digit is damage."""
        table.compare_and_set(lease(1))
        text = commit_file(table, 1).read_text()
        size = text.index('"size":') + 7
        commit_file(table, 1).write_text(text[:size] + "9" + text[size + 1 :])
        with pytest.raises(DamagedError, match="do not match their checksum"):
            ControlTable(root, CONTROLLER)


def _kind(name: str) -> str:
    endings = {".parquet": "data file", ".tmp": "temporary file", ".json": "commit"}
    return endings.get(Path(name).suffix, name)


def test_commits_that_are_cleaned_up_while_a_table_is_opened_are_no_damage(
    table: ControlTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits that are cleaned up while a table is opened are no damage."""
    for sequence in range(4):
        table.compare_and_set(lease(sequence))
    names = log_names

    def before_clean_up(location: Location) -> list[str]:
        found = names(location)
        if commit_file(table, 0).exists():
            DeltaTable(location.uri).create_checkpoint()
            for version in range(3):
                commit_file(table, version).unlink()
        return found

    monkeypatch.setattr(commits, "log_names", before_clean_up)
    assert DeltaLog(table.location).version == 4


def test_a_protocol_that_was_raised_and_lowered_again_is_supported(
    root: Location, table: ControlTable
) -> None:
    """A table feature that was added by mistake and dropped again used to stop all readers
    forever.
    """
    reader = ControlTable(root, CONTROLLER)
    for version, (reads, writes) in enumerate([(3, 7), (1, 2)], 1):
        raised = {"protocol": {"minReaderVersion": reads, "minWriterVersion": writes}}
        commit_file(table, version).write_text(json.dumps(raised))
    assert reader.refresh()
    reader.compare_and_set(lease(1))
    assert table.refresh()
    assert table.rows() == lease(1)


ADD = {"path": "x", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}


@pytest.mark.parametrize(
    "action",
    [
        {"add": ADD | {"partitionValues": []}},
        {"add": ADD | {"size": "1"}},
        {"add": ADD | {"modificationTime": None}},
        {"txn": {"appId": "broker_epoch", "version": "7"}},
        {"txn": {"appId": ["broker_epoch"], "version": 7}},
        {"protocol": {"minReaderVersion": "1", "minWriterVersion": 2}},
    ],
)
def test_a_value_of_another_type_damages_its_commit(
    table: ControlTable, action: dict[str, Any]
) -> None:
    """An action with a value of another type is damage when the commit is read.

    Found by hostile input: the value was kept, and its first reader failed, as AttributeError in a
    batch's header and as TypeError in the comparison of epochs.
    """
    text = json.dumps(action).encode()
    with pytest.raises(DamagedError, match="in the place of"):
        parse_commit(table.location, 5, text)


@pytest.mark.parametrize("metadata", [["a"], {"sparklog": 1}, 7])
def test_metadata_of_another_writer_may_have_any_type(
    table: ControlTable, metadata: object
) -> None:
    """Delta defines userMetadata as text.

    Found by hostile input: a list failed as AttributeError.
    """
    text = json.dumps({"commitInfo": {"userMetadata": metadata, "timestamp": "x"}}).encode()
    commit = parse_commit(table.location, 6, text)
    assert (commit.user_metadata, commit.made_at_ms) == (None, None)


def test_half_of_a_surrogate_pair_is_a_damaged_header(table: ControlTable) -> None:
    """Found by hostile input: hashing the header raised UnicodeEncodeError."""
    add = ADD | {"partitionValues": {"topic": "\ud800"}, "stats": '{"numRecords":Infinity}'}
    commit = parse_commit(table.location, 7, json.dumps({"add": add}).encode())
    [batch] = added_batches(commit)
    assert not batch.is_sound


@pytest.mark.parametrize(
    "version", ["Infinity", "[" * 5_000, '"x"', "9" * 5_000], ids=lambda one: one[:9]
)
def test_a_hint_at_a_checkpoint_that_is_no_version_is_no_hint(
    table: ControlTable, version: str
) -> None:
    """Found by hostile input: Infinity raised OverflowError, and nesting RecursionError."""
    hint = Path(table.location.uri, "_delta_log", "_last_checkpoint")
    hint.write_text(f'{{"version":{version},"size":{version}}}')
    assert last_checkpoint(table.location) == -1
    assert checkpoint_size(table.location) == 0
    root = Location.of(str(Path(table.location.uri).parent))
    assert find_damage(root, Path(table.location.uri).name) is None


def test_app_transactions_that_delta_cannot_read_are_an_error_of_the_table(
    table: ControlTable,
) -> None:
    """Found by hostile input: delta-rs opens such a table, and DeltaError was raised later."""
    commit = Path(table.location.uri, commit_path(table.version + 1))
    commit.write_bytes(b'{"commitInfo":{}}\n{"txn":-0}\n')
    with pytest.raises(StorageError, match=r"app transactions|damaged"):
        DeltaLog(table.location)
