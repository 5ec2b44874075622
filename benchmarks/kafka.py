"""A real Kafka of three brokers on loopback, with its data on disk, and Spark's connector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparklog.clock import wait_until
from sparklog.errors import SparklogError
from tests.kafka_comparison.kafka import java_properties, running_kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BROKERS = 3
DEFAULTS: Mapping[str, str] = {}
TUNED = {"linger.ms": "20", "batch.size": "262144", "compression.type": "lz4"}
SHORT_WAIT = {"fetch.max.wait.ms": "10"}
"""Spark's reader waits for the default of 500 ms once per task."""

_JAVA_OPTIONS = (
    "-Xms512m",
    "-Xmx768m",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-Djava.awt.headless=true",
)
_SETTINGS = {
    "num.partitions": "4",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
}
_PATIENCE_MS = 120_000


@contextmanager
def running(jars: Path, folder: Path, spark: SparkSession) -> Iterator[Kafka]:
    """Run the brokers from a folder of JARs, with data in `folder`; yield when all are up."""
    with running_kafka(jars, folder, BROKERS, _JAVA_OPTIONS, _SETTINGS) as side:
        kafka = Kafka(side.where[1], spark)
        try:
            kafka.await_brokers(folder)
            yield kafka
        finally:
            kafka.close()


class Kafka:
    """The cluster with brokers at `servers`, accessed through the JVM of `spark`."""

    def __init__(self, servers: str, spark: SparkSession) -> None:
        self.servers = servers
        self._spark = spark
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        settings = java_properties(jvm, {"bootstrap.servers": servers})
        self._admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)

    def close(self) -> None:
        """Close the connection to the cluster."""
        self._admin.close()

    def await_brokers(self, folder: Path) -> None:
        """Wait until all brokers are registered; raises `SparklogError` on timeout."""

        def are_up() -> bool:
            return bool(self._admin.describeCluster().nodes().get().size() >= BROKERS)

        if not wait_until(are_up, _PATIENCE_MS, pause_ms=200):
            raise SparklogError(f"Kafka's brokers did not come up: see {folder}/kafka-1.log")

    def create_topic(self, topic: str, partitions: int = 4, *, is_synced: bool = False) -> None:
        """Create a topic on three brokers and wait until all its replicas are in sync.

        Parameters: `is_synced`, whether each append is synced to the disk before it counts
        (flush.messages=1, the topic's log.flush.interval.messages). By default Kafka leaves that to
        the operating system.
        """
        jvm = self._jvm
        factor = jvm.java.lang.Short.valueOf(str(BROKERS))
        new = jvm.org.apache.kafka.clients.admin.NewTopic(topic, partitions, factor)
        configs = {"min.insync.replicas": "2"} | ({"flush.messages": "1"} if is_synced else {})
        new.configs(java_properties(jvm, configs))
        self._admin.createTopics(jvm.java.util.Collections.singletonList(new)).all().get()
        is_in_sync = partial(self._is_in_sync, topic, partitions)
        if not wait_until(is_in_sync, _PATIENCE_MS, pause_ms=100):
            raise SparklogError(f"Kafka's topic {topic} did not get its replicas in sync")

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; its files are deleted in the background."""
        topics = self._jvm.java.util.Collections.singletonList(topic)
        self._admin.deleteTopics(topics).all().get()

    def write(self, rows: DataFrame, topic: str, settings: Mapping[str, str] = DEFAULTS) -> None:
        """Write rows by Spark's sink with acks=all; all are committed when this returns."""
        options = {f"kafka.{key}": value for key, value in settings.items()}
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", self.servers)
        writer.option("topic", topic).option("kafka.acks", "all").options(**options).save()

    def read(self, topic: str, settings: Mapping[str, str] = DEFAULTS) -> DataFrame:
        """Return all records of a topic by Spark's batch reader."""
        options = {f"kafka.{key}": value for key, value in settings.items()}
        reader = self._spark.read.format("kafka").option("kafka.bootstrap.servers", self.servers)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        return reader.option("endingOffsets", "latest").options(**options).load()

    def stream(self, topic: str) -> DataFrame:
        """Return a topic as a stream that starts at the latest offsets."""
        reader = self._spark.readStream.format("kafka")
        reader = reader.option("kafka.bootstrap.servers", self.servers)
        return reader.option("subscribe", topic).option("startingOffsets", "latest").load()

    @contextmanager
    def producer(self) -> Iterator[PlainProducer]:
        """Yield Kafka's own Java producer, with its defaults and acks=all."""
        producer = PlainProducer(self._jvm, self.servers)
        try:
            yield producer
        finally:
            producer.close()

    def _is_in_sync(self, topic: str, partitions: int) -> bool:
        topics = self._jvm.java.util.Collections.singletonList(topic)
        try:
            described = self._admin.describeTopics(topics).allTopicNames().get().get(topic)
        except Exception as error:
            # The broker that answers may not know the topic yet.
            if "UnknownTopicOrPartition" not in str(error):
                raise
            return False
        found = described.partitions()
        return found.size() == partitions and all(
            found.get(one).leader() is not None and found.get(one).isr().size() == BROKERS
            for one in range(partitions)
        )


class PlainProducer:
    """Kafka's Java producer in Spark's JVM."""

    def __init__(self, jvm: Any, servers: str) -> None:
        self._jvm = jvm
        serializer = jvm.org.apache.kafka.common.serialization.ByteArraySerializer
        settings = java_properties(jvm, {"bootstrap.servers": servers, "acks": "all"})
        producer = jvm.org.apache.kafka.clients.producer.KafkaProducer
        self._producer = producer(settings, serializer(), serializer())

    def send(self, topic: str, value: bytes, key: bytes) -> None:
        """Send one record and wait until it is committed."""
        record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, key, value)
        self._producer.send(record).get()

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()
