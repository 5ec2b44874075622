"""Counts of a consumer, its high watermarks and the names of topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.consumer.consumer import Consumer
from sparklog.errors import SparklogError
from sparklog.model import TopicPartition
from sparklog.testing import LocalCluster

T0 = TopicPartition("t", 0)


@pytest.fixture
def local(tmp_path: Path) -> LocalCluster:
    """A cluster with three records in t-0, in two batches."""
    cluster = LocalCluster(tmp_path, [0])
    cluster.create_topic("t", assignment={0: [0]})
    for batch in ([b"0", b"1"], [b"2"]):
        cluster.produce("t", 0, batch)
        cluster.tick_until_idle()
    return cluster


def test_counts_and_lag(local: LocalCluster, tmp_path: Path) -> None:
    """Records count when they are returned, bytes when they are fetched; the lag is positions'."""
    with Consumer(tmp_path / "cluster", auto_offset_reset="earliest", max_poll_records=2) as one:
        one.assign([T0])
        assert one.highwater(T0) is None
        one.poll()
        assert one.highwater(T0) == 3
        metrics = one.metrics()
        fetches = metrics["consumer-fetch-manager-metrics"]
        assert fetches["records-consumed-total"] == 2
        assert fetches["fetch-total"] == 1
        assert fetches["records-per-request-avg"] == fetches["records-per-request-max"] == 3
        assert fetches["bytes-consumed-total"] == fetches["fetch-size-max"] > 0
        assert fetches["records-lag-max"] == 1
        assert metrics["consumer-coordinator-metrics"] == {
            "commit-total": 0,
            "rebalance-total": 0,
            "assigned-partitions": 1,
        }
        one.poll()
        local.produce("t", 0, [b"3"])
        local.tick_until_idle()
        assert one.highwater(T0) == 3
        one.poll()
        assert one.highwater(T0) == 4
        assert one.metrics()["consumer-fetch-manager-metrics"]["records-lag-max"] == 0
        with pytest.raises(SparklogError, match="t-7 is not assigned"):
            one.highwater(("t", 7))


def test_topics_and_subscriptions(local: LocalCluster, tmp_path: Path) -> None:
    """Topics are those of now; a subscription has those of its names that exist."""
    with Consumer(tmp_path / "cluster", "g", auto_offset_reset="earliest") as consumer:
        assert consumer.topics() == {"t"}
        assert consumer.subscription() is None
        local.create_topic("u", assignment={0: [0]})
        local.tick_until_idle()
        assert consumer.topics() == {"t", "u"}
        consumer.subscribe(["u", "later"])
        assert consumer.subscription() == {"u"}
        while not consumer.assignment():
            consumer.poll(100)
        assert consumer.metrics()["consumer-coordinator-metrics"]["rebalance-total"] == 1
