"""The start of brokers on an object store: requests, and starts in parallel."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from sparklog.broker.application import Application
from sparklog.broker.broker import Broker
from sparklog.config import ClusterConfig, parse
from sparklog.errors import StorageError
from sparklog.model import (
    BROKER_TABLES,
    BROKERS,
    CLEANER_OFFSET_CHECKPOINT,
    LOG,
    PRODUCE_REQUESTS,
    REPLICA_HISTORY,
    TRUNCATIONS,
)
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location
from sparklog.storage.object_store import ObjectStore
from sparklog.storage.request_table import RequestTable
from tests.storage.requests import ALL, appending, ids_in, request
from tests.storage.test_s3 import Store, at, pytestmark, store
from tests.storage.test_store_heartbeats import Cluster

__all__ = ["at", "pytestmark", "store"]


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of openings of each table by its path: each opening begins with a listing."""
    counts: Counter[str] = Counter()
    pages = ObjectStore.pages

    def counted(self: ObjectStore, folder: str, after: str | None = None) -> object:
        counts[folder.removesuffix("/_delta_log")] += 1
        return pages(self, folder, after)

    monkeypatch.setattr(ObjectStore, "pages", counted)
    return counts


def application(cluster: Cluster) -> Application:
    return Application(cluster.application.config, clock=cluster.clock)


def test_a_start_opens_each_table_of_a_brokers_root_once(
    store: Store, listed: Counter[str]
) -> None:
    """`format` is opened twice: before anything is created, and by the broker.

    Each of the other two brokers lists the log once, to read what this one has seen.
    """
    cluster = Cluster(store)
    cluster.application.stop()
    cluster.application.run()
    listed.clear()
    again = application(cluster)
    again.start()
    assert {path: count for path, count in listed.items() if path.startswith("broker-")} == {
        f"broker-{broker}/{table}": {"format": 2, "log": 3}.get(table, 1)
        for broker in range(3)
        for table in ("format", *(schema.name for schema in BROKER_TABLES))
        # Opened when a log is first to be cleaned, and when one is first truncated.
        if table not in (CLEANER_OFFSET_CHECKPOINT.name, TRUNCATIONS.name, REPLICA_HISTORY.name)
    }
    again.stop()
    again.run()


def test_brokers_on_a_store_start_in_parallel(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start waits until all have begun."""
    begun = threading.Barrier(3, timeout=60)
    start = Application.start_broker

    def waiting(self: Application, broker_id: int) -> None:
        begun.wait()
        start(self, broker_id)

    monkeypatch.setattr(Application, "start_broker", waiting)
    cluster = Cluster(store)
    assert sorted(cluster.brokers) == [0, 1, 2]
    epochs = sorted(one.broker_epoch for one in cluster.brokers.values())
    assert epochs == [1, 2, 3]
    cluster.application.stop()
    cluster.application.run()
    rows = cluster_rows(cluster)
    assert [row["state"] for row in rows] == ["parked"] * 3


def test_one_that_cannot_start_ends_the_others_when_they_have_started(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other brokers are parked, so that the next start need not wait for their sessions."""
    cluster = Cluster(store)
    cluster.application.stop()
    cluster.application.run()
    others = threading.Barrier(3, timeout=60)
    start: Callable[[Application, int], None] = Application.start_broker

    def failing(self: Application, broker_id: int) -> None:
        if broker_id == 1:
            others.wait()
            raise StorageError("the root of broker 1 is away")
        others.wait()
        start(self, broker_id)

    monkeypatch.setattr(Application, "start_broker", failing)
    again = application(cluster)
    with pytest.raises(StorageError, match="broker 1 is away"):
        again.start()
    assert [row["state"] for row in cluster_rows(cluster)] == ["parked"] * 3


def cluster_rows(cluster: Cluster) -> list[dict[str, object]]:
    root = Location.of(f"{cluster.bucket}/cluster", cluster.options)
    rows: list[dict[str, object]] = ControlTable(root, BROKERS).rows().to_pylist()
    return sorted(rows, key=lambda row: str(row["broker_id"]))


def test_a_broker_whose_log_is_damaged_writes_nothing(store: Store) -> None:
    """A broker with a damaged log writes neither its registration nor a fence: its root stays
    unchanged.
    """
    cluster = Cluster(store)
    cluster.application.stop()
    cluster.application.run()
    before = cluster_rows(cluster)
    root = Location.of(f"{cluster.bucket}/broker-1", cluster.options)
    versions = fenced_versions(root)
    [newest] = [name for name in root.names("log/_delta_log") if name.endswith(".json")][-1:]
    whole = root.read_bytes(f"log/_delta_log/{newest}")
    root.overwrite_object(f"log/_delta_log/{newest}", whole[: len(whole) // 2])
    only = {
        "cluster.root": f"{cluster.bucket}/cluster",
        "brokers": [{"broker.id": 1, "log.dirs": [root.uri]}],
        "storage.options": cluster.options,
    }
    config = parse(ClusterConfig, only, "the test's configuration")
    with pytest.raises(StorageError):
        Application(config, clock=cluster.clock).start()
    assert cluster_rows(cluster) == before
    assert fenced_versions(root) == versions
    root.overwrite_object(f"log/_delta_log/{newest}", whole)
    restored = Application(config, clock=cluster.clock)
    restored.start()
    assert isinstance(restored._brokers[1], Broker)
    restored.stop()
    restored.run()


def fenced_versions(root: Location) -> list[int]:
    """Return the versions of the tables that a start writes to, except the log."""
    tables = [one for one in BROKER_TABLES if one not in (LOG, PRODUCE_REQUESTS)]
    return [ControlTable(root, schema).version for schema in tables]


def test_requests_that_wait_are_dated_by_commits_that_are_read_in_parallel(
    at: Callable[[str], Location], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the newest one down: one, four, eight, and no more than the oldest request needs."""
    appends = appending(at("broker"))
    for number in range(12):
        appends.append([request(f"r{number:02}")])
    owner = RequestTable(at("broker"))
    taken = [
        one for one, request in owner.requests_after(ALL).items() if request.request_id < "r03"
    ]
    owner.remove(taken)
    reads: list[str] = []
    open_with_size = ObjectStore.open_with_size

    def noted(self: ObjectStore, path: str) -> object:
        reads.append(path.rpartition("/")[2])
        return open_with_size(self, path)

    monkeypatch.setattr(ObjectStore, "open_with_size", noted)
    fresh = RequestTable(at("broker"))
    assert ids_in(fresh) == [f"r{number:02}" for number in range(3, 12)]
    assert [one.version for one in fresh.requests_after(ALL)] == list(range(4, 13))
    # Version 13 removed the three; the request r03 is in version 4.
    assert sorted(reads) == [f"{version:020}.json" for version in range(1, 14)]
