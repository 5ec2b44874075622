"""Plausible wrong arguments of the Spark clients are refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import sparklog
from sparklog.cluster.views import create_views
from sparklog.consumer.spark import SparkConsumer
from sparklog.errors import SparklogError
from sparklog.producer.spark import SparkProducer
from sparklog.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Clients(NamedTuple):
    """Both clients of a cluster with one record in t-0; any argument may be passed to them."""

    spark: Any
    root: Any
    producer: Any
    consumer: Any


@pytest.fixture(scope="module")
def clients(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    folder = tmp_path_factory.mktemp("cluster")
    cluster = LocalCluster(folder, brokers=[0])
    cluster.create_topic("t")
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"v"])
    cluster.tick_until_idle()
    root = folder / "cluster"
    yield Clients(spark, root, SparkProducer(root, spark), SparkConsumer(root, spark))
    cluster.close()


def _made(client: Any, *arguments: Any) -> Any:
    return client(*arguments)


_Call = Callable[[Clients], object]


def _send(query: str, **given: Any) -> _Call:
    return lambda of: of.producer.send(of.spark.sql(query), "t", **given)


REFUSED: list[tuple[_Call, str]] = [
    (lambda of: _made(SparkProducer, None, of.spark), "a cluster is named by its root"),
    (lambda of: _made(SparkProducer, of.root, None), "a SparkSession is needed"),
    (lambda of: _made(SparkConsumer, of.root, None), "a SparkSession is needed"),
    (lambda of: _made(create_views, of.spark, None), "a cluster is named by its root"),
    (lambda of: of.producer.send("x", "t"), "send takes a DataFrame, not 'x'"),
    (_send("select 'v' value", timeout_ms="x"), "timeout_ms must be a whole number"),
    (_send("select 'v' value", micro_batch=5), "micro_batch must be .query id, batch id."),
    (_send("select 'v' value", micro_batch=(5, "q")), "micro_batch must be .query id, batch id."),
    (_send("select 1 value"), "the column value is of type int: cast it to binary"),
    (_send("select 'v' value, struct(1) key"), "the column key is of type struct"),
    (_send("select 'v' value, map('h', 'x') headers"), "the column headers is of type map"),
    (lambda of: of.consumer.read("t", partitions=0), "partitions must be a list of whole numbers"),
    (
        lambda of: of.consumer.read("t", partitions=["0"]),
        "one of partitions must be a whole number",
    ),
    (lambda of: of.consumer.read("t", from_offsets=5), "from_offsets must be whole numbers by"),
    (
        lambda of: of.consumer.read("t", from_offsets={0: "x"}),
        "from_offsets must be a whole number",
    ),
    (
        lambda of: of.consumer.read("t", from_offsets={7: 0}),
        "partition 7 of topic t, which is not read",
    ),
    (lambda of: sparklog.read(of.spark, cluster=5, subscribe="t"), "option cluster is the"),
    (
        lambda of: sparklog.read(
            of.spark, cluster=of.root, subscribe="t", startingOffsets={("t", 0): 0}
        ),
        "cannot be written as JSON",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
def test_a_wrong_argument_is_refused_in_one_sentence(
    clients: Clients, call: _Call, sentence: str
) -> None:
    """A wrong argument raises `SparklogError` with a message of one line."""
    with pytest.raises(SparklogError, match=sentence) as told:
        call(clients)
    assert "\n" not in str(told.value)


def test_a_partition_that_does_not_exist_is_reported_without_the_workers_stack(
    clients: Clients,
) -> None:
    """An unknown partition is reported without the Python worker's stack."""
    frame = clients.spark.range(3).selectExpr("cast(id as string) value", "7 partition")
    with pytest.raises(Exception, match="Partition 7 of record 0 does not exist") as told:
        clients.producer.send(frame, "t")
    assert "Traceback" not in str(told.value)


def test_offsets_at_or_beyond_the_high_watermark_are_no_records(clients: Clients) -> None:
    """A read from the high watermark, or from beyond it, has no records."""
    for offset in (1, 500):
        assert clients.consumer.read("t", from_offsets={0: offset}).collect() == []


def test_topics_and_the_root_are_taken_as_a_list_and_as_a_path(clients: Clients) -> None:
    """Topics may be a list, and the root a `Path`."""
    frame = sparklog.read(clients.spark, cluster=clients.root, subscribe=["t"])
    assert [bytes(row.value) for row in frame.collect()] == [b"v"]
