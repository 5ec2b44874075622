"""Lets a real Kafka clean the cases of `cleaning`, and stores what it kept.

    python -m tests.kafka_comparison.record_cleaner KAFKA_JARS

The folder holds the JARs of a Kafka broker (kafka_2.13 and kafka-tools with all that they need).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sparklog.java import find_java
from tests.kafka_comparison.cleaning import (
    DELETE_RETENTION_MS,
    OUTCOMES,
    ROLL,
    Kept,
    KeyValue,
    Phases,
    cases,
)
from tests.kafka_comparison.kafka import running_kafka

_SEGMENT_MS = 1_000
_NULL = "NULL"
_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    "segment.ms": str(_SEGMENT_MS),
}


class Kafka:
    """Kafka's command-line tools for a running broker."""

    def __init__(self, libs: Path, servers: str, data: Path) -> None:
        self._java = [str(find_java().executable), "-Xmx256m", "-cp", f"{libs}/*"]
        self._servers = ["--bootstrap-server", servers]
        self._data = data

    def _run(self, tool: str, *arguments: str, given: str = "") -> str:
        command = [*self._java, tool, *self._servers, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True, input=given)
        return done.stdout

    def create(self, topic: str) -> None:
        """Create a compacted topic of one partition."""
        configs = [
            text for key, value in _TOPIC_CONFIG.items() for text in ("--config", f"{key}={value}")
        ]
        self._run("org.apache.kafka.tools.TopicCommand", "--create", "--topic", topic, *configs)

    def produce(self, topic: str, records: list[KeyValue]) -> None:
        """Append records in order."""
        lines = (f"{one.key}\t{_NULL if one.value is None else one.value}\n" for one in records)
        properties = [
            f"--reader-property={name}" for name in ("parse.key=true", f"null.marker={_NULL}")
        ]
        self._run(
            "org.apache.kafka.tools.ConsoleProducer",
            "--topic",
            topic,
            *properties,
            given="".join(lines),
        )

    def await_cleaned(self, topic: str, offset: int) -> None:
        """Wait until the cleaner's checkpoint has reached an offset."""
        checkpoint = self._data / "cleaner-offset-checkpoint"
        while True:
            lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
            if f"{topic} 0 {offset}" in lines:
                return
            time.sleep(0.1)

    def consume(self, topic: str, count: int) -> list[Kept]:
        """Return all records of a topic whose log ends at offset `count`."""
        properties = [
            f"--formatter-property={name}=true"
            for name in ("print.key", "print.offset", "print.value")
        ]
        text = self._run(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            "--topic", topic, "--partition", "0", "--offset", "earliest",
            "--timeout-ms", "8000", *properties,
            f"--formatter-property=null.literal={_NULL}",
        )  # fmt: skip
        kept = []
        for line in text.splitlines():
            if not line.startswith("Offset:"):
                print(line, flush=True)
                continue
            offset, key, value = line.split("\t")
            number = int(offset.removeprefix("Offset:"))
            kept.append(Kept(number, key, None if value == _NULL else value))
        assert kept[-1].offset == count - 1, "the end of the log was not read"
        return kept


def kept_by_kafka(kafka: Kafka, topic: str, phases: Phases) -> list[Kept]:
    """Append the phases of a case, let each be cleaned, and return what is left."""
    kafka.create(topic)
    end = 0
    for number, phase in enumerate(phases):
        if number:
            time.sleep(DELETE_RETENTION_MS / 1000 + 0.5)
        kafka.produce(topic, phase)
        time.sleep(_SEGMENT_MS / 1000 + 0.5)
        kafka.produce(topic, [KeyValue(ROLL, str(number))])
        end += len(phase) + 1
        kafka.await_cleaned(topic, end - 1)
    return kafka.consume(topic, end)


def main() -> None:
    """Run all cases, in order."""
    libs = Path(sys.argv[1]).absolute()
    settings = {"log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "500"}
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_kafka(libs, folder, settings=settings) as side:
            kafka = Kafka(libs, side.where[1], folder / "data-1")
            for number, (case, phases) in enumerate(cases().items()):
                found[case] = kept_by_kafka(kafka, f"case-{number}", phases)
                print(f"{case}: {len(found[case])} of {sum(map(len, phases))} kept", flush=True)
    OUTCOMES.write_text(json.dumps(found, indent=None) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
