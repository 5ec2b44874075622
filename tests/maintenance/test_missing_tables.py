"""Tables that are gone: `repair` creates those again, empty, that nothing depends on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sparklog.cluster.connection import Connection
from sparklog.maintenance.audit import audit
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.maintenance.table_restoration import restore_cluster_root
from sparklog.model import BROKER_TABLES, CLUSTER_TABLES
from sparklog.storage.control_table_damage import CREATED_AGAIN
from sparklog.testing import LocalCluster

OF_CLUSTER = [one.name for one in CLUSTER_TABLES if one.name in CREATED_AGAIN]
OF_BROKERS = [one.name for one in BROKER_TABLES if one.name in CREATED_AGAIN]


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Two brokers that work: a plain and a compacted topic with records, histories and a scrub."""
    cluster = LocalCluster(tmp_path, [0, 1])
    cluster.create_topic("plain", assignment={0: [0, 1]})
    cluster.create_topic("compacted", assignment={0: [0, 1]}, configs={"cleanup.policy": "compact"})
    work(cluster, 0)
    scrub(cluster.connection)
    return cluster


def work(cluster: LocalCluster, number: int) -> None:
    """Let every role write to its tables; a broker that is fenced ends the test."""
    for key in (b"a", b"b"):
        cluster.produce("plain", 0, [b"%d" % number], keys=[key])
        cluster.produce("compacted", 0, [b"%d" % number], keys=[key])
    cluster.tick_until_idle()
    cluster.clock.advance(60_000)
    cluster.tick_until_idle()
    for broker in (0, 1):
        cluster.merge(broker)
        cluster.clean(broker)
        cluster.vacuum(broker, after_ms=3_600_000 * (number + 1))
    cluster.tick_until_idle()


def check_sound(cluster: LocalCluster) -> None:
    connection = Connection(str(cluster.root / "cluster"))
    assert [str(one) for one in audit(connection)] == []
    assert scrub(connection, restart=True).findings == []


@pytest.mark.parametrize("name", OF_CLUSTER)
def test_a_missing_table_of_the_cluster_root_is_created_again_while_brokers_run(
    cluster: LocalCluster, name: str
) -> None:
    """No broker could start any more, and the remedy was a backup of the whole root."""
    shutil.rmtree(cluster.root / "cluster" / name)
    [created] = restore_cluster_root(cluster.location())
    assert (created.fault, created.table_name, created.state) == ("missing_table", name, "repaired")
    assert CREATED_AGAIN[name] in (created.outcome or "")
    work(cluster, 1)
    check_sound(cluster)
    for broker in (0, 1):
        cluster.crash(broker)
        cluster.restart(broker)
    work(cluster, 2)
    check_sound(cluster)


@pytest.mark.parametrize("name", OF_BROKERS)
def test_a_missing_table_of_a_broker_root_is_created_again_while_its_broker_runs(
    cluster: LocalCluster, name: str
) -> None:
    """It has the fence of its broker, which goes on: without it the broker would have ended."""
    shutil.rmtree(cluster.root / "broker-1" / name)
    [found] = scrub(cluster.connection, restart=True).findings
    assert (found.fault, found.table_name) == ("missing_table", name)
    assert "sparklog repair" in (found.remedy or "")
    repair(cluster.connection)
    work(cluster, 1)
    check_sound(cluster)
    cluster.crash(1)
    cluster.restart(1)
    work(cluster, 2)
    check_sound(cluster)


def test_a_dry_run_creates_nothing(cluster: LocalCluster) -> None:
    shutil.rmtree(cluster.root / "cluster" / "scrubs")
    [found] = restore_cluster_root(cluster.location(), is_dry_run=True)
    assert (found.state, found.outcome) == ("found", "")
    assert not (cluster.root / "cluster" / "scrubs").exists()


@pytest.mark.parametrize("name", ["consumer_offsets", "producer_ids", "partition_state"])
def test_a_table_with_decisions_in_it_is_left_to_an_operator(
    cluster: LocalCluster, name: str
) -> None:
    """An empty one would give out producer ids twice, or forget what a group has read."""
    shutil.rmtree(cluster.root / "cluster" / name)
    assert restore_cluster_root(cluster.location()) == []
    assert not (cluster.root / "cluster" / name).exists()
