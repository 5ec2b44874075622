"""The faulty file system behaves as a disk may do: calls fail, and unsynced data is lost."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog.model import CONTROLLER
from sparklog.storage import local_files
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.location import Location
from tests.faulty_files import FaultyFiles, Kept

LEASE = {"broker_id": 1, "controller_epoch": 1, "lease_sequence": 0}


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FaultyFiles]:
    (tmp_path / "root").mkdir()
    with FaultyFiles(tmp_path / "stash").installed() as files:
        yield files


def write(path: Path, content: bytes = b"1234") -> None:
    with local_files.FILES.create(str(path)) as file:
        file.write(content)


def sync(*paths: Path) -> None:
    for path in paths:
        local_files.FILES.sync(str(path))


@pytest.mark.parametrize(
    ("names", "content", "left"),
    [("none", "all", None), ("all", "none", b""), ("all", "half", b"12"), ("all", "all", b"1234")],
)
def test_an_unsynced_file_is_gone_empty_cut_or_whole(
    files: FaultyFiles, tmp_path: Path, names: Kept, content: Kept, left: bytes | None
) -> None:
    file = tmp_path / "root" / "file"
    write(file)
    files.lose_power(str(tmp_path / "root"), names, content)
    assert (file.read_bytes() if file.exists() else None) == left


def test_a_synced_file_without_a_synced_name_is_gone(files: FaultyFiles, tmp_path: Path) -> None:
    file = tmp_path / "root" / "file"
    write(file)
    sync(file)
    files.lose_power(str(tmp_path / "root"))
    assert not file.exists()


def test_a_synced_file_with_a_synced_name_stays(files: FaultyFiles, tmp_path: Path) -> None:
    file = tmp_path / "root" / "file"
    write(file)
    sync(file, file.parent)
    files.lose_power(str(tmp_path / "root"))
    assert file.read_bytes() == b"1234"


def test_names_are_lost_from_the_newest_on(files: FaultyFiles, tmp_path: Path) -> None:
    for name in ("1", "2", "3", "4"):
        write(tmp_path / "root" / name)
    files.lose_power(str(tmp_path / "root"), "half", "all")
    assert sorted(file.name for file in (tmp_path / "root").iterdir()) == ["1", "2"]


def test_an_unsynced_removal_is_undone(files: FaultyFiles, tmp_path: Path) -> None:
    file = tmp_path / "root" / "file"
    write(file)
    sync(file, file.parent)
    files.remove(str(file))
    assert not file.exists()
    files.lose_power(str(tmp_path / "root"))
    assert file.read_bytes() == b"1234"
    files.remove(str(file))
    sync(file.parent)
    files.lose_power(str(tmp_path / "root"))
    assert not file.exists()


def test_a_linked_name_is_as_durable_as_its_folder(files: FaultyFiles, tmp_path: Path) -> None:
    file, name = tmp_path / "root" / "file", tmp_path / "root" / "name"
    write(file)
    sync(file, file.parent)
    files.link(str(file), str(name))
    files.lose_power(str(tmp_path / "root"))
    assert file.exists()
    assert not name.exists()


def test_a_new_folder_is_gone_unless_its_parent_is_synced(
    files: FaultyFiles, tmp_path: Path
) -> None:
    unsynced = Location.of(str(tmp_path / "root"), {str(tmp_path): {"sync": "false"}})
    with unsynced.create("new/file") as file:
        file.write(b"1")
    sync(tmp_path / "root" / "new" / "file", tmp_path / "root" / "new")
    files.lose_power(str(tmp_path / "root"))
    assert not (tmp_path / "root" / "new").exists()


def test_what_the_kernel_wrote_back_stays(files: FaultyFiles, tmp_path: Path) -> None:
    write(tmp_path / "root" / "file")
    files.write_back(str(tmp_path / "root"))
    files.lose_power(str(tmp_path / "root"))
    assert (tmp_path / "root" / "file").read_bytes() == b"1234"


def test_other_folders_do_not_lose_power(files: FaultyFiles, tmp_path: Path) -> None:
    write(tmp_path / "root" / "file")
    files.lose_power(str(tmp_path / "roo"))
    assert (tmp_path / "root" / "file").exists()


def test_a_commit_is_refused_torn_or_finds_no_space(files: FaultyFiles, tmp_path: Path) -> None:
    """No part of it is in the table, and the next attempt succeeds as if there had been none."""
    root = Location.of(str(tmp_path / "root"))
    create_table(root, CONTROLLER)
    table = ControlTable(root, CONTROLLER)
    log = Path(root.uri, "controller", "_delta_log")
    for failure, code in (("refused", errno.EIO), ("full", errno.ENOSPC), ("torn", errno.ENOSPC)):
        files.fail(str(log), failure)  # type: ignore[arg-type]
        with pytest.raises(OSError, match="on request") as raised:
            table.compare_and_set(CONTROLLER.rows([LEASE]))
        assert raised.value.errno == code
        assert [file.name for file in log.iterdir()] == [f"{0:020}.json"]
        table.refresh()
    table.compare_and_set(CONTROLLER.rows([LEASE]))
    assert len(files.failed) == 3


def test_a_commit_whose_answer_is_lost_is_in_the_table(files: FaultyFiles, tmp_path: Path) -> None:
    root = Location.of(str(tmp_path / "root"))
    create_table(root, CONTROLLER)
    table = ControlTable(root, CONTROLLER)
    log = f"{root.uri}/controller/_delta_log"
    for sequence, failure in enumerate(("landed", "repeated")):
        files.fail(log, failure)  # type: ignore[arg-type]
        table.compare_and_set(CONTROLLER.rows([LEASE | {"lease_sequence": sequence}]))
    files.fail(log, "unknown")
    with pytest.raises(OSError, match="on request"):
        table.compare_and_set(CONTROLLER.rows([LEASE | {"lease_sequence": 2}]))
    assert [row["lease_sequence"] for row in table.rows().to_pylist()] == [1]
    table.refresh()
    assert [row["lease_sequence"] for row in table.rows().to_pylist()] == [2]


def test_an_action_runs_once_before_a_commit_is_linked(files: FaultyFiles, tmp_path: Path) -> None:
    root = Location.of(str(tmp_path / "root"))
    create_table(root, CONTROLLER)
    table = ControlTable(root, CONTROLLER)
    log = Path(root.uri, "controller", "_delta_log")
    seen: list[int] = []
    files.before_link(str(log), lambda: seen.append(len([*log.glob("*.json")])))
    table.compare_and_set(CONTROLLER.rows([LEASE]))
    table.compare_and_set(CONTROLLER.rows([LEASE]))
    assert seen == [1]
