"""A scrub and a repair of a cluster on an S3 API: whole-file GETs, one for each batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from benchmarks.s3_store import Store, running_store
from sparklog import Admin, Producer
from sparklog.broker.application import Application
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog

RECORDS = 12


class OnStore(NamedTuple):
    """A store, and the configuration of a cluster with three brokers there."""

    store: Store
    config: ClusterConfig

    def connect(self) -> Connection:
        return Connection("s3://scrubbed/cluster", storage_options=self.store.options())

    def root(self, broker: int) -> Location:
        return Location.of(f"s3://scrubbed/broker-{broker}", self.store.options())


@pytest.fixture(scope="module")
def on_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnStore]:
    """Brokers that have replicated some batches, and are stopped."""
    with running_store(tmp_path_factory.mktemp("store") / "log") as store:
        store.bucket("scrubbed")
        values = {
            "cluster.root": "s3://scrubbed/cluster",
            "brokers": [
                {"broker.id": one, "log.dirs": [f"s3://scrubbed/broker-{one}"]} for one in range(3)
            ],
            "storage.options": store.options(),
            "log.merger.enable": False,
        }
        on_store = OnStore(store, parse(ClusterConfig, values, "the test's configuration"))
        application = Application(on_store.config)
        application.start()
        connection = on_store.connect()
        Admin(connection).create_topic("t", 1, 3, configs={"min.insync.replicas": "2"})
        with Producer(connection, batch_size=0) as producer:
            for number in range(RECORDS):
                sent = producer.send("t", b"%d" % number, partition=0)
                while not sent.done():
                    application.round()
        application.stop()
        application.run_until_idle()
        yield on_store


def test_each_batch_is_one_request(on_store: OnStore) -> None:
    """A complete scrub reads each batch of each replica by one GET, and repairs nothing."""
    batches = {
        f"scrubbed/broker-{broker}/log/{batch.path}"
        for broker in range(3)
        for log in [RecordLog(on_store.root(broker))]
        for key in log.partitions()
        for batch in log.batches(key)
    }
    assert len(batches) >= 3
    connection = on_store.connect()
    with on_store.store.logged() as requests:
        done = scrub(connection)
    assert (done.is_complete, done.findings, done.unreadable) == (True, [], [])
    of_files = [one for one in requests if "/_inbox/" in one.key]
    assert {one.key.lstrip("/") for one in of_files} == batches
    assert len(of_files) == len(batches)


@pytest.mark.parametrize("kind", ["damaged_file", "missing_file", "foreign_file"])
def test_damage_is_found_and_restored(on_store: OnStore, kind: str) -> None:
    """An object with other bytes is replaced by those of another replica, under its name."""
    root = on_store.root(1)
    log = RecordLog(root)
    [key] = log.partitions()
    first, second = log.batches(key)[:2]
    content = log.location.read_bytes(first.path)
    if kind == "damaged_file":
        flipped = bytearray(content)
        flipped[len(flipped) // 2] ^= 0xFF
        log.location.replace(first.path, bytes(flipped))
    elif kind == "missing_file":
        log.location.remove(first.path)
    else:
        log.location.replace(first.path, log.location.read_bytes(second.path))
    [found] = scrub(on_store.connect()).findings
    assert (found.fault, found.broker_id, found.path) == (kind, 1, first.path)
    [repaired] = repair(on_store.connect())
    assert repaired.state == "repaired"
    assert log.location.read_bytes(first.path) == content
    assert scrub(on_store.connect()).findings == []


def test_a_commit_that_was_changed_is_found_on_a_store_too(on_store: OnStore) -> None:
    """Brokers verify commits of local folders only; a scrub verifies those of stores as well."""
    log = on_store.root(2).child("log")
    path = f"_delta_log/{RecordLog(on_store.root(2)).version:020}.json"
    content = log.read_bytes(path)
    log.replace(path, content[: len(content) // 2])
    [found] = scrub(on_store.connect()).findings
    assert (found.fault, found.path) == ("damaged_commit", path)
    log.replace(path, content)
    assert scrub(on_store.connect()).findings == []
