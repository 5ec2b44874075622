"""The cost of a tick, counted in commits and rules, which do not depend on the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from sparklog.model import CLUSTER_TABLES
from sparklog.testing import LocalCluster
from tests.broker.states import table, versions

Start = Callable[..., LocalCluster]


def all_versions(cluster: LocalCluster) -> Counter[str]:
    """Return the versions of every table of the cluster, by root and name."""
    found = Counter(
        {
            f"cluster/{schema.name}": table(cluster, None, schema).version
            for schema in CLUSTER_TABLES
        }
    )
    for broker in cluster.broker_ids:
        found |= Counter({f"{broker}/{k}": v for k, v in versions(cluster, broker).items()})
    return found


def test_a_tick_with_nothing_to_do_writes_nothing_and_runs_no_rule_on_replicas(
    start: Start, rules_run: list[str]
) -> None:
    """Only the controller checks for silent brokers in an idle tick."""
    cluster = start(0, 1, 2, assignment={n: [0, 1, 2] for n in range(5)})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    before = all_versions(cluster)
    rules_run.clear()
    reports = [cluster.controller_tick()]
    reports += [cluster.leader_tick(broker) for broker in (0, 1, 2)]
    reports += [cluster.follower_tick(broker) for broker in (0, 1, 2)]
    assert all_versions(cluster) == before
    assert {(report.changed, report.commits, report.spark_jobs) for report in reports} == {
        (False, 0, 0)
    }
    assert set(rules_run) <= {"silent_brokers"}


def test_a_dead_follower_does_not_keep_its_leader_busy(start: Start, rules_run: list[str]) -> None:
    """Once the follower has left the ISR, time alone causes no more work."""
    cluster = start(0, 1, 2, replica_lag_time_max_ms=5000)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(2)
    cluster.produce("t", 0, [b"b"])
    cluster.tick_until_idle()
    cluster.fence(2)
    cluster.tick_until_idle()
    cluster.clock.advance(60_000)
    cluster.tick_until_idle()
    rules_run.clear()
    cluster.leader_tick(0)
    assert rules_run == []


@pytest.mark.parametrize(("partitions", "requests"), [(1, 1), (6, 4)])
def test_the_commits_of_a_busy_tick_grow_with_nothing(
    start: Start, partitions: int, requests: int
) -> None:
    """One commit each of the journal, of the leader and of the follower. Their number does not
    depend on the number of partitions or requests.
    """
    cluster = start(0, 1, assignment={n: [0, 1] for n in range(partitions)})

    def produce(acks: object) -> None:
        for partition in range(partitions):
            for n in range(requests):
                cluster.produce("t", partition, [b"%d" % n], acks=acks)  # type: ignore[arg-type]

    produce(1)
    # This includes the commit that removes the requests that were taken by then.
    assert cluster.leader_tick(0).commits == 2
    assert cluster.follower_tick(1).commits == 1
    assert cluster.leader_tick(0).commits == 1
    assert cluster.follower_tick(1).commits == 1
    assert cluster.leader_tick(0).commits == 0

    produce("all")
    assert cluster.leader_tick(0).commits == 1
    assert cluster.follower_tick(1).commits == 1
    assert cluster.leader_tick(0).commits == 1


def test_the_commits_of_a_failover_grow_with_nothing(start: Start) -> None:
    """Controller: lease, two fences, the silent broker, the elections. New leader: its journal, and
    the two checkpoints, which are due. Follower: its journal, after log reconciliation with the new
    leader, and the two checkpoints.
    """
    cluster = start(0, 1, 2, assignment={n: [0, 1, 2] for n in range(6)})
    cluster.crash(0)
    cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
    assert cluster.controller_tick().commits == 5
    assert cluster.leader_tick(1).commits == 3
    assert cluster.follower_tick(2).commits == 2
    assert cluster.leader_tick(1).commits == 0
    assert not cluster.controller_tick().changed


def test_an_in_sync_set_is_one_commit_for_all_partitions(start: Start) -> None:
    """The commit is counted although the table belongs to the cluster."""
    cluster = start(0, 1, assignment={n: [0, 1] for n in range(4)}, replica_lag_time_max_ms=5000)
    cluster.crash(1)
    for partition in range(4):
        cluster.produce("t", partition, [b"a"], acks=1)
    cluster.leader_tick(0)
    cluster.clock.advance(5001)
    # The ISR, the high watermark that it allows, and the checkpoint of rows, which is due.
    assert cluster.leader_tick(0).commits == 3
    assert [cluster.partition("t", n).isr for n in range(4)] == [[0]] * 4


def test_an_idle_follower_renews_its_rows_in_one_commit(start: Start) -> None:
    """An idle follower renews its rows at least every third of replica.lag.time.max.ms (5.1)."""
    cluster = start(0, 1, assignment={n: [0, 1] for n in range(4)}, replica_lag_time_max_ms=3000)
    cluster.clock.advance(999)
    assert cluster.follower_tick(1).commits == 0
    cluster.clock.advance(1)
    report = cluster.follower_tick(1)
    assert (report.commits, report.files_copied, report.spark_jobs) == (1, 0, 0)


def test_what_a_follower_copies_is_reported(start: Start) -> None:
    """A follower's tick reports the number and the bytes of the files that it copied."""
    cluster = start(0, 1)
    for _ in range(3):
        cluster.produce("t", 0, [b"a"], acks=1)
    cluster.leader_tick(0)
    report = cluster.follower_tick(1)
    sizes = [
        batch.size_bytes
        for batch in cluster.brokers[0]
        ._leaders[0]
        ._root.log.batches(cluster.connection.metadata().partition("t", 0).key)
    ]
    assert (report.files_copied, report.bytes_copied) == (3, sum(sizes))


def test_heartbeats_are_one_commit_each_of_the_brokers_own_journal(start: Start) -> None:
    """Each broker's heartbeat is one commit of its own journal."""
    cluster = start(0, 1)
    before = all_versions(cluster)
    cluster.clock.advance(1)
    assert all_versions(cluster) - before == Counter({"0/log": 1, "1/log": 1})
