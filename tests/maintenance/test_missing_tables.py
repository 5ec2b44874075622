"""Tables that are gone: `repair` creates those again, empty, that nothing depends on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.s3_store import Store
from sparklog import Consumer
from sparklog.cluster.connection import Connection
from sparklog.maintenance.audit import audit
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.maintenance.table_restoration import restore_cluster_root
from sparklog.model import BROKER_TABLES, CLUSTER_TABLES, CONSUMER_GROUP_HEARTBEATS, TableSchema
from sparklog.storage.commits import BROKER_EPOCH
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.control_table_damage import CREATED_AGAIN
from sparklog.storage.delta_log_files import commit_path, newest_version
from sparklog.storage.delta_snapshots import open_table
from sparklog.storage.fence import Fence
from sparklog.storage.location import Location
from sparklog.storage.vacuum import read_table_files
from sparklog.testing import LocalCluster
from tests.jobs.processes import wait_for

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
    """It has the fence of its broker, which goes on: without it the broker would have ended.

    The fence is part of the commit that creates it, so no repair can end in between.
    """
    shutil.rmtree(cluster.root / "broker-1" / name)
    [found] = scrub(cluster.connection, restart=True).findings
    assert (found.fault, found.table_name) == ("missing_table", name)
    assert "sparklog repair" in (found.remedy or "")
    repair(cluster.connection)
    created, log = (cluster.location(1).child(one) for one in (name, "log"))
    assert open_table(created, 0).transaction(BROKER_EPOCH) is not None
    assert open_table(created, 0).transaction(BROKER_EPOCH) == open_table(log).transaction(
        BROKER_EPOCH
    )
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


@pytest.mark.parametrize("damaged", ["live file", "newest commit", "first commit"])
def test_damaged_heartbeats_without_copies_are_emptied_while_members_run(
    store: Store, damaged: str
) -> None:
    """On object stores the table has no second copies. Its versions go on, so members do, too."""
    place, options = store.bucket(f"heartbeats-{damaged.replace(' ', '-')}"), store.options()
    cluster = LocalCluster(place, [0, 1], storage_options=options)
    cluster.create_topic("t", assignment={0: [0, 1], 1: [1, 0]})
    often: dict[str, Any] = {"group_id": "g", "heartbeat_interval_ms": 100}
    with Consumer(cluster.connection, **often) as member:
        member.subscribe(["t"])
        wait_for(lambda: member.poll(50) == {} and len(member.assignment()) == 2, "partitions")
        table = cluster.location().child(CONSUMER_GROUP_HEARTBEATS.name)
        newest = newest_version(table)
        live = read_table_files(table).live
        paths = {
            "live file": list(live),
            "newest commit": [commit_path(newest)],
            "first commit": [commit_path(0)],
        }[damaged]
        table.remove_all(paths)

        def connect() -> Connection:
            return Connection(f"{place}/cluster", storage_options=options)

        # A heartbeat may have replaced the live file meanwhile.
        assert scrub(connect(), restart=True).findings or damaged == "live file"
        assert {one.state for one in repair(connect())} <= {"repaired"}
        with Consumer(connect(), **often) as other:
            other.subscribe(["t"])

            def is_shared() -> bool:
                for one in (member, other):
                    one.poll(50)
                return len(member.assignment()) == len(other.assignment()) == 1

            wait_for(is_shared, "shared partitions")
        rows = ControlTable(cluster.location(), CONSUMER_GROUP_HEARTBEATS).rows()
        assert rows.num_rows >= 1
    assert scrub(connect(), restart=True).findings == []


def test_tables_that_were_created_are_reported_although_a_later_one_failed(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next repair finds them in place, and would say nothing about them."""
    for name in OF_BROKERS[:2]:
        shutil.rmtree(cluster.root / "broker-0" / name)

    def failing(root: Location, schema: TableSchema, fence: Fence | None) -> None:
        if schema.name == OF_BROKERS[1]:
            raise OSError("the disk is full")
        create_table(root, schema, fence)

    with monkeypatch.context() as full:
        full.setattr("sparklog.maintenance.missing_tables.create_table", failing)
        assert [one.table_name for one in repair(cluster.connection)] == OF_BROKERS[:1]
    assert [one.table_name for one in repair(cluster.connection)] == OF_BROKERS[1:2]
