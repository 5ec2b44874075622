"""Upgrades: releases together, the migration of roots, and the refusal of older releases."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sparklog.broker.application import Application
from sparklog.cli.exit_codes import ExitCode, exit_code
from sparklog.cluster.formats import THIS_RELEASE
from sparklog.cluster.root_format import read_format
from sparklog.cluster.roots import ClusterRoot
from sparklog.consumer.consumer import Consumer
from sparklog.errors import DamagedError, NewerFormatError, SparklogError, StorageError
from sparklog.maintenance.audit import audit
from sparklog.maintenance.upgrade import Upgrade, UpgradeStep
from sparklog.model import (
    BROKERS,
    CLUSTER_TABLES,
    FORMAT,
    OLDEST_SCHEMA_VERSION,
    PRODUCER_STATE,
    TopicPartition,
)
from sparklog.storage.commits import FORMAT_VERSION
from sparklog.storage.control_table import ControlTable, create_table
from sparklog.storage.delta_log import DeltaLog
from sparklog.storage.journal import CHECKPOINTS
from sparklog.storage.location import Location
from tests.broker.states import check_at_rest
from tests.jobs.test_application import config, running, states
from tests.maintenance.releases import EARLIER, LATER, MixedCluster, earlier_cluster_root

OLD, NEW = OLDEST_SCHEMA_VERSION, THIS_RELEASE.newest
ADDED = "consumer_group_heartbeats"
"""The table that the cluster roots of the earlier release do not have here."""


def files(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with its content."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def formats_of(cluster: MixedCluster) -> list[int]:
    """Return the formats in the cluster root and in the broker roots."""
    found = [read_format(cluster.location(of)) for of in (None, *cluster.broker_ids)]
    return [one.schema_version for one in found if one is not None]


def write(cluster: MixedCluster, *values: str) -> None:
    for value in values:
        pending = cluster.produce("t", 0, [value.encode()])
        cluster.tick_until_idle()
        assert pending.response is not None
        assert pending.response.error == "NONE"


@pytest.fixture
def cluster(tmp_path: Path) -> MixedCluster:
    """Two brokers of the earlier release, with a committed record."""
    earlier_cluster_root(Location.of(str(tmp_path / "cluster")))
    cluster = MixedCluster(tmp_path, {0: EARLIER, 1: EARLIER})
    cluster.create_topic("t", assignment={0: [0, 1]}, configs={"min.insync.replicas": "2"})
    write(cluster, "a")
    return cluster


class TestRolling:
    """Brokers are upgraded one after another, while the cluster works."""

    def test_releases_run_together_until_the_cluster_is_upgraded(
        self, cluster: MixedCluster
    ) -> None:
        """Both releases lead, follow and play the controller with the cluster's format."""
        assert formats_of(cluster) == [OLD, OLD, OLD]
        cluster.upgrade_broker(1, THIS_RELEASE)
        write(cluster, "b")
        # The later release leads, and is the controller.
        cluster.crash(0)
        cluster.fence(0)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 1
        assert cluster.brokers[1].is_controller
        cluster.restart(0)
        cluster.tick_until_idle()
        write(cluster, "c")
        # And back: the earlier release leads with what the later one has written.
        cluster.crash(1)
        cluster.fence(1)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 0
        cluster.restart(1)
        check_at_rest(cluster, "a", "b", "c")
        assert formats_of(cluster) == [OLD, OLD, OLD]
        assert audit(cluster.connection) == []

    def test_the_upgrade_is_refused_until_every_broker_knows_the_format(
        self, cluster: MixedCluster
    ) -> None:
        """The refusal names the brokers; nothing is written."""
        cluster.upgrade_broker(1, THIS_RELEASE)
        before = files(cluster.root)
        with pytest.raises(SparklogError, match=r"these brokers: 0 \(alive\); start them with"):
            Upgrade.of(cluster.location()).make()
        assert files(cluster.root) == before

    def test_running_brokers_take_the_format_up(self, cluster: MixedCluster) -> None:
        """They read it in a table that they follow; they are not restarted."""
        for broker in (0, 1):
            cluster.upgrade_broker(broker, THIS_RELEASE)
        Upgrade.of(cluster.location()).make()
        cluster.tick_until_idle()
        write(cluster, "b")
        assert formats_of(cluster) == [NEW, NEW, NEW]
        assert [one._cluster.format_version for one in cluster.brokers.values()] == [NEW, NEW]
        assert Upgrade.of(cluster.location()).steps == ()
        check_at_rest(cluster, "a", "b")

    def test_an_earlier_release_is_refused_after_the_upgrade(self, cluster: MixedCluster) -> None:
        """It is refused when it starts, with what to do, and writes nothing."""
        for broker in (0, 1):
            cluster.upgrade_broker(broker, THIS_RELEASE)
        Upgrade.of(cluster.location()).make()
        cluster.brokers[0].park()
        cluster.crash(0)
        cluster.formats[0] = EARLIER
        before = files(cluster.root)
        with pytest.raises(NewerFormatError) as refusal:
            cluster.restart(0)
        assert str(refusal.value) == (
            f"{cluster.location().uri} has format 3, and sparklog 0.0.9 knows formats 1 to 2: "
            "start the release that upgraded the cluster, or a later one"
        )
        assert files(cluster.root) == before
        cluster.formats[0] = THIS_RELEASE
        cluster.restart(0)
        check_at_rest(cluster, "a")

    def test_a_broker_of_an_earlier_release_that_started_meanwhile_stops_and_is_named(
        self, cluster: MixedCluster
    ) -> None:
        """It registered between the check and the new format: its next tick writes nothing."""
        cluster.upgrade_broker(1, THIS_RELEASE)
        cluster.brokers[0].stop()
        cluster.crash(0)
        cluster.tick_until_idle()
        planned = Upgrade.of(cluster.location())
        start = UpgradeStep(cluster.location(), "start broker 0", lambda: cluster.restart(0))
        with pytest.raises(SparklogError, match=r"these brokers: 0 \(alive\)"):
            planned._replace(steps=(start, *planned.steps)).make()
        before = files(cluster.root)
        for action in (cluster.leader_tick, cluster.follower_tick):
            with pytest.raises(NewerFormatError, match=r"sparklog 0\.0\.9 knows formats 1 to 2"):
                action(0)
        assert files(cluster.root) == before
        cluster.crash(0)
        cluster.formats[0] = THIS_RELEASE
        cluster.restart(0)
        check_at_rest(cluster, "a")

    def test_a_client_that_runs_stops_at_a_later_format(self, cluster: MixedCluster) -> None:
        """A connection that was open before the upgrade reads no metadata of the later format."""
        for broker in (0, 1):
            cluster.upgrade_broker(broker, THIS_RELEASE)
        cluster.connection.root.formats = EARLIER
        Upgrade.of(cluster.location()).make()
        for _ in range(2):
            with pytest.raises(NewerFormatError, match="start the release that upgraded"):
                cluster.connection.metadata()

    def test_a_broker_upgrades_its_own_root_if_it_was_away(self, cluster: MixedCluster) -> None:
        """The upgrade could not read that root: the broker raises its format at its start."""
        for broker in (0, 1):
            cluster.upgrade_broker(broker, THIS_RELEASE)
        cluster.brokers[1].park()
        cluster.crash(1)
        away = cluster.root / "away"
        shutil.move(cluster.root / "broker-1", away)
        (cluster.root / "broker-1").write_text("not mounted")
        planned = Upgrade.of(cluster.location())
        planned.make()
        assert [one.split(" cannot")[0] for one in planned.left_to_brokers] == [
            f"{cluster.root}/broker-1 of broker 1"
        ]
        (cluster.root / "broker-1").unlink()
        shutil.move(away, cluster.root / "broker-1")
        assert formats_of(cluster) == [NEW, NEW, OLD]
        cluster.restart(1)
        assert formats_of(cluster) == [NEW, NEW, NEW]
        check_at_rest(cluster, "a")


class TestInterruptions:
    """An upgrade that ends between any two steps, or within one, is completed by the next."""

    @pytest.fixture
    def stopped(self, tmp_path: Path) -> Path:
        """A stopped cluster of the earlier release, whose root lacks a table and a column."""
        earlier_cluster_root(Location.of(str(tmp_path / "old" / "cluster")), [ADDED])
        cluster = MixedCluster(tmp_path / "old", {0: EARLIER})
        cluster.create_topic("t", assignment={0: [0]})
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        for broker in cluster.brokers.values():
            broker.park()
        cluster.close()
        # Opening the root has added the table and the column, as a broker of this release does.
        root = tmp_path / "old" / "cluster"
        shutil.rmtree(root)
        earlier_cluster_root(Location.of(str(root)), [ADDED])
        return tmp_path / "old"

    def as_new(self, root: Location) -> None:
        """Check that the cluster root has what a new one has."""
        found = read_format(root)
        assert found is not None
        assert found.schema_version == NEW
        assert found.tables == {schema.name for schema in CLUSTER_TABLES}
        for schema in CLUSTER_TABLES:
            assert ControlTable(root, schema).missing_columns == []
        assert ControlTable(root, BROKERS).transaction(FORMAT_VERSION) == NEW
        assert Upgrade.of(root).steps == ()

    def test_between_any_two_steps(self, stopped: Path) -> None:
        """Each prefix of the steps leaves a root that this release opens and upgrades."""
        changes = [step.change for step in Upgrade.of(Location.of(str(stopped / "cluster"))).steps]
        assert changes == [
            "add to brokers: newest_format, repair_requests, offline_log_dirs",
            "add to controller: elected_ms",
            (
                "add to partition_state: delete_records_offset, delete_records_epoch, "
                "removed_replicas, replication_throttled_rate"
            ),
            "add to controller_history: detail, broker_before",
            (
                "add to consumer_groups: state, leader, group_instance_id, client_id, "
                "joined_generation, topics, protocols, session_timeout_ms, rebalance_timeout_ms, "
                "group_epoch"
            ),
            f"create the table {ADDED}",
            f"announce format {NEW} to running processes",
            f"set the format from {OLD} to {NEW}",
        ]
        for made in range(len(changes) + 1):
            copy = stopped.with_name(f"copy-{made}")
            shutil.copytree(stopped, copy)
            root = Location.of(str(copy / "cluster"))
            for step in Upgrade.of(root).steps[:made]:
                step.make()
            left = Upgrade.of(root)
            # A created table is listed with the format.
            is_listed = made == len(changes)
            assert [step.change for step in left.steps] == [
                change
                for change in changes
                if change not in changes[:made] or (ADDED in change and not is_listed)
            ]
            ClusterRoot(root)
            left.make()
            self.as_new(root)
            # A step that is made again changes nothing.
            before = files(copy)
            for step in left.steps:
                step.make()
            assert files(copy) == before

    def test_at_any_failing_write(self, stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each commit fails once, before it is written or after; the next run completes it."""
        commit: Callable[..., bool] = DeltaLog.commit
        left: list[int] = []
        is_written = False

        def faulty(self: DeltaLog, *given: Any, **options: Any) -> bool:
            left.pop()
            if left:
                return commit(self, *given, **options)
            if is_written:
                commit(self, *given, **options)
            raise OSError("the store is away")

        for failing, is_written in product((1, 2), (False, True)):
            copy = stopped.with_name(f"failing-{failing}-{is_written}")
            shutil.copytree(stopped, copy)
            root = Location.of(str(copy / "cluster"))
            left += range(failing)
            monkeypatch.setattr(DeltaLog, "commit", faulty)
            with pytest.raises(OSError, match="the store is away"):
                Upgrade.of(root).make()
            monkeypatch.setattr(DeltaLog, "commit", commit)
            Upgrade.of(root).make()
            self.as_new(root)

    def test_two_upgrades_at_the_same_time(self, stopped: Path) -> None:
        """Steps of two runs that interleave make each change once."""
        root = Location.of(str(stopped / "cluster"))
        one, other = Upgrade.of(root), Upgrade.of(root)
        for step, same in zip(one.steps, other.steps, strict=True):
            step.make()
            same.make()
        self.as_new(root)


class TestRoots:
    def test_a_root_that_is_too_old_is_refused(self, tmp_path: Path) -> None:
        """The refusal says that a release in between has to upgrade it."""
        root = Location.of(str(tmp_path / "cluster"))
        earlier_cluster_root(root)
        with pytest.raises(StorageError, match=r"has format 2, .* knows formats 3 to 4: first"):
            ClusterRoot(root, formats=LATER)

    def test_the_announcement_alone_refuses_an_earlier_release(self, cluster: MixedCluster) -> None:
        """An upgrade was interrupted before it set the format."""
        for broker in (0, 1):
            cluster.upgrade_broker(broker, THIS_RELEASE)
        for step in Upgrade.of(cluster.location()).steps:
            if step.change.startswith("announce"):
                step.make()
        cluster.tick_until_idle()
        assert formats_of(cluster) == [OLD, OLD, OLD]
        assert [one._cluster.format_version for one in cluster.brokers.values()] == [NEW, NEW]
        with pytest.raises(NewerFormatError):
            ClusterRoot(cluster.location(), formats=EARLIER)
        Upgrade.of(cluster.location()).make()
        assert formats_of(cluster) == [NEW, NEW, NEW]


def test_a_running_application_ends_when_the_cluster_is_upgraded_beyond_it(tmp_path: Path) -> None:
    """It ends with the exit code for roots that it cannot use, and writes nothing more.

    The upgrade was made although the application runs: it had started in between.
    """
    application = Application(config(tmp_path, tick_interval_ms=20))
    with running(application) as errors:
        for step in Upgrade.of(Location.of(str(tmp_path / "cluster")), formats=LATER).steps:
            step.make()
        application.await_end()
    [error] = errors
    assert isinstance(error, NewerFormatError)
    assert "knows formats 2 to 3: start the release that upgraded the cluster" in str(error)
    assert exit_code(error) is ExitCode.UNUSABLE
    assert states(tmp_path) == ["alive"] * 3
    with pytest.raises(NewerFormatError):
        Application(application.config).start()


class TestColumnsOfALaterRelease:
    """This release writes to tables with columns that it does not know."""

    def test_keep_their_values_in_all_control_tables(self, tmp_path: Path) -> None:
        """Each row that was there keeps its value, whatever changes it; new rows have nulls."""
        cluster = MixedCluster(tmp_path, {0: THIS_RELEASE, 1: THIS_RELEASE})
        cluster.create_topic("t", assignment={0: [0, 1]})
        producer = cluster.idempotent_producer("a-transaction")

        def work(value: str) -> None:
            write(cluster, value)
            cluster.produce("t", 0, [value.encode()], producer=producer)
            cluster.tick_until_idle()
            with Consumer(str(tmp_path / "cluster"), group_id="g", group_instance_id="i") as one:
                one.subscribe(["t"])
                one.poll(0)
                one.commit({TopicPartition("t", 0): 1 + len(value)})

        def restart() -> None:
            for broker in (0, 1):
                cluster.brokers[broker].stop()
                cluster.crash(broker)
            for broker in (0, 1):
                cluster.restart(broker)
            cluster.tick_until_idle()

        work("a")
        for broker in (0, 1):
            cluster.brokers[broker].stop()
        tables: list[tuple[int | None, Any]] = [
            (None, schema) for schema in (*CLUSTER_TABLES, FORMAT)
        ]
        tables += [(0, schema) for schema in (*CHECKPOINTS, PRODUCER_STATE)]
        before = {}
        for of, schema in tables:
            uri = cluster.location(of).child(schema.name).uri
            rows = DeltaTable(uri).to_pyarrow_table()
            later = pa.array([f"later {n}" for n in range(rows.num_rows)], pa.string())
            rows = rows.append_column("later", later)
            write_deltalake(uri, rows, mode="overwrite", schema_mode="merge")
            before[uri] = {_key(row, schema): row["later"] for row in rows.to_pylist()}
        for broker in (0, 1):
            cluster.crash(broker)
            cluster.restart(broker)
        cluster.tick_until_idle()
        work("aa")
        restart()
        kept = 0
        for of, schema in tables:
            uri = cluster.location(of).child(schema.name).uri
            for row in DeltaTable(uri).to_pyarrow_table().to_pylist():
                assert row["later"] == before[uri].get(_key(row, schema)), (schema.name, row)
                kept += row["later"] is not None
        assert kept >= 10
        assert audit(cluster.connection) == []


def _key(row: Any, schema: Any) -> tuple[Any, ...]:
    return tuple(row[name] for name in schema.key)


@pytest.mark.parametrize("schema", [*CLUSTER_TABLES, FORMAT], ids=lambda one: one.name)
def test_a_missing_column_is_damage_of_that_table_alone(tmp_path: Path, schema: Any) -> None:
    """The table cannot be opened, and the error names it and its column; others can."""
    root = Location.of(str(tmp_path / "cluster"))
    ClusterRoot.create(root)
    shutil.rmtree(tmp_path / "cluster" / schema.name)
    [*kept, lost] = [name for name in schema.columns.names if name not in schema.added]
    columns = schema.columns.remove(schema.columns.get_field_index(lost))
    create_table(root, schema._replace(columns=columns))
    assert kept
    with pytest.raises(DamagedError, match=rf"{schema.name} is damaged: .*no column {lost}; "):
        ControlTable(root, schema)
    for other in CLUSTER_TABLES:
        if other is not schema:
            ControlTable(root, other).rows()
