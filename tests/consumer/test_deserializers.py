"""Deserializers of the consumer without Spark, and their failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparklog.consumer.consumer import Consumer
from sparklog.errors import RecordDeserializationError, SparklogError
from sparklog.model import TopicPartition
from sparklog.testing import LocalCluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def local(tmp_path: Path) -> LocalCluster:
    cluster = LocalCluster(tmp_path, [0])
    cluster.create_topic("t", assignment={0: [0], 1: [0]})
    return cluster


def produced(cluster: LocalCluster, partition: int, *values: bytes) -> None:
    cluster.produce("t", partition, values)
    cluster.tick_until_idle()


def consumer_of(folder: Path, *partitions: TopicPartition, **config: Any) -> Consumer:
    given: dict[str, Any] = {"auto_offset_reset": "earliest", "value_deserializer": json.loads}
    consumer = Consumer(folder / "cluster", **(given | config))
    consumer.assign(partitions)
    return consumer


def numbers(polled: dict[TopicPartition, list[Any]]) -> dict[int, list[Any]]:
    return {name.partition: [one.value for one in found] for name, found in polled.items()}


class WithTopic:
    """A deserializer as in Kafka's clients: it takes the topic too."""

    def deserialize(self, topic: str, content: bytes | None) -> str:
        return f"{topic}: {content!r}"


def test_keys_and_values_are_converted(local: LocalCluster, tmp_path: Path) -> None:
    """Functions and objects with `deserialize` are called, also for null."""
    local.produce("t", 0, [b'{"a": 1}', b"[]"], keys=[b"k", None])
    local.tick_until_idle()
    consumer = consumer_of(tmp_path, T0, key_deserializer=WithTopic())
    [records] = consumer.poll().values()
    assert [(one.key, one.value) for one in records] == [("t: b'k'", {"a": 1}), ("t: None", [])]


def test_the_position_stays_before_a_record_that_fails(local: LocalCluster, tmp_path: Path) -> None:
    """Earlier records are returned, then each poll raises, until the consumer seeks past."""
    produced(local, 0, b"0", b"1", b"no JSON", b"3")
    consumer = consumer_of(tmp_path, T0)
    assert numbers(consumer.poll()) == {0: [0, 1]}
    assert consumer.position(T0) == 2
    for _ in range(3):
        with pytest.raises(RecordDeserializationError, match="t-0 at offset 2") as told:
            consumer.poll()
        assert (told.value.topic, told.value.partition, told.value.offset) == ("t", 0, 2)
        assert isinstance(told.value.__cause__, json.JSONDecodeError)
        assert consumer.position(T0) == 2
    consumer.seek(T0, 3)
    assert numbers(consumer.poll()) == {0: [3]}


def test_records_that_were_not_returned_are_not_committed(
    local: LocalCluster, tmp_path: Path
) -> None:
    """A consumer that is closed after a failure commits the offset of the record that failed."""
    produced(local, 0, b"0", b"no JSON", b"2")
    with consumer_of(tmp_path, T0, group_id="g") as consumer:
        consumer.poll()
        with pytest.raises(RecordDeserializationError):
            consumer.poll()
    with consumer_of(tmp_path, T0, group_id="g") as consumer:
        committed = consumer.committed(T0)
    assert committed is not None
    assert committed.offset == 1


def test_other_partitions_are_read_meanwhile(local: LocalCluster, tmp_path: Path) -> None:
    """After a failure the next poll serves the other partitions first."""
    produced(local, 0, b"no JSON")
    produced(local, 1, b"0", b"1", b"2")
    consumer = consumer_of(tmp_path, T0, T1, max_poll_records=1)
    found: list[Any] = []
    failures = 0
    for _ in range(8):
        try:
            found += numbers(consumer.poll()).get(1, [])
        except RecordDeserializationError:
            failures += 1
    assert found == [0, 1, 2]
    assert failures == 5
    assert consumer.position(T0) == 0


def test_an_interrupt_in_a_deserializer_loses_no_record(
    local: LocalCluster, tmp_path: Path
) -> None:
    """KeyboardInterrupt in the second partition leaves the positions of both."""
    produced(local, 0, b"0", b"1")
    produced(local, 1, b"2", b"3")
    interrupts = [b"3"]

    def interrupted(content: bytes) -> Any:
        if content in interrupts:
            interrupts.clear()
            raise KeyboardInterrupt
        return json.loads(content)

    consumer = consumer_of(tmp_path, T0, T1, value_deserializer=interrupted)
    with pytest.raises(KeyboardInterrupt):
        consumer.poll()
    assert (consumer.position(T0), consumer.position(T1)) == (0, 0)
    assert numbers(consumer.poll()) == {0: [0, 1], 1: [2, 3]}


@pytest.mark.usefixtures("local")
def test_a_deserializer_that_is_no_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SparklogError, match="value_deserializer must be a function"):
        consumer_of(tmp_path, T0, value_deserializer="json")
