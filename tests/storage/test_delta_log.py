"""A Delta table's log, as it is followed and written to: other engines read what is written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparklog.errors import CommitConflictError, StorageError
from sparklog.model import CONTROLLER
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.delta_log import (
    AddedFile,
    DeltaLog,
    RemovedFile,
    await_checkpoints,
    read_commit,
)
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
    for sequence in (1, 2):
        table.compare_and_set(lease(sequence))
    opened = DeltaTable(table.location.uri)
    assert opened.to_pyarrow_table().equals(lease(2))
    newest, *_ = opened.history()
    assert newest["operation"] == "WRITE"
    assert newest["engineInfo"].startswith("sparklog ")
    assert opened.version() == 2


def test_of_two_commits_of_one_version_one_lands(table: ControlTable) -> None:
    first, second = DeltaLog(table.location), DeltaLog(table.location)
    assert first.commit("FENCE", transactions={"broker_epoch": 1})
    assert not second.commit("FENCE", transactions={"broker_epoch": 2})
    assert (second.version, second.transactions) == (0, {})
    assert [one.transactions for one in second.follow()] == [{"broker_epoch": 1}]
    assert second.commit("FENCE", transactions={"broker_epoch": 2})
    assert DeltaLog(table.location).transactions == {"broker_epoch": 2}


def test_nothing_unfinished_is_left_behind(table: ControlTable) -> None:
    first, second = DeltaLog(table.location), DeltaLog(table.location)
    assert first.commit("DELETE", removed=[RemovedFile("a", 0)])
    assert not second.commit("DELETE", removed=[RemovedFile("a", 0)])
    names = sorted(path.name for path in Path(table.location.uri, "_delta_log").iterdir())
    assert names == [f"{version:020}.json" for version in (0, 1)]


def test_a_folder_without_hard_links_is_written_by_delta_rs(
    root: Location, table: ControlTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("no links here")

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
    """A feature that is not known here may change what a file holds or who may write."""
    reader = ControlTable(root, CONTROLLER)
    raised = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}}
    commit_file(table, 1).write_text(json.dumps(raised))
    with pytest.raises(StorageError, match="to reader version 3 and writer version 7"):
        reader.refresh()
    with pytest.raises(CommitConflictError):
        table.compare_and_set(lease(1))


def test_a_damaged_commit_is_named(table: ControlTable) -> None:
    commit_file(table, 1).write_text('{"add": {"path": "x"}}')
    with pytest.raises(StorageError, match=r"commit 1 of the table at .* is damaged"):
        table.refresh()
    commit_file(table, 1).write_text("{nonsense")
    with pytest.raises(StorageError, match=r"commit 1 of the table at .* is damaged"):
        read_commit(table.location, 1)


def test_a_checkpoint_that_fails_does_not_undo_the_commit(
    root: Location,
    table: ControlTable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    """Others may name the files that they append as they like, and they are removed by name."""
    name = "with space & 100% é#?.parquet"
    log = DeltaLog(table.location)
    added = AddedFile(name, 1, 0, {}, {"numRecords": 1})
    assert log.commit("WRITE", [added])
    assert log.commit("DELETE", removed=[RemovedFile(name, 0)])
    commits = [read_commit(table.location, version) for version in (1, 2)]
    assert [one and ([file.path for file in one.added], one.removed) for one in commits] == [
        ([name], []),
        ([], [name]),
    ]
    assert not DeltaTable(table.location.uri).file_uris()
