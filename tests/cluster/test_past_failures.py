"""The tables with the past when their writes fail, and on roots of an earlier format.

Invariant: a row that a view has shown is shown after any failure, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import DeltaError

from sparklog import Admin
from sparklog.broker.tick import StoppedError
from sparklog.cluster.formats import THIS_RELEASE
from sparklog.cluster.past import BROKER_PAST, CLUSTER_PAST
from sparklog.errors import StorageError
from sparklog.maintenance.upgrade import Upgrade
from sparklog.model import (
    CLUSTER_TABLES,
    CONTROLLER_HISTORY,
    HIGH_WATERMARK_CHECKPOINT,
    LEADERSHIP_HISTORY,
    PARTITION_HISTORY,
    REPLICA_HISTORY,
    TRUNCATIONS,
    TableSchema,
)
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.cluster.test_past import controller, rows, table, truncated_cluster
from tests.faulty_files import LANDING, Failure, FaultyFiles
from tests.maintenance.releases import EARLIER, MixedCluster, earlier_cluster_root

FAILURES: tuple[Failure, ...] = ("refused", "torn", "dies", "landed", "unknown", "died")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FaultyFiles]:
    with FaultyFiles(tmp_path / "stash").installed() as files:
        yield files


@pytest.fixture
def cluster(tmp_path: Path, files: FaultyFiles) -> LocalCluster:
    return truncated_cluster(tmp_path / "cluster")


def shown(cluster: LocalCluster, schema: TableSchema) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the rows of a view by their keys; each key has one row."""
    found = rows(cluster, f"from {schema.name}")
    of_keys = {tuple(row[name] for name in schema.key): row for row in found}
    assert len(of_keys) == len(found)
    return of_keys


def stored(cluster: LocalCluster, broker: int | None, schema: TableSchema) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table(cluster, broker, schema).rows().to_pylist()
    return found


class TestOfTheClusterRoot:
    @pytest.mark.parametrize("failure", FAILURES)
    @pytest.mark.parametrize(
        "schema",
        [LEADERSHIP_HISTORY, PARTITION_HISTORY, CONTROLLER_HISTORY],
        ids=lambda one: one.name,
    )
    def test_a_write_that_fails_leaves_each_row_once(
        self, cluster: LocalCluster, files: FaultyFiles, schema: TableSchema, failure: Failure
    ) -> None:
        """The vacuum is repeated, by the same process or by the next one."""
        before = shown(cluster, schema)
        assert before
        at = controller(cluster)
        history = cluster.location().child(schema.name).uri
        files.fail(f"{history}/_delta_log", failure)
        # A process that dies ends there: `vacuum` returns, and the broker does not run.
        with suppress(StorageError, DeltaError, OSError):
            cluster.vacuum(at, after_ms=0)
        assert len(files.failed) == 1 + (failure == "unknown")
        assert (at not in cluster.brokers) == (failure in ("dies", "died"))
        assert shown(cluster, schema) == before
        if at not in cluster.brokers:
            cluster.fence(at)
            cluster.tick_until_idle()
        files.calm()
        for _ in range(2):
            cluster.vacuum(controller(cluster), after_ms=0)
        after = shown(cluster, schema)
        assert before.items() <= after.items()
        # Nothing is left to be added by a reader.
        names = schema.columns.names
        complete = [{name: row[name] for name in names} for row in after.values()]
        assert sorted(stored(cluster, None, schema), key=str) == sorted(complete, key=str)


class TestTruncations:
    @pytest.mark.parametrize("failure", FAILURES)
    @pytest.mark.parametrize(
        "schema", [TRUNCATIONS, HIGH_WATERMARK_CHECKPOINT], ids=lambda one: one.name
    )
    def test_a_write_that_fails_leaves_the_truncation_once(
        self, cluster: LocalCluster, files: FaultyFiles, schema: TableSchema, failure: Failure
    ) -> None:
        """The copy fails, or the process dies between the copy and the checkpoint after it."""
        before = shown(cluster, TRUNCATIONS)
        assert [row["from_offset"] for row in before.values()] == [4]
        # The first commit to `truncations` is the fence of the epoch; the copy is the second one.
        skip = int(schema is TRUNCATIONS)
        files.fail(f"{cluster.location(0).child(schema.name).uri}/_delta_log", failure, skip)
        with suppress(StoppedError):
            cluster.brokers[0].stop()
        assert len(files.failed) == 1 + (failure == "unknown")
        files.calm()
        is_copied = schema is HIGH_WATERMARK_CHECKPOINT or failure in LANDING
        assert len(stored(cluster, 0, TRUNCATIONS)) == is_copied
        assert shown(cluster, TRUNCATIONS) == before
        cluster.crash(0)
        for _ in range(2):
            cluster.restart(0)
            cluster.tick_until_idle()
            cluster.brokers[0].stop()
            cluster.crash(0)
            assert len(stored(cluster, 0, TRUNCATIONS)) == 1
            assert shown(cluster, TRUNCATIONS) == before


class TestReplicaHistory:
    @pytest.mark.parametrize("failure", FAILURES)
    def test_a_write_that_fails_leaves_each_row_once(
        self, cluster: LocalCluster, files: FaultyFiles, failure: Failure
    ) -> None:
        """The extension is repeated, by the same process or by the next one."""
        names = ("refusals", "high_watermark_history")
        Admin(cluster.connection).alter_configs("orders", {"min.insync.replicas": 3})
        cluster.tick_until_idle()
        refused = [cluster.produce("orders", 0, [b"x"], acks="all") for _ in range(2)]
        cluster.tick_until_idle()
        assert {one.response and one.response.error for one in refused} == {"NOT_ENOUGH_REPLICAS"}
        before = {name: rows(cluster, f"from {name} order by all") for name in names}
        # The first commit to the table is the fence of the epoch.
        files.fail(f"{cluster.location(1).child(REPLICA_HISTORY.name).uri}/_delta_log", failure, 1)
        with suppress(StorageError, DeltaError, OSError):
            cluster.vacuum(1, after_ms=0)
        assert len(files.failed) == 1 + (failure == "unknown")
        assert (1 not in cluster.brokers) == (failure in ("dies", "died"))
        files.calm()
        for name in names:
            after = rows(cluster, f"from {name} order by all")
            assert [row for row in before[name] if row not in after] == []
        if 1 not in cluster.brokers:
            cluster.restart(1)
            cluster.tick_until_idle()
        requests = sum(row["requests"] for row in before["refusals"])
        for _ in range(2):
            cluster.vacuum(1, after_ms=0)
            assert sum(row["requests"] for row in rows(cluster, "from refusals")) == requests
        versions = [row["version"] for row in stored(cluster, 1, REPLICA_HISTORY)]
        assert versions == sorted(versions)
        assert len(stored(cluster, 1, REPLICA_HISTORY)) > 0


class TestOnRootsOfAnEarlierFormat:
    ADDED = (PARTITION_HISTORY.name, CONTROLLER_HISTORY.name)

    def test_the_views_read_the_commits_and_the_tables_begin_with_the_upgrade(
        self, tmp_path: Path
    ) -> None:
        """No row is lost by the upgrade, and none is in a view twice."""
        assert {one.name for one in CLUSTER_TABLES} > set(self.ADDED)
        earlier_cluster_root(Location.of(str(tmp_path / "cluster")), left_out=self.ADDED)
        cluster = MixedCluster(tmp_path, {0: EARLIER, 1: EARLIER})
        cluster.create_topic("t", assignment={0: [0, 1]})
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()

        def views() -> dict[str, list[dict[str, Any]]]:
            names = [*CLUSTER_PAST, "elections", "isr_history", *BROKER_PAST]
            return {name: rows(cluster, f"from {name}") for name in names}

        before = views()
        [election] = before["elections"]
        assert (election["leader"], election["cause"]) == (0, "created")
        assert len(before[CONTROLLER_HISTORY.name]) == 1
        # The vacuum of a root without the tables leaves them out.
        cluster.vacuum(controller(cluster), after_ms=0)
        assert views() == before
        for broker in (0, 1):
            cluster.upgrade_broker(broker, THIS_RELEASE)
        Upgrade.of(cluster.location()).make()
        cluster.tick_until_idle()
        upgraded = views()
        for name in (*CLUSTER_PAST, "elections", "isr_history"):
            assert all(row in upgraded[name] for row in before[name]), name
        cluster.vacuum(controller(cluster), after_ms=0)
        assert views() == upgraded
        assert len(stored(cluster, None, PARTITION_HISTORY)) == len(upgraded["partition_history"])
