"""Readers whose metadata are from before an election take no cut or removed log for the leader's.

The deposed leader was elected in the first epoch of the partition. A reader loads the metadata, the
leader is deposed and changes its log, and the reader reads that log.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparklog.cluster.metadata import PartitionState
from sparklog.consumer.consumer import Consumer
from sparklog.errors import ProtocolError
from sparklog.model import HIGH_WATERMARK_CHECKPOINT, TopicPartition
from sparklog.testing import LocalCluster
from tests.broker.damaging import batch_file, flip_byte
from tests.broker.states import check_at_rest, error, rows, values

Start = Callable[..., LocalCluster]
Change = Callable[[LocalCluster], None]

VALUES = ("a", "b", "c")


@pytest.fixture
def cluster(start: Start) -> LocalCluster:
    """A cluster with three committed records, led by broker 0 in epoch 0."""
    cluster = start(0, 1, 2, assignment={0: [0, 1, 2]})
    for value in VALUES:
        pending = cluster.produce("t", 0, [value.encode()])
        cluster.tick_until_idle()
        assert error(pending) == "NONE"
    assert cluster.partition("t", 0).leader_epoch == 0
    return cluster


def cut_by_damage(cluster: LocalCluster) -> None:
    """Let the leader find a damaged file, leave the ISR, and remove what is behind it."""
    flip_byte(batch_file(cluster, 0, 0))
    cluster.clock.advance(1_000)
    for _ in range(2):
        cluster.leader_tick(0)
        cluster.controller_tick()
    assert values(cluster.log(0, "t", 0)) == []


def removed_by_a_reassignment(cluster: LocalCluster) -> None:
    """Move the partition from the leader to the other brokers; it removes its replica."""
    cluster.alter_partition_reassignments({TopicPartition("t", 0): [1, 2]})
    cluster.tick_until_idle()
    assert rows(cluster, 0, HIGH_WATERMARK_CHECKPOINT) == []


CHANGES = pytest.mark.parametrize("change", [cut_by_damage, removed_by_a_reassignment])


def old_state(cluster: LocalCluster) -> PartitionState:
    return cluster.connection.metadata().partition("t", 0)


@CHANGES
def test_no_offsets_are_served(cluster: LocalCluster, change: Change) -> None:
    """The end of the log was 0, although three records were committed."""
    connection, state = cluster.connection, old_state(cluster)
    change(cluster)
    [found] = connection.fetchable([state]).values()
    assert isinstance(found, ProtocolError)
    assert found.code.name == "OFFSET_NOT_AVAILABLE"


@CHANGES
def test_a_consumer_keeps_its_position(
    cluster: LocalCluster, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began again at 0, and committed offsets that were lower than before."""
    with Consumer(str(cluster.root / "cluster"), auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        read = [one.value for records in consumer.poll(1_000).values() for one in records]
        assert read == [b"a", b"b", b"c"]
        logs = consumer._logs
        old = logs.metadata(0)
        change(cluster)
        with monkeypatch.context() as patch:
            patch.setattr(logs, "metadata", lambda *_: old)
            assert consumer.poll() == {}
            assert consumer.position(TopicPartition("t", 0)) == 3
        cluster.produce("t", 0, [b"d"])
        cluster.tick_until_idle()
        [[found]] = consumer.poll(1_000).values()
        assert (found.offset, found.value) == (3, b"d")


def test_a_follower_copies_nothing_of_a_leader_that_is_cut(cluster: LocalCluster) -> None:
    """It is cut only by a leader of its own epoch."""
    cluster.pause(2)
    cut_by_damage(cluster)
    cluster.follower_tick(2)
    assert values(cluster.log(2, "t", 0)) == ["a", "b", "c"]
    cluster.resume(2)
    check_at_rest(cluster, *VALUES)
