"""The controller: its lease, and leadership after brokers join, leave or restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from sparklog.cluster.election import Elections
from sparklog.cluster.isr import leave_isr
from sparklog.cluster.roots import ClusterRoot
from sparklog.errors import ProtocolError
from sparklog.model import BROKERS, CONTROLLER, PARTITION_STATE, PRODUCE_REQUESTS, TOPICS
from sparklog.storage.commits import CONTROLLER_EPOCH
from sparklog.storage.location import Location
from sparklog.storage.shard_rewrites import RowChanges
from sparklog.storage.sharded_table import ShardedTable
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error, error_of_consume, rows, table

Start = Callable[..., LocalCluster]


def lease(cluster: LocalCluster) -> tuple[int, int]:
    [row] = rows(cluster, None, CONTROLLER)
    return row["broker_id"], row["controller_epoch"]


def test_a_broker_that_registers_again_leads_nothing_until_it_is_elected(start: Start) -> None:
    """Its log is unchanged, so it stays in sync; the epoch distinguishes its two processes
    (7.2).
    """
    cluster = start(0, 1)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.restart(0)
    pending = cluster.produce("t", 0, [b"b"])
    cluster.leader_tick(0)
    assert error(pending) == "NOT_LEADER_OR_FOLLOWER"
    assert cluster.partition("t", 0)[:2] == (0, 0)
    cluster.controller_tick()
    assert cluster.partition("t", 0)[:2] == (0, 1)
    assert cluster.partition("t", 0).isr == [0, 1]
    cluster.controller_tick()
    assert cluster.partition("t", 0).leader_epoch == 1
    cluster.produce("t", 0, [b"c"])
    check_at_rest(cluster, "a", "c")
    assert cluster.leader_epochs(1, "t", 0) == [(0, 0), (1, 1)]


def test_what_a_restarted_broker_led_goes_to_the_preferred_replica(start: Start) -> None:
    """The first assigned replica that is in sync and alive leads (7.5), not the previous leader."""
    cluster = start(0, 1, 2)
    cluster.crash(0)
    cluster.fence(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    assert cluster.partition("t", 0)[:2] == (1, 1)
    cluster.crash(1)
    cluster.restart(1)
    cluster.controller_tick()
    assert cluster.partition("t", 0)[:2] == (0, 2)


def test_election_follows_the_order_of_assignment_among_the_in_sync(start: Start) -> None:
    """The first assigned replica that is in sync and alive becomes the leader."""
    cluster = start(0, 1, 2, assignment={0: [2, 0, 1]})
    cluster.crash(0)
    cluster.fence(0)
    assert cluster.partition("t", 0)[:2] == (2, 0)
    cluster.restart(0)
    cluster.crash(2)
    cluster.fence(2)
    assert cluster.partition("t", 0)[:2] == (1, 1)
    assert cluster.partition("t", 0).isr == [1]


def test_a_partition_without_an_in_sync_replica_alive_is_offline(start: Start) -> None:
    """The ISR is unchanged, and its members lead when they return (7.5)."""
    cluster = start(0, 1)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.fence(0)
    cluster.crash(1)
    cluster.restart(0)
    cluster.fence(1)
    state = cluster.partition("t", 0)
    assert (state.leader, state.leader_epoch, state.isr) == (None, 2, [1])
    assert error_of_consume(cluster) == "LEADER_NOT_AVAILABLE"
    pending = cluster.produce("t", 0, [b"x"])
    assert error(pending) == "LEADER_NOT_AVAILABLE"
    assert pending.is_done
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).leader_epoch == 2
    cluster.restart(1)
    cluster.controller_tick()
    assert cluster.partition("t", 0)[:2] == (1, 3)
    check_at_rest(cluster, "a")


def test_fencing_a_follower_leaves_the_leader_epoch(start: Start) -> None:
    """Fencing a follower increases only the partition epoch (5.3)."""
    cluster = start(0, 1, 2)
    before = cluster.partition("t", 0)
    cluster.crash(2)
    cluster.fence(2)
    after = cluster.partition("t", 0)
    assert after.leader_epoch == before.leader_epoch
    assert after.partition_epoch == before.partition_epoch + 1
    assert after.isr == [0, 1]
    cluster.controller_tick()
    assert cluster.partition("t", 0) == after


def test_a_fenced_broker_that_a_leader_re_added_is_taken_out_again(start: Start) -> None:
    """The controller checks it at every tick, and not only when a broker becomes fenced (7.2)."""
    cluster = start(0, 1)
    cluster.crash(1)
    cluster.fence(1)
    state = table(cluster, None, PARTITION_STATE)
    state.compare_and_set(
        PARTITION_STATE.rows([row | {"in_isr": True} for row in state.rows().to_pylist()])
    )
    assert cluster.partition("t", 0).isr == [0, 1]
    cluster.controller_tick()
    assert cluster.partition("t", 0).isr == [0]


class TestTheLease:
    def test_is_taken_over_when_it_has_lapsed_and_not_before(self, start: Start) -> None:
        """Another broker takes the lease once it has lapsed, 1 ms after the session timeout."""
        cluster = start(0, 1, 2)
        assert lease(cluster) == (0, 1)
        cluster.crash(0)
        cluster.clock.advance(cluster.settings.broker_session_timeout_ms)
        cluster.controller_tick()
        assert lease(cluster) == (0, 1)
        cluster.clock.advance(1)
        cluster.controller_tick()
        assert lease(cluster) == (1, 2)

    def test_is_kept_by_heartbeats(self, start: Start) -> None:
        """The holder keeps the lease as long as its heartbeats go on."""
        cluster = start(0, 1)
        for _ in range(3):
            cluster.clock.advance(cluster.settings.broker_session_timeout_ms)
            cluster.controller_tick()
        assert lease(cluster) == (0, 1)

    def test_is_taken_again_by_a_broker_that_held_it_and_was_restarted(self, start: Start) -> None:
        """A restarted holder of the lease takes it again under a higher epoch, because its older
        process may run.
        """
        cluster = start(0, 1)
        cluster.crash(0)
        cluster.restart(0)
        cluster.controller_tick()
        assert lease(cluster) == (0, 2)

    def test_fences_every_table_before_anything_is_decided(self, start: Start) -> None:
        """A new controller writes its epoch to every table before it decides anything."""
        cluster = start(0, 1, 2)
        cluster.crash(0)
        cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
        cluster.controller_tick(stop_after="lease")
        for schema in (BROKERS, PARTITION_STATE):
            assert table(cluster, None, schema).held_by(CONTROLLER_EPOCH) == 2
        assert {row["state"] for row in rows(cluster, None, BROKERS)} == {"alive"}

    def test_is_held_by_one_of_many(self, start: Start) -> None:
        """One of several brokers holds the lease."""
        cluster = start(0, 1, 2)
        cluster.controller_tick()
        assert [one.is_controller for one in cluster.brokers.values()].count(True) == 1


class TestRegistration:
    def test_gives_a_higher_epoch_than_any_before(self, start: Start) -> None:
        """A broker that registers again gets a higher broker epoch than any before."""
        cluster = start(0, 1)
        cluster.crash(0)
        cluster.restart(0)
        assert cluster.brokers[0].broker_epoch == 3

    def test_of_a_parked_broker_that_resumes_keeps_what_it_leads(self, start: Start) -> None:
        """A resumed broker does not register again (7.2)."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        waits = cluster.produce("t", 0, [b"b"])
        cluster.leader_tick(0)
        for broker in (0, 1):
            cluster.brokers[broker].park()
            cluster.crash(broker)
        for broker in (0, 1):
            cluster.restart(broker)
        assert cluster.brokers[0].broker_epoch == 1
        cluster.tick_until_idle()
        assert cluster.partition("t", 0)[:2] == (0, 0)
        assert error(waits) == "NONE"
        check_at_rest(cluster, "a", "b")

    def test_of_a_stopped_broker_is_a_new_one(self, start: Start) -> None:
        """A stopped broker registers again; its partitions got another leader without waiting for a
        session.
        """
        cluster = start(0, 1)
        cluster.brokers[0].stop()
        cluster.crash(0)
        cluster.fence(0)
        assert cluster.partition("t", 0)[:2] == (1, 1)
        cluster.restart(0)
        check_at_rest(cluster)


class TestAParkedLeader:
    def test_appends_nothing_that_was_sent_while_it_did_not_run(self, start: Start) -> None:
        """The broker led but never moved a high watermark. Only the time at which it became the
        leader shows when it last polled its inbox (3.1).
        """
        cluster = start(0)
        cluster.brokers[0].park()
        cluster.crash(0)
        pending = cluster.produce("t", 0, [b"x"], acks=1, timeout_ms=1000)
        cluster.clock.advance(3_600_000)
        cluster.restart(0)
        cluster.tick_until_idle()
        assert error(pending) == "REQUEST_TIMED_OUT"
        assert cluster.log(0, "t", 0) == []

    def test_does_not_judge_again_what_it_has_answered(
        self, start: Start, fail_once: Callable[[str, str], None]
    ) -> None:
        """The request's file was not readable, so the client got CORRUPT_MESSAGE. The request is
        still in the table, and the file is readable again.
        """
        cluster = start(0)
        refused = cluster.produce("t", 0, [b"x"], acks=1)
        file = cluster.root / "broker-0" / "log" / refused.batches[0].file.path
        content = file.read_bytes()
        file.write_bytes(b"changed")
        fail_once("remove", "broker-0/produce_requests")
        cluster.leader_tick(0)
        assert len(rows(cluster, 0, PRODUCE_REQUESTS)) == 1
        assert error(refused) == "CORRUPT_MESSAGE"
        cluster.brokers[0].park()
        cluster.crash(0)
        file.write_bytes(content)
        cluster.restart(0)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader_epoch == 0
        assert rows(cluster, 0, PRODUCE_REQUESTS) == []
        assert cluster.log(0, "t", 0) == []


def test_a_broker_that_comes_while_the_controller_decides_is_not_overlooked(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker registers after the controller has read the cluster's state and before it has
    finished.
    """
    cluster = start(2, 0, 1, assignment={0: [0, 1]})
    assert cluster.brokers[2].is_controller
    controller = cluster.brokers[2]._controller
    cluster.create_topic("u", assignment={0: [1, 2]})
    cluster.crash(1)
    cluster.restart(1)
    elect = controller._elections.elect

    def slow(*arguments: object) -> object:
        result = elect(*arguments)  # type: ignore[arg-type]
        monkeypatch.undo()
        cluster.crash(0)
        cluster.restart(0)
        return result

    monkeypatch.setattr(controller._elections, "elect", slow)
    cluster.controller_tick()
    cluster.controller_tick()
    [epoch] = {row["broker_epoch"] for row in rows(cluster, None, BROKERS) if not row["broker_id"]}
    assert cluster.partition("t", 0).leader_epoch == 1
    assert epoch == cluster.connection.metadata().partition("t", 0).leader_broker_epoch


class TestTheElectionOfManyPartitions:
    """A decision about 60 partitions, while others commit changes of other partitions."""

    @pytest.fixture
    def decided(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The number of rows that each election has decided."""
        elect = Elections.elect
        counts: list[int] = []

        def noted(of: Elections, rows: pa.Table, *arguments: Any) -> object:
            counts.append(rows.num_rows)
            return elect(of, rows, *arguments)

        monkeypatch.setattr(Elections, "elect", noted)
        return counts

    @pytest.fixture
    def cluster(self, start: Start) -> LocalCluster:
        assignment = {n: [0, 1, 2] for n in range(60)}
        cluster = start(2, 0, 1, assignment=assignment)
        cluster.tick_until_idle()
        return cluster

    def test_is_one_decision_however_often_it_loses_the_race(
        self, cluster: LocalCluster, decided: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Others add and change a partition before each of its first ten commits (7.2, 7.5)."""
        other = ClusterRoot(Location.of(str(cluster.root / "cluster"))).partition_state
        commit = ShardedTable._commit_shards
        lost: list[int] = []

        def commit_late(of: ShardedTable, *arguments: Any) -> None:
            if of is not other and len(lost) < 10:
                lost.append(of.version)
                row = other.rows().slice(0, 1).to_pylist()[0]
                row |= {"topic_id": "foreign", "partition": 0, "partition_epoch": len(lost)}
                change = RowChanges(PARTITION_STATE.rows([row]))
                other.change_rows(lambda _: change, [("foreign", 0)])
            commit(of, *arguments)

        cluster.crash(0)
        cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
        monkeypatch.setattr(ShardedTable, "_commit_shards", commit_late)
        cluster.controller_tick()
        states = [cluster.partition("t", n) for n in range(60)]
        assert {(state.leader, tuple(state.isr)) for state in states} == {(1, (1, 2))}
        assert (len(lost), decided[0], set(decided[1:])) == (10, 180, {0})

    def test_leaves_out_the_partitions_of_which_nothing_is_new(
        self, cluster: LocalCluster, decided: list[int]
    ) -> None:
        """An election decides only the partitions whose state has changed."""
        key = cluster.connection.metadata().partition("t", 7).key
        leave_isr(cluster.connection.root.partition_state, 1, [key])
        cluster.controller_tick()
        cluster.controller_tick()
        assert decided == [3]


def test_an_unknown_topic_is_refused(start: Start) -> None:
    """An unknown topic or partition is refused with UNKNOWN_TOPIC_OR_PARTITION."""
    cluster = start(0)
    for act in (cluster.consume, cluster.partition):
        with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            act("nope", 0)
        with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            act("t", 1)
    with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        cluster.produce("t", 1, [b"a"])
    assert len(rows(cluster, None, TOPICS)) == 1
