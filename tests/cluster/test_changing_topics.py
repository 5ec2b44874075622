"""Clients notice that a topic grows, is deleted, and is created again under its name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.consumer.consumer import Consumer
from sparklog.errors import ProtocolError
from sparklog.groups.committed_offsets import CommittedOffsets
from sparklog.groups.group import ConsumerGroups
from sparklog.producer.accumulator import RecordMetadata
from sparklog.producer.plain import Producer
from tests.jobs.processes import wait_for
from tests.running_cluster import RunningCluster

EARLIEST: dict[str, Any] = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 100}


@pytest.fixture
def producer(running_cluster: RunningCluster) -> Iterator[Producer]:
    with Producer(running_cluster.connection) as made:
        yield made


def admin(running_cluster: RunningCluster) -> Admin:
    """Return an admin with a connection of its own, as another process has."""
    return Admin(Connection(str(running_cluster.folder / "cluster")))


def poll_until(
    consumer: Consumer, done: Callable[[], bool], found: list[bytes | None] | None = None
) -> None:
    """Poll until `done`; add the values of the records to `found`."""
    values = [] if found is None else found
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, consumer.assignment()
        for records in consumer.poll(20).values():
            values += [record.value for record in records]


def sent(producer: Producer, topic: str, value: bytes, partition: int) -> RecordMetadata:
    """Send a record again until the producer knows the new partition, or the new topic.

    Until then it fails at once with UNKNOWN_TOPIC_OR_PARTITION.
    """
    stored: list[RecordMetadata] = []

    def attempt() -> bool:
        try:
            stored.append(producer.send(topic, value, partition=partition).result(30))
        except ProtocolError as error:
            if error.code.name != "UNKNOWN_TOPIC_OR_PARTITION":
                raise
        return bool(stored)

    wait_for(attempt, "the producer's metadata")
    return stored[0]


def group_keys(running_cluster: RunningCluster, group: str) -> set[str]:
    """Return the ids of the topics of which a group has committed offsets."""
    table = CommittedOffsets(running_cluster.connection.root.consumer_offsets)
    return {key.topic_id for key in table.fetch(group)}


def test_producers_and_groups_use_new_partitions(
    running_cluster: RunningCluster, producer: Producer
) -> None:
    """Without a restart: the group rebalances, and reads the new partition from its beginning."""
    running_cluster.create_topic("grown")
    producer.send("grown", b"0").result(30)
    with Consumer(running_cluster.connection, "growing", **EARLIEST) as consumer:
        consumer.subscribe(["grown"])
        poll_until(consumer, lambda: len(consumer.assignment()) == 1)
        admin(running_cluster).create_partitions("grown", 3)
        with pytest.raises(ProtocolError, match="has the partitions 0 to 0"):
            producer.send("grown", b"unknown yet", partition=2)
        # The next request, or a second, brings the new number.
        where = sent(producer, "grown", b"2", 2)
        assert (where.partition, where.offset) == (2, 0)
        found: list[bytes | None] = []
        poll_until(consumer, lambda: b"2" in found, found)
        assert len(consumer.assignment()) == 3
        group = ConsumerGroups(running_cluster.connection.root.consumer_groups).find("growing")
        assert group.generation == 2
    # The keys of records may go to the new partitions, too.
    spread = {producer.send("grown", b"", key=b"%d" % one).result(30).partition for one in range(9)}
    assert spread == {0, 1, 2}


def test_nothing_of_a_deleted_topic_is_taken_for_one_of_the_same_name(
    running_cluster: RunningCluster, producer: Producer
) -> None:
    """Neither records, nor positions, nor committed offsets, nor sequences of producers."""
    running_cluster.create_topic("again", partitions=2)
    for number in range(2):
        producer.send("again", b"old", partition=number).result(30)
    other = admin(running_cluster)
    old = other.describe_topic("again").topic.topic_id
    with Consumer(running_cluster.connection, "deleting", **EARLIEST) as consumer:
        consumer.subscribe(["again"])
        found: list[bytes | None] = []
        poll_until(consumer, lambda: len(found) == 2, found)
        consumer.commit()
        assert group_keys(running_cluster, "deleting") == {old}
        by_hand = Consumer(running_cluster.connection, **EARLIEST)
        by_hand.assign([("again", 0)])
        assert len(by_hand.poll(30_000)) == 1

        other.delete_topic("again")
        poll_until(consumer, lambda: not consumer.assignment())
        with pytest.raises(ProtocolError, match=r"UNKNOWN_TOPIC_OR_PARTITION.*was the topic del"):
            poll_until(by_hand, lambda: False)
        by_hand.close()
        wait_for(lambda: not other.list_topics_marked_for_deletion(), "the controller")
        assert group_keys(running_cluster, "deleting") == set()

        running_cluster.create_topic("again", partitions=2)
        assert sent(producer, "again", b"new", 1).offset == 0
        found.clear()
        poll_until(consumer, lambda: bool(found), found)
        assert found == [b"new"]
        consumer.commit()
        [new] = group_keys(running_cluster, "deleting")
        assert new == other.describe_topic("again").topic.topic_id != old


def test_a_record_for_a_deleted_topic_fails_at_once(
    running_cluster: RunningCluster, producer: Producer
) -> None:
    """It was accepted before the producer knew of the deletion."""
    running_cluster.create_topic("short")
    producer.send("short", b"a").result(30)
    admin(running_cluster).delete_topic("short")
    sent = producer.send("short", b"b")
    with pytest.raises(ProtocolError, match=r"UNKNOWN_TOPIC_OR_PARTITION.*the topic was deleted"):
        sent.result(30)
    with pytest.raises(ProtocolError, match="there is no topic 'short'"):
        producer.send("short", b"c").result(30)
