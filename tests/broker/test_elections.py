"""Elections beyond the first in-sync replica: eligible replicas, preferred leaders, planned
stops.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from sparklog.model import CONTROLLER, PARTITION_STATE
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error, rows, take_out, values

Start = Callable[..., LocalCluster]

MINUTES = 60_000


def eligible(cluster: LocalCluster) -> list[int]:
    """Return the eligible leader replicas of the partition."""
    return sorted(row["broker_id"] for row in rows(cluster, None, PARTITION_STATE) if row["in_elr"])


def fall_silent(cluster: LocalCluster, *brokers: int) -> None:
    for broker in brokers:
        cluster.crash(broker)
        cluster.fence(broker)


class TestEligibleLeaderReplicas:
    """KIP-966: a replica that leaves the ISR below min.insync.replicas has all committed records
    (7.5).
    """

    @pytest.fixture
    def cluster(self, start: Start) -> LocalCluster:
        """Brokers 1 and 0 have become fenced, in this order; only 2 is in sync."""
        cluster = start(0, 1, 2, min_isr=2)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        fall_silent(cluster, 1)
        cluster.produce("t", 0, [b"b"])
        cluster.tick_until_idle()
        assert eligible(cluster) == []
        fall_silent(cluster, 0)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).isr == [2]
        return cluster

    def test_are_those_that_left_below_the_minimum(self, cluster: LocalCluster) -> None:
        """Broker 1 left earlier, and lacks a committed record."""
        assert eligible(cluster) == [0]

    def test_lead_when_nobody_in_sync_does(self, cluster: LocalCluster) -> None:
        """An eligible replica is elected when no in-sync replica is alive."""
        fall_silent(cluster, 2)
        cluster.restart(1)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader is None
        cluster.restart(0)
        cluster.tick_until_idle()
        state = cluster.partition("t", 0)
        assert (state.leader, state.isr) == (0, [0, 1])
        assert values(cluster.consume("t", 0)) == ["a", "b"]
        cluster.restart(2)
        check_at_rest(cluster, "a", "b")

    def test_include_the_last_in_sync_one_whose_place_they_take(
        self, cluster: LocalCluster
    ) -> None:
        """If an eligible replica becomes the leader, the last in-sync replica becomes eligible."""
        fall_silent(cluster, 2)
        cluster.restart(0)
        cluster.controller_tick()
        assert cluster.partition("t", 0).isr == [0]
        assert eligible(cluster) == [2]

    def test_end_once_enough_are_in_sync(self, cluster: LocalCluster) -> None:
        """The eligible replicas are cleared once min.insync.replicas replicas are in sync."""
        cluster.restart(1)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).isr == [1, 2]
        assert eligible(cluster) == []

    def test_that_lost_their_log_are_not_any_more(self, cluster: LocalCluster) -> None:
        """A replica that has lost its log is no longer eligible."""
        shutil.rmtree(cluster.root / "broker-0")
        cluster.restart(0)
        assert eligible(cluster) == []
        fall_silent(cluster, 2)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader is None
        cluster.restart(2)
        cluster.restart(1)
        check_at_rest(cluster, "a", "b")

    def test_are_forgotten_by_an_unclean_election(self, cluster: LocalCluster) -> None:
        """The log of broker 1 is authoritative from then on; no other replica is known to have all
        of it.
        """
        cluster.restart(1)
        fall_silent(cluster, 2)
        assert cluster.partition("t", 0).leader is None
        cluster.elect_leaders("unclean", [("t", 0)])
        assert cluster.partition("t", 0).leader == 1
        assert eligible(cluster) == []
        cluster.restart(0)
        cluster.restart(2)
        check_at_rest(cluster, "a")

    def test_are_named_by_a_leader_too_that_shrinks_the_in_sync_set(self, start: Start) -> None:
        """A leader that shrinks the ISR below the minimum makes the removed replica eligible."""
        cluster = start(0, 1, min_isr=2)
        take_out(cluster, 1)
        cluster.produce("t", 0, [b"a"], acks=1)
        cluster.leader_tick(0)
        cluster.clock.advance(cluster.settings.replica_lag_time_max_ms + 1)
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0]
        assert eligible(cluster) == [1]
        cluster.restart(1)
        check_at_rest(cluster, "a")
        assert eligible(cluster) == []


class TestPreferredLeaders:
    """The controller returns leadership to preferred leaders at intervals (7.6)."""

    @pytest.fixture
    def imbalanced(self, start: Start) -> Callable[..., LocalCluster]:
        """Broker 0 is the preferred leader of ten partitions and in sync, but leads only nine."""

        def make(**config: object) -> LocalCluster:
            cluster = start(1, 0, **config)
            cluster.create_topic("u", assignment={0: [0, 1]})
            fall_silent(cluster, 0)
            cluster.restart(0)
            cluster.create_topic("v", assignment={partition: [0, 1] for partition in range(9)})
            cluster.tick_until_idle()
            assert cluster.partition("u", 0)[:2] == (1, 1)
            assert cluster.partition("u", 0).isr == [0, 1]
            return cluster

        return make

    def test_wait_one_interval_from_the_controllers_start(
        self, imbalanced: Callable[..., LocalCluster]
    ) -> None:
        """The first check of the balance is one interval after the controller's start."""
        cluster = imbalanced(leader_imbalance_per_broker_percentage=9)
        cluster.clock.advance(4 * MINUTES)
        cluster.tick_until_idle()
        assert cluster.partition("u", 0).leader == 1
        cluster.clock.advance(1 * MINUTES)
        cluster.tick_until_idle()
        assert cluster.partition("u", 0)[:2] == (0, 2)
        [lease] = rows(cluster, None, CONTROLLER)
        states = rows(cluster, None, PARTITION_STATE)
        [written_by] = {row["controller_epoch"] for row in states if row["topic"] == "u"}
        assert written_by == lease["controller_epoch"]

    def test_wait_until_more_than_the_percentage_is_missing(
        self, imbalanced: Callable[..., LocalCluster]
    ) -> None:
        """One of ten is 10 %, which is not more than 10 %."""
        cluster = imbalanced()
        cluster.clock.advance(10 * MINUTES)
        cluster.tick_until_idle()
        assert cluster.partition("u", 0).leader == 1

    def test_wait_for_ever_where_that_is_configured(
        self, imbalanced: Callable[..., LocalCluster]
    ) -> None:
        """Without auto.leader.rebalance.enable the preferred leader is never elected."""
        cluster = imbalanced(
            leader_imbalance_per_broker_percentage=0, auto_leader_rebalance_enable=False
        )
        cluster.clock.advance(60 * MINUTES)
        cluster.tick_until_idle()
        assert cluster.partition("u", 0).leader == 1

    def test_an_interval_passes_between_two_checks(
        self, imbalanced: Callable[..., LocalCluster]
    ) -> None:
        """Two checks of the balance are one interval apart."""
        cluster = imbalanced(
            leader_imbalance_per_broker_percentage=0, leader_imbalance_check_interval_seconds=60
        )
        cluster.clock.advance(1 * MINUTES)
        cluster.tick_until_idle()
        fall_silent(cluster, 0)
        cluster.restart(0)
        cluster.tick_until_idle()
        assert cluster.partition("u", 0).leader == 1
        cluster.clock.advance(1 * MINUTES - cluster.settings.broker_session_timeout_ms)
        cluster.tick_until_idle()
        assert cluster.partition("u", 0).leader == 0


class TestAPlannedStop:
    """The broker hands over its partitions before it stops (7.2)."""

    def test_gives_what_the_broker_leads_to_one_in_sync_while_it_still_is(
        self, start: Start
    ) -> None:
        """A planned stop moves leadership to an in-sync replica while the broker is still in the
        ISR.
        """
        cluster = start(0, 1)
        broker = cluster.brokers[0]
        cluster.leader_tick(0)
        assert broker.can_hand_over
        broker.prepare_to_stop()
        cluster.controller_tick()
        state = cluster.partition("t", 0)
        assert (state.leader, state.leader_epoch, state.isr) == (1, 1, [0, 1])
        pending = cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        assert error(pending) == "NONE"
        assert not broker.can_hand_over

    def test_is_not_undone_by_its_heartbeats_or_a_preferred_election(self, start: Start) -> None:
        """Neither heartbeats nor a preferred election make a stopping broker the leader again."""
        cluster = start(0, 1)
        cluster.brokers[0].prepare_to_stop()
        cluster.clock.advance(6 * MINUTES)
        cluster.controller_tick()
        cluster.elect_leaders("preferred", [("t", 0)])
        assert cluster.partition("t", 0).leader == 1

    def test_of_the_only_one_in_sync_leaves_it_leading(self, start: Start) -> None:
        """A stopping broker that is the only in-sync replica stays the leader."""
        cluster = start(0, 1)
        fall_silent(cluster, 1)
        cluster.leader_tick(0)
        cluster.brokers[0].prepare_to_stop()
        cluster.controller_tick()
        cluster.leader_tick(0)
        assert cluster.partition("t", 0)[:2] == (0, 0)
        assert not cluster.brokers[0].can_hand_over

    def test_of_all_at_once_leaves_them_leading(self, start: Start) -> None:
        """If all replicas stop at once, the leader stays the leader."""
        cluster = start(0, 1)
        for broker in (0, 1):
            cluster.brokers[broker].prepare_to_stop()
        cluster.tick_until_idle()
        assert cluster.partition("t", 0)[:2] == (0, 0)
        assert not cluster.brokers[0].can_hand_over

    def test_frees_the_controllers_lease(self, start: Start) -> None:
        """After a planned stop another broker can take the lease without waiting until it
        lapses.
        """
        cluster = start(0, 1)
        cluster.brokers[0].stop()
        cluster.crash(0)
        cluster.controller_tick()
        [lease] = rows(cluster, None, CONTROLLER)
        assert (lease["broker_id"], lease["controller_epoch"]) == (1, 2)
        assert cluster.partition("t", 0).leader == 1
