"""Damaged files of compacted logs whose replicas were cleaned differently (8.3, 10.8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.cluster.repairs import repairs_of
from sparklog.maintenance.audit import audit
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.testing import LocalCluster
from tests.broker.damaging import flip_byte
from tests.broker.test_cleaner import COMPACT, batches, kept, pass_the_lag, write
from tests.kafka_comparison.cleaning import Kept

Start = Callable[..., LocalCluster]

DAY_MS = 86_400_000
RECORDS = (("a", "1"), ("b", "1"), ("a", None), ("c", "1"), ("d", "1"), ("d", "2"))
ONCE = [Kept(1, "b", "1"), Kept(2, "a", None), Kept(3, "c", "1"), Kept(5, "d", "2")]
TWICE = [Kept(1, "b", "1"), Kept(3, "c", "1"), Kept(5, "d", "2"), Kept(6, "e", "1")]
"""After a second pass, for which a record was added, the tombstone has gone."""


def start_compacted(start: Start) -> LocalCluster:
    cluster = start(0, 1, log_scrub_bytes_per_second=0)
    cluster.create_topic("c", assignment={0: [0, 1]}, configs=COMPACT)
    cluster.tick_until_idle()
    write(cluster, *RECORDS)
    pass_the_lag(cluster)
    return cluster


def clean_twice(cluster: LocalCluster, broker: int) -> None:
    assert cluster.clean(broker).partitions == 1
    pass_the_lag(cluster, DAY_MS)
    write(cluster, ("e", "1"))
    pass_the_lag(cluster)
    assert cluster.clean(broker).partitions == 1


def damage(cluster: LocalCluster, broker: int, offset: int) -> None:
    [batch] = [
        one for one in batches(cluster, broker) if one.base_offset <= offset < one.next_offset
    ]
    flip_byte(Path(cluster.root, f"broker-{broker}", "log", batch.path))


def repaired(cluster: LocalCluster) -> list[str]:
    """Scrub and repair; return the outcomes after the brokers have acted."""
    done = scrub(cluster.connection)
    assert done.findings
    repair(cluster.connection)
    for _ in range(3):
        cluster.clock.advance(10_000)
        cluster.tick_until_idle()
    assert scrub(cluster.connection).findings == []
    assert audit(cluster.connection) == []
    assert cluster.partition("c", 0).isr == [0, 1]
    return [one.outcome for one in repairs_of(cluster.connection.root)]


def test_a_key_that_the_leader_has_deleted_does_not_come_back(start: Start) -> None:
    """The follower loses the file of a tombstone that the leader no longer has.

    The replica is refilled from its start: its own records before the file have the deleted key.
    """
    cluster = start_compacted(start)
    clean_twice(cluster, 0)
    assert kept(cluster, 0) == TWICE
    damage(cluster, 1, 2)
    assert repaired(cluster) == ["the replica was refilled"]
    assert kept(cluster, 1) == TWICE


def test_a_replica_that_was_cleaned_is_refilled_from_a_leader_that_was_not(start: Start) -> None:
    """Every record that the leader has is in the refilled replica, to be cleaned again."""
    cluster = start_compacted(start)
    assert cluster.clean(1).partitions == 1
    damage(cluster, 1, 0)
    assert repaired(cluster) == ["the replica was refilled"]
    assert (
        kept(cluster, 1)
        == kept(cluster, 0)
        == [Kept(offset, *record) for offset, record in enumerate(RECORDS)]
    )
    pass_the_lag(cluster)
    assert cluster.clean(1).partitions == 1
    assert kept(cluster, 1) == ONCE


def test_replicas_that_were_cleaned_differently_have_no_finding(start: Start) -> None:
    """Neither a scrub nor an audit misses the records that one of them has removed."""
    cluster = start_compacted(start)
    clean_twice(cluster, 0)
    for _ in range(2):
        assert scrub(cluster.connection).findings == []
        assert audit(cluster.connection) == []
        cluster.clean(1)
    assert kept(cluster, 0) != kept(cluster, 1)


def test_a_tombstone_that_was_refilled_stays_as_long_as_its_key_has_older_records(
    start: Start,
) -> None:
    """A refill makes a part dirty that the cleaner had noted as clean, for ever so long."""
    cluster = start_compacted(start)
    clean_twice(cluster, 1)
    damage(cluster, 1, 1)
    assert repaired(cluster) == ["the replica was refilled"]
    cluster.crash(1)
    cluster.restart(1)
    write(cluster, ("f", "1"))
    pass_the_lag(cluster, DAY_MS)
    assert cluster.clean(1).partitions == 1
    assert kept(cluster, 1)[:4] == ONCE


def test_the_leaders_file_is_not_rebuilt_from_other_records(start: Start) -> None:
    """A follower has as many records at the offsets of a cleaned batch, but not the same ones.

    The leader leaves the ISR, and is refilled from the follower, which leads then.
    """
    cluster = start(0, 1, log_scrub_bytes_per_second=0, log_merger_max_batch_bytes=1)
    cluster.create_topic("c", assignment={0: [0, 1]}, configs=COMPACT)
    cluster.tick_until_idle()
    cluster.produce("c", 0, [None, b"1", b"1"], keys=[b"a", b"b", b"c"])
    cluster.tick_until_idle()
    pass_the_lag(cluster)
    assert cluster.clean(0).partitions == 1
    pass_the_lag(cluster, DAY_MS)
    for broker, record in ((0, ("d", "1")), (1, ("b", "2"))):
        write(cluster, record)
        pass_the_lag(cluster)
        assert cluster.clean(broker).partitions == 1
    assert [one.offset for one in kept(cluster, 0)] == [1, 2, 3, 4]
    assert [one.offset for one in kept(cluster, 1)] == [0, 2, 3, 4]
    damage(cluster, 0, 1)
    assert repaired(cluster) == ["the replica was refilled"]
    assert [one.offset for one in kept(cluster, 0)] == [0, 2, 3, 4]


def test_a_file_that_a_peer_was_cleaned_to_as_well_is_restored(start: Start) -> None:
    """Equal passes write equal bytes, so no replica is refilled."""
    cluster = start_compacted(start)
    for broker in (0, 1):
        cluster.clean(broker)
    before = batches(cluster, 0)
    damage(cluster, 0, 1)
    assert repaired(cluster) == ["the file was restored from broker 1"]
    assert batches(cluster, 0) == before
    assert kept(cluster, 0) == ONCE


@pytest.mark.parametrize("peer_is_clean", [False, True])
def test_a_batch_without_records_is_restored_without_a_source(
    start: Start, *, peer_is_clean: bool
) -> None:
    """It needs no records of a peer, whatever that has at its offsets."""
    cluster = start(0, 1, log_scrub_bytes_per_second=0, log_merger_max_batch_bytes=1)
    cluster.create_topic("c", assignment={0: [0, 1]}, configs=COMPACT)
    cluster.tick_until_idle()
    write(cluster, ("a", "1"), ("a", "2"))
    pass_the_lag(cluster)
    cluster.clean(0)
    if peer_is_clean:
        cluster.clean(1)
    assert [one.record_count for one in batches(cluster, 0)] == [0, 1]
    damage(cluster, 0, 0)
    [outcome] = repaired(cluster)
    assert outcome.startswith("the file was")
    assert kept(cluster, 0) == [Kept(1, "a", "2")]
