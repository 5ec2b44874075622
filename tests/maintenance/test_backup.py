"""Backups of a running cluster, and clusters that are restored from them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.consumer.consumer import Consumer
from sparklog.errors import SparklogError, StorageError
from sparklog.maintenance import backup as module
from sparklog.maintenance.audit import audit
from sparklog.maintenance.backup import MANIFEST, backup, restore
from sparklog.maintenance.table_checkpoints import checkpoint_tables
from sparklog.model import BROKERS, TopicPartition
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log_files import newest_version
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error, values
from tests.cli.command_line import files_in, run
from tests.examples import commands, example_cluster
from tests.maintenance.releases import EARLIER, MixedCluster, earlier_cluster_root
from tests.state_machine.roots import clean_up


def write(cluster: LocalCluster, value: str) -> None:
    pending = cluster.produce("t", 0, [value.encode()])
    cluster.tick_until_idle()
    assert error(pending) == "NONE"


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """A running cluster with two committed records, and a group that has read the first."""
    cluster = LocalCluster(tmp_path / "original")
    cluster.create_topic("t", assignment={0: [0, 1, 2]}, configs={"min.insync.replicas": "2"})
    write(cluster, "a")
    with Consumer(str(cluster.root / "cluster"), group_id="g") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.commit({TopicPartition("t", 0): 1})
    write(cluster, "b")
    return cluster


def back_up(cluster: LocalCluster, target: Path) -> int:
    return backup(cluster.location(), Location.of(str(target))).files


def restored(cluster: LocalCluster, source: Path, target: Path) -> LocalCluster:
    """Restore a backup into new roots, and start a cluster on them."""
    outcome = restore(Location.of(str(source)), target=Location.of(str(target)))
    assert sorted(outcome.roots) == ["broker-0-0", "broker-1-0", "broker-2-0", "cluster"]
    for broker in cluster.broker_ids:
        (target / f"broker-{broker}-0").rename(target / f"broker-{broker}")
    return LocalCluster(target)


class TestARunningCluster:
    def test_is_restored_beside_the_original(self, cluster: LocalCluster, tmp_path: Path) -> None:
        """The copy has the records of its time and all replicas in sync, and goes on by itself."""
        back_up(cluster, tmp_path / "backup")
        write(cluster, "c")
        copy = restored(cluster, tmp_path / "backup", tmp_path / "copy")
        assert copy.partition("t", 0).isr == [0, 1, 2]
        check_at_rest(copy, "a", "b")
        write(copy, "d")
        write(cluster, "e")
        check_at_rest(copy, "a", "b", "d")
        check_at_rest(cluster, "a", "b", "c", "e")
        for one in (copy, cluster):
            assert audit(one.connection, verify_files=True) == []
        with Consumer(str(copy.root / "cluster"), group_id="g") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            found = consumer.committed(TopicPartition("t", 0))
            assert found is not None
            assert found.offset == 1

    def test_is_copied_at_one_point_in_time_whatever_happens_meanwhile(
        self, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Records are written, a leader is elected and a broker restarts between any two reads."""
        newest = newest_version
        seen: list[int] = []

        def between(table: Location) -> int:
            number = len(seen)
            seen.append(number)
            if number % 7 == 0:
                write(cluster, f"meanwhile {number}")
            if number == 14:
                cluster.crash(0)
                cluster.fence(0)
                cluster.tick_until_idle()
            if number == 21:
                cluster.restart(0)
                cluster.tick_until_idle()
            return newest(table)

        monkeypatch.setattr(module, "newest_version", between)
        back_up(cluster, tmp_path / "backup")
        monkeypatch.setattr(module, "newest_version", newest)
        assert len(seen) > 21
        copy = restored(cluster, tmp_path / "backup", tmp_path / "copy")
        # No root of the copy counts as lost.
        assert copy.partition("t", 0).isr
        copy.tick_until_idle()
        found = values(copy.consume("t", 0))
        assert found == values(cluster.consume("t", 0))[: len(found)]
        assert found[:2] == ["a", "b"]
        check_at_rest(copy, *found)
        assert audit(copy.connection, verify_files=True) == []

    def test_is_copied_incrementally(self, cluster: LocalCluster, tmp_path: Path) -> None:
        """Later backups to the same target copy new files only."""
        whole = back_up(cluster, tmp_path / "backup")
        assert back_up(cluster, tmp_path / "backup") == 0
        write(cluster, "c")
        assert 0 < back_up(cluster, tmp_path / "backup") < whole / 2
        copy = restored(cluster, tmp_path / "backup", tmp_path / "copy")
        check_at_rest(copy, "a", "b", "c")

    def test_of_a_stopped_cluster_is_restored_in_place(
        self, cluster: LocalCluster, tmp_path: Path
    ) -> None:
        """Records that were written since are gone, as at every restoration of a backup."""
        back_up(cluster, tmp_path / "backup")
        write(cluster, "c")
        for broker in list(cluster.brokers):
            cluster.crash(broker)
        with pytest.raises(StorageError, match="holds a root: move it away, or name another"):
            restore(Location.of(str(tmp_path / "backup")))
        shutil.rmtree(cluster.root)
        restore(Location.of(str(tmp_path / "backup")))
        for broker in (0, 1, 2):
            cluster.restart(broker)
        cluster.reconnect()
        assert cluster.partition("t", 0).isr == [0, 1, 2]
        check_at_rest(cluster, "a", "b")


def test_a_backup_that_was_interrupted_is_not_restored(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Neither is one whose repetition was; the next repetition completes it."""
    back_up(cluster, tmp_path / "backup")
    write(cluster, "c")
    copy_files: Callable[..., int] = module._copy_files
    left = [3]

    def failing(*arguments: object) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError("the store is away")
        return copy_files(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_copy_files", failing)
        with pytest.raises(OSError, match="is away"):
            back_up(cluster, tmp_path / "backup")
    with pytest.raises(StorageError, match=r"there is no complete backup at .*: repeat the backup"):
        restore(Location.of(str(tmp_path / "backup")), target=Location.of(str(tmp_path / "copy")))
    back_up(cluster, tmp_path / "backup")
    # A restoration that is interrupted leaves no root that a broker opens, and is repeated.
    left = [9]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_copy_files", failing)
        with pytest.raises(OSError, match="is away"):
            restored(cluster, tmp_path / "backup", tmp_path / "copy")
    copy = restored(cluster, tmp_path / "backup", tmp_path / "copy")
    check_at_rest(copy, "a", "b", "c")


def test_another_clusters_backup_is_not_overwritten(cluster: LocalCluster, tmp_path: Path) -> None:
    """The target has other commits under the same names."""
    back_up(cluster, tmp_path / "backup")
    other = LocalCluster(tmp_path / "other", [0])
    with pytest.raises(StorageError, match=r"is not a copy of .*: name a new target"):
        back_up(other, tmp_path / "backup")


def test_a_cluster_of_an_earlier_format_is_upgraded_first(tmp_path: Path) -> None:
    """Its journals do not say what they have seen."""
    earlier_cluster_root(Location.of(str(tmp_path / "cluster")))
    cluster = MixedCluster(tmp_path, {0: EARLIER})
    with pytest.raises(SparklogError, match="has format 2, in which no consistent copy can be"):
        back_up(cluster, tmp_path / "backup")


def test_the_commands_of_the_document_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/backup.md, on the cluster of conf/cluster.yaml."""
    monkeypatch.chdir(tmp_path)
    with example_cluster(tmp_path):
        made, restored_to = commands("docs/backup.md")
        assert "Copied" in run(*made).printed
        assert "sparklog-restored/cluster" in run(*restored_to).printed
        assert list(Connection("sparklog-restored/cluster").metadata().brokers) == [0, 1, 2]


def test_the_commands_print_the_roots(cluster: LocalCluster, tmp_path: Path) -> None:
    """`sparklog backup` and `sparklog restore`, into new roots."""
    target, copy = tmp_path / "backup", tmp_path / "copy"
    printed = run("backup", "--to", target, cluster=cluster.root / "cluster").printed
    assert printed.splitlines()[-1].startswith(f"Copied 4 roots to {target}: ")
    assert set(json.loads((target / MANIFEST).read_text())["roots"]) == {
        "cluster",
        *(f"broker-{broker}-0" for broker in (0, 1, 2)),
    }
    printed = run("restore", "--from", target, "--to", copy).printed
    assert printed.splitlines()[:4] == [
        f"broker-0-0: {copy}/broker-0-0",
        f"broker-1-0: {copy}/broker-1-0",
        f"broker-2-0: {copy}/broker-2-0",
        f"cluster: {copy}/cluster",
    ]
    roots = ControlTable(Location.of(str(copy / "cluster")), BROKERS).rows()["roots"].to_pylist()
    assert sorted(roots) == [f'["{copy}/broker-{broker}-0"]' for broker in (0, 1, 2)]
    assert Admin(str(copy / "cluster")).list_topics() == ["t"]
    before = files_in(copy)
    refusal = run("restore", "--from", target, "--to", copy).refusal
    assert refusal == f"{copy}/cluster holds a root: move it away, or name another target"
    assert files_in(copy) == before


def test_old_commits_may_be_cleaned_up_while_batches_are_copied(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Commits are kept for ten minutes, and a backup of many batches takes hours."""
    done: list[str] = []

    def clean_up_and_write(work: str, _done: int, _of: int | None) -> None:
        if work not in done:
            done.append(work)
            write(cluster, f"meanwhile {len(done)}")
            for root in ("cluster", "broker-0", "broker-1", "broker-2"):
                clean_up(cluster.root / root)

    target = Location.of(str(tmp_path / "backup"))
    backup(cluster.location(), target, on_progress=clean_up_and_write)
    assert len(done) > 3
    copy = restored(cluster, tmp_path / "backup", tmp_path / "copy")
    check_at_rest(copy, "a", "b")
    assert audit(copy.connection, verify_files=True) == []


def test_a_damaged_commit_is_not_copied(cluster: LocalCluster, tmp_path: Path) -> None:
    """The backup names it, and is made when it is restored."""
    log = cluster.root / "broker-0" / "log" / "_delta_log"
    damaged = sorted(log.glob("*.json"))[2]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:40])
    with pytest.raises(StorageError, match=str(log.parent)):
        back_up(cluster, tmp_path / "backup")
    damaged.write_bytes(content)
    back_up(cluster, tmp_path / "backup")
    check_at_rest(restored(cluster, tmp_path / "backup", tmp_path / "copy"), "a", "b")


def test_a_batch_that_is_removed_before_it_is_copied_is_named(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Nothing is restored from such a backup."""
    batches = (cluster.root / "broker-0" / "log" / "_inbox").glob("*.parquet")
    lost = next(batches)
    content = lost.read_bytes()
    lost.unlink()
    with pytest.raises(StorageError, match=rf"{lost.name} was removed before it was copied: rep"):
        back_up(cluster, tmp_path / "backup")
    assert not (tmp_path / "backup" / MANIFEST).exists()
    lost.write_bytes(content)
    back_up(cluster, tmp_path / "backup")
    check_at_rest(restored(cluster, tmp_path / "backup", tmp_path / "copy"), "a", "b")


def test_a_target_that_is_gone_is_no_removed_commit(cluster: LocalCluster, tmp_path: Path) -> None:
    """Commits that clean-up removes meanwhile are left out; a target that is gone is an error."""
    # With a checkpoint, the commits before it are copied last.
    checkpoint_tables(cluster.connection)
    older = module._copy_older_log

    def unmounted(copy: module._Table) -> int:
        shutil.rmtree(tmp_path / "backup", ignore_errors=True)
        return older(copy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_copy_older_log", unmounted)
        with pytest.raises(FileNotFoundError, match="backup"):
            back_up(cluster, tmp_path / "backup")
    assert not (tmp_path / "backup" / MANIFEST).exists()
