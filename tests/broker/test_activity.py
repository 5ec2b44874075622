"""The activity that commits of a journal carry."""

from __future__ import annotations

from pathlib import Path

from sparklog.broker.activity import RequestRate
from sparklog.storage.commits import read_commits
from sparklog.storage.fence import Fence
from sparklog.storage.journal import Activity, activity_in
from sparklog.storage.journal_tail import JournalTail
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
    tail = JournalTail(Location.of(f"{tmp_path}/broker-0"))
    assert isinstance(activity_in(tail.newest.commit), Activity)
    cluster.clock.advance(10_000)
    [*_, heartbeat] = tail.refresh()
    assert not heartbeat.commit.added
    assert isinstance(activity_in(heartbeat.commit), Activity)


def test_commits_without_it_do_not_hide_it(tmp_path: Path) -> None:
    """A fence carries none: that of the commits before it is shown."""
    cluster = LocalCluster(tmp_path, [0])
    cluster.create_topic("t")
    cluster.tick_until_idle()
    root = Location.of(f"{tmp_path}/broker-0")
    log = cluster.brokers[0]._roots[0].log
    log.take_fence(Fence("broker_epoch", 1 + (log.held_by("broker_epoch") or 0)))
    tail = JournalTail(root)
    assert activity_in(tail.newest.commit) is None
    assert isinstance(tail.activity, Activity)


def test_an_unknown_form_is_left_out(tmp_path: Path) -> None:
    """A later release may carry more: nothing depends on it."""
    cluster = LocalCluster(tmp_path, [0])
    journal = cluster.brokers[0]._roots[0].log
    journal.activity = lambda: (1, 2, 3)  # type: ignore[assignment, return-value]
    assert journal.heartbeat()
    [newest] = read_commits(journal.location, journal.version, journal.version)
    assert activity_in(newest) is None
