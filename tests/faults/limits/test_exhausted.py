"""Limits of a process and its disks: no table counts as damaged, and work goes on afterwards."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable

from sparklog.cluster.admin import Admin
from sparklog.consumer.consumer import Consumer
from sparklog.errors import UnreachableError
from sparklog.maintenance.audit import audit
from sparklog.model import BROKERS, PRODUCE_REQUESTS, TopicPartition
from sparklog.storage.commits import check_commits
from sparklog.storage.control_table import ControlTable
from sparklog.storage.control_table_damage import content_fault
from sparklog.storage.delta_snapshots import open_table
from sparklog.storage.exhausted import is_exhausted, with_remedy
from sparklog.storage.local_files import LocalFiles
from sparklog.storage.location import Location, one_line
from sparklog.storage.new_file import new_file
from sparklog.storage.request_table import RequestTable
from sparklog.testing import LocalCluster
from tests.faults.limits.disks import Disk, can_mount, mounted
from tests.storage.batches import file_size_limit

REMEDY = "raise the limit with ulimit -n"


@contextmanager
def no_descriptors(free: int = 0) -> Iterator[None]:
    """Let this process open `free` more files at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = os.open(os.devnull, os.O_RDONLY)
    os.close(least)
    resource.setrlimit(resource.RLIMIT_NOFILE, (least + free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def only_limits() -> Iterator[None]:
    """Suppress errors that come from a limit; others are raised."""
    try:
        yield
    except (OSError, UnreachableError) as error:
        if not is_exhausted(error):
            raise


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    cluster = LocalCluster(tmp_path, config={"min.insync.replicas": 2})
    cluster.create_topic("t", assignment={0: [0, 1, 2]})
    cluster.tick_until_idle()
    return cluster


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EROFS, errno.ENOMEM])
def test_an_error_of_a_limit_says_once_what_to_do(number: int) -> None:
    """The text is followed by a remedy, also where an engine gives the text without a number."""
    error = OSError(number, os.strerror(number), "/a/file")
    text = one_line(error)
    assert is_exhausted(error)
    assert text.startswith(str(error))
    assert len(text) > len(str(error))
    assert with_remedy(text) == text
    assert is_exhausted(Exception(f"Generic error: {os.strerror(number)} (os error {number})"))


def test_damage_and_denied_access_are_no_limits() -> None:
    for number in (errno.EIO, errno.EACCES, errno.ENOENT):
        error = OSError(number, os.strerror(number), "/a/file")
        assert not is_exhausted(error)
        assert one_line(error) == str(error)


def test_without_descriptors_a_sound_table_is_unreachable_and_not_damaged(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The check for damage needed a descriptor, and took its failure for a damaged commit.

    Brokers recreate damaged tables of their own, without their rows.
    """
    root = Location.of(str(tmp_path / "cluster"))
    table = root.child(BROKERS.name)
    with no_descriptors():
        with pytest.raises(OSError, match="Too many open files"):
            check_commits(table)
        with pytest.raises(UnreachableError, match=REMEDY):
            open_table(table)
        with pytest.raises(UnreachableError, match=REMEDY):
            ControlTable(root, BROKERS)
    assert open_table(table).snapshot.version() > 0


def test_a_request_table_that_delta_rs_cannot_open_is_not_set_aside(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs opens many commits at once, and may fail where reading one by one succeeds.

    The table counted as unusable then, was set aside and recreated without its requests.
    """
    cluster.produce("t", 0, [b"a"])
    root = Location.of(str(tmp_path / "broker-0"))

    def failing(self: DeltaTable, *_: Any, **__: Any) -> None:
        raise OSError("Generic LocalFileSystem error: Too many open files (os error 24)")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "__init__", failing)
        with pytest.raises(UnreachableError, match=REMEDY):
            RequestTable(root)
    assert not list(tmp_path.glob("broker-0/*damaged*"))
    assert len(RequestTable(root).requests_after(-1)) == 1
    assert PRODUCE_REQUESTS.name in {one.name for one in (tmp_path / "broker-0").iterdir()}


def test_a_panic_of_delta_rs_without_descriptors_is_an_error_of_the_limit(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of its threads panicked: commands ended with a stack trace of 30 lines."""

    class PanicException(BaseException):
        pass

    def failing(self: DeltaTable, *_: Any, **__: Any) -> None:
        raise PanicException("Failed to create a tokio runtime.: Os { Too many open files }")

    monkeypatch.setattr(DeltaTable, "__init__", failing)
    with pytest.raises(UnreachableError, match=REMEDY):
        open_table(Location.of(str(tmp_path / "cluster" / BROKERS.name)))


def test_a_file_that_memory_does_not_suffice_for_is_not_damaged() -> None:
    error = pa.ArrowMemoryError("malloc of size 4096 failed")
    with pytest.raises(pa.ArrowMemoryError):
        content_fault(b"content", error)
    assert "cannot be read" in content_fault(b"content", pa.ArrowInvalid("no magic bytes"))


@pytest.mark.parametrize("free", [0, 1, 2, 4])
def test_brokers_without_descriptors_go_on_when_there_are_some(
    cluster: LocalCluster, tmp_path: Path, free: int
) -> None:
    """Nothing is set aside or left half-written, whichever call fails first."""
    first = cluster.produce("t", 0, [b"a"])
    with no_descriptors(free):
        for broker in (0, 1, 2):
            for tick in (cluster.leader_tick, cluster.follower_tick):
                with only_limits():
                    tick(broker)
    cluster.tick_until_idle()
    second = cluster.produce("t", 0, [b"b"])
    cluster.tick_until_idle()
    assert [one.response and one.response.error for one in (first, second)] == ["NONE"] * 2
    assert not list(tmp_path.rglob("*damaged*"))
    assert not list(tmp_path.rglob("*.tmp"))
    assert audit(cluster.connection, verify_files=True) == []


@pytest.mark.parametrize("free", [1, 4, 8])
def test_a_broker_that_starts_without_descriptors_keeps_its_place(
    cluster: LocalCluster, tmp_path: Path, free: int
) -> None:
    pending = cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(2)
    with no_descriptors(free), only_limits():
        cluster.restart(2)
    if 2 not in cluster.brokers:
        cluster.restart(2)
    cluster.tick_until_idle()
    assert pending.response is not None
    assert cluster.partition("t", 0).isr == [0, 1, 2]
    assert not list(tmp_path.rglob("*damaged*"))
    assert audit(cluster.connection, verify_files=True) == []


def test_a_commit_of_offsets_on_a_full_cluster_root_is_an_error_of_its_own(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A raw OSError left Consumer.commit and Consumer.close, and ended members of the group."""

    def full(self: LocalFiles, path: str) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    with Consumer(str(tmp_path / "cluster"), "g", enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"])
        while not consumer.assignment():
            consumer.poll(100)
        with monkeypatch.context() as patch:
            patch.setattr(LocalFiles, "create", full)
            with pytest.raises(UnreachableError, match=r"not committed.*free space or inodes"):
                consumer.commit({TopicPartition("t", 0): 0})
        consumer.commit({TopicPartition("t", 0): 0})
        patch = pytest.MonkeyPatch()
        patch.setattr(LocalFiles, "create", full)
    patch.undo()
    assert Admin(str(tmp_path / "cluster")).list_topics() == ["t"]


def test_a_write_that_does_not_fit_names_the_file(tmp_path: Path) -> None:
    """An error of an open file has no name: of several disks, which one was full was not known."""
    location = Location.of(str(tmp_path))
    with (
        file_size_limit(100),
        pytest.raises(OSError, match=re.escape(f"{tmp_path}/part.parquet")),
        new_file(location, "part.parquet") as target,
    ):
        target.write(bytes(1 << 20))
    assert list(tmp_path.iterdir()) == []


# --- disks --------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk of 32 MiB with 20,000 inodes; the test is skipped where nothing can be mounted."""
    if not can_mount(tmp_path):
        pytest.skip("mounting a tmpfs needs root")
    with mounted(Disk(tmp_path / "disk", 32 << 20, 20_000)) as disk:
        yield disk


def fail_and_return(act: Callable[[Disk], None], undo: Callable[[Disk], None], disk: Disk) -> None:
    """Let a disk with a whole cluster fail between two records, and then return."""
    cluster = LocalCluster(disk.folder / "roots", config={"min.insync.replicas": 2})
    cluster.create_topic("t", assignment={0: [0, 1, 2]})
    cluster.tick_until_idle()
    first = cluster.produce("t", 0, [b"a"])
    act(disk)
    try:
        for _ in range(3):
            for broker in (0, 1, 2):
                for tick in (cluster.leader_tick, cluster.follower_tick):
                    with only_limits():
                        tick(broker)
    finally:
        undo(disk)
    cluster.clock.advance(30_000)
    cluster.tick_until_idle()
    second = cluster.produce("t", 0, [b"b"])
    cluster.tick_until_idle()
    assert second.response is not None
    assert second.response.error == "NONE"
    values = [one.value for one in cluster.consume("t", 0)]
    # The first record was sent before; its request may have expired meanwhile.
    answered = first.response is not None and first.response.error == "NONE"
    assert values == ([b"a", b"b"] if answered else [*values[:-1], b"b"])
    assert cluster.partition("t", 0).isr == [0, 1, 2]
    assert not list(disk.folder.rglob("*damaged*"))
    assert audit(cluster.connection, verify_files=True) == []


def test_a_full_disk_that_is_freed(disk: Disk) -> None:
    fail_and_return(Disk.fill, Disk.free, disk)


def test_a_disk_without_inodes_that_is_freed(disk: Disk) -> None:
    fail_and_return(Disk.fill_inodes, Disk.free, disk)


def test_a_disk_that_is_read_only_for_a_time(disk: Disk) -> None:
    fail_and_return(
        lambda one: one.remount(is_writable=False), lambda one: one.remount(is_writable=True), disk
    )


def start_broker(folder: Path, log_dir: Path) -> subprocess.CompletedProcess[str]:
    """Run `sparklog broker` until it ends."""
    config = {
        "cluster.root": str(folder / "cluster"),
        "broker.id": 0,
        "log.dirs": str(log_dir),
        "broker.session.timeout.ms": 1_000,
        "broker.heartbeat.interval.ms": 300,
    }
    (folder / "broker.yaml").write_text(yaml.safe_dump(config))
    program = [sys.executable, "-c", "from sparklog.cli import main; main()"]
    return subprocess.run(
        [*program, "broker", "--without-spark", "--config", str(folder / "broker.yaml")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_broker_that_starts_on_a_read_only_disk_ends_and_says_why(
    disk: Disk, tmp_path: Path
) -> None:
    """A new log directory is not created, an existing one is found offline by the first commit."""
    disk.remount(is_writable=False)
    new = start_broker(tmp_path, disk.folder / "new")
    disk.remount(is_writable=True)
    LocalCluster(tmp_path, brokers=[0]).close()
    shutil.move(tmp_path / "broker-0", disk.folder / "old")
    disk.remount(is_writable=False)
    old = start_broker(tmp_path, disk.folder / "old")
    assert (new.returncode, old.returncode) == (2, 4)
    assert "no table can be created at" in new.stderr.splitlines()[-1]
    assert "the roots cannot be created or opened" in old.stderr.splitlines()[-1]
    for one in (new, old):
        assert "remount the file system writable" in one.stderr.splitlines()[-1]
