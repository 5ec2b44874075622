"""`sparklog scrub` and `sparklog repair`: output, exit codes and options."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from sparklog.cli.scrub import _time_ms
from sparklog.errors import SparklogError
from sparklog.testing import LocalCluster
from tests.broker.damaging import batch_file, batch_of, flip_byte
from tests.cli.command_line import Finished, run


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Two batches on two replicas."""
    cluster = LocalCluster(tmp_path, brokers=[0, 1], config={"log.scrub.bytes.per.second": 0})
    cluster.create_topic("t", assignment={0: [0, 1]})
    for value in (b"a", b"b"):
        cluster.produce("t", 0, [value])
    cluster.tick_until_idle()
    return cluster


def sparklog(cluster: LocalCluster, *arguments: str) -> Finished:
    return run(*arguments, cluster=cluster.root / "cluster")


def table(text: str) -> list[list[str]]:
    """Return the words of the lines of a table."""
    return [line.split() for line in text.splitlines() if line.strip() and "─" not in line]


def test_a_sound_cluster_exits_with_0_and_prints_no_findings(cluster: LocalCluster) -> None:
    """Standard output has the findings only; the summary is on standard error."""
    done = sparklog(cluster, "scrub")
    assert (done.exit_code, done.stdout) == (0, "")
    summary = done.stderr.splitlines()[-1]
    assert summary.startswith("Read ")
    assert summary.endswith("findings not repaired: 0; the scrub is complete.")
    repaired = sparklog(cluster, "repair")
    assert (repaired.exit_code, repaired.stdout) == (0, "")
    assert repaired.stderr == "Repaired 0 of 0 findings.\n"
    assert sparklog(cluster, "scrub", "--json").stdout == "[]\n"


def test_a_finding_names_its_place_and_the_remedy(cluster: LocalCluster) -> None:
    """A finding exits with 1; JSON has the columns of the table."""
    path = batch_of(cluster, 1, 1).path
    flip_byte(batch_file(cluster, 1, 1))
    done = sparklog(cluster, "scrub", "--json")
    assert done.exit_code == 1
    [found] = json.loads(done.stdout)
    detail = found.pop("detail")
    assert detail.startswith("its bytes have checksum ")
    assert found == {
        "fault": "damaged_file",
        "broker_id": 1,
        "root": str(cluster.root / "broker-1"),
        "table": "log",
        "topic": "t",
        "partition": 0,
        "first_offset": 1,
        "last_offset": 1,
        "file": path,
        "source_broker_id": 0,
        "state": "found",
        "remedy": "run sparklog repair: broker 0 has the same file",
    }
    head, line, count = table(sparklog(cluster, "scrub").stdout)
    assert head == list(json.loads(done.stdout)[0])
    assert line[:3] == ["damaged_file", "1", found["root"]]
    assert count == ["(1", "row)"]


def test_a_repair_prints_the_outcomes(cluster: LocalCluster) -> None:
    """A repair exits with 0 when nothing is left; --dry-run changes nothing."""
    file = batch_file(cluster, 1, 0)
    content = file.read_bytes()
    flip_byte(file)
    sparklog(cluster, "scrub")
    planned = sparklog(cluster, "repair", "--dry-run", "--json")
    assert planned.exit_code == 1
    assert [one["state"] for one in json.loads(planned.stdout)] == ["found"]
    assert file.read_bytes() != content
    done = sparklog(cluster, "repair", "--json")
    assert (done.exit_code, done.stderr) == (0, "Repaired 1 of 1 findings.\n")
    [one] = json.loads(done.stdout)
    assert (one["state"], one["remedy"]) == ("repaired", "the file was restored from broker 0")
    assert file.read_bytes() == content
    rows = sparklog(
        cluster, "query", "--json", "select fault, state, outcome, source_broker_id from repairs"
    )
    assert json.loads(rows.printed) == [
        {
            "fault": "damaged_file",
            "state": "repaired",
            "outcome": "the file was restored from broker 0",
            "source_broker_id": 0,
        }
    ]


def test_what_is_left_to_a_broker_exits_with_1(cluster: LocalCluster) -> None:
    """A finding without another copy stays open."""
    for broker in (0, 1):
        flip_byte(batch_file(cluster, broker, 0))
    assert sparklog(cluster, "scrub").exit_code == 1
    left = sparklog(cluster, "repair", "--json")
    assert left.exit_code == 1
    assert {one["state"] for one in json.loads(left.stdout)} == {"requested"}
    assert left.stderr == "Repaired 0 of 2 findings.\n"


def test_a_root_that_is_away_exits_with_2(cluster: LocalCluster) -> None:
    """A root that cannot be read is named on standard error, and the others are verified."""
    (cluster.root / "broker-1").rename(cluster.root / "away")
    done = sparklog(cluster, "scrub")
    assert done.exit_code == 2
    assert f"sparklog: {cluster.root / 'broker-1'} cannot be read: " in done.stderr
    assert "there is no cluster" in run("scrub", "--cluster", cluster.root / "none").refusal


def test_a_limited_run_says_that_it_is_to_be_continued(cluster: LocalCluster) -> None:
    """Each run goes on where the last one has ended."""
    limits = ("--max-bytes", "1", "--bytes-per-second", "1000000")
    first = sparklog(cluster, "scrub", *limits)
    assert first.exit_code == 0
    assert first.stderr.endswith("the scrub is to be continued in tables.\n")
    assert sparklog(cluster, "scrub").stderr.endswith("the scrub is complete.\n")
    late = sparklog(cluster, "scrub", "--until", "2001-01-01T00:00")
    assert late.stderr.endswith("the scrub is to be continued in tables.\n")
    again = sparklog(cluster, "scrub", "--restart")
    assert again.stderr.endswith("the scrub is complete.\n")


def test_a_time_is_the_next_one_of_the_day() -> None:
    """HH:MM is today, or tomorrow if it is over; a whole time stands for itself."""
    now = datetime(2030, 1, 31, 22, 30, tzinfo=timezone.utc)

    def at(text: str) -> timedelta:
        return timedelta(milliseconds=_time_ms(text, now)) - timedelta(seconds=now.timestamp())

    assert at("23:00") == timedelta(minutes=30)
    assert at("06:00") == timedelta(hours=7, minutes=30)
    assert at("22:30") == timedelta(days=1)
    assert at("2030-02-01T22:30+00:00") == timedelta(days=1)
    for text in ("25:00", "soon", "2030-13-01"):
        with pytest.raises(SparklogError, match="give a time of the day"):
            _time_ms(text, now)
