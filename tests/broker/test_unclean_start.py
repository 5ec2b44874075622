"""Starts after a power loss: a replica that may have lost records gives up its place to the others.

Local files that were not synced are empty or missing after a power loss; see sparklog.storage.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sparklog.broker import unclean_start
from sparklog.broker.log_directories import number_log_directories
from sparklog.errors import DamagedError
from sparklog.storage.damaged_commits import INFO_CHECKSUM, PLACE
from sparklog.testing import LocalCluster
from tests.broker.states import values


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Three brokers; a partition led by 0, with two committed records."""
    cluster = LocalCluster(tmp_path)
    cluster.create_topic("t", assignment={0: [0, 1, 2]}, configs={"min.insync.replicas": "2"})
    cluster.produce("t", 0, [b"m0"])
    cluster.tick_until_idle()
    return cluster


def reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unclean_start, "boot_id", lambda: "another boot")
    monkeypatch.setattr("sparklog.broker.registration.boot_id", lambda: "another boot")


def newest_commit(root: Path, table: str) -> Path:
    return max((root / table / "_delta_log").glob("*.json"))


def acknowledged(cluster: LocalCluster, value: bytes) -> None:
    pending = cluster.produce("t", 0, [value])
    cluster.tick_until_idle()
    assert pending.response is not None
    assert pending.response.error == "NONE"


def test_after_a_reboot_a_broker_leaves_the_isr_where_another_member_stays(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-966: the start finds no mark of a clean stop, so unsynced records may be missing."""
    cluster.crash(0)
    reboot(monkeypatch)
    cluster.restart(0)
    assert cluster.partition("t", 0).isr == [1, 2]
    cluster.tick_until_idle()
    partition = cluster.partition("t", 0)
    assert (partition.leader, partition.isr) == (1, [0, 1, 2])


def test_after_a_reboot_the_last_member_stays(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other replica has all committed records: without it the partition would stay offline."""
    for broker in (1, 2):
        cluster.crash(broker)
        cluster.fence(broker)
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).isr == [0]
    # The brokers left when the ISR was at its minimum, so one of them is still eligible.
    cluster.restart(1)
    cluster.restart(2)
    cluster.tick_until_idle()
    for broker in (0, 1, 2):
        cluster.crash(broker)
    reboot(monkeypatch)
    cluster.restart(0)
    cluster.restart(1)
    assert cluster.partition("t", 0).isr == [2]
    cluster.restart(2)
    assert cluster.partition("t", 0).isr == [2]
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).isr == [0, 1, 2]
    assert values(cluster.consume("t", 0)) == ["m0"]


def test_a_restart_on_the_same_boot_keeps_its_place(cluster: LocalCluster) -> None:
    """Files that a killed process wrote stay in the page cache of a machine that runs on."""
    cluster.crash(0)
    cluster.restart(0)
    assert cluster.partition("t", 0).isr == [0, 1, 2]


def test_after_a_clean_stop_a_reboot_changes_nothing(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a clean stop, a reboot does not remove the broker from the ISR."""
    cluster.brokers[0].park()
    cluster.crash(0)
    reboot(monkeypatch)
    cluster.restart(0)
    assert cluster.partition("t", 0).isr == [0, 1, 2]


def test_a_log_that_differs_from_its_mark_of_a_clean_stop_leaves_also_as_the_last_member(
    cluster: LocalCluster,
) -> None:
    """The root was restored from a copy after the stop: its version is the same or higher."""
    for broker in (1, 2):
        cluster.crash(broker)
        cluster.fence(broker)
    cluster.tick_until_idle()
    pending = cluster.produce("t", 0, [b"m1"], acks=1)
    cluster.tick_until_idle()
    assert pending.response is not None
    cluster.brokers[0].stop()
    cluster.crash(0)
    root = cluster.root / "broker-0"
    commits = sorted((root / "log" / "_delta_log").glob("*.json"))
    [adding] = [path for path in commits[2:] if '"add"' in path.read_text()][-1:]
    # As of an earlier release: a commit that names its place is damage in another one's.
    first, rest = commits[1].read_text().split("\n", 1)
    info = json.loads(first)
    for name in (PLACE, INFO_CHECKSUM):
        info["commitInfo"].pop(name, None)
    adding.write_text(f"{json.dumps(info)}\n{rest}")
    shutil.rmtree(root / "log" / "_second_copies")
    cluster.restart(0)
    assert cluster.partition("t", 0).isr == []


def test_a_replica_whose_newest_commits_are_gone_leaves_and_loses_nothing(
    cluster: LocalCluster,
) -> None:
    """The newest commits of all tables of the leader's root vanish, and the machine runs on.

    With their second copies they would be damage that `sparklog repair` restores.
    """
    acknowledged(cluster, b"m1")
    cluster.crash(0)
    root = cluster.root / "broker-0"
    shutil.rmtree(root / "log" / "_second_copies")
    is_append = False
    while not is_append:
        newest = newest_commit(root, "log")
        is_append = '"add"' in newest.read_text()
        newest.unlink()
    for table in ("high_watermark_checkpoint", "leader_epoch_checkpoint"):
        folder = root / table
        shutil.rmtree(folder)
        shutil.copytree(cluster.root / "broker-2" / table, folder)
    cluster.restart(0)
    assert cluster.partition("t", 0).isr == [1, 2]
    cluster.tick_until_idle()
    assert values(cluster.consume("t", 0)) == ["m0", "m1"]
    assert values(cluster.log(0, "t", 0)) == ["m0", "m1"]


def test_changes_of_other_brokers_rows_do_not_keep_a_broker_from_registering(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing checkpoints takes seconds on an object store, and others write to `brokers`."""
    compared = []
    checkpoint = unclean_start._checkpoint

    def beside_a_change(*of: Any) -> Any:
        compared.append(of)
        cluster.brokers[1].prepare_to_stop()
        return checkpoint(*of)

    monkeypatch.setattr(unclean_start, "_checkpoint", beside_a_change)
    cluster.crash(0)
    cluster.restart(0)
    assert len(compared) == 2
    assert cluster.partition("t", 0).isr == [0, 1, 2]


@pytest.mark.parametrize("left", ["", "half"])
def test_an_empty_or_cut_commit_is_damage_and_the_broker_does_not_register(
    cluster: LocalCluster, left: str
) -> None:
    """An empty commit used to count as one without actions: the broker led with a shorter log."""
    acknowledged(cluster, b"m1")
    cluster.crash(0)
    commit = newest_commit(cluster.root / "broker-0", "log")
    text = commit.read_text()
    commit.write_text(text[: len(text) // 2] if left else "")
    with pytest.raises(DamagedError, match=rf"{commit.name} is damaged: .*move the root away"):
        cluster.restart(0)
    cluster.fence(0)
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).isr == [1, 2]
    assert values(cluster.consume("t", 0)) == ["m0", "m1"]
    # The remedy.
    shutil.rmtree(cluster.root / "broker-0")
    cluster.restart(0)
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).isr == [0, 1, 2]
    assert values(cluster.log(0, "t", 0)) == ["m0", "m1"]


@pytest.mark.parametrize("then", ["stops", "goes on"])
def test_commits_of_the_last_process_after_the_logs_were_opened_are_no_loss(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """A broker that starts while its last process still commits keeps its place in the ISR.

    Its logs were opened, and then the last process appended a batch, which the others have copied,
    and stopped or was killed.
    """
    last = cluster.brokers[0]
    called = "sparklog.broker.broker.number_log_directories"
    number = number_log_directories

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(called, number)
        cluster.produce("t", 0, [b"m1"])
        last.leader_tick()
        for other in (1, 2):
            cluster.follower_tick(other)
        if then == "stops":
            last.stop()
        return number(*arguments)

    monkeypatch.setattr(called, meanwhile)
    cluster.crash(0)
    cluster.restart(0)
    assert 0 in cluster.partition("t", 0).isr
    cluster.tick_until_idle()
    assert values(cluster.log(0, "t", 0)) == ["m0", "m1"]
