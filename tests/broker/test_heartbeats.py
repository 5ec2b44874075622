"""A broker is alive as long as one of its journals has new commits; they also renew the lease."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from sparklog import clock
from sparklog.broker import checkpoints
from sparklog.broker.broker import Broker
from sparklog.broker.registration import await_session
from sparklog.errors import FencedError, ProtocolError
from sparklog.model import (
    BROKER_TABLES,
    BROKERS,
    CLUSTER_TABLES,
    CONTROLLER,
    LOG,
    PARTITION_STATE,
    TOPICS,
)
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage.commits import LOG_VERSION, read_commit
from sparklog.storage.delta_checkpoints import await_checkpoints
from sparklog.storage.delta_log import EMPTY_PER_COMMIT, DeltaLog
from sparklog.storage.delta_log_files import commit_path, newest_version
from sparklog.storage.execution import DriverExecution
from sparklog.storage.journal import Renewal, renewal_in
from sparklog.storage.journal_watch import JournalWatch
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error, journal, rows, table, take_out

Start = Callable[..., LocalCluster]
SESSION_MS = 9_000


def commits(cluster: LocalCluster) -> dict[str, int]:
    """Return the number of commits of every table, by root and name."""
    found = {}
    for root in ("cluster", *(f"broker-{one}" for one in cluster.broker_ids)):
        tables = CLUSTER_TABLES if root == "cluster" else BROKER_TABLES
        for schema in tables:
            names = Path(cluster.root, root, schema.name, "_delta_log").glob("*.json")
            found[f"{root}/{schema.name}"] = len(list(names))
    return found


def new_commits(cluster: LocalCluster, action: Callable[[], object]) -> dict[str, int]:
    """Return the commits that an action makes, by root and table."""
    before = commits(cluster)
    action()
    after = commits(cluster)
    return {name: after[name] - before[name] for name in after if after[name] > before[name]}


def state_of(cluster: LocalCluster, broker_id: int) -> str:
    [row] = [one for one in rows(cluster, None, BROKERS) if one["broker_id"] == broker_id]
    return str(row["state"])


def holder(cluster: LocalCluster) -> tuple[int, int]:
    [row] = rows(cluster, None, CONTROLLER)
    return row["broker_id"], row["controller_epoch"]


def log_location(cluster: LocalCluster, broker_id: int) -> Location:
    return Location.of(str(cluster.root / f"broker-{broker_id}")).child(LOG.name)


def lose_next_answer(monkeypatch: pytest.MonkeyPatch, log: DeltaLog) -> list[str]:
    """Let the next commit to a log land, lose its answer, and make the log unreadable at that
    time.
    """
    put, left = log._put, ["put"]
    is_by = log._is_by

    def landed(*arguments: Any) -> bool:
        is_free = put(*arguments)
        if left == ["put"]:
            left[:] = ["read"]
            assert is_free
            raise OSError("the answer is lost")
        return is_free

    def unreadable(commit_id: str) -> bool:
        if left == ["read"]:
            left.clear()
            raise OSError("the log is away")
        return is_by(commit_id)

    monkeypatch.setattr(log, "_put", landed)
    monkeypatch.setattr(log, "_is_by", unreadable)
    return left


class TestAHeartbeat:
    def test_of_an_idle_broker_is_one_commit_of_its_journal(self, start: Start) -> None:
        """The heartbeat of an idle broker is one commit of its journal, without a write to the
        cluster root.
        """
        cluster = start(0, 1)
        before = journal(cluster, 1)
        broker = cluster.brokers[1]
        broker.poll()
        assert new_commits(cluster, broker.heartbeat) == {"broker-1/log": 1}
        after = journal(cluster, 1)
        assert after.version == before.version + 1
        assert (after.rows, after.epochs, after.inbox_positions) == (
            before.rows,
            before.epochs,
            before.inbox_positions,
        )
        commit = read_commit(log_location(cluster, 1), after.version)
        assert commit is not None
        assert (commit.added, commit.removed, commit.transactions) == ([], [], {})
        entry = json.loads(str(commit.user_metadata))
        assert len(entry.pop("activity")) == 2
        assert entry == {
            "sparklog": 1,
            "seen": {
                "journals": [[0, 0, 1, journal(cluster, 0).version]],
                "tables": {
                    one.name: table(cluster, None, one).version
                    for one in (BROKERS, TOPICS, PARTITION_STATE)
                },
            },
        }

    def test_of_a_busy_broker_is_no_commit(self, start: Start) -> None:
        """A broker that has committed since its last heartbeat makes no extra commit."""
        cluster = start(0, 1)
        cluster.clock.advance(1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        broker = cluster.brokers[1]
        assert new_commits(cluster, broker.heartbeat) == {}
        assert new_commits(cluster, broker.heartbeat) == {"broker-1/log": 1}

    def test_is_made_where_a_commit_would_count_for_too_long(self, start: Start) -> None:
        """A commit just after a heartbeat counts as alive until the second heartbeat after it."""
        cluster = start(0, 1, broker_heartbeat_interval_ms=4_000)
        cluster.clock.advance(1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        assert new_commits(cluster, cluster.brokers[1].heartbeat) == {"broker-1/log": 1}

    def test_of_the_controller_renews_its_lease_beside_other_commits(self, start: Start) -> None:
        """The controller's heartbeat renews its lease also if the broker has made other commits."""
        cluster = start(0, 1)
        cluster.clock.advance(1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        assert new_commits(cluster, cluster.brokers[0].heartbeat) == {"broker-0/log": 1}
        version = newest_version(log_location(cluster, 0))
        commit = read_commit(log_location(cluster, 0), version)
        assert commit is not None
        assert renewal_in(commit) == Renewal(1, version)

    def test_goes_to_the_next_root_where_the_first_cannot_be_written_to(
        self, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A broker whose first root is not writable commits its heartbeat to the next root."""
        cluster = start(0, 1)
        second = Broker(
            7,
            Location.of(str(cluster.root / "cluster")),
            [Location.of(str(tmp_path / name)) for name in ("one", "two")],
            rules=DriverRules(),
            execution=DriverExecution(),
            clock=cluster.clock,
            settings=cluster.settings,
        )

        def away(*_: Any) -> bool:
            raise OSError("the root is away")

        logs = [second._roots[number].log for number in (0, 1)]
        before = [log.version for log in logs]
        monkeypatch.setattr(logs[0]._log, "_put", away)
        second.heartbeat()
        assert [log.version for log in logs] == [before[0], before[1] + 1]
        monkeypatch.setattr(logs[1]._log, "_put", away)
        second.poll()
        with pytest.raises(OSError, match="the root is away"):
            second.heartbeat()

    def test_of_a_process_that_was_replaced_is_fenced(self, start: Start) -> None:
        """The heartbeat of a replaced process raises `FencedError` and commits nothing."""
        cluster = start(0, 1)
        old = take_out(cluster, 1)
        old._heartbeats.note()
        cluster.restart(1)
        before = newest_version(log_location(cluster, 1))
        with pytest.raises(FencedError, match="a newer process plays this role"):
            old.heartbeat()
        assert newest_version(log_location(cluster, 1)) == before

    def test_whose_answer_was_lost_is_fenced_by_the_process_that_came_next(
        self, start: Start
    ) -> None:
        """After a heartbeat with a lost answer, the replaced process finds that it is fenced."""
        cluster = start(0, 1)
        old = take_out(cluster, 1)
        old._heartbeats.note()
        old._roots[0].log._log.is_uncertain = True
        cluster.restart(1)
        with pytest.raises(FencedError, match="a newer process plays this role"):
            old.heartbeat()

    def test_beside_another_tools_commit_leaves_it_to_the_next_tick(self, start: Start) -> None:
        """The index must not change during a step."""
        cluster = start(0, 1)
        broker = cluster.brokers[1]
        log = broker._roots[0].log
        other = DeltaLog(log.location)
        assert other.commit("OPTIMIZE")
        broker.poll()
        version = log.version
        broker.heartbeat()
        assert log.version == version
        cluster.follower_tick(1)
        assert new_commits(cluster, broker.heartbeat) == {"broker-1/log": 1}
        cluster.produce("t", 0, [b"a"])
        check_at_rest(cluster, "a")


class TestBesideATick:
    """A heartbeat during a tick of the same broker, which may take minutes."""

    def test_the_tick_commits_after_it(
        self, start: Start, before_rule: Callable[[str, Callable[[], object]], None]
    ) -> None:
        """A tick commits after a heartbeat that was made during the tick."""
        cluster = start(0, 1)
        broker = cluster.brokers[0]
        pending = cluster.produce("t", 0, [b"a"], acks=1)
        made: list[dict[str, int]] = []

        def beat() -> None:
            broker.poll()
            made.append(new_commits(cluster, broker.heartbeat))

        before_rule("request_errors", beat)
        assert cluster.leader_tick(0).changed
        assert made == [{"broker-0/log": 1}]
        assert error(pending) == "NONE"
        assert not cluster.leader_tick(0).changed
        check_at_rest(cluster, "a")

    def test_the_tick_goes_on_after_one_whose_answer_was_lost(
        self,
        start: Start,
        before_rule: Callable[[str, Callable[[], object]], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The heartbeat's commit has taken the version; it is recognised by its id and skipped."""
        cluster = start(0, 1)
        broker = cluster.brokers[0]
        log = broker._roots[0].log
        pending = cluster.produce("t", 0, [b"a"], acks=1)
        version = log.version
        left = lose_next_answer(monkeypatch, log._log)

        def beat() -> None:
            broker._heartbeats.note()
            with pytest.raises(OSError, match="the log is away"):
                broker.heartbeat()
            assert log.is_uncertain

        before_rule("request_errors", beat)
        cluster.leader_tick(0)
        assert left == []
        assert error(pending) == "NONE"
        assert log.version == version + 2
        assert not log.is_uncertain
        check_at_rest(cluster, "a")

    def test_the_next_heartbeat_steps_over_one_whose_answer_was_lost(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A heartbeat whose answer was lost is skipped by the next one."""
        cluster = start(0, 1)
        broker = cluster.brokers[1]
        log = broker._roots[0].log
        broker.poll()
        version, content = log.version, log.content_version
        lose_next_answer(monkeypatch, log._log)
        with pytest.raises(OSError, match="the log is away"):
            broker.heartbeat()
        broker.heartbeat()
        assert (log.version, log.content_version) == (version + 2, content)
        assert newest_version(log.location) == version + 2

    def test_a_step_whose_answer_was_lost_is_left_to_the_next_tick(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The heartbeat neither commits after it nor takes its batches into the index."""
        cluster = start(0, 1)
        broker = cluster.brokers[0]
        log = broker._roots[0].log
        pending = cluster.produce("t", 0, [b"a"], acks=1)
        version = log.version
        lose_next_answer(monkeypatch, log._log)
        with pytest.raises(OSError, match="the log is away"):
            cluster.leader_tick(0)
        broker.heartbeat()
        assert (log.version, log.is_uncertain) == (version, True)
        cluster.leader_tick(0)
        assert error(pending) == "NONE"
        broker.poll()
        assert new_commits(cluster, broker.heartbeat) == {"broker-0/log": 1}
        check_at_rest(cluster, "a")

    def test_a_step_that_failed_leaves_its_version_to_the_heartbeat(self, start: Start) -> None:
        """A heartbeat takes the version of a step whose commit failed."""
        cluster = start(0, 1)
        broker = cluster.brokers[0]
        pending = cluster.produce("t", 0, [b"a"], acks=1)
        broker._roots[0].log._log.is_uncertain = True
        broker.poll()
        assert new_commits(cluster, broker.heartbeat) == {"broker-0/log": 1}
        cluster.leader_tick(0)
        assert error(pending) == "NONE"
        check_at_rest(cluster, "a")

    def test_ticks_and_heartbeats_alone_come_to_rest(self, start: Start) -> None:
        """After two heartbeats of each broker an idle cluster makes no further commits."""
        cluster = start(0, 1, 2)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        for broker in cluster.brokers.values():
            broker.heartbeat()
            broker.heartbeat()
        reports = [cluster.controller_tick()]
        reports += [cluster.leader_tick(broker) for broker in (0, 1, 2)]
        reports += [cluster.follower_tick(broker) for broker in (0, 1, 2)]
        assert {(report.changed, report.commits) for report in reports} == {(False, 0)}


class TestSilence:
    def test_a_broker_that_only_heartbeats_is_not_fenced(self, start: Start) -> None:
        """A broker that makes only heartbeats stays alive, and its row does not change."""
        cluster = start(0, 1)
        before = rows(cluster, None, BROKERS)
        for _ in range(3):
            cluster.clock.advance(SESSION_MS)
            cluster.controller_tick()
        after = rows(cluster, None, BROKERS)
        assert [row["heartbeat"] for row in after] == [row["heartbeat"] for row in before]
        assert [row["state"] for row in after] == ["alive", "alive"]

    def test_an_unreadable_root_shows_no_sign_of_life(self, start: Start) -> None:
        """The other brokers are observed all the same, and the failure is logged once."""
        cluster = start(0, 1, 2, assignment={0: [0, 2]})
        root = cluster.root / "broker-1"
        shutil.move(root, cluster.root / "away")
        cluster.brokers[1].is_paused = True
        with structlog.testing.capture_logs() as logs:
            cluster.clock.advance(SESSION_MS)
            cluster.controller_tick()
            assert state_of(cluster, 1) == "alive"
            cluster.clock.advance(1)
            cluster.controller_tick()
            cluster.controller_tick()
        assert [state_of(cluster, one) for one in (0, 1, 2)] == ["alive", "fenced", "alive"]
        told = [one for one in logs if one["event"] == "journal not readable"]
        assert [one["broker"] for one in told] == [1] * len(told)
        assert len(told) <= 2
        shutil.move(cluster.root / "away", root)
        cluster.resume(1)
        assert state_of(cluster, 1) == "alive"

    def test_a_fenced_broker_that_goes_on_is_alive_again(self, start: Start) -> None:
        """A fenced broker whose journal goes on becomes alive again."""
        cluster = start(0, 1)
        cluster.pause(1)
        cluster.fence(1)
        assert state_of(cluster, 1) == "fenced"
        cluster.resume(1)
        assert state_of(cluster, 1) == "alive"
        assert new_commits(cluster, cluster.brokers[1].heartbeat) == {"broker-1/log": 1}

    def test_a_starting_broker_finds_the_process_that_only_heartbeats(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A starting broker detects a process of the same id that makes only heartbeats."""
        cluster = start(0, 1)
        monkeypatch.setattr("sparklog.broker.registration._WATCH_MS", 0)
        brokers = table(cluster, None, BROKERS)
        refresh, looks = brokers.refresh, [0]

        def meanwhile() -> bool:
            looks[0] += 1
            cluster.brokers[1].heartbeat()
            assert looks[0] < 10
            return refresh()

        monkeypatch.setattr(brokers, "refresh", meanwhile)
        with pytest.raises(ProtocolError, match="DUPLICATE_BROKER_REGISTRATION"):
            await_session(brokers, 1, 60_000, cluster.clock, Location)


class TestTheLease:
    def test_is_renewed_without_a_commit_of_its_table(self, start: Start) -> None:
        """The lease is renewed by commits of the holder's journal, without a commit of its
        table.
        """
        cluster = start(0, 1)
        before = table(cluster, None, CONTROLLER).version
        for _ in range(3):
            cluster.clock.advance(SESSION_MS)
            cluster.controller_tick()
        assert holder(cluster) == (0, 1)
        assert table(cluster, None, CONTROLLER).version == before

    def test_lapses_where_the_holder_lives_without_renewing_it(self, start: Start) -> None:
        """The lease lapses if the holder does not renew it, for example because its controller
        ticks fail.
        """
        cluster = start(0, 1)
        old = take_out(cluster, 0)
        for _ in range(3):
            cluster.clock.advance(SESSION_MS // 2)
            old.heartbeat_without_lease()
            cluster.brokers[1].poll()
            cluster.controller_tick()
        assert holder(cluster) == (1, 2)
        assert state_of(cluster, 0) == "alive"

    def test_is_not_renewed_by_one_that_lost_it_while_it_was_suspended(self, start: Start) -> None:
        """A process that lost the lease during a suspension stays alive as a broker and does not
        renew it.
        """
        cluster = start(0, 1)
        old = take_out(cluster, 0)
        cluster.fence(0)
        assert holder(cluster) == (1, 2)
        old.heartbeat()
        location = log_location(cluster, 0)
        commit = read_commit(location, newest_version(location))
        assert commit is not None
        assert renewal_in(commit) is None
        assert not old.is_controller

    def test_is_not_renewed_where_its_table_cannot_be_read(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker is alive all the same."""
        cluster = start(0, 1)
        broker = cluster.brokers[0]
        broker.poll()

        def away() -> bool:
            raise OSError("the table is away")

        monkeypatch.setattr(broker._cluster.controller, "refresh", away)
        with pytest.raises(OSError, match="the table is away"):
            broker.heartbeat()
        location = log_location(cluster, 0)
        commit = read_commit(location, newest_version(location))
        assert commit is not None
        assert json.loads(str(commit.user_metadata)).keys() == {
            "sparklog",
            "seen",
            "activity",
        }


class TestCheckpoints:
    def test_are_not_written_for_heartbeats(self, start: Start) -> None:
        """Heartbeats alone cause no checkpoints."""
        cluster = start(0, 1, assignment={0: [0]})
        cluster.tick_until_idle()
        cluster.clock.advance(5_000)
        cluster.tick_until_idle()

        def idle() -> None:
            for _ in range(20):
                cluster.clock.advance(2_000)
                cluster.tick_until_idle()

        assert new_commits(cluster, idle) == {"broker-0/log": 20, "broker-1/log": 20}

    def test_and_a_clean_up_come_after_many_heartbeats(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The limit is five times that of commits with content, so that opening the journal stays
        cheap.
        """
        monkeypatch.setattr(checkpoints, "MOST_COMMITS", 2)
        cluster = start(0, 1, assignment={0: [0]})
        cluster.clock.advance(5_000)
        cluster.tick_until_idle()
        broker = cluster.brokers[0]
        monkeypatch.setattr(broker._roots[0].log._log, "checkpoint_interval", 2)
        broker._roots[0].log.write_due_checkpoint()
        await_checkpoints()

        def idle() -> None:
            for _ in range(EMPTY_PER_COMMIT):
                broker.heartbeat()
            cluster.leader_tick(0)

        made = [new_commits(cluster, idle) for _ in range(4)]
        tables = [
            f"broker-0/{name}"
            for name in (
                "high_watermark_checkpoint",
                "leader_epoch_checkpoint",
                "delayed_operations",
            )
        ]
        written = [one for one in made if len(one) > 1]
        assert 1 <= len(written) <= 2
        assert all(one[name] == 1 for one in written for name in tables)
        await_checkpoints()
        names = Path(log_location(cluster, 0).uri, "_delta_log").glob("*.checkpoint.parquet")
        assert list(names)

    def test_all_name_one_version_before_the_log_is_cleaned_up(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reader needs the commits after the oldest checkpoint; here only the rows change."""
        cluster = start(0, 1)
        log = cluster.brokers[0]._roots[0].log
        monkeypatch.setattr(log._log, "checkpoint_interval", 10)
        described: list[set[int | None]] = []
        write_checkpoint = log.write_due_checkpoint

        def noted() -> None:
            described.append({one.held_by(LOG_VERSION) for one in root.checkpoints})
            write_checkpoint()

        root = cluster.brokers[0]._roots[0]
        monkeypatch.setattr(log, "write_due_checkpoint", noted)
        for number in range(8):
            cluster.produce("t", 0, [b"%d" % number])
            cluster.clock.advance(5_000)
            cluster.tick_until_idle()
        assert described
        assert [len(versions) for versions in described] == [1] * len(described)

    def test_are_written_at_a_clean_stop_only_where_there_is_news(self, start: Start) -> None:
        """A clean stop writes only the checkpoints whose content has changed."""
        cluster = start(0, 1, assignment={0: [0]})
        broker = cluster.brokers[1]
        broker._write_checkpoints()
        broker.heartbeat()
        broker.heartbeat()
        assert new_commits(cluster, broker._write_checkpoints) == {}


class TestVersionsOfLogs:
    """`log_version` in `brokers`, by which the restoration of a complete root is detected."""

    def test_are_committed_once_a_minute_for_all_brokers(self, start: Start) -> None:
        """The versions of all brokers' logs are committed once a minute, in one commit."""
        cluster = start(0, 1, 2)
        controller = table(cluster, None, BROKERS)
        before = controller.version
        for _ in range(59):
            cluster.clock.advance(1_000)
            cluster.controller_tick()
        controller.refresh()
        assert controller.version == before
        cluster.clock.advance(1_000)
        assert cluster.controller_tick().commits == 1
        assert cluster.controller_tick().commits == 0
        controller.refresh()
        assert controller.version == before + 1
        for row in controller.rows().to_pylist():
            newest = newest_version(log_location(cluster, row["broker_id"]))
            assert row["log_version"] == f"[{newest - 1}]"

    @pytest.mark.parametrize("is_fenced", [True, False])
    def test_show_that_a_whole_root_was_restored(self, start: Start, *, is_fenced: bool) -> None:
        """The copy is from before the broker was fenced, or from before the last full minute."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        root = cluster.root / "broker-1"
        shutil.copytree(root, cluster.root / "copy")
        # There are only heartbeats: no other replica has more records than the copy.
        for _ in range(3):
            cluster.clock.advance(1_000)
        if is_fenced:
            cluster.crash(1)
            cluster.fence(1)
        else:
            cluster.clock.advance(60_000)
            cluster.controller_tick()
            cluster.crash(1)
        shutil.rmtree(root)
        shutil.move(cluster.root / "copy", root)
        cluster.restart(1)
        assert cluster.partition("t", 0).isr == [0]
        check_at_rest(cluster, "a")

    def test_never_decrease(self, start: Start) -> None:
        """A log version in `brokers` never decreases."""
        cluster = start(0, 1)
        cluster.clock.advance(60_000)
        brokers = table(cluster, None, BROKERS)
        raised = [row | {"log_version": "[1000]"} for row in brokers.rows().to_pylist()]
        brokers.compare_and_set(BROKERS.rows(raised))
        cluster.controller_tick()
        cluster.pause(1)
        cluster.fence(1)
        assert {row["log_version"] for row in rows(cluster, None, BROKERS)} == {"[1000]"}


class TestAWatch:
    """A `JournalWatch` follows the versions of a journal and nothing else."""

    def test_sees_versions_and_renewals(self, start: Start) -> None:
        """A watch reports the newest version and the newest renewal of the lease."""
        cluster = start(0, 1)
        watch = JournalWatch(Location.of(str(cluster.root / "broker-0")))
        version = watch.version
        assert watch.renewal is None
        cluster.clock.advance(1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        watch.refresh()
        assert watch.version == newest_version(log_location(cluster, 0)) > version + 1
        assert watch.renewal == Renewal(1, version + 1)

    def test_goes_past_a_damaged_commit(self, start: Start) -> None:
        """The journal goes on; only its readers report the damaged content."""
        cluster = start(0, 1)
        watch = JournalWatch(Location.of(str(cluster.root / "broker-1")))
        cluster.clock.advance(1)
        path = Path(log_location(cluster, 1).uri, f"_delta_log/{watch.version + 1:020}.json")
        path.write_text("{")
        version = watch.version
        watch.refresh()
        assert watch.version == version + 1

    @pytest.mark.parametrize("is_cleaned_up", [True, False], ids=["cleaned up", "lost"])
    def test_goes_past_commits_that_are_gone(
        self, start: Start, monkeypatch: pytest.MonkeyPatch, is_cleaned_up: bool
    ) -> None:
        """After 60 s a watch finds the newest version behind commits that were cleaned up, or
        behind a lost one. Its broker counted as silent until clean-up had removed the commit before
        the lost one.
        """
        cluster = start(0, 1)
        watch = JournalWatch(Location.of(str(cluster.root / "broker-1")))
        version = watch.version
        for _ in range(4):
            cluster.clock.advance(1)
        for gone in range(version + 4) if is_cleaned_up else (version + 1,):
            log_location(cluster, 1).remove(commit_path(gone))
        watch.refresh()
        assert watch.version == version
        system, monotonic = clock.clocks()
        monkeypatch.setattr(clock, "clocks", lambda: (system + 61, monotonic))
        watch.refresh()
        assert watch.version == version + 4
