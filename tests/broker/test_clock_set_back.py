"""A broker whose wall clock was an hour ahead and is set back does its recurring work in time.

Intervals are on the monotonic clock (7.1): the work waited for an hour when they were not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.broker.checkpoints import VERIFY_INTERVAL_MS
from sparklog.model import HIGH_WATERMARK_CHECKPOINT, PRODUCE_REQUESTS
from sparklog.testing import LocalCluster
from tests.broker.states import rows, table

HOUR_MS = 3_600_000


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A cluster with one record that was appended while the clock was ahead; it is right now."""
    ahead_ms = [HOUR_MS]
    cluster = LocalCluster(tmp_path, start_ms=100 * HOUR_MS)
    clock = cluster.clock
    monkeypatch.setattr(clock, "now_ms", lambda: clock.monotonic_ms() + ahead_ms[0])
    cluster.create_topic("t", assignment={0: [0, 1, 2]}, configs={"retention.ms": HOUR_MS})
    write(cluster)
    ahead_ms[0] = 0
    return cluster


def write(cluster: LocalCluster) -> None:
    cluster.produce("t", 0, [b"a record"], timestamp_ms=98 * HOUR_MS)
    cluster.tick_until_idle()


def test_retention_deletes_what_is_old(cluster: LocalCluster) -> None:
    write(cluster)
    cluster.clock.advance(cluster.settings.log_retention_check_interval_ms)
    cluster.tick_until_idle()
    for broker in cluster.brokers:
        [row] = rows(cluster, broker, HIGH_WATERMARK_CHECKPOINT)
        assert row["log_start_offset"] == 2


def test_requests_are_removed_from_the_inbox(cluster: LocalCluster) -> None:
    for _ in range(2):
        write(cluster)
        cluster.clock.advance(60_000)
    write(cluster)
    assert [rows(cluster, one, PRODUCE_REQUESTS) for one in (1, 2)] == [[], []]
    assert len(rows(cluster, 0, PRODUCE_REQUESTS)) <= 1


def test_checkpoints_describe_the_newest_records(cluster: LocalCluster) -> None:
    cluster.clock.advance(VERIFY_INTERVAL_MS)
    write(cluster)
    cluster.clock.advance(VERIFY_INTERVAL_MS)
    write(cluster)
    for broker in cluster.brokers:
        [row] = table(cluster, broker, HIGH_WATERMARK_CHECKPOINT).rows().to_pylist()
        assert row["high_watermark"] >= 2
