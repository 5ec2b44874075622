"""`sparklog maintain`: Delta checkpoints of all tables, in parallel to brokers or without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparklog.cluster.connection import Connection
from sparklog.maintenance.table_checkpoints import checkpoint_tables
from sparklog.model import BROKER_TABLES, CLUSTER_TABLES
from sparklog.storage import delta_checkpoints
from sparklog.storage.delta_log_files import last_checkpoint, newest_version
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.cli.command_line import run

BROKERS = [0, 1]


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    cluster = LocalCluster(tmp_path / "c", brokers=BROKERS)
    cluster.create_topic("t", partitions=2, replication_factor=2)
    cluster.produce("t", 0, [b"a", b"b"])
    cluster.tick_until_idle()
    return cluster


def connect(cluster: LocalCluster) -> Connection:
    return Connection(cluster.connection.cluster)


def log_files(root: Path) -> set[str]:
    return {str(one.relative_to(root)) for one in root.rglob("_delta_log/*") if one.is_file()}


def test_each_table_with_commits_gets_a_checkpoint_of_its_newest_version(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """All commits stay, the newest version has a checkpoint, and a second run writes none."""
    before = log_files(tmp_path)
    outcomes = checkpoint_tables(connect(cluster))

    count = len(CLUSTER_TABLES) + 1 + len(BROKERS) * (len(BROKER_TABLES) + 1)
    assert len(outcomes) == count
    assert {one.error for one in outcomes} == {""}
    for one in outcomes:
        table = Location.of(one.uri)
        assert newest_version(table) == max(last_checkpoint(table), 0)
    assert sum(one.commits for one in outcomes) > count
    made = log_files(tmp_path) - before
    assert before < log_files(tmp_path)
    assert all("checkpoint" in name for name in made)

    assert {one.commits for one in checkpoint_tables(connect(cluster))} == {0}


def test_brokers_go_on_after_it_also_after_a_restart(cluster: LocalCluster) -> None:
    checkpoint_tables(connect(cluster))
    pending = cluster.produce("t", 0, [b"c"])
    cluster.tick_until_idle()
    assert pending.response is not None
    for broker in BROKERS:
        cluster.crash(broker)
        cluster.restart(broker)
    cluster.tick_until_idle()
    assert [record.value for record in cluster.consume("t", 0)] == [b"a", b"b", b"c"]


def test_a_table_that_fails_is_named_and_the_others_are_done(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk at one table changes nothing there; the next run writes its checkpoint."""
    root = connect(cluster).cluster
    topics = Location.of(root).child("topics")
    write = delta_checkpoints.write_checkpoint

    def on_a_full_disk(table: Location) -> None:
        if table.uri == topics.uri:
            raise OSError(28, "No space left on device")
        write(table)

    before = log_files(Path(topics.uri))
    with monkeypatch.context() as context:
        context.setattr("sparklog.maintenance.table_checkpoints.write_checkpoint", on_a_full_disk)
        failed = run("maintain", "--cluster", root)
    assert failed.exit_code == 1
    first, last, removed = failed.stdout.splitlines()
    assert first.startswith(f"{topics.uri}: no checkpoint: [Errno 28] No space left on device; ")
    assert last.startswith("Wrote checkpoints of ")
    assert log_files(Path(topics.uri)) == before

    assert removed.startswith("Removed 0 files (0 bytes); ")
    again, _ = run("maintain", "--cluster", root).printed.splitlines()
    assert again.startswith("Wrote checkpoints of 1 of ")


def test_files_that_no_table_names_are_removed_after_the_delay_of_the_configuration(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """A dry run removes nothing and writes no checkpoint."""
    configuration = tmp_path / "cluster.yaml"
    dead = Path(connect(cluster).cluster) / "topics" / "part-0-dead.parquet"
    dead.write_bytes(b"never committed")
    os.utime(dead, (0, 0))
    configuration.write_text(
        f"cluster.root: {connect(cluster).cluster}\nbrokers:\n- broker.id: 0\n"
        f"  log.dirs: {cluster.root / 'broker-0'}\n"
    )
    before = log_files(tmp_path)
    [dry] = run("maintain", "--cluster", configuration, "--dry-run").printed.splitlines()
    assert dry.startswith("Would remove 1 files (15 bytes); ")
    assert dead.exists()
    assert log_files(tmp_path) == before
    _, removed = run("maintain", "--cluster", configuration).printed.splitlines()
    assert removed.startswith("Removed 1 files (15 bytes); ")
    assert not dead.exists()


def test_a_missing_cluster_is_refused(tmp_path: Path) -> None:
    assert "no cluster" in run("maintain", "--cluster", tmp_path / "nowhere").refusal
