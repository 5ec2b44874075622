"""Requests in further request tables of a broker's inbox, on an object store."""

from __future__ import annotations

import pytest

from sparklog.broker.application import Application
from sparklog.broker.leading.inbox import Inbox
from sparklog.cluster.connection import Connection
from sparklog.errors import StorageError
from sparklog.model import PRODUCE_REQUESTS, REQUEST_TABLES
from sparklog.producer.plain import Producer
from sparklog.storage import request_appends
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.location import Location
from sparklog.storage.request_commits import told_refusals
from sparklog.storage.request_files import has_further_tables, read_requests, request_file
from sparklog.storage.request_table import RequestTable
from sparklog.storage.request_tables import RequestTables
from tests.jobs.processes import wait_for
from tests.storage.requests import request
from tests.storage.test_s3 import pytestmark, store
from tests.storage.test_store_heartbeats import Cluster, cluster

__all__ = ["cluster", "pytestmark", "store"]


def root_of(cluster: Cluster) -> Location:
    """Return the root of the broker that leads the only partition."""
    return Location.of(f"{cluster.bucket}/broker-0", cluster.options)


def compete(cluster: Cluster) -> None:
    """Append as a producer does whose append was refused twice; the request itself is not valid."""
    log = DeltaLog(root_of(cluster).child(PRODUCE_REQUESTS.name))
    files = [request_file(request("a", topic_id="none"), 1)]
    log.commit("WRITE", files, user_metadata=told_refusals(2), syncs_files=False)


def spread(cluster: Cluster) -> None:
    """Make the leader create its further request tables, and wait until it polls them."""
    compete(cluster)

    def is_spread() -> bool:
        cluster.application.round()
        return len(inbox(cluster.application)._tables) == len(REQUEST_TABLES)

    wait_for(is_spread, "the further tables")


def inbox(application: Application) -> Inbox:
    [leader] = application._brokers[0]._leaders
    return leader.appends.inbox


def send(cluster: Cluster, value: bytes) -> int:
    """Send a record, run all rounds until it is acknowledged, and return its offset."""
    connection = Connection(f"{cluster.bucket}/cluster", storage_options=cluster.options)
    with Producer(connection, acks="all") as producer:
        future = producer.send("t", value, partition=0)

        def is_done() -> bool:
            cluster.application.round()
            return future.done()

        wait_for(is_done, "the acknowledgement")
        return future.result().offset


def test_are_answered_once_and_removed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are read one after another; the position in each is in the journal."""
    spread(cluster)
    for number in (3, 0, 7, 3):
        one = REQUEST_TABLES[number : number + 1]
        monkeypatch.setattr(request_appends, "REQUEST_TABLES", one)
        send(cluster, b"a")
    monkeypatch.undo()
    assert send(cluster, b"last") == 4
    assert not inbox(cluster.application).waiting

    def are_removed() -> bool:
        cluster.clock.advance(31_000)
        cluster.application.round()
        left: int = read_requests(root_of(cluster)).num_rows
        return left == 0

    wait_for(are_removed, "the removals")


def test_are_known_to_be_taken_by_the_next_process(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests are still stored in their tables."""
    monkeypatch.setattr(RequestTable, "remove", lambda *_: None)
    spread(cluster)
    monkeypatch.setattr(request_appends, "REQUEST_TABLES", REQUEST_TABLES[5:6])
    assert send(cluster, b"a") == 0
    before = cluster.application
    before.stop()
    before.run()
    cluster.application = Application(before.config, clock=cluster.clock)
    cluster.application.start()
    assert "a" not in [one.request.request_id for one in inbox(cluster.application).load(0)]
    cluster.application.round()
    assert not inbox(cluster.application).waiting
    assert len(read_requests(root_of(cluster))) == 2
    assert send(cluster, b"b") == 1


def test_a_leader_goes_on_where_its_tables_cannot_be_created(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader tries to create them once each time that producers compete."""
    tried: list[RequestTables] = []

    def failing(of: RequestTables) -> list[RequestTable]:
        tried.append(of)
        raise StorageError("the store is away")

    monkeypatch.setattr(RequestTables, "further", failing)
    compete(cluster)
    assert send(cluster, b"a") == 0
    assert send(cluster, b"b") == 1
    assert len(tried) == 1
    assert not has_further_tables(root_of(cluster))
    compete(cluster)
    assert send(cluster, b"c") == 2
    assert len(tried) == 2
    monkeypatch.undo()
    spread(cluster)
