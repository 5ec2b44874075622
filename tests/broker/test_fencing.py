"""Two processes in one role: the older one cannot write anything, whatever state it has.

Between its registration and its first tick a new process only takes its fence.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparklog.broker.broker import Broker
from sparklog.errors import FencedError
from sparklog.model import (
    BROKERS,
    CLUSTER_TABLES,
    CONTROLLER,
    DELAYED_OPERATIONS,
    HIGH_WATERMARK_CHECKPOINT,
    PARTITION_STATE,
    PRODUCE_REQUESTS,
    TopicPartition,
)
from sparklog.storage.copying import Copied, Copy
from sparklog.storage.delta_snapshots import open_delta_table
from sparklog.storage.sharded_table import ShardedTable
from sparklog.testing import LocalCluster
from tests.broker.failing_disk import FailingDisk
from tests.broker.states import (
    check_at_rest,
    error,
    error_of_consume,
    high_watermark,
    log,
    rows,
    table,
    take_out,
    values,
    versions,
)

Start = Callable[..., LocalCluster]
BeforeRule = Callable[[str, Callable[[], object]], None]


def taken_over(cluster: LocalCluster, broker: int) -> Broker:
    """Start a second process of a broker; return the first one, which has not noticed."""
    old = take_out(cluster, broker)
    cluster.restart(broker)
    return old


def everything(cluster: LocalCluster) -> list[dict[str, int]]:
    """Return the versions of all tables of the cluster."""
    roots = [versions(cluster, broker) for broker in cluster.broker_ids]
    names = (schema.name for schema in CLUSTER_TABLES)
    folder = cluster.root / "cluster"
    return [*roots, {n: len(list((folder / n / "_delta_log").iterdir())) for n in names}]


def wake(cluster: LocalCluster, old: Broker) -> None:
    """Let a suspended process go on with its old state."""
    cluster.brokers[old.broker_id] = old
    old.poll()
    old.heartbeat()


class TestTheOlderProcessOfABroker:
    def test_writes_nothing(self, start: Start) -> None:
        """The process has records to append, copy and truncate, requests to refuse and to expire,
        an ISR to shrink, a lease to take, and a heartbeat due.
        """
        cluster = start(0, 1, 2, assignment={0: [0, 1], 1: [1, 0]}, replica_lag_time_max_ms=5000)
        cluster.produce("t", 0, [b"a"], timeout_ms=100)
        cluster.leader_tick(0)
        old = [taken_over(cluster, broker) for broker in (0, 1)]
        pending = [
            cluster.produce("t", 0, [b"b"], acks=1),
            cluster.produce("t", 0, [b"c"], timeout_ms=-1),
        ]
        cluster.crash(2)
        cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
        before = everything(cluster)
        for process in old:
            # It has committed nothing since its last heartbeat.
            process._heartbeats.note()
            actions = (
                process.leader_tick,
                process.follower_tick,
                process.controller_tick,
                process.heartbeat,
                process.park,
            )
            for action in (*actions, *actions):
                with pytest.raises(FencedError):
                    action()
        assert everything(cluster) == before
        assert [one.response for one in pending] == [None, None]
        assert cluster.partition("t", 0).isr == [0, 1]

    def test_is_fenced_by_what_it_finds_in_its_journal(
        self, start: Start, disk: FailingDisk
    ) -> None:
        """It reads its journal for a commit without an answer, and finds a newer process's commits.

        That process had removed a replica which the older one led: the tick ended with a
        `KeyError`, and the process stayed until its next commit (simulation, seed 20806).
        """
        cluster = start(0, 1, 2, assignment={0: [0, 1, 2]})
        cluster.tick_until_idle()
        cluster.pause(0)
        cluster.produce("t", 0, [b"a"])
        disk.fail(cluster.root / "broker-0" / "log")
        with pytest.raises(OSError, match="broker-0"):
            cluster.leader_tick(0)
        disk.mend()
        old = taken_over(cluster, 0)
        cluster.alter_partition_reassignments({TopicPartition("t", 0): [1, 2]})
        cluster.tick_until_idle()
        assert rows(cluster, 0, HIGH_WATERMARK_CHECKPOINT) == []
        cluster.clock.advance(cluster.settings.log_retention_check_interval_ms)
        with pytest.raises(FencedError, match="broker_epoch"):
            old.leader_tick()

    @pytest.mark.parametrize("rule", ["request_errors", "follower_progress", "high_watermark"])
    def test_may_be_taken_over_anywhere_in_a_tick(
        self, start: Start, before_rule: BeforeRule, rule: str
    ) -> None:
        """The old process can be replaced before any rule; its writes after that do not land."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.leader_tick(0)
        cluster.follower_tick(1)
        first = cluster.produce("t", 0, [b"b"], acks=1)
        old = take_out(cluster, 0)
        seen: list[dict[str, int]] = []

        def take_over() -> None:
            cluster.restart(0)
            seen.append(versions(cluster, 0))

        before_rule(rule, take_over)
        with pytest.raises(FencedError):
            old.leader_tick()
        assert [versions(cluster, 0)] == seen
        cluster.tick_until_idle()
        assert first.response is not None
        cluster.retry(first)
        check_at_rest(cluster, "a", "b")

    @pytest.mark.parametrize("rule", ["fetch", "follower_high_watermark"])
    def test_may_be_taken_over_anywhere_in_a_followers_tick(
        self, start: Start, before_rule: BeforeRule, rule: str
    ) -> None:
        """The old process can be replaced before any rule of a follower's tick; then it writes
        nothing.
        """
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.leader_tick(0)
        old = take_out(cluster, 1)
        seen: list[dict[str, int]] = []

        def take_over() -> None:
            cluster.restart(1)
            seen.append(versions(cluster, 1))

        before_rule(rule, take_over)
        with pytest.raises(FencedError):
            old.follower_tick()
        assert [versions(cluster, 1)] == seen
        check_at_rest(cluster, "a")

    def test_answers_nothing_after_it_was_taken_over_in_the_middle_of_a_tick(
        self, start: Start, before_rule: BeforeRule
    ) -> None:
        """A process that is replaced during a tick refuses no request, because its successor may
        append it.
        """
        cluster = start(0, 1)
        pending = cluster.produce("t", 0, [b"a"], timeout_ms=-1)
        old = take_out(cluster, 0)
        before_rule("request_errors", lambda: cluster.restart(0))
        with pytest.raises(FencedError):
            old.leader_tick()
        assert pending.response is None


class TestAnOldLeader:
    def test_that_wakes_after_a_failover_commits_nothing(self, start: Start) -> None:
        """No ISR member reports under its epoch, so its high watermark does not move."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        old = take_out(cluster, 0)
        zombie = cluster.produce("t", 0, [b"x"])
        cluster.fence(0)
        cluster.leader_tick(1)
        cluster.produce("t", 0, [b"b"])
        wake(cluster, old)
        cluster.leader_tick(0)
        assert error(zombie) == "NOT_LEADER_OR_FOLLOWER"
        assert log(cluster, 0) == ["a"]
        check_at_rest(cluster, "a", "b")
        assert cluster.partition("t", 0).leader == 1

    @pytest.mark.parametrize("rule", ["request_errors", "delayed_operations"])
    def test_deposed_in_the_middle_of_its_tick_acknowledges_nothing_that_is_lost(
        self, start: Start, before_rule: BeforeRule, rule: str
    ) -> None:
        """A leader that is deposed during its tick acknowledges none of the records that it
        truncates later.
        """
        cluster = start(0, 1, 2)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        pending = cluster.produce("t", 0, [b"x"])
        old = take_out(cluster, 0)

        def depose() -> None:
            cluster.fence(0)
            cluster.leader_tick(1)
            cluster.produce("t", 0, [b"b"], acks=1)
            cluster.leader_tick(1)
            cluster.follower_tick(2)

        before_rule(rule, depose)
        old.leader_tick()
        assert log(cluster, 0) == ["a", "x"]
        assert error(pending) is None
        assert high_watermark(cluster, 0) == 1
        assert cluster.partition("t", 0).leader == 1
        cluster.follower_tick(2)
        wake(cluster, old)
        check_at_rest(cluster, "a", "b")
        assert error(pending) == "NOT_LEADER_OR_FOLLOWER"

    def test_cannot_drop_its_successor_from_the_in_sync_set(
        self, start: Start, before_rule: BeforeRule
    ) -> None:
        """The partition epoch has increased. Alone in the ISR it would commit records that are
        lost.
        """
        cluster = start(0, 1, replica_lag_time_max_ms=5000)
        pending = cluster.produce("t", 0, [b"x"])
        cluster.leader_tick(0)
        cluster.clock.advance(5001)
        old = take_out(cluster, 0)

        def depose() -> None:
            cluster.fence(0)
            cluster.leader_tick(1)

        before_rule("isr_shrink", depose)
        old.leader_tick()
        assert pending.response is None
        assert cluster.partition("t", 0).isr == [1]
        assert high_watermark(cluster, 0) == 0
        assert error_of_consume(cluster) == "NONE"
        assert values(cluster.consume("t", 0)) == []


class TestAFollower:
    def test_does_not_commit_what_it_copied_while_the_leader_changed(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A follower reads the metadata again between the copy and the commit, and drops outdated
        copies (6.4).
        """
        cluster = start(0, 1, 2)
        cluster.produce("t", 0, [b"x"], acks=1)
        cluster.leader_tick(0)
        follower = cluster.brokers[2]._followers[0]
        copy = follower._execution.copy

        def slow_copy(copies: list[Copy]) -> list[Copied]:
            cluster.crash(0)
            cluster.fence(0)
            return copy(copies)

        monkeypatch.setattr(follower._execution, "copy", slow_copy)
        cluster.follower_tick(2)
        assert log(cluster, 2) == []
        monkeypatch.undo()
        cluster.restart(0)
        check_at_rest(cluster)

    def test_believes_no_row_of_a_leader_that_has_registered_again(self, start: Start) -> None:
        """The row has the current epoch, but the process that wrote it has been replaced."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"], acks=1)
        cluster.leader_tick(0)
        taken_over(cluster, 0)
        cluster.controller_tick()
        assert cluster.partition("t", 0).leader_epoch == 1
        cluster.follower_tick(1)
        assert log(cluster, 1) == []


class TestAnOldController:
    def test_that_wakes_after_another_took_over_decides_nothing(self, start: Start) -> None:
        """A suspended controller that was replaced meanwhile decides nothing."""
        cluster = start(0, 1, 2)
        old = take_out(cluster, 0)
        was_controller = old.is_controller
        cluster.fence(0)
        before = rows(cluster, None, PARTITION_STATE)
        old.controller_tick()
        assert (was_controller, old.is_controller) == (True, False)
        assert rows(cluster, None, PARTITION_STATE) == before

    @pytest.mark.parametrize("rule", ["silent_brokers", "leader_election"])
    def test_replaced_in_the_middle_of_its_tick_writes_nothing(
        self, start: Start, before_rule: BeforeRule, rule: str
    ) -> None:
        """A controller that is replaced during its tick writes nothing: the tables have a higher
        epoch by then.
        """
        cluster = start(1, 2, 0)
        old = next(one for one in cluster.brokers.values() if one.is_controller)
        take_out(cluster, old.broker_id)
        dead, next_one = sorted({0, 1, 2} - {old.broker_id})
        cluster.crash(dead)
        cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
        seen: list[object] = []

        def replace() -> None:
            cluster.controller_tick()
            seen.append(rows(cluster, None, PARTITION_STATE))

        before_rule(rule, replace)
        old.controller_tick()
        assert [rows(cluster, None, PARTITION_STATE)] == seen
        assert rows(cluster, None, CONTROLLER)[0]["broker_id"] == next_one
        old.controller_tick()
        assert not old.is_controller

    def test_does_not_renew_the_lease_of_its_successor(self, start: Start) -> None:
        """An old controller does not renew the lease of its successor."""
        cluster = start(0, 1, 2)
        old = take_out(cluster, 0)
        cluster.fence(0)
        old._controller.observe(cluster.clock.monotonic_ms())
        lease = rows(cluster, None, CONTROLLER)
        assert old._controller.epoch_to_renew() is None
        assert rows(cluster, None, CONTROLLER) == lease

    def test_that_was_suspended_through_clean_up_renews_no_lease(self, start: Start) -> None:
        """No commit stands in its way after the clean-up; it used to go on in a branch of its
        own.
        """
        cluster = start(0, 1, 2)
        old = take_out(cluster, 0)
        cluster.fence(0)
        controller = table(cluster, None, CONTROLLER)
        open_delta_table(controller.location).create_checkpoint()
        commits = sorted(Path(controller.location.uri, "_delta_log").glob("*.json"))
        for commit in commits[:-1]:
            commit.unlink()
        lease = controller.rows()
        assert old._controller.epoch_to_renew() is None
        assert not old.is_controller
        assert table(cluster, None, CONTROLLER).rows() == lease
        assert sorted(Path(controller.location.uri, "_delta_log").glob("*.json")) == commits[-1:]

    def test_loses_the_race_for_the_tables_without_ending_its_broker(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A controller that finds the tables fenced by a newer one goes on as a broker."""
        cluster = start(0, 1, 2)
        cluster.crash(0)
        cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
        slow = take_out(cluster, 1)
        brokers = slow._controller._cluster.brokers
        take_fence = brokers.take_fence

        def late(fence: object, **options: bool) -> None:
            cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
            cluster.controller_tick()
            take_fence(fence, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(brokers, "take_fence", late)
        slow.controller_tick()
        assert not slow.is_controller
        assert rows(cluster, None, CONTROLLER)[0]["broker_id"] == 2
        monkeypatch.undo()
        slow.heartbeat()


def during_update(
    monkeypatch: pytest.MonkeyPatch, table: ShardedTable, action: Callable[[], object]
) -> None:
    """Run an action once, after a change of `table` has loaded it and before the change is
    decided.
    """
    change_rows = table.change_rows
    left = [action]

    def late(decide: Callable[[Any], Any], *args: Any, **options: Any) -> object:
        def decided(rows: pa.Table) -> Any:
            if left:
                left.pop()()
            return decide(rows)

        return change_rows(decided, *args, **options)

    monkeypatch.setattr(table, "change_rows", late)


class TestAnInSyncSetThatShrinksMeanwhile:
    """A lost update would return a broker to the ISR that lacks a record committed without it. A
    later election of that broker would lose the record.
    """

    @pytest.fixture
    def cluster(self, start: Start) -> LocalCluster:
        """A cluster in which leader 0 of topic t removes broker 2, the controller, at its next
        tick.
        """
        cluster = start(2, 0, 1, assignment={0: [0, 2]}, replica_lag_time_max_ms=5000)
        assert cluster.brokers[2].is_controller
        cluster.create_topic("u", assignment={0: [1, 0]})
        cluster.tick_until_idle()
        cluster.crash(1)
        cluster.fence(1)
        cluster.restart(1)
        cluster.tick_until_idle()
        cluster.produce("t", 0, [b"a"], acks=1)
        cluster.leader_tick(0)
        cluster.clock.advance(5001)
        assert cluster.partition("t", 0).isr == [0, 2]
        return cluster

    def test_is_not_overwritten_by_the_controller(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The controller's update repeats its decision on the shrunk ISR."""
        cluster.elect_leaders("preferred", [("u", 0)])
        cluster.crash(1)
        cluster.restart(1)
        table = cluster.brokers[2]._controller._cluster.partition_state
        during_update(monkeypatch, table, lambda: cluster.leader_tick(0))
        cluster.controller_tick()
        assert high_watermark(cluster, 0) == 1
        assert cluster.partition("t", 0).isr == [0]

    def test_is_not_overwritten_by_an_election_by_hand(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An election by an administrator repeats its decision on the shrunk ISR."""
        table = cluster.connection.root.partition_state
        during_update(monkeypatch, table, lambda: cluster.leader_tick(0))
        cluster.elect_leaders("preferred", [("u", 0)])
        assert high_watermark(cluster, 0) == 1
        assert cluster.partition("t", 0).isr == [0]


def test_the_control_tables_of_a_root_carry_the_fence(start: Start) -> None:
    """A new process has written its epoch to every table before it reads any (design: fencing)."""
    cluster = start(0)
    epoch = rows(cluster, None, BROKERS)[0]["broker_epoch"]
    for schema in (DELAYED_OPERATIONS, HIGH_WATERMARK_CHECKPOINT):
        assert table(cluster, 0, schema).held_by("broker_epoch") == epoch
    # Clients write to this table, so an epoch there would prove nothing.
    assert table(cluster, 0, PRODUCE_REQUESTS).held_by("broker_epoch") is None
