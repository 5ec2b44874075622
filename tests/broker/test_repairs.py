"""A scrub names each kind of damage, and a repair restores it from a sound replica."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog.cluster.repairs import Repair, repairs_of
from sparklog.errors import DamagedError
from sparklog.maintenance import scrub_reading
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.maintenance.table_checkpoints import checkpoint_tables
from sparklog.model import (
    BROKERS,
    DELAYED_OPERATIONS,
    HIGH_WATERMARK_CHECKPOINT,
    PRODUCER_STATE,
    TableSchema,
    TopicPartition,
)
from sparklog.storage.commits import LOG_VERSION
from sparklog.storage.control_table import ControlTable
from sparklog.storage.delta_log_files import commit_path, newest_version
from sparklog.storage.journal import Journal
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.broker.damaging import batch_file, batch_of, change_header, cut, flip_byte, log_folder
from tests.broker.states import check_at_rest, log, report, rows
from tests.faulty_files import FaultyFiles
from tests.maintenance.damage import Row, replace_batches, rewritten

Start = Callable[..., LocalCluster]
VALUES = ("a", "b", "c", "d")


def with_four_records(start: Start, *brokers: int, **config: Any) -> LocalCluster:
    """Start a cluster with four batches on all replicas; its brokers do not scrub themselves."""
    config = {"log_scrub_bytes_per_second": 0, "log_merger_min_lag_ms": 1} | config
    cluster = start(*(brokers or (0, 1, 2)), min_isr=1, log_merger_min_batches=2, **config)
    for value in VALUES:
        cluster.produce("t", 0, [value.encode()])
    cluster.tick_until_idle()
    return cluster


def merge(cluster: LocalCluster, *brokers: int) -> None:
    cluster.clock.advance(10)
    for broker in brokers:
        assert cluster.merge(broker)[0] == len(VALUES)
    cluster.tick_until_idle()


def of_another_batch(file: Path) -> None:
    """Give a batch's file the bytes of another batch of the same log."""
    other = next(one for one in sorted(file.parent.iterdir()) if one != file and one.suffix)
    file.write_bytes(other.read_bytes())


def text(file: Path) -> None:
    file.write_bytes(b"this is no batch" * 100)


def empty(file: Path) -> None:
    file.write_bytes(b"")


DAMAGES = {
    flip_byte: "damaged_file",
    cut: "truncated_file",
    empty: "truncated_file",
    Path.unlink: "missing_file",
    of_another_batch: "foreign_file",
    text: "foreign_file",
}


def found(cluster: LocalCluster) -> list[Repair]:
    """Return the findings of a complete scrub."""
    done = scrub(cluster.connection)
    assert done.is_complete
    assert done.unreadable == []
    return done.findings


def repaired(cluster: LocalCluster) -> list[str]:
    """Repair, and return the states of the findings after the brokers have acted."""
    known = {one.repair_id for one in repair(cluster.connection)}
    cluster.tick_until_idle()
    after = repairs_of(cluster.connection.root)
    return [one.state for one in after if one.repair_id in known]


@pytest.mark.parametrize("broker", [0, 1], ids=["leader", "follower"])
class TestABatchFile:
    @pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
    def test_that_a_peer_has_too_is_restored_under_its_name(
        self, start: Start, damage: Callable[[Path], object], broker: int
    ) -> None:
        """A damaged file gets the same bytes from a peer; no log and no ISR changes."""
        cluster = with_four_records(start)
        file = batch_file(cluster, broker, 1)
        content, before = file.read_bytes(), cluster.partition("t", 0)
        damage(file)
        [one] = found(cluster)
        assert one.fault == DAMAGES[damage]
        assert (one.broker_id, one.topic, one.partition) == (broker, "t", 0)
        assert (one.first_offset, one.last_offset) == (1, 1)
        assert one.path == f"_inbox/{file.name}"
        assert one.source_broker_id == (1 if broker == 0 else 0)
        assert repaired(cluster) == ["repaired"]
        assert file.read_bytes() == content
        assert cluster.partition("t", 0) == before
        assert found(cluster) == []
        check_at_rest(cluster, *VALUES)

    @pytest.mark.parametrize("damage", [flip_byte, Path.unlink], ids=lambda one: one.__name__)
    @pytest.mark.parametrize("is_merged", [True, False], ids=["merged", "peers are merged"])
    def test_that_peers_have_in_other_batches_is_rebuilt(
        self, start: Start, damage: Callable[[Path], object], broker: int, is_merged: bool
    ) -> None:
        """The owner commits the records of an in-sync peer in place of the damaged file."""
        cluster = with_four_records(start, log_merger_max_batch_bytes=1 << 20)
        merge(cluster, *([broker] if is_merged else [one for one in range(3) if one != broker]))
        before = cluster.partition("t", 0)
        damage(batch_file(cluster, broker, 1))
        [one] = found(cluster)
        assert (one.first_offset, one.last_offset) == ((0, 3) if is_merged else (1, 1))
        assert "rebuilt" in one.remedy
        assert repaired(cluster) == ["repaired"]
        assert cluster.partition("t", 0) == before
        assert found(cluster) == []
        check_at_rest(cluster, *VALUES)
        cluster.crash(broker)
        cluster.restart(broker)
        check_at_rest(cluster, *VALUES)


class TestARebuiltFile:
    def test_with_other_bytes_is_committed_by_its_owner(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Bytes that another writer would write need a header of their own."""
        cluster, path = self.damaged(start, monkeypatch)
        [one] = repair(cluster.connection)
        assert one.state == "requested"
        assert batch_of(cluster, 1, 1).path == path, "nobody commits to a log but its owner"
        cluster.tick_until_idle()
        [one] = repairs_of(cluster.connection.root)
        assert (one.state, one.source_broker_id) == ("repaired", 0)
        new = batch_of(cluster, 1, 1)
        assert new.path != path
        assert (new.base_offset, new.next_offset) == (0, 4)
        assert found(cluster) == []
        check_at_rest(cluster, *VALUES)

    @staticmethod
    def damaged(start: Start, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalCluster, str]:
        """Damage a merged file of broker 1, which is rebuilt with other bytes."""
        options = {"compression": "gzip"}
        monkeypatch.setattr("sparklog.storage.batch_files._parquet_options", lambda _: options)
        cluster = with_four_records(start)
        merge(cluster, 1)
        path = batch_of(cluster, 1, 1).path
        flip_byte(batch_file(cluster, 1, 1))
        assert len(found(cluster)) == 1
        return cluster, path

    def test_is_committed_when_its_broker_starts(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A request to a broker that does not run is durable."""
        cluster, path = self.damaged(start, monkeypatch)
        cluster.crash(1)
        cluster.fence(1)
        [one] = repair(cluster.connection)
        assert one.state == "requested"
        assert one.outcome.endswith("when broker 1 is started")
        cluster.tick_until_idle()
        assert batch_of(cluster, 1, 1).path == path
        cluster.restart(1)
        check_at_rest(cluster, *VALUES)
        assert [one.state for one in repairs_of(cluster.connection.root)] == ["repaired"]
        assert batch_of(cluster, 1, 1).path != path

    @pytest.mark.parametrize("point", ["repair_file", "repair_commit", "repair_rows"])
    def test_survives_the_end_of_its_broker_between_two_effects(
        self, start: Start, monkeypatch: pytest.MonkeyPatch, point: str
    ) -> None:
        """A broker that dies between two effects of a repair completes it after its restart."""
        cluster, _ = self.damaged(start, monkeypatch)
        repair(cluster.connection)
        cluster.leader_tick(1, stop_after=point)
        assert 1 not in cluster.brokers
        cluster.restart(1)
        cluster.tick_until_idle()
        assert [one.state for one in repairs_of(cluster.connection.root)] == ["repaired"]
        assert found(cluster) == []
        check_at_rest(cluster, *VALUES)

    def test_is_tried_again_after_a_disk_was_full(
        self, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A file that does not fit leaves nothing, and the request is tried again."""
        cluster, path = self.damaged(start, monkeypatch)
        repair(cluster.connection)
        files = FaultyFiles(tmp_path / "stash")
        inbox = log_folder(cluster, 1) / "_inbox"
        before = sorted(inbox.iterdir())
        with files.installed():
            files.fail(str(inbox), "full")
            cluster.leader_tick(1)
        assert sorted(inbox.iterdir()) == before
        assert batch_of(cluster, 1, 1).path == path
        cluster.clock.advance(10_000)
        cluster.tick_until_idle()
        assert batch_of(cluster, 1, 1).path != path
        check_at_rest(cluster, *VALUES)


class TestRestoring:
    @pytest.mark.parametrize("failure", ["full", "unsynced", "torn"])
    def test_that_fails_changes_nothing_and_is_left_to_the_broker(
        self, start: Start, tmp_path: Path, failure: Any
    ) -> None:
        """A file that cannot be written from outside is restored by the broker of the root."""
        cluster = with_four_records(start)
        file = batch_file(cluster, 1, 2)
        flip_byte(file)
        damaged = file.read_bytes()
        assert len(found(cluster)) == 1
        inbox = log_folder(cluster, 1) / "_inbox"
        names = sorted(inbox.iterdir())
        files = FaultyFiles(tmp_path / "stash")
        with files.installed():
            files.fail(str(inbox), failure)
            [one] = repair(cluster.connection)
        assert one.state == "requested"
        assert file.read_bytes() == damaged
        assert sorted(inbox.iterdir()) == names
        cluster.tick_until_idle()
        assert found(cluster) == []
        check_at_rest(cluster, *VALUES)

    @pytest.mark.parametrize("point", ["file", "rows", "request"])
    def test_continues_after_the_end_of_its_process(self, start: Start, point: str) -> None:
        """A repair that was killed between two effects is completed by the next one."""

        class Killed(BaseException):
            pass

        def die(effect: str) -> None:
            if effect == point:
                raise Killed

        cluster = with_four_records(start)
        merge(cluster, 2)
        change_rows_of_records(cluster, 2)
        flip_byte(batch_file(cluster, 1, 0))
        assert len(found(cluster)) == 2
        with pytest.raises(Killed):
            repair(cluster.connection, done=die)
        repair(cluster.connection)
        cluster.tick_until_idle()
        assert found(cluster) == []
        check_at_rest(cluster, *VALUES)

    def test_takes_a_sound_peer_where_another_is_damaged_too(self, start: Start) -> None:
        """A peer whose own copy is damaged is passed over."""
        cluster = with_four_records(start)
        for broker in (0, 1):
            flip_byte(batch_file(cluster, broker, 1))
        assert len(found(cluster)) == 2
        assert repaired(cluster) == ["repaired", "repaired"]
        assert found(cluster) == []
        check_at_rest(cluster, *VALUES)

    def test_a_batch_that_is_gone_meanwhile_is_left_alone(self, start: Start) -> None:
        """A batch that was merged since is no longer part of the log."""
        cluster = with_four_records(start)
        file = batch_file(cluster, 1, 1)
        content = file.read_bytes()
        flip_byte(file)
        assert len(found(cluster)) == 1
        file.write_bytes(content)
        merge(cluster, 1)
        flip_byte(file)
        [one] = repair(cluster.connection)
        assert one.state == "gone"
        assert file.read_bytes() != content

    def test_the_last_copy_is_left_to_an_operator(self, start: Start) -> None:
        """Without another replica the finding stays open, the broker keeps its place, and the
        restored file closes it.
        """
        cluster = with_four_records(start, 0)
        file = batch_file(cluster, 0, 1)
        content = file.read_bytes()
        flip_byte(file)
        [one] = found(cluster)
        assert one.source_broker_id is None
        assert "restore the file" in one.remedy
        assert repaired(cluster) == ["unrepairable"]
        assert cluster.partition("t", 0).leader == 0
        assert report(cluster, 0)["damaged_offset"] == 1
        file.write_bytes(content)
        assert found(cluster) == []
        assert repairs_of(cluster.connection.root)[0].state == "gone"

    def test_where_all_copies_are_damaged_one_member_stays(self, start: Start) -> None:
        """A replica without any sound source leaves the ISR, and the last member stays."""
        cluster = with_four_records(start, 0, 1)
        for broker in (0, 1):
            flip_byte(batch_file(cluster, broker, 1))
        assert [one.source_broker_id for one in found(cluster)] == [1, 0]
        repair(cluster.connection)
        cluster.tick_until_idle()
        assert len(cluster.partition("t", 0).isr) == 1
        assert {one.state for one in found(cluster)} <= {"unrepairable", "refilling"}


def change_rows_of_records(
    cluster: LocalCluster, broker: int, offset: int = 2, value: bytes = b"x"
) -> None:
    """Give a replica another value at an offset, in a sound file with a sound header."""
    key = cluster.connection.metadata().partition("t", 0).key
    group = [batch_of(cluster, broker, offset)]
    values: list[bytes | None] = [one.encode() for one in VALUES]
    values[offset] = value
    is_merged = group[0].record_count == len(VALUES)
    new = rewritten(
        cluster.root, broker, group, values if is_merged else values[offset : offset + 1]
    )
    assert new.topic_id_partition == key
    cluster.crash(broker)
    replace_batches(cluster.root, broker, group, [new])
    cluster.restart(broker)
    cluster.tick_until_idle()


class TestDifferingRecords:
    @pytest.mark.parametrize("is_merged", [True, False])
    def test_of_a_follower_are_refilled_from_the_leader(
        self, start: Start, is_merged: bool
    ) -> None:
        """A follower with sound files but other records leaves the ISR and is refilled."""
        cluster = with_four_records(start)
        if is_merged:
            merge(cluster, 1)
        change_rows_of_records(cluster, 1)
        [one] = found(cluster)
        assert (one.fault, one.broker_id, one.source_broker_id) == ("records_differ", 1, 0)
        assert (one.first_offset, one.path) == (2, None)
        repair(cluster.connection)
        cluster.leader_tick(1)
        assert cluster.partition("t", 0).isr == [0, 2]
        cluster.tick_until_idle()
        [one] = repairs_of(cluster.connection.root)
        assert one.state == "repaired"
        assert found(cluster) == []
        check_at_rest(cluster, *VALUES)

    def test_that_are_truncated_during_a_scrub_are_no_finding(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A scrub read a follower's log with an uncommitted record, and the leader's log after the
        follower had removed it and the high watermark had passed it: a repair refilled the sound
        replica.
        """
        cluster = with_four_records(start, assignment={0: [0, 2, 1]})
        cluster.produce("t", 0, [b"lost"])
        cluster.leader_tick(0)
        cluster.follower_tick(1)
        cluster.crash(0)
        cluster.fence(0)
        for _ in range(2):
            cluster.controller_tick()
        assert cluster.partition("t", 0).leader == 2
        read = scrub_reading._read_root

        def slowly(broker_id: int, root: Location) -> scrub_reading.ScrubbedRoot:
            log_as_read = read(broker_id, root)
            if broker_id == 1:
                cluster.produce("t", 0, [b"e"])
                cluster.tick_until_idle()
            return log_as_read

        with monkeypatch.context() as patch:
            patch.setattr(scrub_reading, "_read_root", slowly)
            assert found(cluster) == []
        assert log(cluster, 1) == log(cluster, 2) == [*VALUES, "e"]

    def test_that_are_equal_at_the_repair_are_not_refilled(self, start: Start) -> None:
        """The replica was mended between the scrub and the repair: it stays in the ISR."""
        cluster = with_four_records(start)
        change_rows_of_records(cluster, 1)
        assert len(found(cluster)) == 1
        change_rows_of_records(cluster, 1, value=b"c")
        [one] = repair(cluster.connection)
        assert (one.state, one.outcome) == ("gone", "broker 1 has equal records now")
        cluster.leader_tick(1)
        assert cluster.partition("t", 0).isr == [0, 1, 2]

    def test_in_several_batches_are_refilled_at_once(self, start: Start) -> None:
        """Each differing batch was a finding of its own with the same id, and the last one counted:
        the batches before it stayed.
        """
        cluster = with_four_records(start)
        change_rows_of_records(cluster, 1, offset=1)
        change_rows_of_records(cluster, 1, offset=3)
        [one] = found(cluster)
        assert (one.first_offset, one.last_offset) == (1, 3)
        assert repaired(cluster) == ["repaired"]
        assert found(cluster) == []
        check_at_rest(cluster, *VALUES)

    def test_stay_a_finding_until_they_are_compared_again(self, start: Start) -> None:
        """A scrub that could not compare the replica, which was out of the ISR, closed the finding:
        "a later scrub found equal records".
        """
        cluster = with_four_records(start)
        change_rows_of_records(cluster, 1)
        assert len(found(cluster)) == 1
        cluster.crash(1)
        cluster.fence(1)
        cluster.tick_until_idle()
        assert 1 not in cluster.partition("t", 0).isr
        [one] = found(cluster)
        assert (one.state, one.fault) == ("found", "records_differ")

    def test_of_a_replica_that_is_removed_are_no_finding_any_more(self, start: Start) -> None:
        """A scrub closes it: the partition has been reassigned to other brokers."""
        cluster = with_four_records(start)
        change_rows_of_records(cluster, 1)
        assert len(found(cluster)) == 1
        cluster.alter_partition_reassignments({TopicPartition("t", 0): [0, 2]})
        cluster.tick_until_idle()
        assert found(cluster) == []
        [one] = repairs_of(cluster.connection.root)
        assert (one.state, one.outcome) == ("gone", "the replica is no longer part of the cluster")

    def test_are_found_after_the_commits_that_a_long_scrub_has_read_are_gone(
        self, start: Start
    ) -> None:
        """Clean-up removes the commits of an hour ago, and a scrub with a limited rate took a log
        without the commit that it had read for one that is gone.
        """
        cluster = with_four_records(start)
        change_rows_of_records(cluster, 1)
        steps = 0

        def clean_up(_: object) -> None:
            nonlocal steps
            steps += 1
            if steps > 1:
                return
            cluster.produce("t", 0, [b"e"])
            cluster.tick_until_idle()
            for broker in (0, 1, 2):
                cluster.brokers[broker]._replicas[0].checkpoints.describe_newest()
            checkpoint_tables(cluster.connection)
            for broker in (0, 1, 2):
                for commit in (log_folder(cluster, broker) / "_delta_log").glob("*.json"):
                    if int(commit.stem) < newest_commit(cluster, broker):
                        commit.unlink()

        done = scrub(cluster.connection, on_progress=clean_up)
        assert steps > 1
        assert done.unreadable == []
        [one] = done.findings
        assert (one.fault, one.broker_id) == ("records_differ", 1)

    def test_survive_a_restart_during_the_refill(self, start: Start) -> None:
        """A broker that dies before it has removed its records begins again."""
        cluster = with_four_records(start)
        change_rows_of_records(cluster, 1)
        assert len(found(cluster)) == 1
        repair(cluster.connection)
        cluster.leader_tick(1, stop_after="damage_isr")
        assert 1 not in cluster.brokers
        cluster.restart(1)
        check_at_rest(cluster, *VALUES)
        assert found(cluster) == []

    def test_of_a_leader_are_left_to_an_operator(self, start: Start) -> None:
        """The leader's records count: the finding names the follower, and no data is changed if
        that one leads meanwhile.
        """
        cluster = with_four_records(start, 0, 1)
        change_rows_of_records(cluster, 1)
        assert [one.broker_id for one in found(cluster)] == [1]
        cluster.crash(0)
        cluster.fence(0)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 1
        [one] = repair(cluster.connection)
        assert one.state == "unrepairable"
        assert log(cluster, 1) == ["a", "b", "x", "d"]


def remove_copies(cluster: LocalCluster) -> None:
    """Remove the second copies of all tables, as an earlier release wrote none."""
    for folder in cluster.root.glob("*/*/_second_copies"):
        shutil.rmtree(folder)


def newest_commit(cluster: LocalCluster, broker: int) -> int:
    return newest_version(Location.of(str(log_folder(cluster, broker))))


def with_undescribed_commit(start: Start) -> tuple[LocalCluster, Location, str]:
    """Return a cluster without second copies, the root of broker 1, and the path of a commit of its
    log after the version that `delayed_operations` describes: another checkpoint describes more.
    """
    cluster = with_four_records(start)
    cluster.clock.advance(10_000)
    cluster.produce("t", 0, [b"e"])
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    remove_copies(cluster)
    root = Location.of(str(cluster.root / "broker-1"))
    described = described_version(root, DELAYED_OPERATIONS)
    assert described < described_version(root, HIGH_WATERMARK_CHECKPOINT)
    return cluster, root, commit_path(described + 1)


def described_version(root: Location, schema: TableSchema) -> int:
    """Return the version of a broker's log that one of its checkpoints describes."""
    return ControlTable(root, schema).held_by(LOG_VERSION) or 0


def by_another_brokers(commit: Path) -> None:
    """Replace a commit of broker 1's log by that of the same version of broker 0's log."""
    commit.write_bytes(Path(str(commit).replace("/broker-1/", "/broker-0/")).read_bytes())


class TestTables:
    def test_a_damaged_checkpoint_is_replaced(self, start: Start) -> None:
        """Delta's checkpoint is written again if the table can be opened without it."""
        cluster = with_four_records(start)
        checkpoint_tables(cluster.connection)
        for name in ("broker-1/log", "cluster/topics", "broker-0/producer_state"):
            [file] = (cluster.root / name / "_delta_log").glob("*.checkpoint.parquet")
            cut(file)
        assert [one.fault for one in found(cluster)] == ["damaged_checkpoint"] * 3
        assert repaired(cluster) == ["repaired"] * 3
        assert found(cluster) == []
        cluster.crash(1)
        cluster.restart(1)
        check_at_rest(cluster, *VALUES)

    @pytest.mark.parametrize(
        "damage", [cut, flip_byte, Path.unlink, by_another_brokers], ids=lambda one: one.__name__
    )
    def test_a_commit_of_a_running_brokers_log_is_replaced_by_a_checkpoint(
        self, start: Start, damage: Callable[[Path], object]
    ) -> None:
        """The broker has the commit's effect in memory, and writes it as a checkpoint."""
        cluster = with_four_records(start)
        merge(cluster, 1)
        remove_copies(cluster)
        commits = sorted((log_folder(cluster, 1) / "_delta_log").glob("*.json"))
        damage(commits[-4])
        damage(commits[-2])
        faults = {one.fault for one in found(cluster)}
        assert faults == {"missing_commit" if damage is Path.unlink else "damaged_commit"}
        assert set(repaired(cluster)) == {"repaired"}
        assert found(cluster) == []
        assert log(cluster, 1) == list(VALUES)
        cluster.crash(1)
        cluster.restart(1)
        check_at_rest(cluster, *VALUES)

    def test_a_commit_that_one_checkpoint_does_not_describe_is_not_needed_any_more(
        self, start: Start
    ) -> None:
        """`delayed_operations` may describe an older version than `high_watermark_checkpoint`, and
        who reads it reads the commits after that one: a repair said "repaired", and at its next
        start the broker took the state of its replicas for lost.
        """
        cluster, root, commit = with_undescribed_commit(start)
        empty(log_folder(cluster, 1) / commit)
        [one] = found(cluster)
        assert one.path == commit
        repair(cluster.connection)
        cluster.leader_tick(1)
        assert [one.state for one in repairs_of(cluster.connection.root)] == ["repaired"]
        cluster.crash(1)
        assert Journal(root, with_operations=True).rows
        cluster.restart(1)
        check_at_rest(cluster, *VALUES, "e")

    @pytest.mark.parametrize("is_running", [True, False])
    @pytest.mark.parametrize("damage", [empty, Path.unlink, by_another_brokers])
    def test_a_commit_that_the_state_needs_is_found_although_the_log_does_not(
        self, start: Start, damage: Callable[[Path], None], is_running: bool
    ) -> None:
        """`sparklog maintain` had written a newer Delta checkpoint: no scrub found the damage, and
        a repair, which readers of the state asked for, did nothing.
        """
        cluster, root, commit = with_undescribed_commit(start)
        checkpoint_tables(cluster.connection)
        remove_copies(cluster)
        if not is_running:
            cluster.crash(1)
            cluster.fence(1)
            cluster.tick_until_idle()
        damage(log_folder(cluster, 1) / commit)
        with pytest.raises(DamagedError):
            Journal(root, with_operations=True)
        [one] = found(cluster)
        assert (one.broker_id, one.table_name, one.path) == (1, "log", commit)
        assert one.fault == ("missing_commit" if damage is Path.unlink else "damaged_commit")
        [one] = repair(cluster.connection)
        assert one.state == "requested"
        if is_running:
            cluster.leader_tick(1)
            assert Journal(root, with_operations=True).rows
            cluster.crash(1)
        cluster.restart(1)
        check_at_rest(cluster, *VALUES, "e")
        assert [one.state for one in repairs_of(cluster.connection.root)] == ["repaired"]
        assert found(cluster) == []

    def test_of_two_damaged_commits_of_a_stopped_broker_one_ends_its_journal(
        self, start: Start
    ) -> None:
        """One is behind Delta's checkpoint, so the log cannot be opened; the other one is needed
        by the state alone, and the broker is started with it.
        """
        cluster, _, needed = with_undescribed_commit(start)
        checkpoint_tables(cluster.connection)
        cluster.tick_until_idle()
        remove_copies(cluster)
        cluster.crash(1)
        cluster.fence(1)
        cluster.tick_until_idle()
        newest = commit_path(newest_commit(cluster, 1))
        assert newest > needed
        for commit in (needed, newest):
            empty(log_folder(cluster, 1) / commit)
        assert {one.path for one in found(cluster)} == {needed, newest}
        states = {one.path: one.state for one in repair(cluster.connection)}
        assert states == {needed: "requested", newest: "repaired"}
        cluster.restart(1)
        check_at_rest(cluster, *VALUES, "e")
        assert found(cluster) == []

    def test_the_second_copies_behind_the_end_of_a_journal_are_gone(self, start: Start) -> None:
        """The copies of later commits counted as those of lost files: the next repair restored
        these commits without the damaged one, and the log could not be opened.
        """
        cluster = with_four_records(start)
        cluster.crash(1)
        cluster.fence(1)
        cluster.tick_until_idle()
        damaged = sorted((log_folder(cluster, 1) / "_delta_log").glob("*.json"))[-3]
        empty(damaged)
        (log_folder(cluster, 1) / "_second_copies" / damaged.name).unlink()
        [one] = found(cluster)
        assert one.path == f"_delta_log/{damaged.name}"
        assert "the journal ends before the damage" in repair(cluster.connection)[0].outcome
        assert found(cluster) == []
        cluster.restart(1)
        check_at_rest(cluster, *VALUES)
        assert found(cluster) == []

    @pytest.mark.parametrize("point", ["repair_checkpoint", "repair_rows"])
    def test_a_broker_that_dies_after_the_checkpoint_starts_again(
        self, start: Start, point: str
    ) -> None:
        """After the checkpoint any process can open the log."""
        cluster = with_four_records(start)
        remove_copies(cluster)
        cut(sorted((log_folder(cluster, 1) / "_delta_log").glob("*.json"))[-2])
        assert len(found(cluster)) == 1
        repair(cluster.connection)
        cluster.leader_tick(1, stop_after=point)
        assert 1 not in cluster.brokers
        cluster.restart(1)
        check_at_rest(cluster, *VALUES)
        assert found(cluster) == []

    def test_a_commit_of_a_stopped_brokers_log_is_left_to_an_operator(self, start: Start) -> None:
        """Without a second copy nobody has the content: the remedy says what to do."""
        cluster = with_four_records(start)
        remove_copies(cluster)
        cluster.crash(1)
        cut(sorted((log_folder(cluster, 1) / "_delta_log").glob("*.json"))[-2])
        [one] = found(cluster)
        assert one.fault == "damaged_commit"
        assert "move the root away" in one.remedy
        [one] = repair(cluster.connection)
        assert one.state == "requested"

    @pytest.mark.parametrize("name", ["high_watermark_checkpoint", "leader_epoch_checkpoint"])
    def test_a_brokers_checkpoints_are_written_again(self, start: Start, name: str) -> None:
        """A running broker writes its checkpoint tables from its journal."""
        cluster = with_four_records(start)
        newest = max((cluster.root / "broker-1" / name).glob("*.parquet"), key=lambda one: one.name)
        for file in (cluster.root / "broker-1" / name).glob("*.parquet"):
            cut(file)
        [one] = found(cluster)
        assert (one.fault, one.path) == ("damaged_table_file", newest.name)
        assert repaired(cluster) == ["repaired"]
        assert found(cluster) == []

    def test_a_table_of_the_cluster_root_is_left_to_an_operator(self, start: Start) -> None:
        """Without a second copy, a file of the cluster root has to come from a backup."""
        cluster = with_four_records(start)
        for file in (cluster.root / "cluster" / "producer_ids").glob("*.parquet"):
            cut(file)
        cluster.idempotent_producer()
        for file in (cluster.root / "cluster" / "producer_ids").glob("*.parquet"):
            cut(file)
        remove_copies(cluster)
        [one] = found(cluster)
        assert (one.fault, one.broker_id, one.table_name) == (
            "damaged_table_file",
            None,
            "producer_ids",
        )
        [one] = repair(cluster.connection)
        assert one.state == "unrepairable"
        assert "backup" in one.outcome

    def test_a_damaged_header_is_named_with_its_replica(self, start: Start) -> None:
        """A changed header that a restart finds is named, and repaired by the broker itself."""
        cluster = with_four_records(start)
        cluster.crash(1)
        change_header(cluster, 1, 2, "base_offset", 7)
        faults = {one.fault: one for one in found(cluster)}
        assert faults.keys() == {"damaged_commit", "damaged_header"}
        assert faults["damaged_header"].first_offset == 2
        cluster.restart(1)
        check_at_rest(cluster, *VALUES)

    def test_a_missing_table_is_named(self, start: Start) -> None:
        """A table that is missing from a root that is in place is a finding."""
        cluster = with_four_records(start)
        shutil.rmtree(cluster.root / "broker-1" / PRODUCER_STATE.name)
        [one] = found(cluster)
        assert (one.fault, one.table_name) == ("missing_table", "producer_state")
        assert "restart the broker" in one.remedy


class TestIdleBrokers:
    def test_read_no_repairs(self, start: Start) -> None:
        """Without a request no broker opens the table of repairs, also after a restart."""
        cluster = with_four_records(start)
        scrub(cluster.connection)
        cluster.crash(1)
        cluster.restart(1)
        cluster.tick_until_idle()
        assert all("repairs" not in vars(one._cluster) for one in cluster.brokers.values())

    def test_keep_the_count_of_requests_over_a_restart(self, start: Start) -> None:
        """The count is what a broker compares, so a registration must keep it."""
        cluster = with_four_records(start)
        change_rows_of_records(cluster, 1)
        assert len(found(cluster)) == 1
        repair(cluster.connection)
        cluster.tick_until_idle()
        cluster.crash(1)
        cluster.restart(1)
        counts: list[Row] = rows(cluster, None, BROKERS)
        assert [one["repair_requests"] for one in counts] == [None, 1, None]
