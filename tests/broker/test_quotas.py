"""Quotas: the rate at which producers may write to a topic that limits it (producer_byte_rate)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparklog.producer.produce_requests import PendingProduce
from sparklog.testing import LocalCluster

Start = Callable[..., LocalCluster]


@pytest.fixture
def cluster(start: Start) -> LocalCluster:
    """A topic `slow` with a quota of 1000 bytes/s over windows of two seconds, and a topic `t`."""
    cluster = start(0, quota_window_num=2, quota_window_size_seconds=1)
    cluster.create_topic(
        "slow", assignment={0: [0], 1: [0]}, configs={"producer_byte_rate": "1000"}
    )
    cluster.tick_until_idle()
    return cluster


def sent(cluster: LocalCluster, topic: str, partition: int = 0) -> str:
    """Send a batch of between one and two seconds' bytes; return its answer."""
    pending: PendingProduce = cluster.produce(topic, partition, [b"m" * 500], acks=1)
    cluster.leader_tick(0)
    assert pending.response is not None
    return pending.response.error


def test_a_topic_that_is_written_too_fast_refuses_for_a_while(cluster: LocalCluster) -> None:
    """All its partitions count; the batches written so far stay."""
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
    """The quota of one topic does not affect other topics."""
    while sent(cluster, "slow") == "NONE":
        pass
    assert [sent(cluster, "t") for _ in range(5)] == ["NONE"] * 5


def test_a_retry_of_what_is_in_the_log_is_answered_all_the_same(cluster: LocalCluster) -> None:
    """A retry of a stored batch is answered over the quota, because it adds no bytes (3.6)."""
    producer = cluster.idempotent_producer()
    first = cluster.produce("slow", 0, [b"m"], acks=1, producer=producer)
    cluster.leader_tick(0)
    while sent(cluster, "slow") == "NONE":
        pass
    again = producer.retry(first)
    cluster.leader_tick(0)
    assert again.response == first.response
