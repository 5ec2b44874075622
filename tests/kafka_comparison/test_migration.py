"""docs/migration.md: its command copies the records of a real Kafka, each once."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.kafka_jars import kafka_jars
from sparklog import Admin, Consumer, TopicPartition
from sparklog.errors import SparklogError
from sparklog.java import find_java
from tests.examples import commands, example_cluster
from tests.jobs.processes import wait_for
from tests.kafka_comparison.kafka import running_kafka

DOCUMENT = "docs/migration.md"
PARTITIONS = 2

Stored = list[tuple[int, str, str, str]]
"""Records in the order of their offsets in each partition: partition, headers, key and value."""


class KafkaTools:
    """The command line tools of a Kafka."""

    def __init__(self, jars: Path, servers: str) -> None:
        self._java = [str(find_java().executable), "-Xmx256m", "-cp", f"{jars}/*"]
        self._servers = ["--bootstrap-server", servers]

    def run(self, tool: str, *arguments: str, lines: Sequence[str] = ()) -> str | None:
        """Run a tool with lines on its standard input; return its output, or `None` if it fails."""
        command = [*self._java, f"org.apache.kafka.tools.{tool}", *self._servers, *arguments]
        text = "".join(f"{line}\n" for line in lines)
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else None

    def create(self, topic: str) -> bool:
        """Create a topic; return whether the broker was there to do it."""
        options = ("--create", "--if-not-exists", "--topic", topic)
        return self.run("TopicCommand", *options, "--partitions", str(PARTITIONS)) is not None

    def produce(self, topic: str, numbers: range) -> None:
        """Produce a record with a key and a header for each number."""
        lines = [f"n:{number}\tuser-{number % 7}\torder {number}" for number in numbers]
        keyed = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
        assert self.run("ConsoleProducer", "--topic", topic, *keyed, lines=lines) is not None

    def stored(self, topic: str, count: int) -> Stored:
        """Return all records of a topic, of which there are `count`."""
        shown = [
            option
            for name in ("partition", "headers", "key")
            for option in ("--formatter-property", f"print.{name}=true")
        ]
        options = ("--topic", topic, "--from-beginning", "--max-messages", str(count), *shown)
        printed = self.run("consumer.ConsoleConsumer", *options)
        assert printed is not None
        found = re.findall(r"^Partition:(\d+)\t(.*)\t(.*)\t(.*)$", printed, re.MULTILINE)
        return sorted(
            ((int(of), headers, key, value) for of, headers, key, value in found),
            key=lambda one: one[0],
        )


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[tuple[KafkaTools, str]]:
    """A Kafka of one broker, and its address."""
    try:
        jars = kafka_jars()
    except SparklogError as error:
        pytest.skip(f"the JARs of Kafka cannot be fetched: {error}")
    folder = tmp_path / "kafka"
    folder.mkdir()
    with running_kafka(jars.server, folder) as side:
        tools = KafkaTools(jars.server, side.where[1])
        wait_for(lambda: tools.create("orders"), "the Kafka answers")
        yield tools, side.where[1]


def copied(folder: Path) -> Stored:
    """Return all records of the topic in sparklog."""
    found: Stored = []
    with Consumer(folder / "conf" / "cluster.yaml", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", one) for one in range(PARTITIONS)])
        while polled := consumer.poll(timeout_ms=1_000):
            for record in (one for records in polled.values() for one in records):
                headers = ",".join(
                    f"{name}:{(value or b'').decode()}" for name, value in record.headers
                )
                texts = (headers, (record.key or b"").decode(), (record.value or b"").decode())
                found.append((record.partition, *texts))
    return sorted(found, key=lambda one: one[0])


def copy(folder: Path, servers: str) -> None:
    """Run the command of the document."""
    [command] = [one for one in commands(DOCUMENT) if "kafka" in one]
    arguments = [one.replace("host:9092", servers) for one in shlex.split(" ".join(command))]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("sparklog")), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_command_copies_each_record_of_a_kafka_once_to_the_partition_that_it_had(
    kafka: tuple[KafkaTools, str], tmp_path: Path
) -> None:
    """Keys, values and headers are those in Kafka, and a further run copies what is new."""
    tools, servers = kafka
    tools.produce("orders", range(20))
    with example_cluster(tmp_path):
        Admin(tmp_path / "conf" / "cluster.yaml").create_topic("orders", partitions=PARTITIONS)
        copy(tmp_path, servers)
        assert copied(tmp_path) == tools.stored("orders", 20)
        tools.produce("orders", range(20, 30))
        copy(tmp_path, servers)
        assert copied(tmp_path) == tools.stored("orders", 30)
