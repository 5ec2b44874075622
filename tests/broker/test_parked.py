"""Brokers between two scheduled runs are parked for a limited time, measured by their leader's
clock.
"""

from __future__ import annotations

from collections.abc import Callable

from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error

Start = Callable[..., LocalCluster]

DAY_MS = 86_400_000


def park(cluster: LocalCluster, *brokers: int) -> None:
    """End brokers as a scheduled run does."""
    for broker in brokers:
        cluster.brokers[broker].park()
        cluster.crash(broker)


class TestAParkedBroker:
    def test_leads_and_is_in_sync_for_the_parked_session(self, start: Start) -> None:
        """The default is two days: with daily runs, one run may be skipped."""
        cluster = start(0, 1)
        park(cluster, 0)
        cluster.clock.advance(2 * DAY_MS)
        cluster.controller_tick()
        assert (cluster.partition("t", 0).leader, cluster.partition("t", 0).isr) == (0, [0, 1])
        cluster.restart(0)
        assert cluster.brokers[0].broker_epoch == 1
        check_at_rest(cluster)

    def test_is_fenced_after_the_parked_session(self, start: Start) -> None:
        """The controller need not have run meanwhile: the row has the time of parking."""
        cluster = start(0, 1)
        park(cluster, 0, 1)
        cluster.clock.advance(2 * DAY_MS + 1)
        cluster.restart(1)
        cluster.tick_until_idle()
        assert (cluster.partition("t", 0).leader, cluster.partition("t", 0).isr) == (1, [1])
        pending = cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        assert error(pending) == "NONE"
        cluster.restart(0)
        assert cluster.brokers[0].broker_epoch == 3
        check_at_rest(cluster, "a")

    def test_has_the_session_that_is_configured(self, start: Start) -> None:
        """A parked broker is fenced after the configured parked.session.timeout.ms."""
        cluster = start(0, 1, parked_session_timeout_ms=60_000)
        park(cluster, 0)
        cluster.clock.advance(60_000)
        cluster.controller_tick()
        assert cluster.partition("t", 0).leader == 0
        cluster.clock.advance(1)
        cluster.controller_tick()
        assert cluster.partition("t", 0).leader == 1

    def test_is_parked_again_by_each_run(self, start: Start) -> None:
        """Each run parks the broker for the full session again."""
        cluster = start(0, 1, parked_session_timeout_ms=60_000)
        for _ in range(3):
            park(cluster, 0)
            cluster.clock.advance(50_000)
            cluster.controller_tick()
            cluster.restart(0)
        assert cluster.brokers[0].broker_epoch == 1
        check_at_rest(cluster)


class TestAFollowerThatIsAway:
    """Its leader runs for ten seconds at a time; replica.lag.time.max.ms is thirty seconds."""

    def run_leader(self, cluster: LocalCluster, seconds: int) -> None:
        if 0 not in cluster.brokers:
            cluster.restart(0)
        cluster.tick_until_idle()
        for _ in range(seconds):
            cluster.clock.advance(1_000)
            cluster.tick_until_idle()
        park(cluster, 0)

    def test_leaves_the_in_sync_set_after_the_lag_time_of_the_leaders_running_time(
        self, start: Start
    ) -> None:
        """The hours between the runs do not count (5.1)."""
        cluster = start(0, 1)
        park(cluster, 1)
        pending = cluster.produce("t", 0, [b"a"], timeout_ms=DAY_MS)
        for _ in range(3):
            self.run_leader(cluster, 10)
            cluster.clock.advance(3_600_000)
            assert cluster.partition("t", 0).isr == [0, 1]
            assert pending.response is None
        self.run_leader(cluster, 1)
        assert cluster.partition("t", 0).isr == [0]
        assert error(pending) == "NONE"
        cluster.restart(0)
        cluster.restart(1)
        check_at_rest(cluster, "a")

    def test_has_the_whole_lag_time_again_once_it_has_caught_up(self, start: Start) -> None:
        """A follower that has caught up has the whole lag time again."""
        cluster = start(0, 1)
        park(cluster, 1)
        cluster.produce("t", 0, [b"a"])
        self.run_leader(cluster, 20)
        cluster.restart(1)
        cluster.tick_until_idle()
        park(cluster, 1)
        self.run_leader(cluster, 1)
        cluster.produce("t", 0, [b"b"])
        self.run_leader(cluster, 20)
        assert cluster.partition("t", 0).isr == [0, 1]
        self.run_leader(cluster, 11)
        assert cluster.partition("t", 0).isr == [0]

    def test_that_is_at_the_leaders_log_end_stays(self, start: Start) -> None:
        """A parked follower at the leader's log end stays in the ISR."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        park(cluster, 1)
        for _ in range(5):
            self.run_leader(cluster, 10)
        assert cluster.partition("t", 0).isr == [0, 1]
        cluster.restart(0)
        cluster.restart(1)
        check_at_rest(cluster, "a")
