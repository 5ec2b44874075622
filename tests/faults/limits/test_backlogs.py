"""A backlog of days: followers and groups that were away, and a cluster that was off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.requests import BulkProducer
from sparklog.broker.following import fetch
from sparklog.broker.following.fetch_pace import (
    FIRST_BATCHES,
    FIRST_BYTES,
    TARGET_SECONDS,
    FetchPace,
)
from sparklog.consumer.consumer import Consumer
from sparklog.errors import ProtocolError
from sparklog.maintenance.audit import audit
from sparklog.model import Batch, TopicIdPartition, TopicPartition
from sparklog.storage.copying import Copied, Copy
from sparklog.storage.execution import DriverExecution
from sparklog.storage.record_log import RecordLog
from sparklog.testing import LocalCluster

BATCHES = 1_100
SECONDS_OF_A_FILE = 0.01
DAY_MS = 24 * 3600 * 1000


class SlowDisk:
    """A disk that copies a file in `SECONDS_OF_A_FILE`, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.fetches: list[int] = []
        """The number of files of each fetch."""
        copy = DriverExecution.copy

        def slow(execution: DriverExecution, given: Sequence[Copy]) -> list[Copied]:
            if given:
                self.fetches.append(len(given))
            self.seconds += len(given) * SECONDS_OF_A_FILE
            return copy(execution, given)

        monkeypatch.setattr(DriverExecution, "copy", slow)
        monkeypatch.setattr(fetch, "monotonic", lambda: self.seconds)


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster whose broker 1 lacks `BATCHES` batches of t-0, and none of t-1."""
    options = {"/": {"sync": "false"}}
    cluster = LocalCluster(tmp_path, [0, 1], storage_options=options)
    cluster.create_topic("t", assignment={0: [0, 1], 1: [0, 1]})
    cluster.tick_until_idle()
    cluster.crash(1)
    cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
    cluster.tick_until_idle()
    producer = BulkProducer(cluster.connection, cluster.clock)
    pending = producer.send("t", [0] * BATCHES, [b"of a day"])
    cluster.tick_until_idle()
    assert pending.is_done
    yield cluster
    cluster.close()


def test_a_follower_that_is_far_behind_does_not_delay_its_other_partitions(
    behind: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch took the whole backlog: producers of other partitions waited for its end.

    So did the requests to the leaders of the same broker, since roles take turns.
    """
    disk = SlowDisk(monkeypatch)
    behind.restart(1)
    behind.follower_tick(1)
    assert disk.fetches == [FIRST_BATCHES + 1]
    behind.leader_tick(0)
    while len(disk.fetches) < 3:
        behind.follower_tick(1)
    began, fetches = disk.seconds, len(disk.fetches)
    pending = behind.produce("t", 1, [b"of now"], acks="all")
    behind.leader_tick(0)
    behind.follower_tick(1)
    behind.leader_tick(0)
    assert pending.response is not None
    assert pending.response.error == "NONE"
    assert len(disk.fetches) == fetches + 1
    assert disk.seconds - began <= 1.1 * TARGET_SECONDS
    behind.tick_until_idle()
    most = int(TARGET_SECONDS / SECONDS_OF_A_FILE)
    assert max(disk.fetches[1:]) <= most + 1
    assert sum(disk.fetches) == BATCHES + 1
    assert behind.partition("t", 0).isr == [0, 1]
    assert audit(behind.connection) == []


def test_a_fetch_indexes_what_it_may_copy_and_not_the_whole_backlog(
    behind: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch that was found cost a copy of the list of all later ones: N * N / 2 in total."""
    SlowDisk(monkeypatch)
    indexed: list[int] = []
    returned: list[int] = []
    index, batches = RecordLog.batch_index, RecordLog.batches

    def counted_index(
        log: RecordLog, of: dict[TopicIdPartition, int], most: int | None = None
    ) -> pa.Table:
        found = index(log, of, most)
        indexed.append(found.num_rows)
        return found

    def counted(log: RecordLog, key: TopicIdPartition, start: int = 0) -> Sequence[Batch]:
        found = batches(log, key, start)
        returned.append(len(found))
        return found

    behind.restart(1)
    monkeypatch.setattr(RecordLog, "batch_index", counted_index)
    monkeypatch.setattr(RecordLog, "batches", counted)
    fetches = 0
    while behind.follower_tick(1).files_copied:
        fetches += 1
    assert fetches > 3
    assert max(indexed) <= FIRST_BATCHES + 1
    assert sum(indexed) <= BATCHES + 2 * len(indexed)
    assert sum(returned) <= 2 * BATCHES


def test_the_pace_follows_the_measured_rate() -> None:
    pace = FetchPace(1 << 30)
    assert (pace.max_batches, pace.max_bytes) == (FIRST_BATCHES, FIRST_BYTES)
    pace.note(FIRST_BATCHES, 1 << 20, 2 * TARGET_SECONDS)
    assert pace.max_batches == FIRST_BATCHES // 2
    # A small fetch shows nothing, unless it is too slow itself.
    before = pace.max_batches, pace.max_bytes
    pace.note(1, 1_000, 0.01)
    assert (pace.max_batches, pace.max_bytes) == before
    for _ in range(20):
        pace.note(pace.max_batches, pace.max_bytes, 0.1)
    assert pace.max_bytes == 1 << 30
    for _ in range(20):
        pace.note(16, 16, 600.0)
    assert (pace.max_batches, pace.max_bytes) == (16, 4 << 20)
    assert FetchPace(1).max_bytes == 1
    # All partitions share the bound; each has its first batch in any case.
    assert [FetchPace(1).batches_of_each(count) for count in (1, 4, 10_000)] == [512, 128, 1]


def test_a_group_whose_offset_retention_has_passed_goes_on_as_its_reset_says(
    tmp_path: Path,
) -> None:
    cluster = LocalCluster(tmp_path, [0], config={"log.retention.ms": DAY_MS})
    cluster.create_topic("t", assignment={0: [0]})
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"old", b"old, too"])
    cluster.tick_until_idle()
    uri = str(tmp_path / "cluster")
    with Consumer(uri, "g", auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])
        consumer.commit({TopicPartition("t", 0): 1})
    cluster.clock.advance(3 * DAY_MS)
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"new"])
    cluster.tick_until_idle()
    assert cluster.replica(0, "t", 0).log_start_offset == 2
    with Consumer(uri, "g", auto_offset_reset="none") as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(ProtocolError, match=r"OFFSET_OUT_OF_RANGE.*t-0"):
            consumer.poll(1_000)
    with Consumer(uri, "g", auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])
        [records] = consumer.poll(1_000).values()
    assert [(one.offset, one.value) for one in records] == [(2, b"new")]


def test_a_cluster_that_was_off_for_a_week_goes_on(tmp_path: Path) -> None:
    """Nothing expires meanwhile but what retention removes; the clock stands at its new time."""
    cluster = LocalCluster(tmp_path)
    cluster.create_topic("t", assignment={0: [0, 1, 2]})
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"before"])
    cluster.tick_until_idle()
    for broker in (0, 1, 2):
        cluster.crash(broker)
    cluster.clock.advance(6 * DAY_MS)
    for broker in (0, 1, 2):
        cluster.restart(broker)
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).isr == [0, 1, 2]
    pending = cluster.produce("t", 0, [b"after"])
    cluster.tick_until_idle()
    assert pending.response is not None
    assert pending.response.error == "NONE"
    assert [one.value for one in cluster.consume("t", 0)] == [b"before", b"after"]
    assert audit(cluster.connection) == []
