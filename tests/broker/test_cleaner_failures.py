"""Writes of the log cleaner that fail, or whose answers are lost: no record goes wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError

from sparklog.errors import StorageError
from sparklog.maintenance.audit import audit
from sparklog.testing import LocalCluster
from tests.broker.test_cleaner import (
    batches,
    compacted,
    kept,
    pass_the_lag,
    write,
)
from tests.faulty_files import LANDING, Failure, FaultyFiles
from tests.kafka_comparison.cleaning import Kept

Start = Callable[..., LocalCluster]

AFTER = [Kept(offset, f"k{offset % 3}", str(offset)) for offset in (6, 7, 8)]


@pytest.fixture
def dirty(start: Start) -> LocalCluster:
    """Two brokers with a log of nine batches of three keys, by an idempotent producer."""
    cluster = compacted(start(0, 1))
    producer = cluster.idempotent_producer()
    for number in range(9):
        value = str(number).encode()
        cluster.produce("c", 0, [value], keys=[f"k{number % 3}".encode()], producer=producer)
        cluster.tick_until_idle()
    pass_the_lag(cluster)
    return cluster


@pytest.fixture
def files(dirty: LocalCluster, tmp_path: Path) -> Iterator[FaultyFiles]:
    found = FaultyFiles(tmp_path / "stash")
    with found.installed():
        yield found


def clean(cluster: LocalCluster) -> None:
    """Clean as an application does: a failure is repeated in a later round."""
    with suppress(OSError, StorageError, DeltaError):
        cluster.clean(0)


def settle(cluster: LocalCluster) -> None:
    """Tick until idle after a failure, and pass the time for which a log is left alone."""
    for _ in range(3):
        with suppress(OSError, StorageError, DeltaError):
            cluster.tick_until_idle()
    pass_the_lag(cluster, 300_000)


def inbox(cluster: LocalCluster) -> set[str]:
    return {one.name for one in (cluster.root / "broker-0" / "log" / "_inbox").iterdir()}


def check_cleaned(cluster: LocalCluster) -> None:
    """Check that the next run has cleaned the log, and that every process finds it so."""
    clean(cluster)
    assert kept(cluster, 0) == AFTER
    assert cluster.clean(0).partitions == 0
    cluster.crash(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    assert kept(cluster, 0) == AFTER
    assert len(kept(cluster, 1)) == 9
    assert audit(cluster.connection) == []


@pytest.mark.parametrize("failure", ["refused", "landed", "repeated", "unknown"])
def test_a_commit_that_fails_or_whose_answer_is_lost(
    dirty: LocalCluster, files: FaultyFiles, failure: Failure
) -> None:
    """The files of a refused commit are removed, those of one that may have landed are not."""
    before = inbox(dirty)
    files.fail(f"{dirty.root}/broker-0/log/_delta_log", failure)
    clean(dirty)
    assert files.failed
    added = inbox(dirty) - before
    assert len(added) == (1 if failure in LANDING else 0)
    settle(dirty)
    assert kept(dirty, 0) == AFTER if failure in LANDING else len(kept(dirty, 0)) == 9
    assert all(Path(one.path).name in inbox(dirty) for one in batches(dirty, 0))
    check_cleaned(dirty)


@pytest.mark.parametrize("table", ["producer_state", "cleaner_offset_checkpoint"])
@pytest.mark.parametrize("failure", ["refused", "landed", "unknown"])
def test_a_table_that_cannot_be_written(
    dirty: LocalCluster, files: FaultyFiles, table: str, failure: Failure
) -> None:
    """The pass ends there, or has its effect; the next one completes it."""
    if table == "cleaner_offset_checkpoint":
        # The checkpoint is created at its first use.
        clean(dirty)
        write(dirty, ("k0", "9"))
        pass_the_lag(dirty)
    files.fail(f"{dirty.root}/broker-0/{table}/_delta_log", failure)
    clean(dirty)
    assert files.failed
    settle(dirty)
    assert audit(dirty.connection) == []
    clean(dirty)
    last = {one.key: one.value for one in kept(dirty, 0)}
    assert len(kept(dirty, 0)) == len(last) == 3
    assert last["k2"] == "8"
    assert audit(dirty.connection) == []


@pytest.mark.parametrize("failure", ["full", "torn", "unsynced"])
def test_a_new_file_that_cannot_be_stored(
    dirty: LocalCluster, files: FaultyFiles, failure: Failure
) -> None:
    """The log stays as it is, and no file is left."""
    before = inbox(dirty)
    files.fail(f"{dirty.root}/broker-0/log/_inbox", failure)
    clean(dirty)
    assert files.failed
    assert inbox(dirty) == before
    assert len(kept(dirty, 0)) == 9
    settle(dirty)
    check_cleaned(dirty)


def test_files_of_later_commits_go_if_a_commit_fails(
    dirty: LocalCluster, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass of several commits stops at the first that fails; the earlier ones stay."""
    monkeypatch.setattr("sparklog.broker.cleaner._MOST_BATCHES", 3)
    files.fail(f"{dirty.root}/broker-0/log/_delta_log", "refused", skip=1)
    clean(dirty)
    assert [one.offset for one in kept(dirty, 0)] == [3, 4, 5, 6, 7, 8]
    live = {Path(one.path).name for one in batches(dirty, 0)}
    assert audit(dirty.connection) == []
    settle(dirty)
    assert live <= inbox(dirty)
    check_cleaned(dirty)
