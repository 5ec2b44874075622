"""Quotas: how fast producers may write to a topic that says so (producer_byte_rate)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparklog.clients.produce import PendingProduce
from sparklog.testing import LocalCluster

Start = Callable[..., LocalCluster]


@pytest.fixture
def cluster(start: Start) -> LocalCluster:
    """A topic `slow` that takes 1000 bytes a second, over windows of two seconds, beside `t`."""
    cluster = start(0, quota_window_num=2, quota_window_size_seconds=1)
    cluster.create_topic(
        "slow", assignment={0: [0], 1: [0]}, configs={"producer_byte_rate": "1000"}
    )
    cluster.tick_until_idle()
    return cluster


def sent(cluster: LocalCluster, topic: str, partition: int = 0) -> str:
    """Send a batch of more than a second's and less than two seconds' bytes; how it is answered."""
    pending: PendingProduce = cluster.produce(topic, partition, [b"m" * 500], acks=1)
    cluster.leader_tick(0)
    assert pending.response is not None
    return pending.response.error


def test_a_topic_that_is_written_too_fast_refuses_for_a_while(cluster: LocalCluster) -> None:
    """All its partitions count; what was written is written."""
    assert [sent(cluster, "slow", partition) for partition in (0, 1, 0)] == [
        "NONE",
        "NONE",
        "THROTTLING_QUOTA_EXCEEDED",
    ]
    cluster.clock.advance(1999)
    assert sent(cluster, "slow") == "THROTTLING_QUOTA_EXCEEDED"
    cluster.clock.advance(1)
    assert sent(cluster, "slow") == "NONE"
    assert [len(cluster.log(0, "slow", partition)) for partition in (0, 1)] == [2, 1]


def test_other_topics_are_not_slowed_down(cluster: LocalCluster) -> None:
    while sent(cluster, "slow") == "NONE":
        pass
    assert [sent(cluster, "t") for _ in range(5)] == ["NONE"] * 5


def test_a_retry_of_what_is_in_the_log_is_answered_all_the_same(cluster: LocalCluster) -> None:
    """It adds no bytes (3.6)."""
    producer = cluster.idempotent_producer()
    first = cluster.produce("slow", 0, [b"m"], acks=1, producer=producer)
    cluster.leader_tick(0)
    while sent(cluster, "slow") == "NONE":
        pass
    again = producer.retry(first)
    cluster.leader_tick(0)
    assert again.response == first.response
