"""The requests of `sparklog status` to an object store do not grow with the history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from benchmarks.s3_server import Logged
from benchmarks.s3_store import Store, running_store
from sparklog import Admin, Producer
from sparklog.broker.application import Application
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.maintenance.status import ClusterStatus
from sparklog.maintenance.status_reader import StatusReader
from sparklog.model import LOG
from sparklog.storage.delta_log_files import newest_listed
from sparklog.storage.fence import Fence
from sparklog.storage.journal import Activity, Journal
from sparklog.storage.location import Location

BROKERS = 3
MOST_OF_A_ROOT = 14
"""Requests for a log directory: a listing, a commit and a file of the checkpoint; a listing of the
empty table of truncations; a listing and the newest commit of the log; the eight commits before
it, since the last one of a stopped broker is a fence, which does not say what the broker did.
"""


class OnStore(NamedTuple):
    """A store, and a cluster with three stopped brokers there."""

    store: Store
    config: ClusterConfig

    def root(self, broker_id: int) -> Location:
        return Location.of(f"s3://shown/broker-{broker_id}", self.store.options())

    def reader(self) -> StatusReader:
        connection = Connection("s3://shown/cluster", storage_options=self.store.options())
        return StatusReader(connection)

    def logged(self, read: Callable[[], ClusterStatus]) -> list[Logged]:
        with self.store.logged() as log:
            status = read()
        assert status.problems() == []
        assert {one.high_watermark for one in status.partitions} == {1}
        return log

    def extend_journals(self, version: int) -> None:
        """Let the journals have commits up to a version, and stop the brokers after a last round.

        The commits are heartbeats, of which a broker makes 900 an hour.
        """
        for broker_id in range(BROKERS):
            journal = Journal(self.root(broker_id))
            journal.activity = lambda: Activity(tick_ms=1, requests_per_minute=1)
            journal.take_fence(Fence("broker_epoch", journal.held_by("broker_epoch") or 0))
            while journal.version < version:
                journal.heartbeat()
        stop(Application(self.config))


def stop(application: Application, *, started: bool = False) -> None:
    if not started:
        application.start()
    application.stop()
    application.run_until_idle()


@pytest.fixture(scope="module")
def on_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnStore]:
    with running_store(tmp_path_factory.mktemp("store") / "log") as store:
        store.bucket("shown")
        values = {
            "cluster.root": "s3://shown/cluster",
            "brokers": [
                {"broker.id": one, "log.dirs": [f"s3://shown/broker-{one}"]}
                for one in range(BROKERS)
            ],
            "storage.options": store.options(),
        }
        on_store = OnStore(store, parse(ClusterConfig, values, "the test's configuration"))
        application = Application(on_store.config)
        application.start()
        connection = Connection("s3://shown/cluster", storage_options=store.options())
        Admin(connection).create_topic("t", 3, 3)
        with Producer(connection) as producer:
            for partition in range(3):
                sent = producer.send("t", b"a record", partition=partition)
                while not sent.done():
                    application.round()
        stop(application, started=True)
        yield on_store


def of_roots(log: list[Logged]) -> Counter[str]:
    """Return the number of requests for each broker root."""
    keys = (one.key.split("/")[1] for one in log)
    return Counter(name for name in keys if name.startswith("broker-"))


def test_the_first_reading_of_a_journal_does_not_grow_with_it(on_store: OnStore) -> None:
    """The log itself is not opened: its checkpoint and the commits after that are enough."""
    for version in (100, 400):
        on_store.extend_journals(version)
        log = on_store.logged(on_store.reader().read)
        found = of_roots(log)
        assert newest_listed(on_store.root(0).child(LOG.name)) >= version
        assert len(found) == BROKERS
        assert max(found.values()) <= MOST_OF_A_ROOT


def test_a_further_reading_requests_only_what_may_be_new(on_store: OnStore) -> None:
    """One request for each table that is followed, whatever was read before."""
    reader = on_store.reader()
    reader.read()
    on_store.logged(reader.read)
    log = on_store.logged(reader.read)
    assert {one.status for one in log} == {404}
    tables = sorted(one.key.partition("/")[2].split("/_delta_log/")[0] for one in log)
    assert tables == [
        "broker-0/log",
        "broker-1/log",
        "broker-2/log",
        *(
            f"cluster/{name}"
            for name in (
                "brokers",
                "consumer_groups",
                "consumer_offsets",
                "controller",
                "partition_state",
                "topics",
            )
        ),
    ]
