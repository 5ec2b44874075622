"""Reassignment of partitions (rule 7.8, KIP-455), whatever happens in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.cluster.metadata import PartitionState
from sparklog.cluster.roots import ClusterRoot
from sparklog.errors import ProtocolError, SparklogError, StorageError
from sparklog.maintenance.audit import audit
from sparklog.model import PARTITION_STATE, PRODUCER_STATE, TOPICS, TopicPartition
from sparklog.storage.shard_rewrites import RowChanges
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error, journal, log, rows, values

Start = Callable[..., LocalCluster]
T0 = TopicPartition("t", 0)


def state(cluster: LocalCluster) -> PartitionState:
    return cluster.connection.metadata().partition("t", 0)


def moving(cluster: LocalCluster) -> tuple[list[int], list[int], list[int]]:
    """Return the replicas of partition 0, and those that are being added and removed."""
    replicas = state(cluster).replicas
    return (
        [one.broker_id for one in replicas],
        [one.broker_id for one in replicas if one.adding],
        [one.broker_id for one in replicas if one.removing],
    )


def reassign(cluster: LocalCluster, target: Sequence[int] | None, **given: Any) -> str:
    """Request a reassignment of t-0, or cancel it; return the error."""
    return cluster.alter_partition_reassignments({T0: target}, **given)[T0].error


def held(cluster: LocalCluster, broker: int) -> list[str]:
    """Return what a broker's root has of topic t."""
    topic_id = state(cluster).topic_id
    opened = journal(cluster, broker)
    keys = {
        "row": {key.topic_id for key in opened.rows},
        "history": {key.topic_id for key in opened.epochs},
        "batches": {key.topic_id for key in opened.partitions()},
        "producers": {str(row["topic_id"]) for row in rows(cluster, broker, PRODUCER_STATE)},
    }
    return [name for name, of in keys.items() if topic_id in of]


def check_audit(cluster: LocalCluster) -> None:
    assert audit(Connection(cluster.root / "cluster")) == []


def check_idle(cluster: LocalCluster) -> None:
    """Check that a round commits nothing."""
    reports = [cluster.controller_tick()]
    for broker in cluster.brokers:
        reports += [cluster.leader_tick(broker), cluster.follower_tick(broker)]
    assert {(one.commits, one.changed) for one in reports} == {(0, False)}


def check_moved(cluster: LocalCluster, replicas: list[int], *expected: str) -> None:
    """Check that the partition is on these brokers alone, with these records."""
    check_at_rest(cluster, *expected)
    assert moving(cluster) == (replicas, [], [])
    for broker in cluster.brokers:
        assert bool(held(cluster, broker)) == (broker in replicas), broker
    assert cluster.list_partition_reassignments() == {}
    check_audit(cluster)
    check_idle(cluster)


def test_all_replicas_move_while_records_come(start: Start) -> None:
    """The leader is among those that leave; acks=all is answered during the whole of it."""
    cluster = start(0, 1, 2, 3, assignment={0: [0, 1]}, min_isr=2)
    producer = cluster.idempotent_producer()
    cluster.produce("t", 0, [b"a"], producer=producer)
    cluster.tick_until_idle()
    before = state(cluster)
    assert reassign(cluster, [2, 3]) == "NONE"
    after = state(cluster)
    assert moving(cluster) == ([2, 3, 0, 1], [2, 3], [0, 1])
    assert (after.leader, after.leader_epoch) == (0, before.leader_epoch)
    assert after.partition_epoch == before.partition_epoch + 1
    assert cluster.list_partition_reassignments() == {T0: ((2, 3, 0, 1), (2, 3), (0, 1))}
    pending = cluster.produce("t", 0, [b"b"], producer=producer)
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    cluster.leader_tick(0)
    assert error(pending) == "NONE", "the replicas that are being added are not in sync yet"
    assert values(cluster.consume("t", 0)) == ["a", "b"]
    cluster.tick_until_idle()
    assert state(cluster).leader == 2
    assert state(cluster).leader_epoch == before.leader_epoch + 1
    pending = cluster.produce("t", 0, [b"c"], producer=producer)
    cluster.tick_until_idle()
    assert error(pending) == "NONE"
    check_moved(cluster, [2, 3], "a", "b", "c")


def test_a_leader_that_stays_gets_a_new_epoch(start: Start) -> None:
    """With the epoch begins the record of the removal."""
    cluster = start(0, 1, 2)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert reassign(cluster, [0, 1]) == "NONE"
    cluster.tick_until_idle()
    assert (state(cluster).leader, state(cluster).leader_epoch) == (0, 1)
    assert state(cluster).removed == [(2, 0, 1)]
    check_moved(cluster, [0, 1], "a")


def test_the_replication_factor_goes_up_and_down(start: Start) -> None:
    """The topic's row follows partition 0; new partitions get as many replicas."""
    cluster = start(0, 1, 2, assignment={0: [1]})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert reassign(cluster, [1, 0, 2]) == "NONE"
    described = str(Admin(cluster.connection).describe_topic("t"))
    assert "ReplicationFactor: 1\t" in described
    assert "Replicas: 1,0,2\tIsr: 1\tAdding Replicas: 0,2\tRemoving Replicas: \tElr: " in described
    cluster.tick_until_idle()
    assert state(cluster).leader_epoch == 0, "nothing was removed"
    assert [row["replication_factor"] for row in rows(cluster, None, TOPICS)] == [3]
    check_moved(cluster, [1, 0, 2], "a")
    assert reassign(cluster, [2, 1]) == "NONE"
    cluster.create_partitions("t", 2)
    assert len(cluster.partition("t", 1).replicas) == 2
    cluster.tick_until_idle()
    assert [row["replication_factor"] for row in rows(cluster, None, TOPICS)] == [2]


def test_a_new_order_needs_no_copy(start: Start) -> None:
    cluster = start(0, 1, 2)
    assert reassign(cluster, [2, 0, 1]) == "NONE"
    assert moving(cluster) == ([2, 0, 1], [], [])
    assert cluster.elect_leaders("preferred", [T0]) == {T0: "NONE"}
    cluster.tick_until_idle()
    assert state(cluster).leader == 2
    epoch = state(cluster).partition_epoch
    assert reassign(cluster, [2, 0, 1]) == "NONE"
    assert state(cluster).partition_epoch == epoch, "nothing is left to do"


def test_cancelled_halfway(start: Start) -> None:
    """One replica was in sync already, the other one had records; both are removed."""
    cluster = start(0, 1, 2, 3, assignment={0: [0, 1]})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert reassign(cluster, [2, 3]) == "NONE"
    for broker in (2, 2, 3):
        cluster.follower_tick(broker)
        cluster.leader_tick(0)
    assert 2 in cluster.partition("t", 0).isr
    assert log(cluster, 3) == ["a"]
    cluster.produce("t", 0, [b"b"])
    cluster.leader_tick(0)
    assert reassign(cluster, None) == "NONE"
    assert moving(cluster) == ([0, 1], [], [])
    assert cluster.partition("t", 0).isr == [0, 1]
    assert state(cluster).removed == [(2, 0, 1), (3, 0, 1)]
    check_moved(cluster, [0, 1], "a", "b")
    assert reassign(cluster, None) == "NO_REASSIGNMENT_IN_PROGRESS"


def test_cancelling_when_only_the_target_is_in_sync(start: Start) -> None:
    """It would need an unclean election, which the topic has to allow."""
    cluster = start(0, 1, assignment={0: [0]}, replica_lag_time_max_ms=5000)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.clock.advance(10)
    assert reassign(cluster, [1]) == "NONE"
    for _ in range(2):
        cluster.follower_tick(1)
        cluster.leader_tick(0)
    assert cluster.partition("t", 0).isr == [0, 1]
    cluster.crash(0)
    cluster.fence(0)
    assert cluster.partition("t", 0).isr == [1]
    # The controller has completed it: the old replica is removed when its broker comes back.
    assert moving(cluster) == ([1], [], [])
    cluster.restart(0)
    check_moved(cluster, [1], "a")


def test_an_unclean_cancellation_is_refused(start: Start) -> None:
    cluster = start(0, 1, 2, assignment={0: [0]})
    cluster.tick_until_idle()
    assert reassign(cluster, [1, 2]) == "NONE"
    for _ in range(2):
        cluster.follower_tick(1)
        cluster.leader_tick(0)
    cluster.crash(0)
    cluster.fence(0)
    assert (cluster.partition("t", 0).leader, cluster.partition("t", 0).isr) == (1, [1])
    altered = cluster.alter_partition_reassignments({T0: None})[T0]
    assert altered.error == "INVALID_REPLICA_ASSIGNMENT"
    assert altered.detail == (
        "INVALID_REPLICA_ASSIGNMENT: Unable to revert partition assignment for t:0 because it "
        "would require an unclean leader election."
    )
    cluster.alter_configs("t", {"unclean.leader.election.enable": True})
    assert reassign(cluster, None) == "NONE"
    assert cluster.partition("t", 0).leader is None
    cluster.restart(0)
    cluster.tick_until_idle()
    assert (cluster.partition("t", 0).leader, cluster.partition("t", 0).isr) == (0, [0])
    check_moved(cluster, [0])


def test_a_new_target_replaces_the_earlier_one(start: Start) -> None:
    """Replicas that only the earlier target has added go at once; the original ones stay."""
    cluster = start(0, 1, 2, 3, assignment={0: [0, 1]})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert reassign(cluster, [2, 1]) == "NONE"
    assert moving(cluster) == ([2, 1, 0], [2], [0])
    cluster.follower_tick(2)
    epoch = state(cluster).partition_epoch
    assert reassign(cluster, [2, 1]) == "NONE", "a retry"
    assert state(cluster).partition_epoch == epoch
    assert reassign(cluster, [3, 1]) == "NONE"
    assert moving(cluster) == ([3, 1, 0], [3], [0])
    assert state(cluster).removed == [(2, 0, 1)]
    cluster.tick_until_idle()
    check_moved(cluster, [3, 1], "a")
    assert reassign(cluster, [2, 1]) == "NONE"
    cluster.tick_until_idle()
    assert [one.broker_id for one in state(cluster).removed] == [0, 3], "2 is assigned again"
    check_moved(cluster, [2, 1], "a")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ([], "includes an empty replica list."),
        ([0, 0], "includes the broker 0 more than once."),
        ([7], "includes broker 7, but no such broker is registered."),
        ([-1], "includes broker -1, but no such broker is registered."),
    ],
)
def test_targets_that_are_refused(start: Start, target: list[int], reason: str) -> None:
    cluster = start(0, 1)
    altered = cluster.alter_partition_reassignments({T0: target, TopicPartition("t", 9): [0]})
    assert altered[T0].error == "INVALID_REPLICA_ASSIGNMENT"
    assert altered[T0].detail.endswith(f"The manual partition assignment {reason}")
    assert altered[TopicPartition("t", 9)].error == "UNKNOWN_TOPIC_OR_PARTITION"
    check_idle(cluster)


def test_a_removed_broker_that_was_away(start: Start) -> None:
    """It removes its replica by the record, although another broker has led meanwhile."""
    cluster = start(0, 1, 2, assignment={0: [0, 1]})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.fence(0)
    assert reassign(cluster, [2, 1]) == "NONE"
    cluster.tick_until_idle()
    assert moving(cluster) == ([2, 1], [], [])
    cluster.produce("t", 0, [b"b"])
    cluster.tick_until_idle()
    assert "batches" in held(cluster, 0)
    cluster.restart(0)
    check_moved(cluster, [2, 1], "a", "b")


def test_a_replica_without_a_record_stays(start: Start) -> None:
    """As after the restoration of an older cluster root: a missing assignment is no evidence."""
    cluster = start(0, 1, 2)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(2)
    cluster.fence(2)
    assert reassign(cluster, [0, 1]) == "NONE"
    cluster.tick_until_idle()
    without_records(cluster)
    cluster.restart(2)
    cluster.tick_until_idle()
    assert "batches" in held(cluster, 2)


def without_records(cluster: LocalCluster) -> None:
    table = cluster.connection.root.partition_state

    def change(old: Any) -> RowChanges:
        changed = [row | {"removed_replicas": None} for row in old.to_pylist()]
        return RowChanges(PARTITION_STATE.rows(changed))

    table.change_rows(change)


def test_a_broker_of_the_target_dies_halfway(start: Start) -> None:
    """The reassignment waits for it; acks=all does not."""
    cluster = start(0, 1, 2, 3, assignment={0: [0, 1]}, replica_lag_time_max_ms=5000)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert reassign(cluster, [2, 3]) == "NONE"
    for broker in (2, 2, 3, 3):
        cluster.follower_tick(broker)
        cluster.leader_tick(0)
    assert cluster.partition("t", 0).isr == [0, 1, 2, 3]
    cluster.crash(3)
    pending = cluster.produce("t", 0, [b"b"])
    cluster.fence(3)
    cluster.tick_until_idle()
    assert error(pending) == "NONE"
    assert moving(cluster) == ([2, 3, 0, 1], [2, 3], [0, 1])
    cluster.restart(3)
    cluster.tick_until_idle()
    check_moved(cluster, [2, 3], "a", "b")


def test_the_leader_dies_halfway(start: Start) -> None:
    """An old replica leads, and the new ones copy from it."""
    cluster = start(0, 1, 2, 3, assignment={0: [0, 1]})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert reassign(cluster, [2, 3]) == "NONE"
    cluster.follower_tick(2)
    cluster.crash(0)
    cluster.fence(0)
    cluster.tick_until_idle()
    cluster.restart(0)
    check_moved(cluster, [2, 3], "a")


@pytest.mark.parametrize("point", ["election", "reassignment"])
def test_the_controller_dies(start: Start, point: str) -> None:
    """Another one ends the reassignment, or what is left of it."""
    cluster = start(0, 1, 2, assignment={0: [1]})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert cluster.brokers[0].is_controller
    assert reassign(cluster, [2, 1]) == "NONE"
    for _ in range(2):
        cluster.follower_tick(2)
        cluster.leader_tick(1)
    cluster.controller_tick(stop_after=point)
    assert 0 not in cluster.brokers
    is_done = point == "reassignment"
    assert moving(cluster) == ([2, 1], [] if is_done else [2], [])
    assert [row["replication_factor"] for row in rows(cluster, None, TOPICS)] == [1]
    cluster.fence(0)
    cluster.tick_until_idle()
    assert [row["replication_factor"] for row in rows(cluster, None, TOPICS)] == [2]
    cluster.restart(0)
    check_moved(cluster, [2, 1], "a")


@pytest.mark.parametrize("point", ["log_commit", "removal"])
def test_a_broker_dies_while_it_removes_its_replica(start: Start, point: str) -> None:
    cluster = start(0, 1, log_merger_min_batches=2, log_merger_min_lag_ms=0)
    producer = cluster.idempotent_producer()
    for value in (b"a", b"b"):
        cluster.produce("t", 0, [value], producer=producer)
        cluster.tick_until_idle()
    cluster.clock.advance(1)
    cluster.merge(1)
    assert "producers" in held(cluster, 1)
    assert reassign(cluster, [0]) == "NONE"
    cluster.controller_tick()
    cluster.leader_tick(1, stop_after=point)
    assert held(cluster, 1) == (["producers"] if point == "log_commit" else [])
    cluster.restart(1)
    check_moved(cluster, [0], "a", "b")


def test_the_topic_is_deleted_halfway(start: Start) -> None:
    cluster = start(0, 1, 2, assignment={0: [0]})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    topic_id = state(cluster).topic_id
    assert reassign(cluster, [1, 2]) == "NONE"
    cluster.follower_tick(1)
    cluster.delete_topic("t")
    assert reassign(cluster, [0]) == "UNKNOWN_TOPIC_OR_PARTITION"
    cluster.tick_until_idle()
    assert rows(cluster, None, PARTITION_STATE) == []
    for broker in range(3):
        opened = journal(cluster, broker)
        assert all(key.topic_id != topic_id for key in (*opened.rows, *opened.partitions()))
    check_idle(cluster)


def test_a_new_replica_of_a_log_that_begins_later(start: Start) -> None:
    """Records before the leader's log start offset are not copied."""
    cluster = start(0, 1, assignment={0: [0]})
    cluster.produce("t", 0, [b"a", b"b"])
    cluster.produce("t", 0, [b"c"])
    cluster.tick_until_idle()
    cluster.delete_records({T0: 2})
    cluster.tick_until_idle()
    assert reassign(cluster, [1]) == "NONE"
    cluster.tick_until_idle()
    assert moving(cluster) == ([1], [], [])
    assert [one.offset for one in cluster.log(1, "t", 0)] == [2]
    assert held(cluster, 0) == []
    check_audit(cluster)


def test_progress(start: Start) -> None:
    """Offsets and bytes of each new replica."""
    cluster = start(0, 1, 2, assignment={0: [0]})
    cluster.produce("t", 0, [b"a", b"b"])
    cluster.tick_until_idle()
    assert reassign(cluster, [0, 1, 2]) == "NONE"
    cluster.follower_tick(1)
    first, second = Admin(cluster.connection).list_adding_replicas()
    assert first[:6] == ("t", 0, 1, False, 2, 2)
    assert first.bytes_left == 0
    assert second[:6] == ("t", 0, 2, False, 0, 2)
    assert second.bytes_left == journal(cluster, 0).batches(state(cluster).key)[0].size_bytes


def test_a_broker_is_drained_and_removed(start: Start) -> None:
    """Its replicas are spread evenly, and it holds nothing afterwards."""
    cluster = start(0, 1, 2, 3, assignment={0: [3, 0]})
    cluster.create_topic("u", assignment={0: [0, 3], 1: [1, 2], 2: [3, 1]})
    for partition in range(3):
        cluster.produce("u", partition, [b"u"])
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    plan = cluster.drain_broker(3)
    assert plan == {("t", 0): [2, 0], ("u", 0): [0, 1], ("u", 2): [0, 1]}
    cluster.tick_until_idle()
    assert cluster.drain_broker(3) == {}
    admin = Admin(cluster.connection, settings=cluster.settings, clock=cluster.clock)
    assert [one.replicas for one in admin.list_brokers()] == [3, 3, 2, 0]
    assert held(cluster, 3) == []
    cluster.brokers[3].stop()
    cluster.crash(3)
    cluster.tick_until_idle()
    assert admin.unregister_broker(3) == 0
    assert [one.broker.broker_id for one in admin.list_brokers()] == [0, 1, 2]
    check_audit(cluster)


def test_a_broker_that_cannot_be_drained(start: Start) -> None:
    cluster = start(0, 1, 2)
    with pytest.raises(ProtocolError, match="t-0 has 3 replicas, and there are 2 other live") as e:
        cluster.drain_broker(0)
    assert e.value.code.name == "INVALID_REPLICATION_FACTOR"
    with pytest.raises(ProtocolError, match="there is no broker 9 to be drained"):
        cluster.drain_broker(9)
    assert cluster.list_partition_reassignments() == {}


def test_a_drained_broker_is_replaced_in_another_rack(tmp_path: Path) -> None:
    cluster = LocalCluster(
        tmp_path / "racked", brokers=[0, 1, 2, 3], racks={0: "a", 1: "a", 2: "b", 3: "c"}
    )
    cluster.create_topic("t", assignment={0: [0, 2]})
    cluster.create_topic("u", assignment={0: [3, 0]})
    assert cluster.drain_broker(2) == {("t", 0): [0, 3]}
    cluster.tick_until_idle()
    assert moving(cluster) == ([0, 3], [], [])


def copied(cluster: LocalCluster, broker: int, topic: str = "t") -> int:
    """Return the bytes of a broker's replica of partition 0."""
    key = cluster.connection.metadata().partition(topic, 0).key
    return sum(one.size_bytes for one in journal(cluster, broker).batches(key))


def follow(cluster: LocalCluster, *brokers: int) -> None:
    """Let followers copy all that they may at this moment."""
    for broker in brokers:
        while cluster.follower_tick(broker).files_copied:
            pass


def filled(start: Start, batches: int) -> tuple[LocalCluster, int]:
    """Return a cluster with so many batches on brokers 0 and 1, and the size of each."""
    cluster = start(0, 1, 2, 3, assignment={0: [0, 1]})
    for number in range(batches):
        cluster.produce("t", 0, [f"{number}".encode()])
    cluster.tick_until_idle()
    sizes = {one.size_bytes for one in journal(cluster, 0).batches(state(cluster).key)}
    return cluster, max(sizes)


def test_a_throttle_bounds_the_bytes_of_new_replicas_alone(start: Start) -> None:
    """Two batches a second: the burst of one second, then what time allows."""
    cluster, size = filled(start, 9)
    cluster.create_topic("u", assignment={0: [0, 2]})
    assert reassign(cluster, [2, 0, 1], throttle=2 * size) == "NONE"
    for value in (b"u", b"v", b"w"):
        cluster.produce("u", 0, [value])
    cluster.produce("t", 0, [b"9"])
    cluster.leader_tick(0)
    follow(cluster, 1, 2)
    assert len(log(cluster, 2)) == 2
    assert log(cluster, 1) == [str(number) for number in range(10)], "it is in sync: not slowed"
    assert log(cluster, 2, "u") == ["u", "v", "w"], "no reassignment"
    seconds = 0.0
    while len(log(cluster, 2)) < 10:
        cluster.clock.advance(500)
        follow(cluster, 2)
        seconds += 0.5
        assert copied(cluster, 2) <= 2 * size * (seconds + 1) + size
    assert seconds >= 3.5
    check_moved(cluster, [2, 0, 1], *map(str, range(10)))


def test_a_batch_above_the_throttle_is_paid_for_later(start: Start) -> None:
    """One batch is copied at least, and the next one when the rate allows both."""
    cluster, size = filled(start, 3)
    assert reassign(cluster, [2, 0, 1], throttle=size // 4) == "NONE"
    follow(cluster, 2)
    assert len(log(cluster, 2)) == 1
    cluster.clock.advance(2_900)
    follow(cluster, 2)
    assert len(log(cluster, 2)) == 1
    cluster.clock.advance(300)
    follow(cluster, 2)
    assert len(log(cluster, 2)) == 2


def test_brokers_share_the_rate_of_a_leader(start: Start) -> None:
    """Each of two brokers that copy from it has the half."""
    cluster, size = filled(start, 8)
    assert reassign(cluster, [2, 3], throttle=4 * size) == "NONE"
    follow(cluster, 2, 3)
    assert (len(log(cluster, 2)), len(log(cluster, 3))) == (2, 2)


def test_a_throttle_is_changed_and_removed(start: Start) -> None:
    """A new reassignment does not keep that of an earlier one."""
    cluster, size = filled(start, 6)
    admin = Admin(cluster.connection)
    assert reassign(cluster, [2, 0, 1], throttle=size) == "NONE"
    follow(cluster, 2)
    assert len(log(cluster, 2)) == 1
    assert admin.alter_replication_throttle(3 * size) == 1
    cluster.clock.advance(1_000)
    follow(cluster, 2)
    assert len(log(cluster, 2)) == 4
    assert admin.alter_replication_throttle(None) == 1
    follow(cluster, 2)
    assert len(log(cluster, 2)) == 6
    cluster.tick_until_idle()
    assert reassign(cluster, [3, 0, 1], throttle=size) == "NONE"
    assert reassign(cluster, [3, 1, 0]) == "NONE"
    assert state(cluster).replication_throttled_rate == size
    assert reassign(cluster, None) == "NONE"
    assert reassign(cluster, [3, 0]) == "NONE"
    assert state(cluster).replication_throttled_rate is None
    for rate in (0, -1, 1.5):
        with pytest.raises(SparklogError, match="the throttle must be"):
            admin.alter_replication_throttle(rate)  # type: ignore[arg-type]


def test_a_leader_that_was_restarted_is_elected_again(start: Start) -> None:
    """Before the controller has acted: its new process leads in an epoch of its own."""
    cluster = start(0, 1)
    cluster.crash(0)
    cluster.restart(0)
    assert reassign(cluster, [1, 0]) == "NONE"
    found = state(cluster)
    assert (found.leader, found.leader_epoch) == (1, 1)
    check_moved(cluster, [1, 0])


def test_an_older_cluster_root_is_refused(start: Start, tmp_path: Path) -> None:
    """In it the removed replica is in sync, and the broker has no record of it any more."""
    cluster = start(0, 1, 2, assignment={0: [0, 1]})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    shutil.copytree(cluster.root / "cluster", tmp_path / "older")
    assert reassign(cluster, [0, 2]) == "NONE"
    cluster.tick_until_idle()
    assert held(cluster, 1) == []
    for broker in range(3):
        cluster.crash(broker)
    shutil.rmtree(cluster.root / "cluster")
    shutil.copytree(tmp_path / "older", cluster.root / "cluster")
    with pytest.raises(StorageError, match="has removed reassigned replicas by version"):
        cluster.restart(1)


@pytest.mark.parametrize("failing", ["cluster/partition_state", "cluster/topics", "broker-2/log"])
def test_a_write_that_fails(
    start: Start, fail_once: Callable[[str, str], None], failing: str
) -> None:
    """The end of a reassignment, its factor, or the removal of a replica is tried again."""
    cluster = start(0, 1, 2)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert reassign(cluster, [0, 1]) == "NONE"
    if failing == "broker-2/log":
        cluster.controller_tick()
    fail_once("write", failing)
    is_removal = failing == "broker-2/log"
    with pytest.raises(OSError, match="is away"):
        cluster.leader_tick(2) if is_removal else cluster.controller_tick()
    check_moved(cluster, [0, 1], "a")
    assert [row["replication_factor"] for row in rows(cluster, None, TOPICS)] == [2]


def test_a_cluster_of_format_2_is_upgraded_first(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its brokers may be of a release that would not end a reassignment."""
    cluster = start(0, 1)
    monkeypatch.setattr(ClusterRoot, "format_version", 2)
    with pytest.raises(ProtocolError, match="run `sparklog upgrade` first") as raised:
        reassign(cluster, [1])
    assert raised.value.code.name == "UNSUPPORTED_VERSION"
