"""`leave_isr`: one compare-and-set that removes a replica from the ISR and the ELR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparklog.cluster.isr import leave_isr
from sparklog.cluster.roots import ClusterRoot
from sparklog.model import PARTITION_STATE, TopicIdPartition
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, rows, table, values

Start = Callable[..., LocalCluster]


def key(cluster: LocalCluster) -> TopicIdPartition:
    return cluster.connection.metadata().partition("t", 0).key


def leave(cluster: LocalCluster, broker: int, *, keep_last: bool = False) -> set[TopicIdPartition]:
    state = ClusterRoot(table(cluster, None, PARTITION_STATE).root).partition_state
    return leave_isr(state, broker, {key(cluster)}, keep_last=keep_last)


def test_a_follower_leaves_the_isr_and_joins_by_a_later_report_only(start: Start) -> None:
    """A follower that has left the ISR joins only by a later report."""
    cluster = start(0, 1, 2)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    before = cluster.partition("t", 0)
    replicas = cluster.brokers[1]._followers[0]._replicas
    replicas.withdraw({key(cluster)}, 0)
    assert leave(cluster, 1) == {key(cluster)}
    after = cluster.partition("t", 0)
    assert (after.leader, after.leader_epoch, after.isr) == (0, before.leader_epoch, [0, 2])
    assert after.partition_epoch == before.partition_epoch + 1
    cluster.leader_tick(0)
    assert cluster.partition("t", 0).isr == [0, 2]
    check_at_rest(cluster, "a")


def test_a_follower_leaves_the_isr_before_it_truncates_below_its_high_watermark(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower leaves the ISR before it truncates below its high watermark."""
    cluster = start(0, 1, 2)
    for value in (b"a", b"b"):
        cluster.produce("t", 0, [value])
        cluster.tick_until_idle()
    [follower] = cluster.brokers[1]._followers
    commit, isr_at_commits = follower._root.log.commit, []

    def noting(added: Any, removed: Any, *arguments: Any) -> None:
        if removed:
            isr_at_commits.append(cluster.partition("t", 0).isr)
        commit(added, removed, *arguments)

    monkeypatch.setattr(follower._root.log, "commit", noting)
    follower._truncate({key(cluster): 1}, [], cluster.clock.now_ms())
    assert isr_at_commits == [[0, 2]]
    monkeypatch.undo()
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).isr == [0, 1, 2]
    check_at_rest(cluster, "a", "b")


def test_a_leader_leaves_and_the_controller_elects_another(start: Start) -> None:
    """After a leader has left the ISR, the controller elects another one."""
    cluster = start(0, 1, 2, min_isr=2)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    before = cluster.partition("t", 0)
    leave(cluster, 0)
    assert cluster.partition("t", 0).isr == [1, 2]
    late = cluster.produce("t", 0, [b"late"])
    cluster.leader_tick(0)
    assert late.response is not None
    assert late.response.error == "NOT_LEADER_OR_FOLLOWER"
    cluster.tick_until_idle()
    after = cluster.partition("t", 0)
    assert (after.leader, after.leader_epoch) == (1, before.leader_epoch + 1)
    assert values(cluster.consume("t", 0)) == ["a"]
    check_at_rest(cluster, "a")


def test_the_last_member_leaves_or_stays_as_asked(start: Start) -> None:
    """With `keep_last` the last ISR member stays; otherwise the partition goes offline."""
    cluster = start(0)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert leave(cluster, 0, keep_last=True) == set()
    assert cluster.partition("t", 0).isr == [0]
    leave(cluster, 0)
    cluster.tick_until_idle()
    state = cluster.partition("t", 0)
    assert (state.leader, state.isr) == (None, [])
    assert not any(row["in_elr"] for row in rows(cluster, None, PARTITION_STATE))


def test_an_eligible_replica_is_eligible_no_longer(start: Start) -> None:
    """A replica that leaves is no longer eligible."""
    cluster = start(0, 1, 2, min_isr=2)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    for broker in (1, 2):
        cluster.crash(broker)
        cluster.fence(broker)
    eligible = {row["broker_id"] for row in rows(cluster, None, PARTITION_STATE) if row["in_elr"]}
    assert eligible == {2}
    leave(cluster, 2)
    assert not any(row["in_elr"] for row in rows(cluster, None, PARTITION_STATE))


def test_a_partition_without_a_replica_of_the_broker_is_left_alone(start: Start) -> None:
    """A partition without a replica of the broker is unchanged."""
    cluster = start(0, 1, 2, assignment={0: [0, 1]})
    before = cluster.partition("t", 0)
    assert leave(cluster, 2) == set()
    assert cluster.partition("t", 0) == before
