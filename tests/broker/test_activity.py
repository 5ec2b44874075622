"""The activity that commits of a journal carry."""

from __future__ import annotations

from pathlib import Path

from sparklog.broker.activity import RequestRate
from sparklog.model import LOG
from sparklog.storage.commits import read_commits
from sparklog.storage.delta_log_files import newest_version
from sparklog.storage.journal import Activity, newest_activity
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from sparklog.testing.manual_clock import ManualClock


def test_the_rate_is_that_of_the_last_minute() -> None:
    """Of the time since the start in the first minute; requests before that do not count."""
    clock = ManualClock()
    total = 1_000
    rate = RequestRate(clock, lambda: total)
    clock.advance(30_000)
    total += 30
    assert rate.per_minute() == 60
    for _ in range(60):
        clock.advance(10_000)
        total += 20
        rate.per_minute()
    assert rate.per_minute() == 120
    for _ in range(7):
        clock.advance(10_000)
        rate.per_minute()
    assert rate.per_minute() == 0


def test_every_commit_of_a_step_and_every_heartbeat_carries_it(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, [0])
    cluster.create_topic("t")
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    log = Location.of(f"{tmp_path}/broker-0").child(LOG.name)
    version = newest_version(log)
    [newest] = read_commits(log, version, version)
    found = newest_activity(log, newest)
    assert isinstance(found, Activity)
    cluster.clock.advance(10_000)
    [heartbeat] = read_commits(log, newest_version(log), newest_version(log))
    assert heartbeat.version > version
    assert not heartbeat.added
    assert newest_activity(log, heartbeat) is not None


def test_an_unknown_form_is_left_out(tmp_path: Path) -> None:
    """A later release may carry more: nothing depends on it."""
    cluster = LocalCluster(tmp_path, [0])
    journal = cluster.brokers[0]._roots[0].log
    journal.activity = lambda: (1, 2, 3)  # type: ignore[assignment, return-value]
    assert journal.heartbeat()
    [newest] = read_commits(journal.location, journal.version, journal.version)
    assert newest_activity(journal.location, newest) is None
