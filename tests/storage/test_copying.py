"""Copying batch files: the same bytes, verified during the copy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparklog.model import new_batch_path
from sparklog.storage import copying
from sparklog.storage.batch_files import BatchFile, file_checksum
from sparklog.storage.copying import Copy, ProcessCopier, SparkCopier, copy_file
from sparklog.storage.location import Location
from tests.storage.batches import file_size_limit, write_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    copier = ProcessCopier()
    assert copier.copy(copies) == [None, None, None]
    for copy in copies:
        expected = Path(log.uri, copy.source_path).read_bytes()
        assert Path(target.uri, copy.target_path).read_bytes() == expected
    assert (copier.copy([]), copier.jobs) == ([], 0)


def test_a_source_that_is_damaged_or_missing_is_reported(log: Location, target: Location) -> None:
    """A damaged or missing source is reported, and the other files are copied."""
    damaged, missing, good = (write_file(log, [b"v"]) for _ in range(3))
    content = bytearray(Path(log.uri, damaged.path).read_bytes())
    content[10] ^= 1
    Path(log.uri, damaged.path).write_bytes(content)
    Path(log.uri, missing.path).unlink()
    found = ProcessCopier().copy([copy_of(log, file, target) for file in (damaged, good, missing)])
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


@pytest.mark.parametrize(
    ("master", "named_bytes", "jobs"),
    [
        ("spark://a-host:7077", 30 << 20, 1),
        ("yarn", 1 << 20, 0),
        ("local[2]", 30 << 20, 0),
        ("local-cluster[2,1,512]", 30 << 20, 1),
        ("local", 30 << 20, 0),
    ],
)
def test_spark_copies_much_in_tasks_where_it_has_executors_and_little_on_the_driver(
    log: Location,
    target: Location,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    named_bytes: int,
    jobs: int,
) -> None:
    """The results and their order are the same; a bad file fails neither the job nor the others."""
    has_executors = copying._has_executors(master)
    monkeypatch.setattr(copying, "_has_executors", lambda _: has_executors)
    files = [write_file(log, [b"v%d" % number]) for number in range(8)]
    Path(log.uri, files[3].path).write_bytes(b"damaged")
    Path(log.uri, files[5].path).unlink()
    copies = [
        copy_of(Location(log.uri, {"an": "option"}), file, target)._replace(
            size_bytes=named_bytes + number % 3
        )
        for number, file in enumerate(files)
    ]
    copier = SparkCopier(spark)
    found = copier.copy(copies)
    assert [number for number, fault in enumerate(found) if fault] == [3, 5]
    for copy, fault in zip(copies, found, strict=True):
        if fault is None:
            assert file_checksum(target, copy.target_path) == copy.checksum
    assert (copier.copy([]), copier.jobs) == ([], jobs)
