"""A silent producer is forgotten after producer.id.expiration.ms, and not before (rule 3.6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparklog.testing import LocalCluster
from sparklog.testing.local_producer import LocalProducer

Start = Callable[..., LocalCluster]
DAY_MS = 86_400_000


@pytest.fixture
def cluster(start: Start) -> LocalCluster:
    return start(0, 1)


@pytest.fixture
def producer(cluster: LocalCluster) -> LocalProducer:
    """A producer with two appended batches."""
    producer = cluster.idempotent_producer()
    for value in (b"a", b"b"):
        assert write(cluster, producer, value) == "NONE"
    return producer


def write(cluster: LocalCluster, producer: LocalProducer, value: bytes) -> str:
    pending = cluster.produce("t", 0, [value], producer=producer)
    cluster.tick_until_idle()
    assert pending.response is not None
    return pending.response.error


def lose_a_batch(cluster: LocalCluster, producer: LocalProducer) -> None:
    """Make a request of the producer fail without an append, so that its sequence has a gap."""
    pending = cluster.produce("t", 0, [b"lost"], producer=producer, timeout_ms=0)
    cluster.clock.advance(1)
    cluster.tick_until_idle()
    assert pending.response is not None
    assert pending.response.error == "REQUEST_TIMED_OUT"


def values(cluster: LocalCluster) -> list[bytes | None]:
    return [record.value for record in cluster.consume("t", 0)]


def test_a_gap_is_found_a_day_later(cluster: LocalCluster, producer: LocalProducer) -> None:
    """A gap in the sequence is refused up to producer.id.expiration.ms after the last batch."""
    cluster.clock.advance(DAY_MS - 2)
    lose_a_batch(cluster, producer)
    assert write(cluster, producer, b"c") == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_a_forgotten_producer_may_begin_anywhere(
    cluster: LocalCluster, producer: LocalProducer
) -> None:
    """A forgotten producer may begin at any sequence, as since KIP-360."""
    cluster.clock.advance(DAY_MS)
    lose_a_batch(cluster, producer)
    assert write(cluster, producer, b"c") == "NONE"
    assert values(cluster) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("silence_ms", "answer"), [(DAY_MS - 1, "OUT_OF_ORDER_SEQUENCE_NUMBER"), (DAY_MS, "NONE")]
)
def test_a_failover_and_a_restart_change_nothing(
    cluster: LocalCluster, producer: LocalProducer, silence_ms: int, answer: str
) -> None:
    """The time of a batch is in the log, on the leader and on the follower."""
    began_ms = cluster.clock.now_ms()
    cluster.crash(0)
    cluster.fence(0)
    cluster.crash(1)
    cluster.restart(1)
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).leader == 1
    cluster.clock.advance(silence_ms - 1 - (cluster.clock.now_ms() - began_ms))
    lose_a_batch(cluster, producer)
    assert write(cluster, producer, b"c") == answer


def test_writing_keeps_a_producer_known(cluster: LocalCluster, producer: LocalProducer) -> None:
    """Each batch restarts the expiration of its producer."""
    for value in (b"c", b"d"):
        cluster.clock.advance(DAY_MS - 1)
        assert write(cluster, producer, value) == "NONE"
    lose_a_batch(cluster, producer)
    assert write(cluster, producer, b"e") == "OUT_OF_ORDER_SEQUENCE_NUMBER"
