"""Clocks at the turns of their encodings: 1970, 2038, 2106, 2262, the end of the year 9999."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from sparklog.cli import sql
from sparklog.cli.cluster import Cluster
from sparklog.consumer.consumer import Consumer
from sparklog.errors import StorageError
from sparklog.maintenance.audit import audit
from sparklog.model import TopicPartition
from sparklog.testing import LocalCluster
from tests.cli.command_line import run

_BEFORE_MS = 4_000
TURNS_MS = {
    "before 1970": 0,
    "2038, seconds in 31 bits": (1 << 31) * 1000,
    "2106, seconds in 32 bits": (1 << 32) * 1000,
    "2262, nanoseconds in 63 bits": (1 << 63) // 1_000_000,
}
END_OF_9999_MS = 253_402_300_799_999
VIEWS = ("batches", "elections", "isr_history", "lag", "replica_progress", "leadership_history")


def elect_another(cluster: LocalCluster) -> None:
    """End the leader, and let the others elect one."""
    cluster.crash(0)
    cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
    cluster.tick_until_idle()


@pytest.mark.parametrize("turn", TURNS_MS)
def test_a_cluster_goes_on_at_the_turn_of_a_clock(tmp_path: Path, turn: str) -> None:
    """Records before and after the turn are acknowledged, found by time, merged and removed."""
    turn_ms = TURNS_MS[turn]
    config = {"log.retention.ms": 60_000, "log.merger.min.lag.ms": 0, "log.merger.min.batches": 2}
    cluster = LocalCluster(tmp_path, config=config, start_ms=turn_ms - _BEFORE_MS)
    cluster.create_topic("t", assignment={0: [0, 1, 2]})
    cluster.tick_until_idle()
    sent = []
    for _ in range(4):
        sent.append(cluster.produce("t", 0, [b"a record"]))
        cluster.tick_until_idle()
        cluster.clock.advance(2_000)
    assert [one.response and one.response.error for one in sent] == ["NONE"] * 4
    elect_another(cluster)
    assert cluster.partition("t", 0).leader == 1
    assert [len(cluster.consume("t", 0)), audit(cluster.connection)] == [4, []]
    with Consumer(str(tmp_path / "cluster")) as consumer:
        # The third record has exactly the time of the turn.
        found = consumer.offsets_for_times({TopicPartition("t", 0): max(turn_ms - 1, 0)})
        assert [one.offset for one in found.values() if one] == [2]
    for view in VIEWS:
        sql.query(f"select * from {view}", Cluster.of(str(tmp_path / "cluster")), None)
    assert cluster.merge(1) == (4, 1)
    cluster.clock.advance(3_600_000)
    cluster.tick_until_idle()
    assert cluster.replica(1, "t", 0).log_start_offset == 4


@pytest.mark.parametrize("turn", [one for one in TURNS_MS if not one.startswith("before")])
def test_the_past_is_read_as_of_a_time_beside_the_turn(
    tmp_path: Path, turn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--as-of` compares the times of commits, which are those of the machine's clock."""
    turn_ms = TURNS_MS[turn]
    now_ms = turn_ms - 5_000
    monkeypatch.setattr(time, "time_ns", lambda: now_ms * 1_000_000)
    monkeypatch.setattr(time, "time", lambda: now_ms / 1_000)
    cluster = LocalCluster(tmp_path, start_ms=now_ms)
    cluster.create_topic("before", assignment={0: [0, 1, 2]})
    cluster.tick_until_idle()
    now_ms = turn_ms + 5_000
    cluster.create_topic("after", assignment={0: [0, 1, 2]})
    cluster.tick_until_idle()
    root = str(tmp_path / "cluster")
    for at_ms, topics in ((turn_ms - 1, ["before"]), (turn_ms + 5_000, ["after", "before"])):
        at = datetime.fromtimestamp(at_ms / 1_000, timezone.utc).isoformat(timespec="milliseconds")
        command = ["query", "select topic from topics order by topic", "--json", "--as-of", at]
        found = run(*command, "--cluster", root).printed
        assert [one["topic"] for one in json.loads(found)] == topics


def test_after_the_year_9999_records_are_refused_and_brokers_go_on(tmp_path: Path) -> None:
    """No calendar of Python, Spark or Delta has a later year."""
    cluster = LocalCluster(tmp_path, start_ms=END_OF_9999_MS - 1_000)
    cluster.create_topic("t", assignment={0: [0, 1, 2]})
    cluster.tick_until_idle()
    pending = cluster.produce("t", 0, [b"the last"])
    cluster.tick_until_idle()
    assert pending.response is not None
    cluster.clock.advance(2_000)
    with pytest.raises(StorageError, match="between the years 1 and 9999"):
        cluster.produce("t", 0, [b"too late"])
    elect_another(cluster)
    assert cluster.partition("t", 0).leader == 1
    assert [len(cluster.consume("t", 0)), audit(cluster.connection)] == [1, []]
