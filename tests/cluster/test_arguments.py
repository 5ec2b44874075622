"""Plausible wrong arguments of the clients are refused in one sentence, and Kafka's forms
accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.consumer.consumer import Consumer
from sparklog.errors import SparklogError
from sparklog.groups.committed_offsets import OffsetAndMetadata
from sparklog.model import TopicPartition
from sparklog.producer.plain import Producer
from sparklog.testing import LocalCluster
from tests.running_cluster import RunningCluster

T0 = ("t", 0)


class Clients(NamedTuple):
    """One client of each kind; the consumer has t-0 assigned."""

    admin: Any
    producer: Any
    consumer: Any
    member: Any
    root: Any


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    folder = tmp_path_factory.mktemp("cluster")
    cluster = LocalCluster(folder)
    cluster.create_topic("t")
    root = folder / "cluster"
    with Consumer(root, "g") as consumer, Consumer(root, "h") as member:
        consumer.assign([T0])
        yield Clients(Admin(root), Producer(root), consumer, member, root)
    cluster.close()


def _made(client: Any, *arguments: Any, **named: Any) -> Any:
    return client(*arguments, **named)


_Call = Callable[[Clients], object]

REFUSED: list[tuple[_Call, str]] = [
    (lambda of: of.producer.send("t", b"v", headers="h"), "headers are a list of"),
    (lambda of: of.producer.send("t", b"v", headers=("h", b"x")), "headers are a list of"),
    (lambda of: of.producer.send("t", b"v", headers=5), "headers are a list of"),
    (lambda of: of.producer.send("t", b"v", headers=[("h", b"x", 1)]), "headers are a list of"),
    (lambda of: of.producer.send("t", b"v", headers={"h": "x"}), "its header 'h' is str"),
    (lambda of: of.producer.send(["t"], b"v"), "a topic's name must be text"),
    (lambda of: of.producer.send("t", b"v", partition="0"), "must be a whole number, not '0'"),
    (lambda of: of.producer.send("t", b"v", partition=0.0), "must be a whole number, not 0.0"),
    (
        lambda of: of.producer.send("t", b"v", timestamp_ms=True),
        "a timestamp must be a whole number",
    ),
    (lambda of: of.producer.send("t", b"v", on_delivery="x"), "on_delivery must be a function"),
    (lambda of: of.producer.flush("x"), "timeout_ms must be a number of milliseconds"),
    (lambda _: _made(Producer, None), "a cluster is named by its root"),
    (lambda of: _made(Producer, of.root, partitioner=5), "partitioner must be a function"),
    (lambda _: _made(Consumer, 5), "a cluster is named by its root"),
    (lambda of: _made(Consumer, of.root, ["g"]), "INVALID_GROUP_ID: group_id must be text"),
    (
        lambda of: of.consumer.committed([T0]),
        "one is wanted here, not the list .* call it for each",
    ),
    (lambda of: of.consumer.committed("t"), r"a partition is \(topic, number\), .* not 't'"),
    (lambda of: of.consumer.committed(("t", "0")), "a partition's number must be a whole number"),
    (lambda of: of.consumer.committed(None), r"a partition is \(topic, number\), .* not None"),
    (lambda of: of.consumer.assign("t"), "partitions are given as a list"),
    (lambda of: of.consumer.assign(["t"]), r"a partition is \(topic, number\)"),
    (lambda of: of.consumer.assign(T0), "partitions are given as a list"),
    (lambda of: of.consumer.assign(None), "partitions are given as a list"),
    (lambda of: of.consumer.seek(T0, "5"), "an offset must be a whole number, not '5'"),
    (lambda of: of.consumer.seek([T0], 5), "one is wanted here"),
    (lambda of: of.consumer.position("t"), r"a partition is \(topic, number\)"),
    (lambda of: of.consumer.pause("t"), r"a partition is \(topic, number\)"),
    (lambda of: of.consumer.poll("x"), "timeout_ms must be a number of milliseconds"),
    (lambda of: of.consumer.poll(0, max_records=-1), "max_records must be 1 or more, not -1"),
    (lambda of: of.consumer.commit([T0]), "offsets to commit are given by partition"),
    (lambda of: of.consumer.commit({T0: "5"}), "an offset to commit must be a whole number"),
    (lambda of: of.consumer.commit({T0: 1 << 63}), "OFFSET_OUT_OF_RANGE"),
    (
        lambda of: of.consumer.commit({T0: _made(OffsetAndMetadata, "5")}),
        "an offset to commit must be a whole",
    ),
    (
        lambda of: of.consumer.commit({T0: _made(OffsetAndMetadata, 5, b"m")}),
        "metadata to commit must be text",
    ),
    (
        lambda of: of.consumer.commit({T0: _made(OffsetAndMetadata, 5, "", "0")}),
        "a leader epoch to commit",
    ),
    (lambda of: of.consumer.commit({"t": 5}), r"a partition is \(topic, number\)"),
    (lambda of: of.consumer.lag([T0]), "one is wanted here"),
    (lambda of: of.consumer.beginning_offsets(T0), "partitions are given as a list"),
    (lambda of: of.consumer.end_offsets("t"), "partitions are given as a list"),
    (lambda of: of.consumer.offsets_for_times([T0]), "times in ms since 1970 are given by"),
    (
        lambda of: of.consumer.offsets_for_times({T0: None}),
        "a time in ms since 1970 must be a whole",
    ),
    (lambda of: of.member.subscribe(None), "topics are given as a list of their names"),
    (lambda of: of.member.subscribe([5]), "topics are given as a list of their names"),
    (lambda of: of.member.subscribe(pattern=5), "a pattern must be a regular expression as text"),
    (lambda of: of.member.subscribe(["t"], on_assign=5), "on_assign must be a function"),
    (lambda _: _made(Admin, None), "a cluster is named by its root"),
    (
        lambda of: of.admin.create_topic(None),
        "INVALID_TOPIC_EXCEPTION: a topic's name must be text",
    ),
    (lambda of: of.admin.create_topic("u", partitions="2"), "partitions must be a whole number"),
    (lambda of: of.admin.create_topic("u", 1, 1.5), "replication_factor must be a whole number"),
    (lambda of: of.admin.create_topic("u", assignment=[[0, 1]]), "INVALID_REPLICA_ASSIGNMENT"),
    (lambda of: of.admin.create_topic("u", assignment={0: 0}), "INVALID_REPLICA_ASSIGNMENT"),
    (lambda of: of.admin.create_topic("u", configs=["a"]), "configs of topic u must be a dict"),
    (lambda of: of.admin.elect_leaders("x", [T0]), "election_type must be 'preferred'"),
    (lambda of: of.admin.elect_leaders("unclean", "t"), "partitions are given as a list"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
def test_a_wrong_argument_is_refused_in_one_sentence(
    clients: Clients, call: _Call, sentence: str
) -> None:
    """A wrong argument raises `SparklogError` with a message of one line."""
    with pytest.raises(SparklogError, match=sentence) as told:
        call(clients)
    assert "\n" not in str(told.value)


def test_partitions_are_taken_as_kafkas_clients_name_them(clients: Clients) -> None:
    """Partitions may be tuples, `TopicPartition`s and NumPy integers."""
    consumer, name = clients.consumer, TopicPartition("t", 0)
    consumer.pause([name])
    assert consumer.paused() == [name]
    consumer.resume(T0)
    consumer.seek(name, np.int64(0))
    assert consumer.position(T0) == 0
    assert consumer.committed(name) is None
    consumer.commit({name: np.int64(0)})
    assert consumer.committed(T0) == (0, "", -1)
    consumer.commit({name: _made(OffsetAndMetadata, 1, None, None)})
    assert consumer.committed(T0) == (1, "", -1)


def test_headers_keys_and_values_are_taken_as_kafkas_clients_take_them(
    running_cluster: RunningCluster,
) -> None:
    """Headers may also be a dict; changes that the program makes after the call are not sent."""
    running_cluster.create_topic("taken")
    value = bytearray(b"value")
    with Producer(Path(running_cluster.connection.cluster)) as producer:
        producer.send("taken", value, memoryview(b"key"), headers={"a": b"x", "b": None})
        value[:] = b"other"
        producer.flush(1 << 62)
        producer.send(
            "taken",
            None,
            timestamp_ms=np.int64(7),
            headers=(one for one in [("a", bytearray(b"y"))]),
        )
    [first, second] = running_cluster.committed("taken")[0]
    assert (first["key"], first["value"]) == (b"key", b"value")
    assert first["headers"] == [{"key": "a", "value": b"x"}, {"key": "b", "value": None}]
    assert second["headers"] == [{"key": "a", "value": b"y"}]


def test_one_connection_serves_several_clients(clients: Clients) -> None:
    """Several clients can share one connection."""
    connection = Connection(clients.root)
    assert Admin(connection).list_topics() == ["t"]
    with Consumer(connection, "of a connection") as consumer:
        assert consumer.partitions_for_topic("t") == [TopicPartition("t", 0)]
