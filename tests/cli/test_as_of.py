"""`sparklog query --as-of`: the cluster's tables as they were at a time."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from sparklog.cli.times import time_text
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


def test_a_broker_without_that_time_is_left_out(tmp_path: Path) -> None:
    """The line names the broker, its table and the earliest time."""
    cluster = LocalCluster(tmp_path, [0])
    first = commits(tmp_path / "broker-0" / PRODUCER_STATE.name)[0]
    cluster.create_topic("t")
    asked = run(
        *("query", "from producer_state", "--json", "--as-of", str(first - 1), "--utc"),
        cluster=tmp_path / "cluster",
    )
    assert (asked.exit_code, json.loads(asked.stdout)) == (0, [])
    assert "broker 0 is left out" in asked.stderr
    assert f"that can be asked for is {time_text(first, utc=True)}" in asked.stderr
