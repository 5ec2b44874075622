"""A full disk: failed attempts leave no files behind, and their rate decreases."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparklog.broker.application import Application
from sparklog.config import ClusterConfig, parse
from sparklog.logger import REPEATED_EVERY_S, RepeatedFailures, get_logger
from sparklog.model import DELAYED_OPERATIONS, LOG
from sparklog.storage.batch_files import rewrite_slice
from sparklog.storage.batch_merging import Merge, merge_batches
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.copying import Copied, Copy
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.execution import DriverExecution
from sparklog.storage.location import Location
from sparklog.storage.request_table import RequestTable
from sparklog.testing import LocalCluster, ManualClock
from tests.broker.states import log
from tests.storage.batches import batch_of_file, file_size_limit, write_file
from tests.storage.requests import appending, ids_in, request

BIG = os.urandom(1 << 20)


def files(cluster: LocalCluster, broker: int) -> set[Path]:
    return {one for one in (cluster.root / f"broker-{broker}").rglob("*") if one.is_file()}


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of files of each call of `DriverExecution.copy`."""
    asked: list[int] = []
    copy = DriverExecution.copy

    def noted(self: DriverExecution, given: Sequence[Copy]) -> list[Copied]:
        asked.append(len(given))
        return copy(self, given)

    monkeypatch.setattr(DriverExecution, "copy", noted)
    return asked


def test_failed_copies_leave_no_file_few_log_lines_and_become_rare(
    start: Callable[..., LocalCluster], copies: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Fifteen minutes with a tick each second: about 30 attempts per partition, and not 900."""
    cluster = start(0, 1)
    cluster.produce("t", 0, [BIG], acks=1)
    cluster.leader_tick(0)
    before = files(cluster, 1)
    copies.clear()
    with file_size_limit(300_000):
        for _ in range(180):
            cluster.follower_tick(1)
            cluster.clock.advance(5_000)
        left = [one for one in files(cluster, 1) - before if "_inbox" in one.parts]
    assert left == []
    assert 20 < sum(copies) < 40
    assert len([one for one in caplog.records if "batch not copied" in one.message]) == 1
    cluster.clock.advance(30_000)
    cluster.tick_until_idle()
    assert [record.value for record in cluster.log(1, "t", 0)] == [BIG]


def test_the_other_partitions_of_a_copy_that_failed_go_on(
    start: Callable[..., LocalCluster],
) -> None:
    """A copy that fails does not delay the other partitions of the same follower."""
    cluster = start(0, 1, assignment={0: [0, 1], 1: [0, 1]})
    cluster.produce("t", 0, [BIG], acks=1)
    cluster.produce("t", 1, [b"small"], acks=1)
    cluster.leader_tick(0)
    with file_size_limit(300_000):
        cluster.follower_tick(1)
    assert (log(cluster, 1), log(cluster, 1, partition=1)) == ([], ["small"])


def test_copies_whose_commit_fails_are_removed(
    start: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied files are removed if their commit fails."""
    cluster = start(0, 1)
    cluster.produce("t", 0, [b"a"], acks=1)
    cluster.leader_tick(0)
    before = files(cluster, 1)

    def full(self: DeltaLog, *_: object, **__: object) -> bool:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "commit", full)
        for _ in range(5):
            with pytest.raises(OSError, match="No space left"):
                cluster.follower_tick(1)
    assert files(cluster, 1) == before
    cluster.tick_until_idle()
    assert log(cluster, 1) == ["a"]


def test_merged_batches_whose_commit_fails_are_removed(
    start: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged files are removed if their commit fails, and a later merge succeeds."""
    cluster = start(0, log_merger_min_lag_ms=0, log_merger_min_batches=2)
    for value in (b"a", b"b"):
        cluster.produce("t", 0, [value])
        cluster.tick_until_idle()
    before = {one for one in files(cluster, 0) if "_inbox" in one.parts}
    commit = DeltaLog.commit

    def full(self: DeltaLog, *args: Any, **options: Any) -> bool:
        if self.location.uri.endswith("/log"):
            raise OSError(28, "No space left on device")
        return commit(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "commit", full)
        with pytest.raises(OSError, match="No space left"):
            cluster.merge(0)
    assert {one for one in files(cluster, 0) if "_inbox" in one.parts} == before
    cluster.tick_until_idle()
    assert cluster.merge(0) == (2, 1)


def test_slices_of_a_truncation_whose_commit_fails_are_removed(
    start: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that straddles the truncation point is replaced by its first part, in a new file."""
    cluster = start(0, 1)
    cluster.produce("t", 0, [b"a", b"b"], acks=1)
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    follower = cluster.brokers[1]._followers[0]
    key = cluster.connection.metadata().partition("t", 0).key
    before = {one for one in files(cluster, 1) if "_inbox" in one.parts}

    def full(self: DeltaLog, *_: object, **__: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DeltaLog, "commit", full)
    with pytest.raises(OSError, match="No space left"):
        follower._truncate({key: 1}, [], 0)
    assert {one for one in files(cluster, 1) if "_inbox" in one.parts} == before


@pytest.fixture
def table(tmp_path: Path) -> ControlTable:
    root = Location.of(str(tmp_path / "root"))
    create_table(root, DELAYED_OPERATIONS)
    return ControlTable(root, DELAYED_OPERATIONS)


def operation(size: int) -> pa.Table:
    return DELAYED_OPERATIONS.rows([{"operation_id": os.urandom(size).hex()}])


def test_a_control_tables_file_that_does_not_fit_is_removed(table: ControlTable) -> None:
    """A control table's data file that does not fit on the disk is removed."""
    folder = Path(table.location.uri)
    with file_size_limit(100_000), pytest.raises(OSError, match="File too large"):
        table.compare_and_set(operation(200_000))
    assert list(folder.glob("*.parquet")) == []
    table.compare_and_set(operation(9))
    assert table.rows().num_rows == 1


def test_a_control_tables_file_is_removed_whose_commit_does_not_fit(
    table: ControlTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control table's data file is removed if its commit does not fit on the disk."""

    def full(self: DeltaLog, *_: object, **__: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DeltaLog, "commit", full)
    with pytest.raises(OSError, match="No space left"):
        table.compare_and_set(operation(9))
    assert list(Path(table.location.uri).glob("*.parquet")) == []


def test_an_append_of_requests_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    """A request consists of its commit only: the next append takes the version of the failed
    one.
    """
    root = Location.of(str(tmp_path / "root"))
    appends = appending(root)
    folder = Path(root.uri)
    before = sorted(folder.rglob("*"))
    with file_size_limit(100_000), pytest.raises(OSError, match="File too large"):
        appends.append([request(f"{number:0100}") for number in range(500)])
    assert sorted(folder.rglob("*")) == before
    appends.append([request("a")])
    owner = RequestTable(root)
    assert (ids_in(owner), owner.version) == (["a"], 1)


def test_slices_and_merged_batches_that_do_not_fit_are_removed(tmp_path: Path) -> None:
    """Slices and merged files that do not fit on the disk are removed."""
    log_table = Location.of(str(tmp_path / LOG.name))
    big = batch_of_file(write_file(log_table, [BIG, BIG]))
    following = batch_of_file(write_file(log_table, [BIG]), 2)
    before = set(Path(log_table.uri, "_inbox").iterdir())
    with file_size_limit(300_000):
        with pytest.raises(OSError, match="File too large"):
            rewrite_slice(log_table, big, 0, 1, log_table)
        path = f"_inbox/{'0' * 32}.{'0' * 12}.parquet"
        assert "File too large" in str(merge_batches(Merge(log_table, (big, following), path)))
    assert set(Path(log_table.uri, "_inbox").iterdir()) == before


def test_a_failure_that_goes_on_is_logged_once_and_then_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A repeated failure is logged at its first occurrence, and then once a minute with a count."""
    now = [0.0]
    failures = RepeatedFailures(get_logger("sparklog.test"), lambda: now[0])
    for second in range(REPEATED_EVERY_S * 2 + 1):
        now[0] = float(second)
        failures.warning("of", "failed", attempt=second)
    assert [one.message for one in caplog.records] == [
        "failed attempt=0",
        "failed attempt=60 repeated=59",
        "failed attempt=120 repeated=59",
    ]
    assert failures.over("of")
    failures.warning("of", "failed", attempt="again")
    assert caplog.records[-1].message == "failed attempt=again"


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Application]:
    config = {
        "cluster.root": str(tmp_path / "cluster"),
        "brokers": [{"broker.id": 0, "log.dirs": str(tmp_path / "broker-0")}],
        "log.merger.enable": False,
    }
    application = Application(parse(ClusterConfig, config, "test"), clock=ManualClock())
    application.start()
    yield application
    application.stop()
    application.run()


def test_a_tick_that_fails_is_tried_less_often_and_logged_once(
    application: Application, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attempt names another file, so the messages of the failures differ."""
    attempts: list[str] = []

    refresh = ControlTable.refresh

    def full(self: ControlTable) -> bool:
        if threading.current_thread().name == "heartbeats":
            return refresh(self)
        attempts.append(os.urandom(8).hex())
        raise OSError(28, "No space left on device", f"part-{attempts[-1]}.parquet")

    with monkeypatch.context() as patch:
        patch.setattr(ControlTable, "refresh", full)
        for _ in range(200):
            application.round()
    told = [one for one in caplog.records if one.message.startswith("failed")]
    assert [one.fields["action"] for one in told] == [  # type: ignore[attr-defined]
        "controller_tick",
        "leader_tick",
        "follower_tick",
    ]
    # Each of the three ticks runs twice: the third attempt is not yet due.
    assert len(attempts) == 6
