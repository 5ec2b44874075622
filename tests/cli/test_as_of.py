"""`sparklog query --as-of`: the cluster's tables as they were at a time."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from sparklog import Consumer, OffsetAndMetadata, TopicPartition
from sparklog.cli.times import time_text
from sparklog.cluster import replica_past
from sparklog.model import PRODUCER_STATE, TOPICS
from sparklog.storage.location import Location
from sparklog.storage.table_history import NoVersionError, rows_as_of
from sparklog.testing import LocalCluster
from tests.cli.command_line import run


def now_ms() -> int:
    """Return the time, and let the clock move on from it."""
    now = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now:
        pass
    return now


def commits(table: Path) -> dict[int, int]:
    """Return the times of the table's commits in ms since 1970, by version."""
    return {one["version"]: one["timestamp"] for one in DeltaTable(table).history()}


def topics(root: Path, as_of: str, *options: str) -> list[str]:
    statement = "select topic from topics where state = 'live' order by topic"
    printed = run("query", statement, "--json", "--as-of", as_of, *options, cluster=root)
    rows: list[dict[str, Any]] = json.loads(printed.printed)
    return [row["topic"] for row in rows]


def test_tables_are_as_they_were(tmp_path: Path) -> None:
    """Topics, leaders and the view over them are those of the time, by any form of it."""
    cluster = LocalCluster(tmp_path, [0, 1])
    root = tmp_path / "cluster"
    empty_ms = now_ms()
    cluster.create_topic("a", assignment={0: [0, 1]})
    one_ms = now_ms()
    cluster.create_topic("b", assignment={0: [1, 0]})
    cluster.crash(0)
    cluster.fence(0)

    assert topics(root, str(empty_ms)) == []
    assert topics(root, time_text(one_ms, utc=False)) == ["a"]
    in_utc = datetime.fromtimestamp(one_ms / 1000, timezone.utc).replace(tzinfo=None)
    assert topics(root, in_utc.isoformat(timespec="milliseconds"), "--utc") == ["a"]
    assert topics(root, "0 seconds ago") == ["a", "b"]
    leaders = ("query", "select leader from partition_state where topic = 'a'", "--csv")
    assert run(*leaders, "--as-of", str(one_ms), cluster=root).printed == "leader\n0\n0\n"
    assert run(*leaders, cluster=root).printed == "leader\n1\n1\n"
    imbalance = ("query", "select led_by_others from leader_imbalance order by all", "--csv")
    assert run(*imbalance, "--as-of", str(one_ms), cluster=root).printed == "led_by_others\n0\n"
    # A table of the brokers' roots.
    states = ("query", "select count(*) as rows from producer_state", "--csv")
    assert run(*states, "--as-of", str(one_ms), cluster=root).printed == "rows\n0\n"


def test_each_version_is_found_by_the_times_of_commits(tmp_path: Path) -> None:
    """Rows are those of the newest version that is not younger, as with Delta's time travel."""
    cluster = LocalCluster(tmp_path, [0])
    for name in "abcd":
        cluster.create_topic(name)
        now_ms()
    location = Location.of(str(tmp_path / "cluster"))
    times = commits(tmp_path / "cluster" / TOPICS.name)
    for of_version in times.values():
        for time_ms in (of_version, of_version + 1):
            newest = max(version for version, made in times.items() if made <= time_ms)
            expected = DeltaTable(tmp_path / "cluster" / TOPICS.name, version=newest)
            found = rows_as_of(location, TOPICS, time_ms)
            assert sorted(found["topic"].to_pylist()) == sorted(
                expected.to_pyarrow_table()["topic"].to_pylist()
            )
    with pytest.raises(NoVersionError) as raised:
        rows_as_of(location, TOPICS, times[0] - 1)
    assert (raised.value.earliest_ms, raised.value.is_created_later) == (times[0], True)


def test_a_time_before_the_history_is_answered_with_the_earliest_time(tmp_path: Path) -> None:
    """That is so if clean-up has removed the files of a version, or its commits."""
    cluster = LocalCluster(tmp_path, [0])
    root = tmp_path / "cluster"
    before_ms = now_ms() - 3_600_000
    for name in "abc":
        cluster.create_topic(name)
        now_ms()
    table = root / TOPICS.name
    times = commits(table)
    created = run("query", "from topics", "--as-of", str(before_ms), "--utc", cluster=root).refusal
    assert created == (
        f"the table at {table} did not exist yet at {time_text(before_ms, utc=True)}: the earliest "
        f"time that can be asked for is {time_text(times[0], utc=True)}"
    )

    newest = max(times)
    live = {Path(uri).name for uri in DeltaTable(table).file_uris()}
    for file in table.glob("*.parquet"):
        if file.name not in live:
            file.unlink()
    # The newest version, and older ones of which no file was removed.
    readable = [
        version
        for version in times
        if {Path(uri).name for uri in DeltaTable(table, version=version).file_uris()} <= live
        and version > 0
    ]
    earliest = min(one for one in readable if set(range(one, newest + 1)) <= set(readable))
    gone_ms = times[earliest - 1]
    gone = run("query", "from topics", "--as-of", str(gone_ms), "--utc", cluster=root).refusal
    assert gone == (
        f"the table at {table} no longer has its rows of {time_text(gone_ms, utc=True)}: the "
        f"earliest time that can be asked for is {time_text(times[earliest], utc=True)}"
    )
    assert topics(root, str(times[earliest])) == ["a", "b", "c"]

    DeltaTable(table).create_checkpoint()
    for version in range(newest):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    gone = run("query", "from topics", "--as-of", str(gone_ms), "--utc", cluster=root).refusal
    assert f"no longer has its rows of {time_text(gone_ms, utc=True)}" in gone
    assert topics(root, str(times[newest])) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("statement", "as_of", "said"),
    [
        *(
            (f"from {name}", "0 seconds ago", f"{name} has no past: leave it out of a query with")
            for name in ("leader_epoch_checkpoint", "delayed_operations", "produce_requests")
        ),
        ("from topics", "noon", "--as-of 'noon' is not a time: write it like 2026-01-31T12:00"),
        ("from topics", "9999-12-31", "--as-of '9999-12-31' is in the future"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    tmp_path_factory: pytest.TempPathFactory, statement: str, as_of: str, said: str
) -> None:
    root = tmp_path_factory.getbasetemp() / "as-of"
    if not root.exists():
        LocalCluster(root, [0])
    assert said in run("query", statement, "--as-of", as_of, cluster=root / "cluster").refusal


def forget_commits(table: Path) -> int:
    """Clean up the commits of a table before a checkpoint; return the time of the earliest left."""
    newest = DeltaTable(table).version()
    made = commits(table)
    DeltaTable(table).create_checkpoint()
    for version in range(newest):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    return made[newest]


def asked(cluster: LocalCluster, statement: str, as_of_ms: int) -> tuple[list[Any], list[str]]:
    """Return the rows as of a time, and the lines on standard error."""
    arguments = ("query", statement, "--json", "--utc", "--as-of", str(as_of_ms))
    found = run(*arguments, cluster=cluster.root / "cluster")
    assert found.exit_code == 0, found.stderr
    return json.loads(found.stdout), found.stderr.splitlines()


def refused(cluster: LocalCluster, statement: str, as_of_ms: int) -> str:
    arguments = ("query", statement, "--utc", "--as-of", str(as_of_ms))
    return run(*arguments, cluster=cluster.root / "cluster").refusal


def text_of(time_ms: int) -> str:
    return time_text(time_ms, utc=True)


@pytest.fixture
def behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalCluster, int]:
    """A cluster, and a time at which a follower was behind."""
    # The test takes less than the minute of which the history keeps the last row.
    monkeypatch.setattr(replica_past, "GRAIN_MS", 1)
    cluster = LocalCluster(tmp_path, [0, 1])
    cluster.create_topic("t", assignment={0: [0, 1]})
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"a"])
    cluster.leader_tick(0)
    then_ms = now_ms()
    cluster.tick_until_idle()
    for broker_id in (0, 1):
        cluster.vacuum(broker_id, after_ms=0)
    return cluster, then_ms


PROGRESS = "select broker_id, log_end_offset, lag, lag_seconds from replica_progress"


class TestBeforeTheRowsThatAreKept:
    """Cause of a fault that operators met: rows were shown, and "its root cannot be read"."""

    def test_a_view_says_how_far_its_source_reaches_back_and_what_is_empty(
        self, behind: tuple[LocalCluster, int]
    ) -> None:
        cluster, then_ms = behind
        first_ms = min(forget_commits(cluster.root / f"broker-{one}" / "log") for one in (0, 1))
        rows, [line] = asked(cluster, PROGRESS, then_ms)
        assert rows == [{"broker_id": 1, "log_end_offset": 0, "lag": 1, "lag_seconds": None}]
        assert line == (
            f"sparklog: batches has no rows of {text_of(then_ms)}: the earliest time that can be "
            f"asked for is {text_of(first_ms)}; high_watermark_history reaches back further; "
            "without them lag_seconds, and last_caught_up_ms of replicas that are behind, are null"
        )

    def test_a_table_of_which_nothing_is_there_is_refused_with_the_earliest_time(
        self, behind: tuple[LocalCluster, int]
    ) -> None:
        cluster, then_ms = behind
        firsts = [forget_commits(cluster.root / f"broker-{one}" / "log") for one in (0, 1)]
        for statement in ("from batches", "select count(*) from BATCHES b join replica_progress p"):
            on = "" if statement == "from batches" else " on b.topic_id = p.topic_id"
            assert refused(cluster, statement + on, then_ms) == (
                f"batches has no rows of {text_of(then_ms)}: the earliest time that can be asked "
                f"for is {text_of(min(firsts))}; high_watermark_history reaches back further"
            )
        rows, lines = asked(cluster, "select topic from batches", max(firsts))
        assert (rows, lines) == ([{"topic": "t"}] * 2, [])

    def test_the_rows_of_one_broker_alone_are_shown_as_such(
        self, behind: tuple[LocalCluster, int]
    ) -> None:
        cluster, then_ms = behind
        log = cluster.root / "broker-1" / "log"
        first_ms = forget_commits(log)
        rows, [line] = asked(cluster, "select broker_id from batches", then_ms)
        assert rows == [{"broker_id": 0}]
        assert line == (
            f"sparklog: batches has no rows of {text_of(then_ms)} in {cluster.root}/broker-1 of "
            f"broker 1, whose first are of {text_of(first_ms)}; high_watermark_history reaches "
            "back further"
        )

    def test_positions_that_nothing_has_kept_are_refused(self, tmp_path: Path) -> None:
        """They were an empty answer, as if there had been no replica."""
        cluster = LocalCluster(tmp_path, [0, 1])
        cluster.create_topic("t", assignment={0: [0, 1]})
        before_ms = now_ms()
        cluster.tick_until_idle()
        assert "t" in [row["topic"] for row in asked(cluster, "from topics", before_ms)[0]]
        statement = "select min(reported_at_ms) as ms from high_watermark_checkpoint"
        [[first], []] = asked(cluster, statement, now_ms())
        text = (
            f"high_watermark_checkpoint has no rows of {text_of(before_ms)}: the earliest time "
            f"that can be asked for is {text_of(first['ms'])}"
        )
        assert refused(cluster, "from high_watermark_checkpoint", before_ms) == text
        rows, [line] = asked(cluster, PROGRESS, before_ms)
        assert [row["lag"] for row in rows] == [None]
        assert line == f"sparklog: {text}; without them positions and lags are null"

    @pytest.mark.parametrize(
        ("source", "statement", "further"),
        [
            ("partition_state", "from partition_state", "partition_history"),
            ("partition_state", "from replica_progress", "partition_history"),
            ("consumer_offsets", "from lag", "replica_progress"),
            ("consumer_offsets", "from consumer_offsets", None),
            ("controller", "from controller", "controller_history"),
        ],
    )
    def test_a_table_of_the_cluster_root_names_the_view_that_reaches_further(
        self, behind: tuple[LocalCluster, int], source: str, statement: str, further: str | None
    ) -> None:
        cluster, _ = behind
        cluster.vacuum(0, after_ms=0)
        cluster.vacuum(1, after_ms=0)
        then_ms = now_ms()
        cluster.elect_leaders("preferred", [("t", 0)])
        at = int(asked(cluster, "from controller", now_ms())[0][0]["broker_id"])
        cluster.crash(at)
        cluster.fence(at)
        cluster.tick_until_idle()
        with Consumer(cluster.root / "cluster", group_id="g") as consumer:
            consumer.commit({TopicPartition("t", 0): OffsetAndMetadata(1)})
        first_ms = forget_commits(cluster.root / "cluster" / source)
        hint = f"; {further} reaches back further" if further else ""
        assert refused(cluster, statement, then_ms) == (
            f"the table at {cluster.root}/cluster/{source} no longer has its rows of "
            f"{text_of(then_ms)}: the earliest time that can be asked for is {text_of(first_ms)}"
            f"{hint}"
        )


def test_a_time_before_a_broker_has_rows_is_refused(tmp_path: Path) -> None:
    """The sentence has the earliest time; it was a warning, and no rows."""
    cluster = LocalCluster(tmp_path, [0])
    first = commits(tmp_path / "broker-0" / PRODUCER_STATE.name)[0]
    cluster.create_topic("t")
    assert refused(cluster, "from producer_state", first - 1) == (
        f"producer_state has no rows of {text_of(first - 1)}: the earliest time that can be asked "
        f"for is {text_of(first)}"
    )
