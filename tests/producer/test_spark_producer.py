"""Producing DataFrames: accepted columns, partitions, and the effects of a retry."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sparklog.cluster.connection import Connection
from sparklog.errors import ProtocolError, SparklogError
from sparklog.producer.delivery import PendingSend
from sparklog.producer.partitioner import keyed_partitions
from sparklog.producer.spark import SparkProducer
from sparklog.testing import LocalCluster
from tests.running_cluster import RunningCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def errors(pending: PendingSend) -> set[str]:
    return {response.error for response in pending.responses().values()}


class TestColumns:
    def test_all_that_spark_s_kafka_sink_takes_come_back(
        self, spark: SparkSession, running_cluster: RunningCluster
    ) -> None:
        """All columns of Spark's Kafka sink are stored."""
        running_cluster.create_topic("columns", partitions=2)
        rows = spark.sql(
            "select cast('k' as binary) key, cast('v' as binary) value, 1 partition, "
            "array(named_struct('key', 'h', 'value', cast('x' as binary))) headers, "
            "timestamp_millis(1234) timestamp"
        )
        SparkProducer(running_cluster.connection, spark).send(rows, "columns").result()
        [stored] = running_cluster.committed("columns")[1]
        assert (stored["key"], stored["value"]) == (b"k", b"v")
        assert stored["headers"] == [{"key": "h", "value": b"x"}]
        assert stored["timestamp"].timestamp() == 1.234

    @pytest.mark.parametrize(
        ("query", "said"),
        [
            ("select 'v' value, 1 offset", "has the unknown column 'offset'"),
            ("select 'k' key", "has no column 'value'"),
        ],
    )
    def test_others_are_refused_before_anything_is_written(
        self, spark: SparkSession, running_cluster: RunningCluster, query: str, said: str
    ) -> None:
        """Other columns and types are refused before anything is written."""
        producer = SparkProducer(running_cluster.connection, spark)
        with pytest.raises(SparklogError, match=said):
            producer.send(spark.sql(query), "columns")

    def test_acks_and_topic_are_checked_first(
        self, spark: SparkSession, running_cluster: RunningCluster
    ) -> None:
        """acks and the topic are checked first."""
        producer = SparkProducer(running_cluster.connection, spark)
        rows = spark.sql("select 'v' value")
        with pytest.raises(ProtocolError, match="INVALID_REQUIRED_ACKS"):
            producer.send(rows, "nowhere", acks=2)  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            producer.send(rows, "nowhere")


def test_what_spark_holds_is_encoded_by_the_driver_as_by_its_tasks(
    running_cluster: RunningCluster, spark: SparkSession
) -> None:
    """A cached frame of a few rows starts no Python task; a larger or an uncomputed frame does."""
    running_cluster.create_topic("held", partitions=2)
    producer = SparkProducer(running_cluster.connection, spark)
    made = spark.range(40).selectExpr(
        "cast(cast(id as string) as binary) key",
        "cast(concat('v', id) as binary) value",
        "cast(id % 2 as int) partition",
    )
    held = made.cache()
    assert held.count() == 40
    for rows in (held, made.drop("no such column").filter("true")):
        producer.send(rows, "held").result()
    for partition in range(2):
        stored = running_cluster.committed("held")[partition]
        keys = [one["key"] for one in stored]
        assert keys[:20] == keys[20:] == [b"%d" % number for number in range(partition, 40, 2)]
    held.unpersist()


def test_keys_go_where_kafka_puts_them_and_records_without_one_are_spread(
    spark: SparkSession, running_cluster: RunningCluster
) -> None:
    """Keyed records go to Kafka's partitions, and unkeyed ones are spread."""
    running_cluster.create_topic("keys", partitions=3)
    rows = spark.range(3000).selectExpr(
        "if(id % 2 = 0, cast(id as string), null) key", "cast(id as string) value"
    )
    sent = SparkProducer(running_cluster.connection, spark).send(rows, "keys").result()
    stored = running_cluster.committed("keys")
    assert sum(one.last_offset - one.base_offset + 1 for one in sent.values()) == 3000
    for partition, records in stored.items():
        keys = [record["key"] for record in records if record["key"] is not None]
        assert set(keyed_partitions(pa.array(keys, pa.binary()), 3)) == {partition}
    assert sum(len(records) for records in stored.values()) == 3000


class TestARetry:
    @pytest.fixture
    def cluster(self, spark: SparkSession, tmp_path: Path) -> Iterator[LocalCluster]:
        made = LocalCluster(tmp_path, brokers=[0, 1], spark=spark)
        made.create_topic("t", assignment={0: [0, 1]})
        made.tick_until_idle()
        yield made
        made.close()

    @pytest.fixture
    def pending(self, spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> PendingSend:
        """A batch that broker 0 has appended and broker 1 has copied, without an answer."""
        producer = SparkProducer(Connection(str(tmp_path / "cluster")), spark)
        sent = producer.send(spark.sql("select 'v' value"), "t")
        cluster.leader_tick(0)
        cluster.follower_tick(1)
        assert not sent.is_done
        return sent

    def stored(self, cluster: LocalCluster, broker: int) -> list[Any]:
        return [record.value for record in cluster.log(broker, "t", 0)]

    def test_is_known_to_a_new_leader_though_the_old_ones_disk_is_gone(
        self, cluster: LocalCluster, pending: PendingSend, tmp_path: Path
    ) -> None:
        """All records are already copied, so the lost files are not needed."""
        cluster.crash(0)
        shutil.rmtree(tmp_path / "broker-0")
        cluster.fence(0)
        pending.retry()
        cluster.tick_until_idle()
        assert errors(pending) == {"NONE"}
        assert self.stored(cluster, 1) == [b"v"]

    def test_of_a_micro_batch_writes_its_rows_again_where_a_disk_died_before_the_append(
        self, spark: SparkSession, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        """A retried micro-batch writes its rows again if its noted files were lost with the
        leader's inbox.
        """
        producer = SparkProducer(Connection(str(tmp_path / "cluster")), spark)
        frame = spark.sql("select 'v' value")
        assert not producer.send(frame, "t", micro_batch=("q", 0)).is_done
        cluster.crash(0)
        shutil.rmtree(tmp_path / "broker-0")
        cluster.fence(0)
        again = producer.send(frame, "t", micro_batch=("q", 0))
        # The leader waits that long for a missing file, whose upload may not have ended.
        cluster.clock.advance(5_000)
        cluster.tick_until_idle()
        assert errors(again) == {"CORRUPT_MESSAGE"}
        again.retry()
        cluster.tick_until_idle()
        assert errors(again) == {"NONE"}
        assert self.stored(cluster, 1) == [b"v"]

    def test_is_stored_again_where_the_first_was_truncated(
        self, spark: SparkSession, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        """A truncated batch is stored again under another path, because its path cannot be used
        again (3.7).
        """
        producer = SparkProducer(Connection(str(tmp_path / "cluster")), spark)
        sent = producer.send(spark.sql("select 'v' value"), "t")
        cluster.leader_tick(0)
        cluster.crash(0)
        cluster.fence(0)
        cluster.leader_tick(1)
        cluster.restart(0)
        cluster.tick_until_idle()
        assert self.stored(cluster, 0) == []
        cluster.elect_leaders("preferred", [("t", 0)])
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 0
        sent.retry()
        cluster.tick_until_idle()
        assert errors(sent) == {"NONE"}
        assert self.stored(cluster, 0) == self.stored(cluster, 1) == [b"v"]
