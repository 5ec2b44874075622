"""Leading and following: whose word counts, when records are committed, who is in sync."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparklog.model import HIGH_WATERMARK_CHECKPOINT, PARTITION_STATE
from sparklog.storage.control_table import Fence
from sparklog.storage.delta_log import BROKER_EPOCH
from sparklog.storage.journal import Journal, Step
from sparklog.storage.location import Location
from sparklog.storage.sharded_table import ShardedTable
from sparklog.testing import LocalCluster
from tests.broker.states import (
    check_at_rest,
    error,
    error_of_consume,
    high_watermark,
    log,
    report,
    rows,
    table,
    values,
)

Start = Callable[..., LocalCluster]
FailOnce = Callable[[str, str], None]


def forge(cluster: LocalCluster, broker: int, **changes: object) -> None:
    """Change what a replica reports of itself, as no broker would."""
    root = Location.of(str(cluster._root / f"broker-{broker}"))
    held = Journal(root)
    forged = Journal(root, Fence(BROKER_EPOCH, cluster._brokers[broker].broker_epoch))
    rows = [{**row, **changes} for row in held.rows.values()]
    forged.commit_step([], [], Step(rows), 0)


class TestAReport:
    @pytest.mark.parametrize(
        ("column", "by"), [("leader_epoch", -1), ("leader_epoch", 1), ("broker_epoch", -1)]
    )
    def test_under_another_epoch_does_not_count(self, start: Start, column: str, by: int) -> None:
        """Neither for the high watermark nor for the way back into the in-sync set (1.3, 6.4)."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.leader_tick(0)
        forge(cluster, 1, log_end_offset=1, **{column: report(cluster, 1)[column] + by})
        cluster.leader_tick(0)
        assert high_watermark(cluster, 0) == 0
        cluster.clock.advance(30_001)
        cluster.leader_tick(0)
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0]

    def test_counts_under_both(self, start: Start) -> None:
        """What the last test changes is what makes the difference."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.leader_tick(0)
        forge(cluster, 1, log_end_offset=1)
        cluster.leader_tick(0)
        assert high_watermark(cluster, 0) == 1

    def test_of_a_process_that_is_gone_does_not_count(self, start: Start) -> None:
        """The follower has registered anew and has not reported since (KIP-903)."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.leader_tick(0)
        cluster.follower_tick(1)
        cluster.crash(1)
        cluster.restart(1)
        cluster.leader_tick(0)
        assert high_watermark(cluster, 0) == 0
        cluster.follower_tick(1)
        cluster.leader_tick(0)
        assert high_watermark(cluster, 0) == 1


class TestALeadersRow:
    @pytest.mark.parametrize(
        "changes", [{"leader_epoch": 1}, {"broker_epoch": 0}, {"role": "follower"}], ids=str
    )
    def test_is_believed_only_under_the_epoch(
        self, start: Start, changes: dict[str, object]
    ) -> None:
        """Otherwise nothing is fetched, nothing truncated, nothing reported (6.4)."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.leader_tick(0)
        forge(cluster, 0, **changes)
        before = report(cluster, 1)
        cluster.follower_tick(1)
        assert log(cluster, 1) == []
        assert report(cluster, 1) == before

    def test_is_not_there_before_its_first_tick_in_the_epoch(self, start: Start) -> None:
        cluster = start(0, 1, 2)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        cluster.crash(0)
        cluster.fence(0)
        cluster.follower_tick(2)
        assert report(cluster, 2)["leader_epoch"] == 0
        assert error_of_consume(cluster) == "OFFSET_NOT_AVAILABLE"
        cluster.leader_tick(1)
        cluster.follower_tick(2)
        assert report(cluster, 2)["leader_epoch"] == 1


def test_two_partitions_that_change_places_are_told_apart(start: Start) -> None:
    """Brokers exchange two leaderships while nothing is written, so that what a follower sees of
    its leader looks the same as before. It has to report in the new epoch all the same.
    """
    cluster = start(0, 1, assignment={0: [0, 1], 1: [1, 0]})
    cluster.crash(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    assert [cluster.partition("t", n)[:2] for n in (0, 1)] == [(0, 1), (1, 0)]
    states = table(cluster, None, PARTITION_STATE)
    epochs = {broker_id: one.broker_epoch for broker_id, one in cluster._brokers.items()}
    exchanged = [
        row
        | {
            "leader": 1 - row["leader"],
            "leader_broker_epoch": epochs[1 - row["leader"]],
            "leader_epoch": row["leader_epoch"] + 1,
            "partition_epoch": row["partition_epoch"] + 1,
        }
        for row in states.rows().to_pylist()
    ]
    states.compare_and_set(PARTITION_STATE.rows(exchanged))
    cluster.tick_until_idle()
    for broker in (0, 1):
        found = rows(cluster, broker, HIGH_WATERMARK_CHECKPOINT)
        assert [row["leader_epoch"] for row in found] == [2, 1]


class TestTheHighWatermark:
    def test_never_goes_back_for_a_consumer(self, start: Start) -> None:
        """The new leader had not learnt of it; until it has, nobody is shown less (KIP-207)."""
        cluster = start(0, 1, 2)
        cluster.produce("t", 0, [b"a", b"b"])
        cluster.leader_tick(0)
        cluster.follower_tick(1)
        cluster.follower_tick(2)
        cluster.leader_tick(0)
        assert values(cluster.consume("t", 0)) == ["a", "b"]
        cluster.crash(0)
        cluster.fence(0)
        assert high_watermark(cluster, 1) == 0
        shown = [error_of_consume(cluster)]
        for tick in (cluster.leader_tick, cluster.follower_tick, cluster.leader_tick):
            tick(2 if tick == cluster.follower_tick else 1)
            shown.append(error_of_consume(cluster))
        assert shown == ["OFFSET_NOT_AVAILABLE"] * 3 + ["NONE"]
        assert values(cluster.consume("t", 0)) == ["a", "b"]

    def test_never_goes_back_on_the_leader(self, start: Start) -> None:
        """A replica that comes back with less does not lower it."""
        cluster = start(0, 1, replica_lag_time_max_ms=5000)
        cluster.pause(1)
        cluster.produce("t", 0, [b"a"])
        cluster.leader_tick(0)
        cluster.clock.advance(5001)
        cluster.leader_tick(0)
        assert high_watermark(cluster, 0) == 1
        forge(cluster, 1, log_end_offset=0, reported_at_ms=1)
        cluster.leader_tick(0)
        assert high_watermark(cluster, 0) == 1
        assert cluster.partition("t", 0).isr == [0]

    def test_stands_still_under_min_isr(self, start: Start) -> None:
        """acks=all is refused, acks=1 appended and not committed (2.3, 3.3)."""
        cluster = start(0, 1, min_isr=2)
        cluster.crash(1)
        cluster.fence(1)
        cluster.leader_tick(0)
        refused, taken = cluster.produce("t", 0, [b"a"]), cluster.produce("t", 0, [b"b"], acks=1)
        cluster.leader_tick(0)
        assert (error(refused), error(taken)) == ("NOT_ENOUGH_REPLICAS", "NONE")
        assert (log(cluster, 0), high_watermark(cluster, 0)) == (["b"], 0)
        cluster.restart(1)
        check_at_rest(cluster, "b")

    def test_waits_for_one_that_is_about_to_join(self, start: Start) -> None:
        """Else the joining replica would enter the in-sync set without what is committed (2.1)."""
        cluster = start(0, 1, 2)
        cluster.crash(2)
        cluster.fence(2)
        cluster.tick_until_idle()
        cluster.restart(2)
        cluster.follower_tick(2)
        assert cluster.partition("t", 0).isr == [0, 1]
        cluster.produce("t", 0, [b"a"])
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0, 1, 2]
        cluster.follower_tick(1)
        cluster.leader_tick(0)
        assert high_watermark(cluster, 0) == 0
        cluster.follower_tick(2)
        cluster.leader_tick(0)
        assert high_watermark(cluster, 0) == 1


class TestAnInSyncSetThatShrinksBelowMinIsr:
    def test_after_the_append_lets_the_request_wait(self, start: Start) -> None:
        cluster = start(0, 1, min_isr=2, replica_lag_time_max_ms=5000)
        pending = cluster.produce("t", 0, [b"a"], timeout_ms=60_000)
        cluster.leader_tick(0)
        cluster.clock.advance(5001)
        cluster.leader_tick(0)
        assert (cluster.partition("t", 0).isr, error(pending)) == ([0], None)
        cluster.follower_tick(1)
        cluster.leader_tick(0)
        assert error(pending) == "NONE"

    def test_fails_the_retry_of_what_is_committed(self, start: Start) -> None:
        """The batch is there and below the high watermark, but too few could take over (3.3)."""
        cluster = start(0, 1, min_isr=2)
        first = cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        cluster.crash(1)
        cluster.fence(1)
        retry = cluster._send_again(first)
        cluster.leader_tick(0)
        assert retry.response is not None
        assert retry.response == ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", 0, 0)
        assert log(cluster, 0) == ["a"]


class TestTheInSyncSet:
    def test_loses_a_follower_that_fetches_and_stays_behind(self, start: Start) -> None:
        """Slow but moving: it reaches what the leader's end was at its previous report (5.1)."""
        cluster = start(0, 1, replica_lag_time_max_ms=5000, replica_fetch_max_bytes=1)
        for n in range(4):
            cluster.produce("t", 0, [b"%d" % n], acks=1)
        cluster.leader_tick(0)
        for _ in range(3):
            cluster.clock.advance(2000)
            cluster.follower_tick(1)
            cluster.leader_tick(0)
        assert log(cluster, 1) == ["0", "1", "2"]
        assert cluster.partition("t", 0).isr == [0]
        check_at_rest(cluster, "0", "1", "2", "3")

    def test_keeps_a_follower_that_is_idle(self, start: Start) -> None:
        """It renews its row although there is nothing to fetch."""
        cluster = start(0, 1, replica_lag_time_max_ms=3000)
        for _ in range(5):
            cluster.clock.advance(1000)
            cluster.tick_until_idle()
        cluster.produce("t", 0, [b"a"], acks=1)
        cluster.clock.advance(2000)
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0, 1]

    def test_keeps_a_silent_follower_that_has_everything(self, start: Start) -> None:
        cluster = start(0, 1, replica_lag_time_max_ms=3000)
        cluster.clock.advance(8000)
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0, 1]

    def test_takes_no_fenced_broker(self, start: Start) -> None:
        """It has everything and reports under the right epochs, but its heartbeats stay away."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        silent = cluster._brokers[1]
        cluster.crash(1)
        cluster.fence(1)
        assert cluster.partition("t", 0).isr == [0]
        silent.follower_tick()
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0]
        silent.look()
        silent.heartbeat()
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0, 1]

    def test_changes_within_one_tick_while_others_write_other_partitions(
        self, start: Start, monkeypatch: pytest.MonkeyPatch, rules_run: list[str]
    ) -> None:
        """Each lost commit is repeated on what the others wrote, which stays; it is one decision
        (5.3).
        """
        cluster = start(0, 1, assignment={0: [0, 1], 1: [1, 0]}, replica_lag_time_max_ms=5000)
        state = table(cluster, None, PARTITION_STATE)
        lost = []

        def write_another_partition() -> None:
            state.refresh()
            changed = [
                row | {"partition_epoch": row["partition_epoch"] + row["partition"]}
                for row in state.rows().to_pylist()
            ]
            state.compare_and_set(PARTITION_STATE.rows(changed))
            lost.append(state.version)

        commit = ShardedTable._commit_shards

        def commit_late(of: ShardedTable, *arguments: Any) -> None:
            if len(lost) < 5:
                write_another_partition()
            commit(of, *arguments)

        cluster.produce("t", 0, [b"a"], acks=1)
        cluster.leader_tick(0)
        cluster.clock.advance(5001)
        before = cluster.partition("t", 1)
        monkeypatch.setattr(ShardedTable, "_commit_shards", commit_late)
        rules_run.clear()
        cluster.leader_tick(0)
        assert (len(lost), rules_run.count("eligible_replicas")) == (5, 1)
        assert cluster.partition("t", 0).isr == [0]
        assert high_watermark(cluster, 0) == 1
        after = cluster.partition("t", 1)
        assert after == before._replace(partition_epoch=before.partition_epoch + 5)

    def test_comes_to_rest_while_a_follower_catches_up_under_a_standing_high_watermark(
        self, start: Start
    ) -> None:
        """It may join and leave on its way, but not for ever."""
        cluster = start(0, 1, 2, replica_fetch_max_bytes=1)
        cluster.crash(2)
        cluster.fence(2)
        cluster.crash(1)
        for n in range(4):
            cluster.produce("t", 0, [b"%d" % n], acks=1)
        cluster.leader_tick(0)
        cluster.restart(2)
        cluster.tick_until_idle()
        assert high_watermark(cluster, 0) == 0
        assert cluster.partition("t", 0).isr == [0, 1, 2]
        assert log(cluster, 2) == ["0", "1", "2", "3"]


class TestReplicaLagMaxMessages:
    """The setting counts for leaving, for joining, and for the high watermark (5.1, 5.2, 2.1)."""

    def test_the_high_watermark_does_not_wait_for_a_follower_beyond_it(self, start: Start) -> None:
        """The follower leaves the ISR in the leader's tick and is not about to join again."""
        cluster = start(0, 1, replica_lag_max_messages=3)
        for n in range(6):
            cluster.produce("t", 0, [b"%d" % n], acks=1)
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0]
        assert high_watermark(cluster, 0) == 6

    def test_a_follower_within_it_is_waited_for(self, start: Start) -> None:
        """A member three records behind stays a member."""
        cluster = start(0, 1, replica_lag_max_messages=3)
        for n in range(3):
            cluster.produce("t", 0, [b"%d" % n], acks=1)
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0, 1]
        assert high_watermark(cluster, 0) == 0

    def test_a_follower_joins_once_it_is_within_it_and_stays(self, start: Start) -> None:
        """Under min ISR the high watermark stands still, and each of its positions reaches it."""
        cluster = start(0, 1, min_isr=2, replica_lag_max_messages=3, replica_fetch_max_bytes=1)
        for n in range(6):
            cluster.produce("t", 0, [b"%d" % n], acks=1)
        cluster.leader_tick(0)
        isr = {0: cluster.partition("t", 0).isr}
        for _ in range(6):
            cluster.follower_tick(1)
            cluster.leader_tick(0)
            isr[len(log(cluster, 1))] = cluster.partition("t", 0).isr
        assert isr == {n: [0] if n < 3 else [0, 1] for n in range(7)}
        check_at_rest(cluster, *map(str, range(6)))


class TestARequestInADeadLeadersInbox:
    @pytest.mark.parametrize("comes_back_as", ["follower", "leader"])
    def test_is_never_appended_later(self, start: Start, comes_back_as: str) -> None:
        """It names an epoch that is over by then (3.1)."""
        cluster = start(0, 1)
        cluster.crash(0)
        left = cluster.produce("t", 0, [b"x"], acks=1)
        if comes_back_as == "follower":
            cluster.fence(0)
        cluster.restart(0)
        cluster.tick_until_idle()
        expected = {"follower": "NOT_LEADER_OR_FOLLOWER", "leader": "FENCED_LEADER_EPOCH"}
        assert error(left) == expected[comes_back_as]
        assert cluster.partition("t", 0).leader == (1 if comes_back_as == "follower" else 0)
        check_at_rest(cluster)


def test_a_followers_high_watermark_does_not_fall_after_a_clean_election(start: Start) -> None:
    """The new leader's may be behind it, but a reader of the follower must not go back (9.3)."""
    cluster = start(0, 1, 2)
    cluster.produce("t", 0, [b"a"])
    cluster.leader_tick(0)
    for follower in (1, 2):
        cluster.follower_tick(follower)
    cluster.leader_tick(0)
    cluster.follower_tick(2)
    cluster.crash(0)
    cluster.fence(0)
    cluster.leader_tick(1)
    cluster.follower_tick(2)
    assert (high_watermark(cluster, 1), high_watermark(cluster, 2)) == (0, 1)
    cluster.restart(0)
    check_at_rest(cluster, "a")


def test_a_follower_that_joins_below_the_logs_end_is_not_thrown_out_at_once(start: Start) -> None:
    """It has replica.lag.time.max.ms to get to the end, though it never was there before (5.1)."""
    cluster = start(0, 1, 2)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    for broker in (1, 0):
        cluster.crash(broker)
        cluster.fence(broker)
    cluster.tick_until_idle()
    cluster.restart(0)
    cluster.tick_until_idle()
    cluster.restart(1)
    seen = []
    for _ in range(3):
        # Broker 0 lags, so the high watermark stays behind; broker 1 copies all there is.
        cluster.follower_tick(1)
        for _ in range(2):
            cluster.produce("t", 0, [b"b"], acks=1)
            cluster.leader_tick(2)
            seen.append(cluster.partition("t", 0).isr)
    assert seen == [[0, 1, 2]] * 6


class TestALogThatBeginsLater:
    """Retention has cut the leader's log while a follower was away (6.7)."""

    @pytest.fixture
    def cluster(self, start: Start) -> LocalCluster:
        """Broker 2 has `a` and was away when `b` and `c` came and `a` and `b` went."""
        cluster = start(0, 1, 2)
        for text in (b"a", b"b", b"c"):
            cluster.produce("t", 0, [text])
            cluster.tick_until_idle()
            if text == b"a":
                cluster.crash(2)
                cluster.fence(2)
        key = cluster._connection.metadata().partition("t", 0).key
        for broker in (0, 1):
            replicas = cluster._brokers[broker]._leaders[0]._replicas
            replicas.put(key, "t", log_start_offset=2)
            replicas.commit(0, removed=replicas.root.log.batches(key)[:2])
        return cluster

    def test_is_where_the_follower_begins_anew(self, cluster: LocalCluster) -> None:
        cluster.restart(2)
        cluster.produce("t", 0, [b"d"])
        cluster.tick_until_idle()
        for broker in range(3):
            assert [one.offset for one in cluster.log(broker, "t", 0)] == [2, 3]
            assert cluster.replica(broker, "t", 0)[:3] == (2, 4, 4)
        assert cluster.partition("t", 0).isr == [0, 1, 2]
        assert values(cluster.consume("t", 0)) == ["c", "d"]

    def test_is_not_begun_twice(self, cluster: LocalCluster) -> None:
        """A follower that ends in between finds its log empty, and a later one where it began."""
        cluster.restart(2)
        cluster.follower_tick(2, stop_after="truncate")
        assert cluster.log(2, "t", 0) == []
        cluster.restart(2)
        cluster.tick_until_idle()
        assert cluster.replica(2, "t", 0)[:3] == (2, 3, 3)
        cluster.crash(2)
        cluster.restart(2)
        cluster.tick_until_idle()
        assert cluster.replica(2, "t", 0)[:3] == (2, 3, 3)
        assert cluster.leader_epochs(2, "t", 0) == [(0, 2)]


def test_a_partition_that_is_always_behind_starves_no_other(start: Start) -> None:
    """replica.fetch.response.max.bytes is spent in turns: who was served longest ago is first."""
    cluster = start(
        0, 1, assignment={n: [0, 1] for n in range(4)}, replica_fetch_response_max_bytes=1
    )
    for partition in range(4):
        cluster.produce("t", partition, [b"first"], acks=1)
    copied = []
    for n in range(8):
        cluster.produce("t", 0, [b"%d" % n], acks=1)
        cluster.leader_tick(0)
        assert cluster.follower_tick(1).files_copied == 1
        copied.append([len(log(cluster, 1, partition=partition)) for partition in range(4)])
    assert copied[3] == [1, 1, 1, 1]
    assert copied[7] == [5, 1, 1, 1]


class TestABadFile:
    def test_in_the_leaders_log_stops_its_partition_only(self, start: Start) -> None:
        """The leader is alone in sync and keeps its place; a restored file is copied (8.4)."""
        cluster = start(0, 1, assignment={0: [0, 1], 1: [0, 1]})
        cluster.crash(1)
        cluster.fence(1)
        cluster.restart(1)
        cluster.produce("t", 0, [b"a"], acks=1)
        cluster.produce("t", 1, [b"b"], acks=1)
        cluster.leader_tick(0)
        state = cluster._connection.metadata().partition("t", 0)
        [batch] = cluster._brokers[0]._leaders[0]._root.log.batches(state.key)
        file = cluster._root / "broker-0" / "log" / batch.path
        content = file.read_bytes()
        file.write_bytes(content[:-1] + b"?")
        cluster.tick_until_idle()
        assert (log(cluster, 1), log(cluster, 1, partition=1)) == ([], ["b"])
        file.write_bytes(content)
        # Attempts back off.
        cluster.clock.advance(30_000)
        check_at_rest(cluster, "a")

    def test_that_straddles_the_position_stops_its_partition_only(self, start: Start) -> None:
        """The own end lies inside a batch of the leader's after an unclean truncation."""
        cluster = start(0, 1, 2, assignment={0: [0, 1, 2], 1: [0, 1, 2]})
        cluster.produce("t", 0, [b"a", b"b"], acks=1)
        cluster.produce("t", 1, [b"c"], acks=1)
        cluster.leader_tick(0)
        follower = cluster._brokers[1]._followers[0]
        cluster.follower_tick(1)
        key = cluster._connection.metadata().partition("t", 0).key
        follower._truncate({key: 1}, now_ms=0)
        assert log(cluster, 1) == ["a"]
        cluster.produce("t", 1, [b"d"], acks=1)
        cluster.leader_tick(0)
        [batch] = cluster._brokers[0]._leaders[0]._root.log.batches(key)
        file = cluster._root / "broker-0" / "log" / batch.path
        content = file.read_bytes()
        file.unlink()
        cluster.follower_tick(1)
        assert (log(cluster, 1), log(cluster, 1, partition=1)) == (["a"], ["c", "d"])
        file.write_bytes(content)
        cluster.follower_tick(1)
        assert log(cluster, 1) == ["a", "b"]
        check_at_rest(cluster, "a", "b")

    def test_of_the_own_that_is_to_be_cut_stops_its_partition_only(self, start: Start) -> None:
        cluster = start(0, 1, assignment={0: [0, 1], 1: [0, 1]})
        cluster.produce("t", 0, [b"x", b"y"], acks=1)
        cluster.produce("t", 1, [b"z"], acks=1)
        cluster.leader_tick(0)
        cluster.follower_tick(1)
        own = cluster._brokers[1]._followers[0]
        key = cluster._connection.metadata().partition("t", 0).key
        [batch] = own._root.log.batches(key)
        (cluster._root / "broker-1" / "log" / batch.path).unlink()
        assert own._truncate({key: 1}, now_ms=0) == {key}
        cluster.produce("t", 1, [b"w"], acks=1)
        cluster.leader_tick(0)
        cluster.follower_tick(1)
        assert log(cluster, 1, partition=1) == ["z", "w"]


def test_the_newest_position_of_every_replica_is_in_its_row(start: Start) -> None:
    """Led and followed, in one piece, under the process's epoch (1.5)."""
    cluster = start(0, 1, assignment={0: [0, 1], 1: [1, 0]})
    cluster.produce("t", 0, [b"a"])
    cluster.produce("t", 1, [b"b", b"c"])
    cluster.tick_until_idle()
    for broker in (0, 1):
        found = {
            row["partition"]: (row["role"], row["log_end_offset"], row["high_watermark"])
            for row in rows(cluster, broker, HIGH_WATERMARK_CHECKPOINT)
        }
        roles = ("leader", "follower") if broker == 0 else ("follower", "leader")
        assert found == {0: (roles[0], 1, 1), 1: (roles[1], 2, 2)}
