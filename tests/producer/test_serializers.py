"""Serializers and counts of the producer without Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import ProtocolError, SparklogError
from sparklog.producer.partitioner import keyed_partitions
from sparklog.producer.plain import Producer
from tests.running_cluster import RunningCluster


def as_json(content: Any) -> bytes:
    return json.dumps(content).encode()


class WithTopic:
    """A serializer as in Kafka's clients: it takes the topic too."""

    def serialize(self, topic: str, content: Any) -> bytes | None:
        return None if content is None else f"{topic}/{content}".encode()


def test_keys_and_values_are_serialized_before_the_partition_is_chosen(
    running_cluster: RunningCluster,
) -> None:
    """The partition is that of the serialized key. Functions are called for null too."""
    running_cluster.create_topic("json", partitions=3)
    with Producer(
        running_cluster.connection, key_serializer=WithTopic(), value_serializer=as_json
    ) as producer:
        sent = [producer.send("json", {"n": one}, key=one) for one in range(9)]
        sent.append(producer.send("json", None))
    found = running_cluster.committed("json")
    for number, future in enumerate(sent[:9]):
        where, key = future.result(0), b"json/%d" % number
        stored = found[where.partition][where.offset]
        assert (stored["key"], stored["value"]) == (key, as_json({"n": number}))
        assert where.partition == int(keyed_partitions(pa.array([key]), 3)[0])
    where = sent[9].result(0)
    stored = found[where.partition][where.offset]
    assert (stored["key"], stored["value"]) == (None, b"null")


def test_a_serializer_that_fails_sends_nothing(running_cluster: RunningCluster) -> None:
    """The error is raised by send; buffer, counts and later records are not affected."""
    running_cluster.create_topic("failing")
    with Producer(running_cluster.connection, value_serializer=as_json) as producer:
        with pytest.raises(SparklogError, match=r"value_serializer failed .* 'failing'") as told:
            producer.send("failing", {1, 2})
        assert isinstance(told.value.__cause__, TypeError)
        metrics = producer.metrics()["producer-metrics"]
        assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]
        producer.send("failing", 7).result(60)
    with (
        Producer(running_cluster.connection, value_serializer=str) as producer,
        pytest.raises(SparklogError, match=r"returned str .* must return bytes or None"),
    ):
        producer.send("failing", 7)
    with pytest.raises(SparklogError, match="key_serializer must be a function"):
        Producer(running_cluster.connection, key_serializer="json")
    [records] = running_cluster.committed("failing").values()
    assert [record["value"] for record in records] == [b"7"]


def test_counts_of_a_producer(running_cluster: RunningCluster) -> None:
    """Records, requests and bytes are counted; a record that failed is an error."""
    running_cluster.create_topic("counted", partitions=2)
    with Producer(running_cluster.connection, linger_ms=60_000) as producer:
        assert producer.partitions_for("counted") == [("counted", 0), ("counted", 1)]
        for number in range(10):
            producer.send("counted", b"%d" % number, partition=number % 2)
        producer.flush(60_000)
        metrics = producer.metrics()["producer-metrics"]
        assert metrics["record-send-total"] == 10 + metrics["record-retry-total"]
        assert metrics["record-error-total"] == 0
        assert metrics["record-size-avg"] == metrics["record-size-max"] == 33
        # A flush sends what the thread has taken over by then: five records make 1 to 5 batches.
        assert 33 <= metrics["batch-size-avg"] <= metrics["batch-size-max"] <= 5 * 33
        assert metrics["outgoing-byte-total"] > 0
        assert metrics["requests-in-flight"] == 0
        assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]
        with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            producer.partitions_for("nowhere")
