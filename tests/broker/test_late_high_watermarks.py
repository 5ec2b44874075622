"""High watermarks of followers on an object store, where a commit for them alone costs a
request.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparklog.cluster.connection import Connection
from sparklog.config import Settings
from sparklog.producer.plain import Producer
from sparklog.storage.journal import Journal
from sparklog.storage.location import Location
from tests.storage.test_s3 import Store, pytestmark, store
from tests.storage.test_store_heartbeats import Cluster, cluster

__all__ = ["Store", "cluster", "pytestmark", "store"]

LEADER, FOLLOWER = 0, 1
TICK_MS = Settings().tick_interval_ms


@pytest.fixture
def producer(cluster: Cluster) -> Iterator[Producer]:
    connection = Connection(f"{cluster.bucket}/cluster", storage_options=cluster.options)
    with Producer(connection) as made:
        yield made


def send(cluster: Cluster, producer: Producer) -> None:
    """Send a record, and run rounds until it is acknowledged and the cluster is idle."""
    future = producer.send("t", b"a")
    is_changed = True
    while is_changed or not future.done():
        is_changed = cluster.application.round().changed


def high_watermark(cluster: Cluster, broker: int) -> int:
    journal = Journal(Location.of(f"{cluster.bucket}/broker-{broker}", cluster.options))
    [row] = journal.rows.values()
    return int(row["high_watermark"])


def test_one_alone_is_committed_two_ticks_later(cluster: Cluster, producer: Producer) -> None:
    """A high watermark without any other change is committed two ticks later."""
    send(cluster, producer)
    version = cluster.version(FOLLOWER)
    assert (high_watermark(cluster, LEADER), high_watermark(cluster, FOLLOWER)) == (1, 0)
    cluster.clock.advance(2 * TICK_MS - 1)
    assert not cluster.application.round().changed
    cluster.clock.advance(1)
    assert cluster.application.round().changed
    assert high_watermark(cluster, FOLLOWER) == 1
    assert cluster.version(FOLLOWER) == version + 1
    cluster.clock.advance(2 * TICK_MS)
    assert not cluster.application.round().changed


def test_it_rides_along_with_the_next_batch(cluster: Cluster, producer: Producer) -> None:
    """A record costs a follower one commit."""
    send(cluster, producer)
    version = cluster.version(FOLLOWER)
    for number in range(3):
        cluster.clock.advance(TICK_MS)
        send(cluster, producer)
        assert high_watermark(cluster, FOLLOWER) == number + 1
    assert cluster.version(FOLLOWER) == version + 3


def test_a_scheduled_run_leaves_none_behind(cluster: Cluster, producer: Producer) -> None:
    """A scheduled run commits the last high watermark before it ends."""
    send(cluster, producer)
    while cluster.application.round(to_end=True).changed:
        pass
    assert high_watermark(cluster, FOLLOWER) == 1
