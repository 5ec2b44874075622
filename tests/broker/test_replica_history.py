"""`replica_history`: positions of replicas and refused requests, beyond the journal's commits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparklog.broker import replica_history
from sparklog.cli.cluster import Cluster
from sparklog.cli.sql import AsOf, query
from sparklog.cluster.replica_past import coarser, journal_commits, kept
from sparklog.model import LOG, REPLICA_HISTORY
from sparklog.storage.commits import Commit
from sparklog.storage.delta_checkpoints import write_checkpoint
from sparklog.storage.delta_log_files import commit_path
from sparklog.storage.delta_snapshots import open_delta_table
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.broker.states import table
from tests.cli.test_as_of import now_ms

VIEWS = ("replica_history", "refusals", "high_watermark_history")
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
NOW_MS = 1_000 * DAY_MS


def rows(cluster: LocalCluster, text: str, as_of_ms: int | None = None) -> list[dict[str, Any]]:
    as_of = None if as_of_ms is None else AsOf(as_of_ms, True)
    found = query(text, Cluster.of(str(cluster.root / "cluster")), as_of)
    assert found.left_out == []
    answer: list[dict[str, Any]] = found.rows.to_pylist()
    return answer


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Committed records at two brokers, and a partition that refuses requests."""
    cluster = LocalCluster(tmp_path, [0, 1, 2])
    cluster.create_topic("t", assignment={0: [0, 1]})
    cluster.create_topic("strict", assignment={0: [0, 2]}, configs={"min.insync.replicas": "2"})
    cluster.produce("t", 0, [b"a", b"b"])
    cluster.tick_until_idle()
    cluster.crash(2)
    cluster.fence(2)
    cluster.tick_until_idle()
    refuse(cluster, 2)
    return cluster


def refuse(cluster: LocalCluster, times: int) -> None:
    refused = [cluster.produce("strict", 0, [b"x"], acks="all") for _ in range(times)]
    cluster.tick_until_idle()
    assert {one.response and one.response.error for one in refused} == {"NOT_ENOUGH_REPLICAS"}


def views(cluster: LocalCluster) -> dict[str, list[dict[str, Any]]]:
    return {name: rows(cluster, f"from {name} order by all") for name in VIEWS}


def clean_up(cluster: LocalCluster, broker: int) -> None:
    """Remove the commits of a journal, as Delta does after their retention."""
    cluster.brokers[broker].stop()
    cluster.crash(broker)
    journal = cluster.location(broker).child(LOG.name)
    write_checkpoint(journal)
    for version in range(open_delta_table(journal).version()):
        journal.remove(commit_path(version))


def test_the_views_are_the_same_after_the_journals_commits_are_gone(cluster: LocalCluster) -> None:
    """They reached back as far as the commits: an hour."""
    cluster.vacuum(0, after_ms=0)
    before = views(cluster)
    refused = [(row["topic"], row["error"], row["requests"]) for row in before["refusals"]]
    assert refused == [("strict", "NOT_ENOUGH_REPLICAS", 2)]
    assert {
        (row["broker_id"], row["topic"], row["high_watermark"])
        for row in before["high_watermark_history"]
    } >= {(0, "t", 2), (1, "t", 2)}
    in_table = table(cluster, 0, REPLICA_HISTORY).rows().to_pylist()
    [stored] = [row for row in in_table if row["error"]]
    assert (stored["requests"], stored["role"]) == (2, None)
    clean_up(cluster, 0)
    after = views(cluster)
    of_broker = {name: [row for row in before[name] if row["broker_id"] == 0] for name in VIEWS}
    for name in VIEWS:
        assert all(row in after[name] for row in of_broker[name]), name
    cluster.restart(0)
    cluster.tick_until_idle()
    refuse(cluster, 1)
    assert sum(row["requests"] for row in rows(cluster, "from refusals")) == 3
    cluster.vacuum(0, after_ms=0)
    assert sum(row["requests"] for row in rows(cluster, "from refusals")) == 3


def test_a_table_is_extended_every_twenty_minutes_and_only_after_commits(
    cluster: LocalCluster,
) -> None:
    cluster.vacuum(0, after_ms=0)
    version = table(cluster, 0, REPLICA_HISTORY).version
    cluster.vacuum(0, after_ms=0)
    # The first run has made commits that change no replica: the version they end at is noted.
    noted = table(cluster, 0, REPLICA_HISTORY).version
    cluster.vacuum(0, after_ms=0)
    assert noted <= version + 1
    assert table(cluster, 0, REPLICA_HISTORY).version == noted
    cluster.produce("t", 0, [b"c"])
    cluster.tick_until_idle()
    cluster.brokers[0].vacuum()
    assert table(cluster, 0, REPLICA_HISTORY).version == noted
    cluster.vacuum(0, after_ms=HOUR_MS)
    assert table(cluster, 0, REPLICA_HISTORY).version == noted + 1


def test_a_root_without_replicas_reads_each_commit_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table has no rows, and all commits of the last hour were read every 20 minutes."""
    cluster = LocalCluster(tmp_path, [0])
    firsts = []

    def recorded(root: Location, first: int, last: int) -> Iterator[Commit]:
        firsts.append(first)
        return journal_commits(root, first, last)

    monkeypatch.setattr(replica_history, "journal_commits", recorded)
    for _ in range(3):
        cluster.brokers[0].heartbeat()
        cluster.vacuum(0, after_ms=0)
    assert firsts[0] == 0
    assert 0 < firsts[1] < firsts[2]


def test_the_process_that_follows_goes_on_where_the_last_one_ended(cluster: LocalCluster) -> None:
    """Commits of the time between are in the journal, each is added once."""
    cluster.vacuum(0, after_ms=0)
    before = views(cluster)
    cluster.produce("t", 0, [b"c"])
    refuse(cluster, 1)
    cluster.crash(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    shown = views(cluster)
    assert sum(row["requests"] for row in shown["refusals"]) == 3
    cluster.vacuum(0, after_ms=0)
    assert views(cluster)["refusals"] == shown["refusals"] != before["refusals"]


def test_a_damaged_table_is_recreated_from_the_commits_that_are_left(cluster: LocalCluster) -> None:
    cluster.vacuum(0, after_ms=0)
    before = table(cluster, 0, REPLICA_HISTORY).rows()
    for file in (cluster.root / "broker-0" / REPLICA_HISTORY.name).glob("*.parquet"):
        file.write_bytes(b"damage")
    cluster.crash(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    cluster.vacuum(0, after_ms=0)
    after = table(cluster, 0, REPLICA_HISTORY).rows()
    errors = [one for one in before.to_pylist() if one["error"]]
    assert [one for one in after.to_pylist() if one["error"]] == errors
    assert after.num_rows >= before.num_rows


class TestAsOf:
    POSITIONS = """
    select broker_id, log_end_offset, high_watermark from high_watermark_checkpoint
    where topic = 't' order by broker_id
    """
    LAGS = "select name, lag, lag_seconds from lag where kind = 'replica' and topic = 't'"

    def test_positions_and_lags_are_those_of_the_time(self, tmp_path: Path) -> None:
        """The tables of journals refused `--as-of`: they were read at their newest version only."""
        cluster = LocalCluster(tmp_path, [0, 1])
        cluster.create_topic("t", assignment={0: [0, 1]})
        cluster.tick_until_idle()
        empty_ms = now_ms()
        cluster.produce("t", 0, [b"a"])
        cluster.leader_tick(0)
        ahead_ms = now_ms()
        cluster.tick_until_idle()
        equal_ms = now_ms()
        cluster.produce("t", 0, [b"b", b"c"])
        cluster.tick_until_idle()

        def positions(time_ms: int | None) -> list[tuple[Any, ...]]:
            return [tuple(row.values()) for row in rows(cluster, self.POSITIONS, time_ms)]

        for _ in range(2):
            assert positions(empty_ms) == [(0, 0, 0), (1, 0, 0)]
            assert positions(ahead_ms) == [(0, 1, 0), (1, 0, 0)]
            assert positions(equal_ms) == [(0, 1, 1), (1, 1, 1)]
            assert positions(now_ms()) == positions(None) == [(0, 3, 3), (1, 3, 3)]
            # After that the rows of these minutes are in the table as well.
            for broker in (0, 1):
                cluster.vacuum(broker, after_ms=0)
        counts = [
            rows(cluster, "select count(*) as n from batches where broker_id = 0", one)[0]["n"]
            for one in (empty_ms, ahead_ms, now_ms())
        ]
        assert counts == [0, 1, 2]
        [behind] = rows(cluster, self.LAGS, ahead_ms)
        [oldest] = rows(cluster, "select min(min_timestamp_ms) as ms from batches", None)
        assert (behind["name"], behind["lag"]) == ("1", 1)
        seconds = max(0.0, (ahead_ms - oldest["ms"]) / 1000)
        assert behind["lag_seconds"] == pytest.approx(seconds)
        [caught_up] = rows(cluster, self.LAGS, equal_ms)
        assert (caught_up["lag"], caught_up["lag_seconds"]) == (0, 0)

    def test_beyond_the_commits_positions_are_as_coarse_as_the_table(
        self, cluster: LocalCluster
    ) -> None:
        before = rows(cluster, self.POSITIONS)
        cluster.vacuum(0, after_ms=0)
        cluster.vacuum(1, after_ms=0)
        then_ms = now_ms()
        cluster.produce("t", 0, [b"c"])
        cluster.tick_until_idle()
        for broker in (0, 1):
            clean_up(cluster, broker)
        assert rows(cluster, self.POSITIONS, then_ms) == before
        found = query(
            "select * from batches", Cluster.of(str(cluster.root / "cluster")), AsOf(then_ms, True)
        )
        assert found.rows.num_rows == 0
        # Broker 2 has no batches.
        [sentence] = found.left_out
        assert re.findall(r"of broker (\d), whose first are of", sentence) == ["0", "1"]


def row(at_ms: int, version: int, end: int | None = None, **others: Any) -> dict[str, Any]:
    state = {} if end is None else {"role": "leader", "log_end_offset": end}
    return {
        "topic_id": "t",
        "topic": "t",
        "partition": 0,
        "at_ms": at_ms,
        "version": version,
        **state,
        **others,
    }


def history(*of: dict[str, Any]) -> pa.Table:
    return REPLICA_HISTORY.rows(list(of))


def positions(found: pa.Table) -> list[tuple[int, int]]:
    return list(zip(found["at_ms"].to_pylist(), found["log_end_offset"].to_pylist(), strict=True))


class TestGrains:
    @pytest.mark.parametrize(
        ("age_ms", "grain_ms"),
        [
            (HOUR_MS, MINUTE_MS),
            (7 * HOUR_MS, 10 * MINUTE_MS),
            (3 * DAY_MS, HOUR_MS),
        ],
    )
    def test_a_row_of_each_time_of_the_grain_is_left_the_last_one(
        self, age_ms: int, grain_ms: int
    ) -> None:
        begins = (NOW_MS - age_ms) // HOUR_MS * HOUR_MS
        step = grain_ms // 4
        found = history(*(row(begins + n * step, n, 100 + n) for n in range(12)))
        left = [(begins + n * step, 100 + n) for n in (3, 7, 11)]
        assert positions(coarser(found, NOW_MS)) == left
        assert positions(kept(found, NOW_MS, 7 * DAY_MS, {("t", 0)})) == left

    def test_refused_requests_are_added_up(self) -> None:
        begins = NOW_MS - 3 * DAY_MS
        of: dict[str, Any] = {"error": "NOT_ENOUGH_REPLICAS", "requests": 2}
        found = coarser(
            history(
                *(row(begins + n * MINUTE_MS, n, **of) for n in range(5)),
                row(begins, 7, error="REQUEST_TIMED_OUT", requests=1),
                row(begins, 8, 3),
            ),
            NOW_MS,
        ).to_pylist()
        assert {(one["error"], one["requests"]) for one in found} == {
            ("NOT_ENOUGH_REPLICAS", 10),
            ("REQUEST_TIMED_OUT", 1),
            (None, None),
        }

    def test_the_last_state_of_a_replica_outlives_the_retention(self) -> None:
        """Without it, a replica that nobody writes to would have no past."""
        found = history(
            row(NOW_MS - 20 * DAY_MS, 1, 5),
            row(NOW_MS - 10 * DAY_MS, 2, 6),
            row(NOW_MS - 9 * DAY_MS, 3, error="NOT_ENOUGH_REPLICAS", requests=1),
            row(NOW_MS - 8 * DAY_MS, 4, 7, topic_id="gone"),
            row(NOW_MS - 8 * DAY_MS, 5, 8, topic_id="busy"),
            row(NOW_MS - DAY_MS, 6, 9, topic_id="busy"),
        )
        left = kept(found, NOW_MS, 7 * DAY_MS, {("t", 0), ("busy", 0)})
        assert positions(left) == [(NOW_MS - 10 * DAY_MS, 6), (NOW_MS - DAY_MS, 9)]

    def test_rows_are_those_of_plain_python(self) -> None:
        """Random rows, against a dictionary in place of Arrow's groups."""
        import random

        chance = random.Random(5)
        found = [
            row(
                NOW_MS - chance.randrange(4 * DAY_MS),
                version,
                version,
                topic_id=chance.choice("ab"),
                error=chance.choice([None, "E"]),
            )
            for version in range(3_000)
        ]
        expected: dict[Any, dict[str, Any]] = {}
        for one in found:
            age_ms = NOW_MS - one["at_ms"]
            grain = HOUR_MS if age_ms > 2 * DAY_MS else 10 * MINUTE_MS
            grain = MINUTE_MS if age_ms <= 6 * HOUR_MS else grain
            key = one["topic_id"], one["error"], one["at_ms"] // grain, grain
            expected[key] = one
        left = coarser(history(*found), NOW_MS)
        assert sorted(left["version"].to_pylist()) == sorted(
            one["version"] for one in expected.values()
        )
        assert left["version"].to_pylist() == sorted(left["version"].to_pylist())
        assert json.dumps(kept(left, NOW_MS, 7 * DAY_MS, set()).to_pylist()) == json.dumps(
            left.to_pylist()
        )
