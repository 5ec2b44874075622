"""Programs for Spark's Kafka connector have the same results on sparklog as on a real Kafka.

The results on Kafka are stored in kafka_outcomes.json by `python -m tests.kafka_comparison.record`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparklog.producer.plain import Producer
from tests.kafka_comparison.programs import (
    PROGRAMS,
    STORED,
    TARGETS,
    Program,
    Session,
    Side,
    outcome_of,
    stored_record,
)
from tests.kafka_comparison.table import TABLE, is_same, noted_outcomes, rendered
from tests.running_cluster import RunningCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KAFKAS = noted_outcomes()


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    """A sparklog cluster with the initial records of the programs."""
    cluster = RunningCluster(tmp_path_factory.mktemp("cluster"))
    for topic, partitions in ({name: len(of) for name, of in STORED.items()} | TARGETS).items():
        cluster.create_topic(topic, partitions)
    with Producer(cluster.connection) as producer:
        for topic, counts in STORED.items():
            for partition, count in counts.items():
                for offset in range(count):
                    record = stored_record(topic, partition, offset)
                    producer.send(
                        topic,
                        record.value,
                        key=record.key,
                        headers=record.headers,
                        partition=partition,
                        timestamp_ms=record.timestamp_ms,
                    )
    yield Side("sparklog", ("cluster", cluster.connection.cluster))
    cluster.stop()


# One test after the other: some programs use what others wrote.
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_does_the_same_on_both(
    spark: SparkSession, side: Side, program: Program, tmp_path: Path
) -> None:
    """A program has the same outcome on both systems, or its declared difference."""
    found = json.loads(json.dumps(outcome_of(program, Session(spark, side, tmp_path))))
    kafkas = KAFKAS[program.name]
    if program.differs is None:
        assert is_same(found, kafkas), f"here {found}, on Kafka {kafkas}"
    else:
        assert not is_same(found, kafkas), f"nothing differs any more: {found}"


def test_every_program_was_run_on_kafka() -> None:
    """Every program was run on Kafka."""
    assert list(KAFKAS) == [program.name for program in PROGRAMS]


def test_the_table_in_the_documentation_is_that_of_these_programs() -> None:
    """Written by `python -m tests.kafka_comparison.table`."""
    assert TABLE.read_text(encoding="utf-8") == rendered()
