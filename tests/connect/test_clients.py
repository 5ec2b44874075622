"""Every client that takes a Spark session takes one of Spark Connect: no RDD, and no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connect.conftest import ConnectServer
from tests.running_cluster import RunningCluster

TOPICS = ("batch", "produced", "source", "sink", "micro")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a running cluster with the topics of the programs."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster = RunningCluster(folder)
    for topic in TOPICS:
        cluster.create_topic(topic, partitions=2, min_insync_replicas=2)
    yield folder
    cluster.stop()


def test_a_batch_is_written_and_read_in_every_way(server: ConnectServer, folder: Path) -> None:
    """The sink, the source, sparklog.read, SparkConsumer and the views work without a JVM."""
    found = server.run("clients.py", folder, "batch")
    assert found["batch"] == {
        "format": 100,
        "sparklog.read": 100,
        "SparkConsumer": 100,
        "views": 34,
        "records": 300,
        "brokers": 3,
        "batches": 0,
    }
    assert "one of the options assign, subscribe, subscribePattern is required" in found["refused"]
    assert (found["is connect"], found["same session"], found["jvm"]) == (True, True, False)
    assert (found["has ended"], found["has ended after stop"]) == (False, True)


def test_a_producer_sends_held_rows_and_those_of_tasks(server: ConnectServer, folder: Path) -> None:
    """SparkProducer works without a JVM, and a repeated micro-batch is stored once."""
    found = server.run("clients.py", folder, "produced")
    assert found["produced"] == {"errors": ["NONE"], "records": 52, "repeated": [1, 0]}
    assert found["jvm"] is False


def test_a_stream_is_read_and_written_and_continues_at_its_checkpoint(
    server: ConnectServer, folder: Path
) -> None:
    """A stream from the source to the sink runs on the server, once per record."""
    found = server.run("clients.py", folder, "streamed")
    assert found["streamed"] == ["OF RUN 0", "OF RUN 1"]


def test_a_producer_works_in_foreach_batch(server: ConnectServer, folder: Path) -> None:
    """In foreachBatch a producer takes the session of the micro-batch."""
    server.run("clients.py", folder, "streamed")
    found = server.run("clients.py", folder, "micro")
    assert {"of run 0", "of run 1"} <= set(found["micro"])
