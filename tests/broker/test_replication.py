"""Leading and following: valid reports, committed records, and ISR membership."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparklog.model import HIGH_WATERMARK_CHECKPOINT, PARTITION_STATE, TopicPartition
from sparklog.storage.commits import BROKER_EPOCH
from sparklog.storage.fence import Fence
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
    """Change a replica's report in a way that no broker does."""
    root = Location.of(str(cluster.root / f"broker-{broker}"))
    held = Journal(root)
    forged = Journal(root, Fence(BROKER_EPOCH, cluster.brokers[broker].broker_epoch))
    rows = [{**row, **changes} for row in held.rows.values()]
    forged.commit_step([], [], Step(rows), 0)


class TestAReport:
    @pytest.mark.parametrize(
        ("column", "by"), [("leader_epoch", -1), ("leader_epoch", 1), ("broker_epoch", -1)]
    )
    def test_under_another_epoch_does_not_count(self, start: Start, column: str, by: int) -> None:
        """A report under another epoch counts neither for the high watermark nor for joining the
        ISR (1.3, 6.4).
        """
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
        """A report under both current epochs counts; only they differ from the previous test."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.leader_tick(0)
        forge(cluster, 1, log_end_offset=1)
        cluster.leader_tick(0)
        assert high_watermark(cluster, 0) == 1

    def test_of_a_process_that_is_gone_does_not_count(self, start: Start) -> None:
        """The follower has registered again and has not reported since (KIP-903)."""
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
        """A leader's row under another epoch is ignored: nothing is fetched, truncated or reported
        (6.4).
        """
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.leader_tick(0)
        forge(cluster, 0, **changes)
        before = report(cluster, 1)
        cluster.follower_tick(1)
        assert log(cluster, 1) == []
        assert report(cluster, 1) == before

    def test_is_not_there_before_its_first_tick_in_the_epoch(self, start: Start) -> None:
        """A follower reports in a new epoch after the new leader's first tick in it, and not
        before.
        """
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


def test_two_partitions_that_change_places_are_distinguished(start: Start) -> None:
    """Brokers exchange two leaderships while nothing is written, so that a follower reads the same
    rows as before. It has to report in the new epoch all the same.
    """
    cluster = start(0, 1, assignment={0: [0, 1], 1: [1, 0]})
    cluster.crash(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    assert [cluster.partition("t", n)[:2] for n in (0, 1)] == [(0, 1), (1, 0)]
    states = table(cluster, None, PARTITION_STATE)
    epochs = {broker_id: one.broker_epoch for broker_id, one in cluster.brokers.items()}
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
        """A new leader knows a lower one at first; until it is raised, consumers get an error
        (KIP-207).
        """
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
        """A replica that returns with fewer records does not lower it."""
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
        """acks=all is refused; acks=1 is appended and not committed (2.3, 3.3)."""
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
        """The high watermark waits for a joining replica, which would otherwise lack committed
        records (2.1).
        """
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
        """A request that was appended before the ISR shrank below the minimum stays delayed."""
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
        """The batch is below the high watermark, but too few replicas could take over (3.3)."""
        cluster = start(0, 1, min_isr=2)
        first = cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        cluster.crash(1)
        cluster.fence(1)
        retry = cluster.retry(first)
        cluster.leader_tick(0)
        assert retry.response is not None
        assert retry.response == ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", 0, 0)
        assert log(cluster, 0) == ["a"]


class TestTheInSyncSet:
    def test_loses_a_follower_that_fetches_and_stays_behind(self, start: Start) -> None:
        """A follower leaves the ISR if it only reaches the log end of its previous report (5.1)."""
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
        """An idle follower stays in the ISR, because it renews its row."""
        cluster = start(0, 1, replica_lag_time_max_ms=3000)
        for _ in range(5):
            cluster.clock.advance(1000)
            cluster.tick_until_idle()
        cluster.produce("t", 0, [b"a"], acks=1)
        cluster.clock.advance(2000)
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0, 1]

    def test_keeps_a_silent_follower_that_has_everything(self, start: Start) -> None:
        """A silent follower at the leader's log end stays in the ISR."""
        cluster = start(0, 1, replica_lag_time_max_ms=3000)
        cluster.clock.advance(8000)
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0, 1]

    def test_takes_no_fenced_broker(self, start: Start) -> None:
        """A fenced broker does not join the ISR, even with all records and reports under the right
        epochs.
        """
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        silent = cluster.brokers[1]
        cluster.crash(1)
        cluster.fence(1)
        assert cluster.partition("t", 0).isr == [0]
        silent.follower_tick()
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0]
        silent.poll()
        silent.heartbeat()
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0, 1]

    def test_changes_within_one_tick_while_others_write_other_partitions(
        self, start: Start, monkeypatch: pytest.MonkeyPatch, rules_run: list[str]
    ) -> None:
        """ISR changes repeat lost commits on the rows that others wrote, as one decision within a
        tick (5.3).
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
        """ISR changes end while a follower catches up and the high watermark does not move."""
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
    """The setting applies to leaving, to joining, and to the high watermark (5.1, 5.2, 2.1)."""

    def test_the_high_watermark_does_not_wait_for_a_follower_beyond_it(self, start: Start) -> None:
        """The follower leaves the ISR in the leader's tick and is not about to join again."""
        cluster = start(0, 1, replica_lag_max_messages=3)
        for n in range(6):
            cluster.produce("t", 0, [b"%d" % n], acks=1)
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0]
        assert high_watermark(cluster, 0) == 6

    def test_a_follower_within_it_is_waited_for(self, start: Start) -> None:
        """A member that is three records behind stays a member."""
        cluster = start(0, 1, replica_lag_max_messages=3)
        for n in range(3):
            cluster.produce("t", 0, [b"%d" % n], acks=1)
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0, 1]
        assert high_watermark(cluster, 0) == 0

    def test_a_follower_joins_once_it_is_within_it_and_stays(self, start: Start) -> None:
        """Below min.insync.replicas the high watermark does not move, and each of its positions
        reaches it.
        """
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
        """A request in a dead leader's inbox is never appended: it names an epoch that has ended
        (3.1).
        """
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
    """The new leader's may be lower, but a reader of the follower must not go back (9.3)."""
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
    """A joined follower has replica.lag.time.max.ms to reach the log end for the first time
    (5.1).
    """
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
        # Broker 0 lags, so the high watermark does not move; broker 1 copies all records.
        cluster.follower_tick(1)
        for _ in range(2):
            cluster.produce("t", 0, [b"b"], acks=1)
            cluster.leader_tick(2)
            seen.append(cluster.partition("t", 0).isr)
    assert seen == [[0, 1, 2]] * 6


class TestALogThatBeginsLater:
    """Retention has raised the leader's log start offset while a follower was away (6.7)."""

    @pytest.fixture
    def cluster(self, start: Start) -> LocalCluster:
        """Broker 2 has `a`. It was away when `b` and `c` were appended and `a` and `b` deleted."""
        cluster = start(0, 1, 2)
        for text in (b"a", b"b", b"c"):
            cluster.produce("t", 0, [text])
            cluster.tick_until_idle()
            if text == b"a":
                cluster.crash(2)
                cluster.fence(2)
        cluster.delete_records({TopicPartition("t", 0): 2})
        cluster.tick_until_idle()
        return cluster

    def test_is_where_the_follower_begins_again(self, cluster: LocalCluster) -> None:
        """A follower whose log ends before the leader's log start offset begins at that offset."""
        cluster.restart(2)
        cluster.produce("t", 0, [b"d"])
        cluster.tick_until_idle()
        for broker in range(3):
            assert [one.offset for one in cluster.log(broker, "t", 0)] == [2, 3]
            assert cluster.replica(broker, "t", 0)[:3] == (2, 4, 4)
        assert cluster.partition("t", 0).isr == [0, 1, 2]
        assert values(cluster.consume("t", 0)) == ["c", "d"]

    def test_is_not_begun_twice(self, cluster: LocalCluster) -> None:
        """A follower that dies in between finds its log empty, and the next process the new
        start.
        """
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
        assert cluster.leader_epochs(2, "t", 0) == [(0, 0)]


def test_a_partition_that_is_always_behind_starves_no_other(start: Start) -> None:
    """replica.fetch.response.max.bytes is shared: partitions served longest ago come first."""
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
        """The leader, the only ISR member, keeps its place; a restored file is copied (8.4)."""
        cluster = start(0, 1, assignment={0: [0, 1], 1: [0, 1]})
        cluster.crash(1)
        cluster.fence(1)
        cluster.restart(1)
        cluster.produce("t", 0, [b"a"], acks=1)
        cluster.produce("t", 1, [b"b"], acks=1)
        cluster.leader_tick(0)
        state = cluster.connection.metadata().partition("t", 0)
        [batch] = cluster.brokers[0]._leaders[0]._root.log.batches(state.key)
        file = cluster.root / "broker-0" / "log" / batch.path
        content = file.read_bytes()
        file.write_bytes(content[:-1] + b"?")
        cluster.tick_until_idle()
        assert (log(cluster, 1), log(cluster, 1, partition=1)) == ([], ["b"])
        file.write_bytes(content)
        # The delay between attempts increases.
        cluster.clock.advance(30_000)
        check_at_rest(cluster, "a")

    def test_that_straddles_the_position_stops_its_partition_only(self, start: Start) -> None:
        """The follower's log end is inside a batch of the leader's after an unclean truncation."""
        cluster = start(0, 1, 2, assignment={0: [0, 1, 2], 1: [0, 1, 2]})
        cluster.produce("t", 0, [b"a", b"b"], acks=1)
        cluster.produce("t", 1, [b"c"], acks=1)
        cluster.leader_tick(0)
        follower = cluster.brokers[1]._followers[0]
        cluster.follower_tick(1)
        key = cluster.connection.metadata().partition("t", 0).key
        follower._truncate({key: 1}, [], now_ms=0)
        assert log(cluster, 1) == ["a"]
        cluster.produce("t", 1, [b"d"], acks=1)
        cluster.leader_tick(0)
        [batch] = cluster.brokers[0]._leaders[0]._root.log.batches(key)
        file = cluster.root / "broker-0" / "log" / batch.path
        content = file.read_bytes()
        file.unlink()
        cluster.follower_tick(1)
        assert (log(cluster, 1), log(cluster, 1, partition=1)) == (["a"], ["c", "d"])
        file.write_bytes(content)
        cluster.follower_tick(1)
        assert log(cluster, 1) == ["a", "b"]
        check_at_rest(cluster, "a", "b")

    def test_of_the_own_that_is_to_be_cut_stops_its_partition_only(self, start: Start) -> None:
        """A missing file of a follower's own log stops the truncation of its partition only."""
        cluster = start(0, 1, assignment={0: [0, 1], 1: [0, 1]})
        cluster.produce("t", 0, [b"x", b"y"], acks=1)
        cluster.produce("t", 1, [b"z"], acks=1)
        cluster.leader_tick(0)
        cluster.follower_tick(1)
        own = cluster.brokers[1]._followers[0]
        key = cluster.connection.metadata().partition("t", 0).key
        [batch] = own._root.log.batches(key)
        (cluster.root / "broker-1" / "log" / batch.path).unlink()
        assert own._truncate({key: 1}, [], now_ms=0) == {key}
        cluster.produce("t", 1, [b"w"], acks=1)
        cluster.leader_tick(0)
        cluster.follower_tick(1)
        assert log(cluster, 1, partition=1) == ["z", "w"]


def test_the_newest_position_of_every_replica_is_in_its_row(start: Start) -> None:
    """The row has the newest position of led and followed replicas, under the process's epoch
    (1.5).
    """
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
