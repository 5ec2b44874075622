"""min.insync.replicas of a partition: one value for its leader and the controller (2.3, 3.3, 7.5).

A topic without its own value takes the active controller's, which is part of `partition_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sparklog.cluster.admin import Admin
from sparklog.config import Settings, parse
from sparklog.model import PARTITION_STATE
from sparklog.testing import LocalCluster
from tests.broker.states import error, rows

Configured = Callable[..., LocalCluster]


CONTROLLER, LEADER, FOLLOWER = 0, 1, 2


@pytest.fixture
def configured(tmp_path: Path) -> Configured:
    """Start a cluster whose brokers each have their own min.insync.replicas.

    Broker 0 is the controller; topic `t` is led by broker 1 and followed by broker 2.
    """

    def make(controller: int, leader: int, topic: Mapping[str, Any] | None = None) -> LocalCluster:
        cluster = LocalCluster(tmp_path, brokers=[CONTROLLER], config=at_least(controller))
        cluster.controller_tick()
        restart(cluster, LEADER, leader)
        restart(cluster, FOLLOWER, leader)
        # The client that creates the topic knows no broker's configuration.
        admin = Admin(cluster.connection, clock=cluster.clock)
        admin.create_topic("t", assignment={0: [LEADER, FOLLOWER]}, configs=topic)
        cluster.tick_until_idle()
        assert cluster.brokers[CONTROLLER].is_controller
        return cluster

    return make


def at_least(min_isr: int) -> dict[str, int]:
    return {"min.insync.replicas": min_isr}


def restart(cluster: LocalCluster, broker: int, min_isr: int) -> None:
    """Start a broker with this min.insync.replicas."""
    cluster.settings = parse(Settings, at_least(min_isr), "the test")
    cluster.restart(broker)


def published(cluster: LocalCluster) -> set[int | None]:
    return {row["min_isr"] for row in rows(cluster, None, PARTITION_STATE)}


def eligible(cluster: LocalCluster) -> list[int]:
    return sorted(row["broker_id"] for row in rows(cluster, None, PARTITION_STATE) if row["in_elr"])


def test_a_leader_configured_lower_commits_nothing_below_the_controllers(
    configured: Configured,
) -> None:
    """The controller keeps a fenced replica eligible, which would lead without the record."""
    cluster = configured(controller=2, leader=1)
    cluster.crash(FOLLOWER)
    cluster.fence(FOLLOWER)
    pending = cluster.produce("t", 0, [b"a"])
    one = cluster.produce("t", 0, [b"b"], acks=1)
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).isr == [LEADER]
    assert eligible(cluster) == [FOLLOWER]
    assert [error(pending), error(one)] == ["NOT_ENOUGH_REPLICAS", "NONE"]
    assert cluster.replica(LEADER, "t", 0).high_watermark == 0


def test_a_leader_configured_higher_commits_what_the_controller_allows(
    configured: Configured,
) -> None:
    """A leader with a higher value of its own commits at the controller's value."""
    cluster = configured(controller=1, leader=2)
    cluster.crash(FOLLOWER)
    pending = cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.clock.advance(30_001)
    cluster.leader_tick(LEADER)
    assert cluster.partition("t", 0).isr == [LEADER]
    assert eligible(cluster) == []
    assert cluster.replica(LEADER, "t", 0).high_watermark == 1
    assert error(pending) == "NONE"


def test_the_topics_own_value_stands(configured: Configured) -> None:
    """The topic's own value takes precedence over the controller's."""
    cluster = configured(controller=1, leader=1, topic={"min.insync.replicas": 2})
    assert published(cluster) == {2}


def test_a_new_value_is_published_once_and_ends_what_was_eligible_under_the_old(
    configured: Configured,
) -> None:
    """A new value has a new partition epoch, so that no leader changes an ISR by the old one
    (KIP-966).
    """
    cluster = configured(controller=2, leader=2)
    cluster.crash(FOLLOWER)
    cluster.fence(FOLLOWER)
    cluster.tick_until_idle()
    assert (published(cluster), eligible(cluster)) == ({2}, [FOLLOWER])
    before = cluster.partition("t", 0)
    cluster.crash(CONTROLLER)
    restart(cluster, CONTROLLER, 1)
    cluster.controller_tick()
    assert cluster.brokers[CONTROLLER].is_controller
    after = cluster.partition("t", 0)
    assert (published(cluster), eligible(cluster)) == ({1}, [])
    assert after == before._replace(partition_epoch=before.partition_epoch + 1)
    cluster.controller_tick()
    assert cluster.partition("t", 0) == after


def test_an_election_by_hand_goes_by_what_is_published(configured: Configured) -> None:
    """The settings of its client do not matter: eligible replicas stay eligible."""
    cluster = configured(controller=2, leader=2)
    cluster.crash(FOLLOWER)
    cluster.fence(FOLLOWER)
    cluster.tick_until_idle()
    Admin(cluster.connection).elect_leaders("unclean", [("t", 0)])
    assert (published(cluster), eligible(cluster)) == ({2}, [FOLLOWER])


def test_a_client_that_knows_the_clusters_settings_publishes_them_at_creation(
    tmp_path: Path,
) -> None:
    """A client without them leaves it to the controller's next tick."""
    cluster = LocalCluster(tmp_path, brokers=[0], config=at_least(2))
    cluster.create_topic("t")
    assert published(cluster) == {2}
    Admin(cluster.connection).create_topic("u")
    assert published(cluster) == {2, None}
    cluster.tick_until_idle()
    assert published(cluster) == {2}
