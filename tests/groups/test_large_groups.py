"""Groups of many processes: their heartbeats are bounded in number, not each process's interval."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from sparklog.cluster.roots import ClusterRoot
from sparklog.config import ConsumerConfig, parse
from sparklog.groups.heartbeats import FREQUENT_PROCESSES, ProcessHeartbeats, spread_interval_ms
from sparklog.groups.member import GroupMember
from sparklog.storage.location import Location
from sparklog.testing import ManualClock

CONFIG = parse(ConsumerConfig, {}, "the test")


@pytest.mark.parametrize("processes", [0, 1, 5, FREQUENT_PROCESSES, 21, 40, 100, 1000])
def test_the_commits_of_a_group_have_a_bound_until_the_session_needs_them(processes: int) -> None:
    """Each process commits three times a session at least."""
    interval_ms = spread_interval_ms(
        CONFIG.heartbeat_interval_ms, CONFIG.session_timeout_ms, processes
    )
    commits = processes * CONFIG.heartbeat_interval_ms / interval_ms
    assert commits <= FREQUENT_PROCESSES or interval_ms == CONFIG.session_timeout_ms // 3
    assert CONFIG.heartbeat_interval_ms <= interval_ms <= CONFIG.session_timeout_ms // 3
    if processes <= FREQUENT_PROCESSES:
        assert interval_ms == CONFIG.heartbeat_interval_ms


def test_an_interval_longer_than_a_third_of_the_session_is_kept() -> None:
    """heartbeat.interval.ms may be anything below session.timeout.ms."""
    assert spread_interval_ms(900, 1_000, 500) == 900


@dataclass
class Beating:
    """A member whose heartbeats are sent for it."""

    member_id: str
    heartbeat_interval_ms: int = CONFIG.heartbeat_interval_ms
    session_timeout_ms: int = CONFIG.session_timeout_ms

    def beating_id(self) -> str:
        """Return the member's id."""
        return self.member_id


def test_a_process_estimates_the_processes_by_its_share_of_the_members(tmp_path: Path) -> None:
    """A process with one of 40 members beats half as often as one of 20; one with all as before."""
    root = ClusterRoot.create(Location.of(str(tmp_path / "cluster"), {"/": {"sync": "false"}}))
    clock = ManualClock()
    ids = []
    for _ in range(2 * FREQUENT_PROCESSES):
        member = GroupMember(root, "g", CONFIG, clock)
        member.join(["t"])
        ids.append(member.member_id)
    alone, together = (ProcessHeartbeats(root, "g", clock) for _ in range(2))
    alone._members = [Beating(ids[0])]
    together._members = [Beating(one) for one in ids]
    assert alone._interval_ms() == CONFIG.heartbeat_interval_ms
    before = root.consumer_group_heartbeats.commits
    for process in (alone, together):
        process.beat()
    assert root.consumer_group_heartbeats.commits - before == 2
    assert alone._interval_ms() == 2 * CONFIG.heartbeat_interval_ms
    assert together._interval_ms() == CONFIG.heartbeat_interval_ms
