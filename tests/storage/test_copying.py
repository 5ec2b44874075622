"""Copying batch files: the same bytes, verified during the copy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparklog.model import new_batch_path
from sparklog.storage.batch_files import BatchFile
from sparklog.storage.copying import Copied, Copy, copy_file, copy_files
from sparklog.storage.location import Location
from tests.storage.batches import file_size_limit, write_file


@pytest.fixture
def log(root: Location) -> Location:
    return root.child("log")


@pytest.fixture
def target(tmp_path: Path) -> Location:
    return Location.of(str(tmp_path / "other root" / "log"))


def copy_of(log: Location, file: BatchFile, target: Location) -> Copy:
    path = new_batch_path(file.path.removeprefix("_inbox/").split(".")[0])
    return Copy(log, file.path, target, path, file.size_bytes, file.checksum)


def test_copies_are_the_same_bytes(log: Location, target: Location) -> None:
    """Copies have the same bytes as their sources."""
    copies = [copy_of(log, write_file(log, [b"v" * n]), target) for n in (0, 1, 9 << 20)]
    assert copy_files(copies) == [Copied(copy.target_path, None) for copy in copies]
    for copy in copies:
        expected = Path(log.uri, copy.source_path).read_bytes()
        assert Path(target.uri, copy.target_path).read_bytes() == expected
    assert copy_files([]) == []


def test_a_source_that_is_damaged_or_missing_is_reported(log: Location, target: Location) -> None:
    """A damaged or missing source is reported, and the other files are copied."""
    damaged, missing, good = (write_file(log, [b"v"]) for _ in range(3))
    content = bytearray(Path(log.uri, damaged.path).read_bytes())
    content[10] ^= 1
    Path(log.uri, damaged.path).write_bytes(content)
    Path(log.uri, missing.path).unlink()
    copied = copy_files([copy_of(log, file, target) for file in (damaged, good, missing)])
    found = [one.fault for one in copied]
    assert found[0] == f"{log.uri}/{damaged.path} does not have its checksum {damaged.checksum}"
    assert found[1] is None
    assert found[2] is not None
    assert f"{log.uri}/{missing.path} was not copied: " in found[2]


def test_an_existing_target_is_refused_and_left_alone(log: Location, target: Location) -> None:
    """An existing target is refused and not changed."""
    copy = copy_of(log, write_file(log, [b"v"]), target)
    there = Path(target.uri, copy.target_path)
    there.parent.mkdir(parents=True)
    there.write_bytes(b"somebody's")
    fault = copy_file(copy)
    assert fault is not None
    assert "File exists" in fault
    assert there.read_bytes() == b"somebody's"


def test_a_full_disk_is_reported_and_not_taken_for_a_copy(log: Location, target: Location) -> None:
    """The system writes as much as fits and reports the count; only the next write fails."""
    copy = copy_of(log, write_file(log, [os.urandom(1 << 20)]), target)
    with file_size_limit(300_000):
        fault = copy_file(copy)
    assert fault is not None
    assert "File too large" in fault
