"""The newest rows of a control table, by its newest commits."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from sparklog.errors import DamagedError
from sparklog.model import CONTROLLER_HISTORY
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.location import Location
from sparklog.storage.newest_rows import newest_rows

SOURCE = "controller"


@pytest.fixture
def root(tmp_path: Path) -> Location:
    root = Location.of(str(tmp_path))
    create_table(root, CONTROLLER_HISTORY)
    return root


def overwrite(root: Location, epochs: range, version: int) -> None:
    rows = [
        dict.fromkeys(CONTROLLER_HISTORY.columns.names) | {"controller_epoch": epoch}
        for epoch in epochs
    ]
    table = ControlTable(root, CONTROLLER_HISTORY)
    table.compare_and_set(CONTROLLER_HISTORY.rows(rows), transactions={SOURCE: version})


def commits_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the paths that are read from now on."""
    read = Location.read_bytes
    paths: list[str] = []

    def noted(location: Location, path: str) -> bytes:
        paths.append(path)
        return read(location, path)

    monkeypatch.setattr(Location, "read_bytes", noted)
    return paths


def test_a_missing_table_has_no_rows_and_a_new_one_is_empty(root: Location) -> None:
    assert newest_rows(root.child("elsewhere"), CONTROLLER_HISTORY, SOURCE) is None
    found = newest_rows(root, CONTROLLER_HISTORY, SOURCE)
    assert found is not None
    assert (found.rows.num_rows, found.transaction) == (0, None)


def test_cost_one_commit_and_one_file_whatever_the_history(
    root: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 20):
        overwrite(root, range(number), 10 * number)
    paths = commits_read(monkeypatch)
    found = newest_rows(root, CONTROLLER_HISTORY, SOURCE)
    assert found is not None
    assert found.rows["controller_epoch"].to_pylist() == list(range(19))
    assert found.transaction == 190
    assert len(paths) == 2


def test_are_right_after_another_tool_has_rewritten_the_table(root: Location) -> None:
    """A commit that is no overwrite of sparklog does not name all files: the table is opened."""
    overwrite(root, range(3), 30)
    table = DeltaTable(root.child(CONTROLLER_HISTORY.name).uri)
    table.delete("controller_epoch = 1")
    found = newest_rows(root, CONTROLLER_HISTORY, SOURCE)
    assert found is not None
    assert found.rows["controller_epoch"].to_pylist() == [0, 2]
    assert found.transaction == 30


def test_have_those_that_another_tool_has_appended(root: Location) -> None:
    """Its commit names one file, and is no overwrite: the earlier file is live, too."""
    overwrite(root, range(3), 30)
    earlier = ControlTable(root, CONTROLLER_HISTORY).rows()
    write_deltalake(root.child(CONTROLLER_HISTORY.name).uri, earlier.slice(0, 1), mode="append")
    found = newest_rows(root, CONTROLLER_HISTORY)
    assert found is not None
    assert sorted(found.rows["controller_epoch"].to_pylist()) == [0, 0, 1, 2]


def test_a_missing_file_is_damage(root: Location) -> None:
    overwrite(root, range(3), 30)
    for file in Path(root.uri, CONTROLLER_HISTORY.name).glob("*.parquet"):
        file.unlink()
    with pytest.raises(DamagedError, match="missing"):
        newest_rows(root, CONTROLLER_HISTORY, SOURCE)
