"""A real Kafka of one broker, for comparison: run from its JARs, filled through Spark's JVM."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kafka_comparison.programs import STORED, TARGETS, Side, stored_record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
log.retention.ms=-1
"""
_PORT, _CONTROLLER_PORT = 39291, 39292


@contextmanager
def running_kafka(libs: Path, folder: Path) -> Iterator[Side]:
    """Run a broker from the JARs in `libs`, over data in `folder`; yield where it is."""
    properties = folder / "server.properties"
    properties.write_text(
        _PROPERTIES.format(folder=folder, port=_PORT, controller_port=_CONTROLLER_PORT)
    )
    java = ["java", "-Xmx512m", "-cp", f"{libs}/*"]
    cluster_id = subprocess.run(
        [*java, "kafka.tools.StorageTool", "random-uuid"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    formatting = ["format", "-t", cluster_id, "-c", str(properties)]
    subprocess.run(
        [*java, "kafka.tools.StorageTool", *formatting], check=True, stdout=subprocess.DEVNULL
    )
    with (folder / "kafka.log").open("wb") as log:
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(properties)], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield Side("kafka", ("kafka.bootstrap.servers", f"127.0.0.1:{_PORT}"))
        finally:
            process.terminate()
            process.wait()


def fill(spark: SparkSession, side: Side) -> None:
    """Create the topics and store the records that programs begin with."""
    assert spark.sparkContext._jvm is not None
    jvm = spark.sparkContext._jvm
    settings = {"bootstrap.servers": side.where[1]}
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(_properties(jvm, settings))
    topics = jvm.java.util.ArrayList()
    for topic, partitions in ({name: len(of) for name, of in STORED.items()} | TARGETS).items():
        topics.add(jvm.org.apache.kafka.clients.admin.NewTopic(topic, partitions, _short(jvm)))
    admin.createTopics(topics).all().get()
    admin.close()
    serializer = jvm.org.apache.kafka.common.serialization.ByteArraySerializer
    producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(
        _properties(jvm, settings), serializer(), serializer()
    )
    for topic, counts in STORED.items():
        for partition, count in counts.items():
            for offset in range(count):
                record = stored_record(topic, partition, offset)
                headers = jvm.java.util.ArrayList()
                for name, value in record.headers:
                    header = jvm.org.apache.kafka.common.header.internals.RecordHeader
                    headers.add(header(name, value))
                producer.send(
                    jvm.org.apache.kafka.clients.producer.ProducerRecord(
                        topic, partition, record.timestamp_ms, record.key, record.value, headers
                    )
                )
    producer.close()


def _properties(jvm: Any, settings: Mapping[str, str]) -> Any:
    properties = jvm.java.util.Properties()
    for name, value in settings.items():
        properties.put(name, value)
    return properties


def _short(jvm: Any) -> Any:
    return jvm.java.lang.Short.valueOf("1")
