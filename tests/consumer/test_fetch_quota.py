"""consumer_byte_rate: a consumer holds its own fetches back (3.9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.cluster.admin import Admin
from sparklog.consumer.consumer import Consumer
from sparklog.consumer.fetch_quota import _WINDOW_MS
from sparklog.testing import LocalCluster, ManualClock

RATE = 10


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Three batches of more than a window's bytes, if the quota is 10 bytes/s."""
    made = LocalCluster(tmp_path, [0])
    made.create_topic("t")
    for value in (b"a", b"b", b"c"):
        made.produce("t", 0, [value * 200])
        made.tick_until_idle()
    return made


def consumer_of(cluster: LocalCluster, client_id: str) -> Consumer:
    """Return a consumer on the manual clock that fetches one batch at a time."""
    made = Consumer(
        str(cluster.root / "cluster"),
        client_id=client_id,
        auto_offset_reset="earliest",
        fetch_max_bytes=1,
    )
    made.assign([("t", 0)])
    made._fetcher._clock = cluster.clock
    return made


def polled(consumer: Consumer) -> list[bytes | None]:
    records = [one for of in consumer.poll(timeout_ms=0).values() for one in of]
    return [one.value[:1] if one.value is not None else None for one in records]


def limit(cluster: LocalCluster, client_id: str | None) -> None:
    Admin(cluster.connection).alter_client_quotas(client_id, {"consumer_byte_rate": RATE})


@pytest.mark.parametrize("limited", ["app", None])
def test_a_consumer_over_its_quota_fetches_nothing_for_a_while(
    cluster: LocalCluster, limited: str | None
) -> None:
    """The throttle time is Kafka's; the records are returned after it."""
    limit(cluster, limited)
    consumer = consumer_of(cluster, "app")
    assert polled(consumer) == [b"a"]
    quota = consumer._fetcher._quota
    assert quota is not None
    clock: ManualClock = cluster.clock
    left_ms = quota.left_ms(clock.monotonic_ms())
    log = cluster.brokers[0]._roots[0].log
    [key] = log.partitions()
    assert left_ms == log.batches(key, 0)[0].size_bytes * 1000 // RATE - _WINDOW_MS + 1
    assert [polled(consumer) for _ in range(3)] == [[], [], []]
    clock.advance(left_ms)
    assert polled(consumer) == [b"b"]
    assert polled(consumer) == []


def test_another_client_does_not_wait(cluster: LocalCluster) -> None:
    """The quota is that of one client id."""
    limit(cluster, "other")
    consumer = consumer_of(cluster, "app")
    assert [polled(consumer) for _ in range(3)] == [[b"a"], [b"b"], [b"c"]]


def test_a_removed_quota_ends_the_wait(cluster: LocalCluster) -> None:
    """The consumer finds the change with its metadata."""
    limit(cluster, "app")
    consumer = consumer_of(cluster, "app")
    assert polled(consumer) == [b"a"]
    Admin(cluster.connection).alter_client_quotas("app", delete=["consumer_byte_rate"])
    consumer._root.brokers.refresh()
    assert polled(consumer) == [b"b"]
