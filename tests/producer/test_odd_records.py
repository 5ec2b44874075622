"""Unusual but valid records are read back byte for byte: headers, keys, values, batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from sparklog.model import PRODUCE_REQUESTS
from sparklog.producer.plain import Producer
from sparklog.producer.spark import SparkProducer
from sparklog.storage.batch_actions import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from sparklog.storage.delta_log_files import newest_version
from sparklog.storage.location import Location
from tests.running_cluster import RunningCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Headers = list[tuple[str, "bytes | None"]]
Content = tuple["bytes | None", "bytes | None", "Headers | None"]
"""A record's key, value and headers."""

HEADERS: dict[str, Headers | None] = {
    "none": None,
    "an empty list": [],
    "one name several times, in this order": [("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"1")],
    "a null value": [("a", None), ("b", b"")],
    "an empty name": [("", b"v"), ("", None)],
    "names that are not ASCII": [("schlüssel", b"\xc3"), ("鍵\0🗝", b"\0")],
    "bytes that are no text": [("a", bytes(range(256)))],
    "many": [(f"h{number}", b"%d" % number) for number in range(1_000)],
    "a large one": [("a", random.Random(1).randbytes(1 << 20))],
}

KEYS = (None, b"", b"\0", b"\xff\xfe\x80", b"\xed\xa0\x80", bytes(range(256)), b"k" * 70_000)
VALUES = (None, b"", b"\0", b"\xff" * 5, b"\xf0\x28\x8c\x28", b"\r\n")


@pytest.fixture
def producer(running_cluster: RunningCluster) -> Iterator[Producer]:
    with Producer(running_cluster.connection, max_request_size=8 << 20) as made:
        yield made


def stored(cluster: RunningCluster, topic: str) -> list[Content]:
    """Return the contents of a topic of one partition, in order."""
    return [
        (record["key"], record["value"], _pairs(record["headers"]))
        for record in cluster.committed(topic)[0]
    ]


def _pairs(headers: list[dict[str, Any]] | None) -> Headers | None:
    if headers is None:
        return None
    return [(header["key"], header["value"]) for header in headers]


def requests(cluster: RunningCluster) -> list[int]:
    """Return the versions of all brokers' request tables, which show whether anything was sent."""
    roots = [Location.of(str(cluster.folder / f"broker-{broker}")) for broker in range(3)]
    return [newest_version(root.child(PRODUCE_REQUESTS.name)) for root in roots]


class TestDataFrames:
    """These tests are first: Java is started before the brokers' threads, because it forks."""

    def test_odd_records_come_back_as_they_were(
        self, spark: SparkSession, running_cluster: RunningCluster
    ) -> None:
        """Unusual keys, values and headers of a DataFrame are read back unchanged."""
        running_cluster.create_topic("frame")
        noise = random.Random(3).randbytes((1 << 20) + 1)
        given: list[Content] = [(key, value, None) for key in KEYS for value in VALUES]
        given += [(b"k", b"v", HEADERS[kind]) for kind in HEADERS]
        given += [(None, noise, [("a", None)])]
        columns = "key binary, value binary, headers array<struct<key: string, value: binary>>"
        frame = spark.createDataFrame(given, columns).coalesce(1)
        SparkProducer(running_cluster.connection, spark).send(frame, "frame").result()
        assert stored(running_cluster, "frame") == given

    @pytest.mark.parametrize("partitions", [0, 3])
    def test_an_empty_one_sends_nothing_and_is_done(
        self, spark: SparkSession, running_cluster: RunningCluster, partitions: int
    ) -> None:
        """Sending an empty DataFrame, or one of empty Spark partitions, sends nothing and
        succeeds.
        """
        topic = f"empty-{partitions}"
        running_cluster.create_topic(topic)
        frame = spark.range(0, 9, 1, 3).selectExpr("'v' value").where("false")
        if not partitions:
            frame = spark.createDataFrame([], "value string")
        before = requests(running_cluster)
        sent = SparkProducer(running_cluster.connection, spark).send(frame, topic)
        assert sent.is_done
        assert sent.result() == {}
        assert sent.record_count == 0
        assert requests(running_cluster) == before
        assert running_cluster.committed(topic) == {0: []}


@pytest.mark.parametrize("kind", HEADERS)
def test_headers_come_back_as_they_were(
    running_cluster: RunningCluster, producer: Producer, kind: str
) -> None:
    """Unusual headers are read back unchanged, between records with other headers in one batch."""
    topic = f"headers-{list(HEADERS).index(kind)}"
    running_cluster.create_topic(topic)
    given: list[Headers | None] = [None, HEADERS[kind], [("other", b"o")], HEADERS[kind]]
    for headers in given:
        producer.send(topic, b"v", headers=headers)
    producer.flush(30_000)
    assert stored(running_cluster, topic) == [(None, b"v", headers) for headers in given]


def test_every_pair_of_odd_key_and_value_comes_back_as_it_was(
    running_cluster: RunningCluster, producer: Producer
) -> None:
    """A null differs from an empty value, and no byte is treated as text."""
    running_cluster.create_topic("pairs")
    given: list[Content] = [(key, value, None) for key in KEYS for value in VALUES]
    for key, value, _ in given:
        producer.send("pairs", value, key=key)
    producer.flush(30_000)
    assert stored(running_cluster, "pairs") == given


@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_000])
def test_large_values_that_do_not_compress_come_back_among_small_ones(
    running_cluster: RunningCluster, producer: Producer, size: int
) -> None:
    """Large incompressible values are read back unchanged between small ones."""
    topic = f"large-{size}"
    running_cluster.create_topic(topic)
    noise = random.Random(size).randbytes(size)
    given: list[Content] = [(b"k", b"", None), (noise[:100_000], noise, None), (None, None, None)]
    for key, value, _ in given:
        producer.send(topic, value, key=key)
    producer.flush(30_000)
    assert stored(running_cluster, topic) == given


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_all_times_that_a_table_can_hold_come_back_as_they_were(
    running_cluster: RunningCluster, producer: Producer, is_one_batch: bool
) -> None:
    """Times from the first millisecond of the year 1 to the last of the year 9999 are read back
    unchanged.
    """
    topic = "times" if is_one_batch else "times-one-by-one"
    running_cluster.create_topic(topic)
    year_500 = -46_389_283_200_000
    given = [MIN_TIMESTAMP_MS, year_500, -30_610_224_000_001, -1, 0, 1, MAX_TIMESTAMP_MS]
    for time_ms in given:
        producer.send(topic, b"v", timestamp_ms=time_ms)
        if not is_one_batch:
            producer.flush(30_000)
    producer.flush(30_000)
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    times = [record["timestamp"] - epoch for record in running_cluster.committed(topic)[0]]
    assert [time // timedelta(milliseconds=1) for time in times] == given


def test_a_flush_of_nothing_sends_nothing(
    running_cluster: RunningCluster, producer: Producer
) -> None:
    """A flush and a close without records send nothing."""
    before = requests(running_cluster)
    producer.flush(30_000)
    producer.close()
    assert requests(running_cluster) == before
