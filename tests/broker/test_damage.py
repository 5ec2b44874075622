"""A replica with damaged headers or batch files does not serve them, and is refilled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog.cli.cluster import Cluster
from sparklog.cli.sql import query
from sparklog.errors import ProtocolError
from sparklog.model import HIGH_WATERMARK_CHECKPOINT, PARTITION_STATE
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.testing import LocalCluster
from tests.broker.damaging import batch_file, change_header, cut, flip_byte, log_folder
from tests.broker.states import check_at_rest, error, error_of_consume, log, report, rows, values

Start = Callable[..., LocalCluster]

VALUES = ("a", "b", "c", "d")

FILE_DAMAGES = [flip_byte, cut, Path.unlink]


def with_four_records(start: Start, *brokers: int, min_isr: int = 1) -> LocalCluster:
    """Start a cluster with four batches of one record on all replicas."""
    cluster = start(*(brokers or (0, 1, 2)), min_isr=min_isr)
    produce(cluster, *VALUES)
    return cluster


def produce(cluster: LocalCluster, *records: str) -> None:
    for value in records:
        pending = cluster.produce("t", 0, [value.encode()])
        cluster.tick_until_idle()
        assert pending.response is not None
        assert pending.response.error == "NONE"


def scrub(cluster: LocalCluster, broker: int) -> None:
    """Let a broker verify its files, and do the first step of a repair."""
    cluster.clock.advance(1_000)
    cluster.leader_tick(broker)


def offered(cluster: LocalCluster, broker: int) -> int:
    """Return the log end offset that a broker's log reports to its readers."""
    key = cluster.connection.metadata().partition("t", 0).key
    opened = RecordLog(Location.of(str(log_folder(cluster, broker).parent)))
    return opened.log_end_offset(key)


def truncations(cluster: LocalCluster) -> list[dict[str, Any]]:
    found = query("from truncations", Cluster.of(str(cluster.root / "cluster")))
    rows: list[dict[str, Any]] = found.rows.to_pylist()
    return rows


class TestDamagedHeaders:
    """A changed digit in a commit, found when the log is opened (rule 9.5)."""

    @pytest.mark.parametrize(("offset", "value"), [(0, 7), (1, 0), (2, 7), (3, 7)])
    def test_a_follower_with_a_changed_base_offset_is_refilled(
        self, start: Start, offset: int, value: int
    ) -> None:
        """A follower whose log has a wrong base offset is refilled from the leader."""
        cluster = with_four_records(start)
        cluster.crash(1)
        change_header(cluster, 1, offset, "base_offset", value)
        cluster.restart(1)
        check_at_rest(cluster, *VALUES)

    def test_a_damaged_replica_leaves_the_isr_before_its_batches_are_removed(
        self, start: Start
    ) -> None:
        """A damaged replica leaves the ISR first, and removes its damaged batches afterwards."""
        cluster = with_four_records(start)
        cluster.crash(1)
        change_header(cluster, 1, 2, "base_offset", 7)
        cluster.restart(1)
        cluster.follower_tick(1)
        assert len(values(cluster.log(1, "t", 0))) == offered(cluster, 1) == 2
        cluster.leader_tick(1)
        assert cluster.partition("t", 0).isr == [0, 2]
        check_at_rest(cluster, *VALUES)
        assert report(cluster, 1)["damage"] is None
        [cut] = truncations(cluster)
        assert (cut["broker_id"], cut["cause"], cut["leader"]) == (1, "damage", 0)
        assert cut["to_offset"] == 2 < cut["from_offset"]
        # They are copied from the leader again.
        assert cut["records_lost"] == 0

    def test_a_leader_that_restarts_with_damage_hands_over_and_is_refilled(
        self, start: Start
    ) -> None:
        """A leader that restarts with a damaged header gives up its leadership and is refilled."""
        cluster = with_four_records(start, min_isr=2)
        cluster.crash(0)
        change_header(cluster, 0, 1, "leader_epoch", 5)
        cluster.restart(0)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 1
        check_at_rest(cluster, *VALUES)
        produce(cluster, "e")
        check_at_rest(cluster, *VALUES, "e")

    def test_a_damaged_replica_does_not_lead_when_the_leader_falls_silent(
        self, start: Start
    ) -> None:
        """A damaged replica is not elected when the leader becomes fenced."""
        cluster = with_four_records(start)
        cluster.crash(1)
        change_header(cluster, 1, 3, "base_offset", 8)
        cluster.restart(1)
        cluster.crash(0)
        cluster.fence(0)
        late = cluster.produce("t", 0, [b"late"])
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 2
        assert late.response is not None
        assert late.response.error == "NONE"
        assert values(cluster.consume("t", 0)) == [*VALUES, "late"]
        cluster.restart(0)
        check_at_rest(cluster, *VALUES, "late")

    def test_the_last_member_is_offline_and_its_batches_stay(self, start: Start) -> None:
        """Batches are removed only if there is a leader from which they can be copied."""
        cluster = with_four_records(start, 0)
        cluster.crash(0)
        change_header(cluster, 0, 2, "base_offset", 9)
        cluster.restart(0)
        cluster.tick_until_idle()
        state = cluster.partition("t", 0)
        assert (state.leader, state.isr) == (None, [])
        assert error_of_consume(cluster) == "LEADER_NOT_AVAILABLE"
        key = cluster.connection.metadata().partition("t", 0).key
        assert len(cluster.brokers[0]._roots[0].log.unsound_batches(key)) == 2
        for _ in range(3):
            cluster.crash(0)
            cluster.restart(0)
            cluster.tick_until_idle()
        assert len(cluster.brokers[0]._roots[0].log.unsound_batches(key)) == 2

    def test_after_an_unclean_election_the_sound_prefix_is_the_log(self, start: Start) -> None:
        """After an unclean election of a damaged replica, its log is the sound prefix."""
        cluster = with_four_records(start, 0)
        cluster.crash(0)
        change_header(cluster, 0, 2, "base_offset", 9)
        cluster.restart(0)
        cluster.tick_until_idle()
        cluster.elect_leaders("unclean", [("t", 0)])
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 0
        assert values(cluster.consume("t", 0)) == ["a", "b"]
        [lost] = truncations(cluster)
        assert (lost["cause"], lost["to_offset"], lost["records_lost"]) == ("damage", 2, 2)
        produce(cluster, "e")
        cluster.crash(0)
        cluster.restart(0)
        check_at_rest(cluster, "a", "b", "e")

    @pytest.mark.parametrize("broker", [0, 1])
    def test_a_crash_after_the_cut_is_repaired_after_the_restart(
        self, start: Start, broker: int
    ) -> None:
        """A broker that dies after it has cut its damaged log completes the repair after its
        restart.
        """
        effect = "damage_cut"
        cluster = with_four_records(start, min_isr=2)
        cluster.crash(broker)
        change_header(cluster, broker, 1, "base_offset", 9)
        cluster.restart(broker)
        for _ in range(5):
            cluster.controller_tick()
            cluster.leader_tick(broker, stop_after=effect)
            if broker not in cluster.brokers:
                break
            cluster.leader_tick(1 - broker)
            cluster.leader_tick(2)
        else:
            raise AssertionError(f"no tick came to {effect}")
        assert broker not in cluster.partition("t", 0).isr
        cluster.restart(broker)
        check_at_rest(cluster, *VALUES)

    def test_damage_that_only_followers_read_makes_the_leader_hand_over(self, start: Start) -> None:
        """The leader has the sound header in memory, and verifies its table on a follower's
        report.
        """
        cluster = start(0, 1, 2)
        cluster.crash(2)
        cluster.fence(2)
        produce(cluster, *VALUES)
        change_header(cluster, 0, 1, "base_offset", 9)
        cluster.restart(2)
        check_at_rest(cluster, *VALUES)
        assert cluster.partition("t", 0).leader == 1


@pytest.mark.parametrize("damage", FILE_DAMAGES)
class TestDamagedFiles:
    """A batch file whose bytes are flipped, truncated or missing (rule 10.8)."""

    def test_a_leader_finds_it_hands_over_and_is_refilled(
        self, start: Start, damage: Callable[[Path], object]
    ) -> None:
        """A leader that finds a damaged file leaves the ISR, gives up its leadership and is
        refilled.
        """
        cluster = with_four_records(start, min_isr=2)
        damage(batch_file(cluster, 0, 1))
        scrub(cluster, 0)
        state = cluster.partition("t", 0)
        assert state.isr == [1, 2]
        assert report(cluster, 0)["damaged_offset"] == 1
        assert batch_file(cluster, 0, 1).name in report(cluster, 0)["damage"]
        check_at_rest(cluster, *VALUES)
        assert cluster.partition("t", 0).leader == 1
        assert report(cluster, 0)["damage"] is None

    def test_a_follower_finds_it_and_is_refilled(
        self, start: Start, damage: Callable[[Path], object]
    ) -> None:
        """A follower that finds a damaged file leaves the ISR and is refilled."""
        cluster = with_four_records(start)
        damage(batch_file(cluster, 1, 2))
        scrub(cluster, 1)
        state = cluster.partition("t", 0)
        assert (state.leader, state.isr) == (0, [0, 2])
        check_at_rest(cluster, *VALUES)

    def test_a_follower_that_cannot_copy_it_reports_it_to_the_leader(
        self, start: Start, damage: Callable[[Path], object]
    ) -> None:
        """A follower that cannot copy a damaged file reports it, and the leader hands over."""
        cluster = start(0, 1, 2)
        cluster.crash(2)
        cluster.fence(2)
        produce(cluster, *VALUES)
        damage(batch_file(cluster, 0, 1))
        cluster.restart(2)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 1
        check_at_rest(cluster, *VALUES)

    def test_the_only_copy_keeps_its_place_and_is_reported(
        self, start: Start, damage: Callable[[Path], object]
    ) -> None:
        """The rest can still be read, and restoring the file ends the damage."""
        cluster = with_four_records(start, 0)
        file = batch_file(cluster, 0, 1)
        content = file.read_bytes()
        damage(file)
        scrub(cluster, 0)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 0
        assert report(cluster, 0)["damaged_offset"] == 1
        file.write_bytes(content)
        scrub(cluster, 0)
        cluster.tick_until_idle()
        assert report(cluster, 0)["damage"] is None
        produce(cluster, "e")
        check_at_rest(cluster, *VALUES, "e")

    @pytest.mark.parametrize("broker", [0, 1])
    @pytest.mark.parametrize("effect", ["damage_isr", "damage_cut"])
    def test_a_crash_between_two_steps_is_repaired_after_the_restart(
        self, start: Start, damage: Callable[[Path], object], effect: str, broker: int
    ) -> None:
        """A broker that dies between two steps of a repair completes it after its restart."""
        cluster = with_four_records(start, min_isr=2)
        damage(batch_file(cluster, broker, 1))
        cluster.clock.advance(1_000)
        for _ in range(5):
            cluster.controller_tick()
            cluster.leader_tick(broker, stop_after=effect)
            if broker not in cluster.brokers:
                break
            cluster.leader_tick(1 - broker)
            cluster.leader_tick(2)
        else:
            raise AssertionError(f"no tick came to {effect}")
        assert broker not in cluster.partition("t", 0).isr
        cluster.restart(broker)
        cluster.tick_until_idle()
        # No other scrub is needed: the checkpoint names the damaged batch.
        check_at_rest(cluster, *VALUES)


class TestSafety:
    def test_a_replica_that_was_added_to_the_isr_meanwhile_leaves_it_before_its_batches_are_removed(
        self, start: Start
    ) -> None:
        """By the broker's metadata it was outside the ISR; its leader had added it since.

        It removed its batches while it was in sync: had the leader died then, the records were
        lost. On an object store the metadata are read every 500 ms (simulation, seed 21562).
        """
        cluster = with_four_records(start, 0, 1)
        cluster.crash(1)
        cluster.clock.advance(10_000)
        cluster.controller_tick()
        cluster.restart(1)
        cluster.follower_tick(1)
        cluster.pause(1)
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0, 1]
        flip_byte(batch_file(cluster, 1, 0))
        scrub(cluster, 1)
        assert cluster.partition("t", 0).isr == [0]
        assert offered(cluster, 1) == 4
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0]
        cluster.resume(1)
        check_at_rest(cluster, *VALUES)

    def test_a_replica_that_was_elected_meanwhile_is_not_cut_as_after_an_unclean_election(
        self, start: Start
    ) -> None:
        """It left the ISR by metadata from before its clean election, whose epoch is higher.

        It then removed its batches as lost, before another broker led.
        """
        cluster = start(0, 1, 2, assignment={0: [1, 0, 2]})
        produce(cluster, *VALUES)
        cluster.crash(1)
        cluster.fence(1)
        cluster.tick_until_idle()
        cluster.restart(1)
        cluster.tick_until_idle()
        cluster.pause(1)
        flip_byte(batch_file(cluster, 1, 0))
        cluster.elect_leaders("preferred", [("t", 0)])
        assert cluster.partition("t", 0).leader == 1
        scrub(cluster, 1)
        assert cluster.partition("t", 0).isr == [0, 2]
        cluster.resume(1)
        cluster.leader_tick(1)
        assert offered(cluster, 1) == 4
        check_at_rest(cluster, *VALUES)
        assert {one["records_lost"] for one in truncations(cluster)} == {0}

    def test_a_report_that_is_wrong_moves_nothing(self, start: Start) -> None:
        """The leader verifies its own file; a follower's report alone has no effect."""
        cluster = with_four_records(start)
        replicas = cluster.brokers[1]._followers[0]._replicas
        key = cluster.connection.metadata().partition("t", 0).key
        replicas.note_leader_fault(key, 1)
        replicas.commit(0)
        assert report(cluster, 1)["leader_damaged_offset"] == 1
        before = cluster.partition("t", 0)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0) == before

    def test_a_root_that_is_gone_is_no_damage(self, start: Start, tmp_path: Path) -> None:
        """On an unmounted disk all files are missing, which is no reason to remove batches."""
        cluster = with_four_records(start)
        root = log_folder(cluster, 1)
        root.rename(tmp_path / "away")
        cluster.clock.advance(1_000)
        repairs = cluster.brokers[1]._repairs[0]
        repairs._scrub()
        assert not repairs._replicas.damaged
        (tmp_path / "away").rename(root)
        check_at_rest(cluster, *VALUES)

    def test_records_that_are_written_meanwhile_are_kept(self, start: Start) -> None:
        """A record that is acknowledged during a repair is kept."""
        cluster = with_four_records(start)
        flip_byte(batch_file(cluster, 0, 0))
        cluster.clock.advance(1_000)
        pending = cluster.produce("t", 0, [b"e"])
        cluster.tick_until_idle()
        assert pending.response is not None
        expected = list(VALUES)
        if pending.response.error == "NONE":
            expected.append("e")
        check_at_rest(cluster, *expected)

    def test_two_damaged_replicas_are_refilled_from_the_third(self, start: Start) -> None:
        """Two damaged replicas are refilled from the third one."""
        cluster = with_four_records(start)
        flip_byte(batch_file(cluster, 0, 1))
        flip_byte(batch_file(cluster, 1, 2))
        cluster.clock.advance(1_000)
        cluster.tick_until_idle()
        cluster.clock.advance(1_000)
        check_at_rest(cluster, *VALUES)

    def test_the_last_good_copy_of_other_records_does_not_leave(self, start: Start) -> None:
        """Both members are damaged at different offsets. One stays in the ISR, so that the rest can
        be read.
        """
        cluster = with_four_records(start, 0, 1)
        flip_byte(batch_file(cluster, 0, 1))
        flip_byte(batch_file(cluster, 1, 2))
        cluster.clock.advance(1_000)
        cluster.tick_until_idle()
        assert len(cluster.partition("t", 0).isr) == 1
        damaged = {row["broker_id"] for row in rows(cluster, None, PARTITION_STATE)}
        assert damaged == {0, 1}

    def test_a_merge_that_meets_damage_repairs_the_replica(self, start: Start) -> None:
        """A merge that reads a damaged file starts the repair of the replica."""
        cluster = start(
            0,
            1,
            2,
            log_merger_min_lag_ms=1,
            log_merger_min_batches=2,
            log_scrub_bytes_per_second=0,
        )
        produce(cluster, *VALUES)
        flip_byte(batch_file(cluster, 1, 1))
        cluster.clock.advance(10)
        cluster.merge(1)
        cluster.leader_tick(1)
        assert cluster.partition("t", 0).isr == [0, 2]
        check_at_rest(cluster, *VALUES)

    def test_a_producer_is_known_again_after_the_refill(self, start: Start) -> None:
        """A refilled replica recognises the retry of an idempotent producer's batch."""
        cluster = start(0, 1, 2)
        producer = cluster.idempotent_producer()
        first = cluster.produce("t", 0, [b"a"], producer=producer)
        cluster.tick_until_idle()
        flip_byte(batch_file(cluster, 1, 0))
        scrub(cluster, 1)
        cluster.tick_until_idle()
        cluster.crash(0)
        cluster.fence(0)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 1
        again = producer.retry(first)
        cluster.tick_until_idle()
        assert again.response is not None
        assert (again.response.error, again.response.base_offset) == ("NONE", 0)
        cluster.restart(0)
        check_at_rest(cluster, "a")

    def test_checkpoints_show_it_as_columns(self, start: Start) -> None:
        """The checkpoint has columns for damage, which are null for sound replicas."""
        cluster = with_four_records(start)
        for row in rows(cluster, 0, HIGH_WATERMARK_CHECKPOINT):
            assert row["damaged_offset"] is None
            assert row["damage"] is None
            assert row["leader_damaged_offset"] is None
        assert log(cluster, 0) == list(VALUES)
        with pytest.raises(ProtocolError):
            cluster.produce("u", 0, [b"x"])


def newest_commit(cluster: LocalCluster, broker: int) -> Path:
    commits = (log_folder(cluster, broker) / "_delta_log").glob("*.json")
    return max(commits)


class TestDamagedCommit:
    """A commit of the log table is truncated while its broker, which has it in memory, runs."""

    @pytest.mark.parametrize("damage", [cut, Path.unlink, lambda path: path.write_bytes(b"")])
    def test_another_leads_and_the_broker_comes_back_with_the_restored_commit(
        self, start: Start, damage: Callable[[Path], object]
    ) -> None:
        """Another broker leads while the commit is damaged; after its restoration the broker is in
        sync again.
        """
        cluster = with_four_records(start, min_isr=2)
        commit = newest_commit(cluster, 0)
        content = commit.read_bytes()
        damage(commit)
        cluster.clock.advance(10_000)
        cluster.tick_until_idle()
        state = cluster.partition("t", 0)
        assert (state.leader, state.isr) == (1, [1, 2])
        # The others go on, including one that is started now.
        cluster.crash(2)
        cluster.restart(2)
        produce(cluster, "e")
        assert log(cluster, 2) == [*VALUES, "e"]
        commit.write_bytes(content)
        cluster.clock.advance(10_000)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).isr == [0, 1, 2]
        assert log(cluster, 0) == [*VALUES, "e"]

    def test_a_follower_that_has_left_is_not_added_again_by_its_old_report(
        self, start: Start
    ) -> None:
        """A broker whose journal lacks a commit commits no further reports, so that its last one
        stands. It left the ISR and was added again in each tick, and writers with acks=all waited
        for it.
        """
        cluster = start(0, 1, 2, min_isr=2, replica_lag_time_max_ms=30_000)
        produce(cluster, *VALUES)
        commits = sorted((log_folder(cluster, 2) / "_delta_log").glob("*.json"))
        commits[-3].unlink()
        cluster.clock.advance(10_000)
        cluster.tick_until_idle()
        state = cluster.partition("t", 0)
        assert state.isr == [0, 1]
        epoch = state.partition_epoch
        produce(cluster, "e", "f")
        assert cluster.partition("t", 0).partition_epoch == epoch

    def test_the_last_member_stays_a_member_and_leads_again_with_the_restored_commit(
        self, start: Start
    ) -> None:
        """The last ISR member stays in the ISR, and leads again once the commit is restored."""
        cluster = with_four_records(start)
        for broker in (1, 2):
            cluster.crash(broker)
            cluster.fence(broker)
        produce(cluster, "e")
        commit = newest_commit(cluster, 0)
        content = commit.read_bytes()
        cut(commit)
        cluster.clock.advance(10_000)
        cluster.leader_tick(0)
        pending = cluster.produce("t", 0, [b"f"], timeout_ms=1_000)
        cluster.leader_tick(0)
        assert error(pending) is None
        assert cluster.partition("t", 0).isr == [0]
        commit.write_bytes(content)
        cluster.clock.advance(10_000)
        cluster.tick_until_idle()
        produce(cluster, "g")
        assert error(pending) == "REQUEST_TIMED_OUT"
        assert log(cluster, 0) == [*VALUES, "e", "g"]
