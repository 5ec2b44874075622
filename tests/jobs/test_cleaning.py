"""Compaction in the application: updates, kills in the middle of passes, and readers."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.consumer.consumer import Consumer
from sparklog.maintenance.audit import audit
from sparklog.producer.plain import Producer
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from tests.jobs.dying_cleaner import POINTS
from tests.jobs.processes import Cluster, Process, wait_for

KEYS = 20
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}


@pytest.fixture
def compacting(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose cleaners begin as soon as a record is committed."""
    cluster = Cluster(
        tmp_path / "data",
        log_cleaner_backoff_ms=50,
        log_merger_min_lag_ms=0,
        log_merger_enable=False,
    )
    yield cluster
    cluster.close()


class Updates:
    """The last value of each key, by a producer that sends on while the cluster is away."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.last: dict[bytes, bytes] = {}
        self._sent: list[Future[Any]] = []
        self.count = 0

    def send(self, rounds: int) -> None:
        """Update every key `rounds` times."""
        for _ in range(rounds):
            for number in range(KEYS):
                key, value = f"key-{number}".encode(), str(self.count).encode()
                self._sent.append(self._producer.send("c", value, key=key, partition=0))
                self.last[key] = value
                self.count += 1

    def await_delivery(self) -> None:
        for sent in self._sent:
            sent.result(timeout=90)
        self._sent.clear()


def alive(connection: Connection) -> list[int]:
    brokers = connection.metadata().brokers.values()
    return [one.broker_id for one in brokers if one.is_alive]


def is_cleaned(cluster: Cluster) -> bool:
    """Whether each replica has fewer records than were written."""
    for broker in range(3):
        log = RecordLog(Location.of(str(cluster.folder / f"broker-{broker}")))
        batches = [batch for key in log.partitions() for batch in log.batches(key)]
        if all(batch.has_all_offsets for batch in batches):
            return False
    return True


def test_every_key_has_its_last_value_after_kills_in_the_middle_of_passes(
    compacting: Cluster,
) -> None:
    """The process of all brokers is killed after each effect of a pass, while keys are updated.

    A consumer from the earliest offset sees the last value of every key, and the audit is clean.
    """
    config = compacting.configuration()
    points = compacting.folder / "points"
    points.mkdir()

    def start() -> Process:
        return compacting.start([sys.executable, "-m", "tests.jobs.dying_cleaner", config, points])

    process = start()
    connection = compacting.connect()
    wait_for(lambda: len(alive(connection)) == 3, "three live brokers", process)
    Admin(connection).create_topic("c", 1, 3, configs=COMPACT | {"min.insync.replicas": "2"})
    with Producer(connection, batch_size=0) as producer:
        updates = Updates(producer)
        for point in POINTS:
            updates.send(1)
            (points / point).touch()
            updates.send(1)
            assert process.exit_code() == -signal.SIGKILL, process.stderr
            process = start()
        updates.send(2)
        updates.await_delivery()
    wait_for(lambda: is_cleaned(compacting), "cleaned logs", process)
    with Consumer(connection, auto_offset_reset="earliest") as consumer:
        consumer.assign([("c", 0)])
        found: dict[bytes | None, bytes | None] = {}
        offsets: list[int] = []
        while not offsets or offsets[-1] < updates.count - 1:
            for records in consumer.poll(1_000).values():
                found |= {one.key: one.value for one in records}
                offsets += [one.offset for one in records]
    assert found == updates.last
    assert offsets == sorted(set(offsets))
    assert len(offsets) < updates.count
    assert process.end() == 0
    assert audit(connection) == []
