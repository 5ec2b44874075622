"""Commands about a whole cluster on an object store, where each request takes its time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.s3_store import Store
from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Connection
from sparklog.config import Settings
from sparklog.maintenance import backup as backup_module
from sparklog.maintenance.audit import audit
from sparklog.maintenance.backup import backup, restore
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.maintenance.table_checkpoints import checkpoint_tables
from sparklog.maintenance.upgrade import Upgrade
from sparklog.maintenance.vacuum import vacuum_cluster
from sparklog.storage.delta_log_files import LOG_FOLDER
from sparklog.storage.file_copies import FOLDER, await_copies
from sparklog.storage.location import Location
from sparklog.storage.vacuum import vacuum_table
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, values

BROKERS = (0, 1, 2)
_BUCKETS = itertools.count()


@pytest.fixture
def cluster(store: Store) -> Iterator[LocalCluster]:
    """Three brokers, each of which leads a partition with a record."""
    bucket = store.bucket(f"commands-{next(_BUCKETS)}")
    cluster = LocalCluster(bucket, BROKERS, storage_options=store.options())
    cluster.create_topic("t", assignment={0: [0, 1, 2], 1: [1, 2, 0], 2: [2, 0, 1]})
    for partition in range(3):
        cluster.produce("t", partition, [b"a"])
    cluster.tick_until_idle()
    await_copies()
    yield cluster
    cluster.close()


def bucket_of(cluster: LocalCluster) -> str:
    return cluster.location().uri.split("/")[2]


def connect(cluster: LocalCluster) -> Connection:
    return Connection(
        cluster.connection.cluster, storage_options=cluster.connection.storage_options
    )


class Meeting:
    """Shows whether calls of a function overlap: the first ones wait for another one."""

    def __init__(self, of: Callable[..., Any]) -> None:
        self._of = of
        self._inside = 0
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self.is_met = False

    def __call__(self, *arguments: object, **named: object) -> object:
        with self._lock:
            self._inside += 1
            if self._inside > 1:
                self.is_met = True
                self._is_over.set()
        # Calls in sequence wait once, and go on without having met.
        self._is_over.wait(10)
        self._is_over.set()
        try:
            return self._of(*arguments, **named)
        finally:
            with self._lock:
                self._inside -= 1


def backed_up(cluster: LocalCluster) -> Location:
    target = Location.of(f"s3://{bucket_of(cluster)}-backup", cluster.connection.storage_options)
    backup(cluster.location(), target, cluster.connection.storage_options)
    return target


def restored(cluster: LocalCluster) -> None:
    options = cluster.connection.storage_options
    restore(backed_up(cluster), options, Location.of(f"s3://{bucket_of(cluster)}-copy", options))


@pytest.mark.parametrize(
    ("of_table", "command"),
    [
        ("audit_reading._verify", lambda one: audit(connect(one))),
        ("scrub_checks.check_log", lambda one: scrub(connect(one))),
        ("table_restoration.restore_from_copies", lambda one: repair(connect(one))),
        ("table_checkpoints.write_checkpoint", lambda one: checkpoint_tables(connect(one))),
        ("backup._named_files", backed_up),
        ("backup._copy_file", backed_up),
        ("backup._restore_table", restored),
        ("upgrade.ControlTable", lambda one: Upgrade.of(one.location())),
    ],
    ids=["audit", "scrub", "repair", "maintain", "backup", "files", "restore", "upgrade"],
)
def test_tables_are_worked_on_in_parallel(
    cluster: LocalCluster,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    of_table: str,
    command: Callable[[LocalCluster], object],
) -> None:
    """At 30 ms a request, some forty tables in sequence took up to a minute."""
    for name in ("backup", "copy"):
        store.bucket(f"{bucket_of(cluster)}-{name}")
    module, name = of_table.split(".")
    path = f"sparklog.maintenance.{module}"
    meeting = Meeting(getattr(__import__(path, fromlist=[name]), name))
    monkeypatch.setattr(f"{path}.{name}", meeting)
    command(cluster)
    assert meeting.is_met


def test_vacuums_work_on_tables_in_parallel_and_brokers_on_one(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker removes files beside its ticks, which share the requests of its process."""
    meeting = Meeting(vacuum_table)
    monkeypatch.setattr("sparklog.cluster.vacuum.vacuum_table", meeting)
    cluster.vacuum(0)
    assert not meeting.is_met
    vacuum_cluster(connect(cluster), Settings())
    assert meeting.is_met


def test_a_repair_writes_the_copies_that_tables_lack(cluster: LocalCluster) -> None:
    """Of an earlier release, or lost with the process that had committed."""
    table = cluster.location(1).child("log")
    copies = table.names(FOLDER)
    table.remove_all([f"{FOLDER}/{name}" for name in copies])
    assert table.names(FOLDER) == []
    assert repair(connect(cluster)) == []
    assert sorted(table.names(FOLDER)) == sorted(copies)


def test_a_restoration_may_be_interrupted_anywhere(
    cluster: LocalCluster, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a table arrive in any order; the next restoration completes what is there."""
    options = cluster.connection.storage_options
    name = bucket_of(cluster)
    store.bucket(f"{name}-backup")
    source = backed_up(cluster)
    copy_one: Callable[..., Any] = backup_module._copier
    tables = [
        root.child(name) for root in map(source.child, source.names()) for name in root.names()
    ]
    files_of_logs = sum(len(table.names(LOG_FOLDER)) for table in tables)
    for number in range(4):
        files = 1 + number * (files_of_logs - 2) // 3
        target = Location.of(store.bucket(f"{name}-copy-{number}"), options)
        left = itertools.count(1 - files)

        def interrupted(*of: Location, left: Iterator[int] = left) -> Callable[..., bool]:
            copier = copy_one(*of)

            def copy(file: tuple[str, bytes]) -> bool:
                if next(left) >= 0:
                    raise OSError("the process was killed")
                return bool(copier(file))

            return copy

        with monkeypatch.context() as killed:
            killed.setattr(backup_module, "_copier", interrupted)
            with pytest.raises(OSError, match="was killed"):
                restore(source, options, target)
        outcome = restore(source, options, target)
        assert outcome.files > 0
        assert audit(Connection(outcome.roots["cluster"], storage_options=options)) == []


class TestPolls:
    def test_refresh_the_journals_of_all_leaders_at_once_and_each_once(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each took a request after the other, and a journal with new records two."""
        logs = CommittedLogs(connect(cluster))
        keys = list(logs.metadata().partitions)
        assert len(logs.visible(keys)) == 3
        for partition in range(3):
            cluster.produce("t", partition, [b"b"])
        cluster.tick_until_idle()

        refreshed: list[str] = []
        meeting = Meeting(Connection.journal)

        def journal(connection: Connection, location: Location) -> object:
            refreshed.append(location.uri)
            return meeting(connection, location)

        monkeypatch.setattr(Connection, "journal", journal)
        found = logs.visible(keys)
        assert {getattr(one, "high_watermark", one) for one in found.values()} == {2}
        assert meeting.is_met
        assert sorted(refreshed) == sorted(cluster.location(one).uri for one in BROKERS)


def test_the_restored_cluster_goes_on(cluster: LocalCluster, store: Store, tmp_path: Path) -> None:
    """From a backup on a store, in local folders, with all records and replicas in sync."""
    store.bucket(f"{bucket_of(cluster)}-backup")
    options = cluster.connection.storage_options
    restore(backed_up(cluster), options, Location.of(str(tmp_path)))
    for broker in BROKERS:
        (tmp_path / f"broker-{broker}-0").rename(tmp_path / f"broker-{broker}")
    copy = LocalCluster(tmp_path, BROKERS)
    check_at_rest(copy, "a")
    assert [values(copy.consume("t", partition)) for partition in range(3)] == [["a"]] * 3
