"""A real Kafka, for comparison: run from its JARs, filled through Spark's JVM."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparklog.errors import SparklogError
from sparklog.java import find_java
from tests.kafka_comparison.programs import STORED, TARGETS, Side, stored_record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROPERTIES = """
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/data-{node}
auto.create.topics.enable=false
offsets.topic.replication.factor={brokers}
log.retention.ms=-1
"""
_PORT, _CONTROLLER_PORT = 39291, 39391
"""The first broker's; the others' follow."""


@contextmanager
def running_kafka(
    libs: Path,
    folder: Path,
    brokers: int = 1,
    java_options: Sequence[str] = ("-Xmx512m",),
    settings: Mapping[str, str] | None = None,
) -> Iterator[Side]:
    """Run brokers from the JARs in `libs`, with data in `folder`; yield their address.

    `settings` are further keys of every broker.
    """
    java = [str(find_java().executable), *java_options, "-cp", f"{libs}/*"]
    cluster_id = _tool(java, "random-uuid")
    nodes = range(1, brokers + 1)
    voters = ",".join(f"{node}@127.0.0.1:{_CONTROLLER_PORT + node - 1}" for node in nodes)
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as ending:
        ending.callback(_end, processes)
        for node in nodes:
            _check_free(_PORT + node - 1)
            properties = folder / f"server-{node}.properties"
            text = _PROPERTIES.format(
                node=node,
                voters=voters,
                port=_PORT + node - 1,
                controller_port=_CONTROLLER_PORT + node - 1,
                folder=folder,
                brokers=brokers,
            )
            text += "".join(f"{key}={value}\n" for key, value in (settings or {}).items())
            properties.write_text(text)
            _tool(java, "format", "-t", cluster_id, "-c", str(properties))
            log = ending.enter_context((folder / f"kafka-{node}.log").open("wb"))
            command = [*java, "kafka.Kafka", str(properties)]
            processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        servers = ",".join(f"127.0.0.1:{_PORT + node - 1}" for node in nodes)
        yield Side("kafka", ("kafka.bootstrap.servers", servers))


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    # All get the signal before any is waited for: a broker that ends needs the others to take over.
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def _check_free(port: int) -> None:
    """Refuse to start if another Kafka runs, because clients would connect to it."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise SparklogError(f"port {port} is in use: end the Kafka that listens there")


def _tool(java: Sequence[str], *arguments: str) -> str:
    """Run Kafka's storage tool and return its output."""
    command = [*java, "kafka.tools.StorageTool", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def fill(spark: SparkSession, side: Side) -> None:
    """Create the topics and store the initial records of the programs."""
    assert spark.sparkContext._jvm is not None
    jvm = spark.sparkContext._jvm
    settings = {"bootstrap.servers": side.where[1]}
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(java_properties(jvm, settings))
    topics = jvm.java.util.ArrayList()
    for topic, partitions in ({name: len(of) for name, of in STORED.items()} | TARGETS).items():
        topics.add(jvm.org.apache.kafka.clients.admin.NewTopic(topic, partitions, _short(jvm)))
    admin.createTopics(topics).all().get()
    admin.close()
    serializer = jvm.org.apache.kafka.common.serialization.ByteArraySerializer
    producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(
        java_properties(jvm, settings), serializer(), serializer()
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


def java_properties(jvm: Any, settings: Mapping[str, str]) -> Any:
    """Return settings in the form of Java's clients."""
    properties = jvm.java.util.Properties()
    for name, value in settings.items():
        properties.put(name, value)
    return properties


def _short(jvm: Any) -> Any:
    return jvm.java.lang.Short.valueOf("1")
