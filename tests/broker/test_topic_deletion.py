"""Deleting topics (rule 7.9): state first, then every replica, whatever fails in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from sparklog.cluster import topic_changes
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.config import Settings
from sparklog.errors import ProtocolError, StorageError
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata
from sparklog.groups.group import GroupFence
from sparklog.model import (
    CONSUMER_OFFSETS,
    DELAYED_OPERATIONS,
    PARTITION_STATE,
    PRODUCER_STATE,
    TOPICS,
    TopicIdPartition,
)
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error, journal, log, rows, values

Start = Callable[..., LocalCluster]
FailOnce = Callable[[str, str], None]
BeforeRule = Callable[[str, Callable[[], object]], None]


def topic_id(cluster: LocalCluster, topic: str = "t") -> str:
    return cluster.connection.metadata().topic(topic).topic_id


def states(cluster: LocalCluster) -> list[tuple[str, str]]:
    """Return the name and the state of each row of `topics`, in order."""
    return [(row["topic"], row["state"]) for row in rows(cluster, None, TOPICS)]


def left_of(cluster: LocalCluster, deleted: str) -> list[str]:
    """Return the places that still have something of a deleted topic, without its record."""
    left = [
        schema.name
        for schema in (PARTITION_STATE, CONSUMER_OFFSETS)
        if any(row["topic_id"] == deleted for row in rows(cluster, None, schema))
    ]
    for broker in cluster.broker_ids:
        opened = journal(cluster, broker)
        parts: dict[str, Iterable[TopicIdPartition]] = {
            "rows": opened.rows,
            "histories": opened.epochs,
            "batches": opened.partitions(),
        }
        for name, held in parts.items():
            if any(key.topic_id == deleted for key in held):
                left.append(f"{name} of broker {broker}")
        if any(row["topic_id"] == deleted for row in opened.operations.values()):
            left.append(f"operations of broker {broker}")
        if any(row["topic_id"] == deleted for row in rows(cluster, broker, PRODUCER_STATE)):
            left.append(f"producers of broker {broker}")
    return left


def check_gone(cluster: LocalCluster, deleted: str) -> None:
    """Check that only the record of the deletion is left, and that an idle round is free."""
    assert left_of(cluster, deleted) == []
    assert {one["topic_id"]: one["state"] for one in rows(cluster, None, TOPICS)}[deleted] == (
        "deleted"
    )
    reports = [cluster.controller_tick()]
    for broker in cluster.brokers:
        reports += [cluster.leader_tick(broker), cluster.follower_tick(broker)]
    assert {(one.commits, one.changed) for one in reports} == {(0, False)}


def commit_offset(cluster: LocalCluster, group: str, *topics: str) -> None:
    keys = {TopicIdPartition(topic_id(cluster, topic), 0): topic for topic in topics}
    offsets = {key: (topic, OffsetAndMetadata(1)) for key, topic in keys.items()}
    table = cluster.connection.root.consumer_offsets
    CommittedOffsets(table, cluster.clock).commit(group, GroupFence(0, 0), offsets)


def fill(cluster: LocalCluster) -> str:
    """Produce to topic t, as an idempotent producer too, and merge its batches; return its id."""
    producer = cluster.idempotent_producer()
    for value in (b"a", b"b"):
        cluster.produce("t", 0, [value], producer=producer)
        cluster.tick_until_idle()
    commit_offset(cluster, "g", "t")
    return topic_id(cluster)


def test_all_of_a_topic_is_removed(start: Start) -> None:
    """Replicas with rows, histories, batches and producers; partitions; committed offsets."""
    config = {"log_merger_min_batches": 2, "log_merger_min_lag_ms": 0}
    cluster = start(0, 1, 2, **config)
    cluster.create_topic("u")
    deleted = fill(cluster)
    cluster.clock.advance(1)
    for broker in range(3):
        cluster.merge(broker)
    cluster.tick_until_idle()
    commit_offset(cluster, "h", "t", "u")
    assert [row["topic_id"] for row in rows(cluster, 0, PRODUCER_STATE)] == [deleted] * 2
    cluster.produce("u", 0, [b"kept"])
    cluster.tick_until_idle()

    cluster.delete_topic("t")
    assert states(cluster) == [("u", "live"), ("t", "deleting")]
    cluster.tick_until_idle()
    check_gone(cluster, deleted)
    assert values(cluster.consume("u", 0)) == ["kept"]
    assert [row["group_id"] for row in rows(cluster, None, CONSUMER_OFFSETS)] == ["h"]
    with pytest.raises(ProtocolError, match="there is no topic 't'; the topics are: u"):
        cluster.consume("t", 0)
    for broker in range(3):
        cluster.crash(broker)
        cluster.restart(broker)
    cluster.tick_until_idle()
    check_gone(cluster, deleted)


def test_requests_are_answered_that_wait_for_followers_or_to_be_taken(start: Start) -> None:
    """One has been appended with acks=all, the other one is in the inbox."""
    cluster = start(0, 1, 2)
    deleted = topic_id(cluster)
    appended = cluster.produce("t", 0, [b"a"])
    cluster.leader_tick(0)
    assert [row["topic_id"] for row in rows(cluster, 0, DELAYED_OPERATIONS)] == [deleted]
    waiting = cluster.produce("t", 0, [b"b"])
    cluster.delete_topic("t")
    commits = cluster.brokers[0]._roots[0].log.commits
    cluster.leader_tick(0)
    assert cluster.brokers[0]._roots[0].log.commits == commits + 1, "one step with all of it"
    assert (error(appended), error(waiting)) == ("UNKNOWN_TOPIC_OR_PARTITION",) * 2
    cluster.tick_until_idle()
    check_gone(cluster, deleted)


@pytest.mark.parametrize("point", ["log_commit", "removal"])
@pytest.mark.parametrize("recreates", [False, True], ids=["", "recreated"])
def test_a_broker_that_dies_while_it_removes_replicas(
    start: Start, point: str, recreates: bool
) -> None:
    """Its next process ends what the last one left, also under a new topic of the name."""
    cluster = start(0, 1, log_merger_min_batches=2, log_merger_min_lag_ms=0)
    deleted = fill(cluster)
    cluster.clock.advance(1)
    cluster.merge(0)
    cluster.delete_topic("t")
    cluster.leader_tick(0, stop_after=point)
    if recreates:
        cluster.create_topic("t", assignment={0: [1, 0]})
    cluster.tick_until_idle()
    cluster.restart(0)
    cluster.tick_until_idle()
    check_gone(cluster, deleted)
    if recreates:
        cluster.produce("t", 0, [b"new"])
        check_at_rest(cluster, "new")


@pytest.mark.parametrize("point", ["partitions_removal", "offsets_removal"])
def test_a_controller_that_dies_while_it_removes_rows(start: Start, point: str) -> None:
    """The next controller begins again; until it ends, the topic is marked for deletion."""
    cluster = start(0, 1)
    deleted = fill(cluster)
    cluster.delete_topic("t")
    [controller] = [one for one, of in cluster.brokers.items() if of.is_controller]
    cluster.controller_tick(stop_after=point)
    assert controller not in cluster.brokers
    assert states(cluster) == [("t", "deleting")]
    admin = Admin(cluster.connection, settings=cluster.settings)
    [marked] = admin.list_topics_marked_for_deletion()
    assert marked.topic.topic_id == deleted
    assert str(marked).endswith("MarkedForDeletion: true")
    cluster.fence(controller)
    cluster.tick_until_idle()
    assert admin.list_topics_marked_for_deletion() == []
    cluster.restart(controller)
    cluster.tick_until_idle()
    check_gone(cluster, deleted)


@pytest.mark.parametrize(
    "failing",
    [
        "broker-0/log",
        "broker-0/producer_state",
        "cluster/partition_state",
        "cluster/topics",
        "cluster/consumer_offsets",
    ],
)
def test_a_write_that_fails_is_made_again(start: Start, fail_once: FailOnce, failing: str) -> None:
    """A failing write delays the deletion and loses nothing."""
    cluster = start(0, 1, log_merger_min_batches=2, log_merger_min_lag_ms=0)
    deleted = fill(cluster)
    cluster.clock.advance(1)
    cluster.merge(0)
    cluster.delete_topic("t")
    fail_once("write", failing)
    is_of_broker = failing.startswith("broker")
    tick = partial(cluster.leader_tick, 0) if is_of_broker else cluster.controller_tick
    with pytest.raises(OSError, match="is away"):
        tick()
    assert left_of(cluster, deleted)
    cluster.tick_until_idle()
    check_gone(cluster, deleted)


def test_a_broker_that_was_away_removes_its_replicas_when_it_returns(start: Start) -> None:
    """It finds the record of the deletion, also after its name was used again."""
    cluster = start(0, 1, 2)
    deleted = fill(cluster)
    cluster.crash(2)
    cluster.fence(2)
    cluster.delete_topic("t")
    cluster.tick_until_idle()
    assert left_of(cluster, deleted) == [
        f"{of} of broker 2" for of in ("rows", "histories", "batches")
    ]
    cluster.create_topic("t", assignment={0: [0, 2]})
    cluster.produce("t", 0, [b"new"])
    cluster.tick_until_idle()
    cluster.restart(2)
    cluster.tick_until_idle()
    check_gone(cluster, deleted)
    assert (log(cluster, 0), log(cluster, 2)) == (["new"], ["new"])


def test_a_restored_broker_root_removes_its_replicas_again(start: Start, tmp_path: Path) -> None:
    """Its records come back with the root, and are recognised as those of a deleted topic."""
    cluster = start(0, 1)
    deleted = fill(cluster)
    cluster.crash(1)
    shutil.copytree(cluster.root / "broker-1", tmp_path / "copy")
    cluster.restart(1)
    cluster.delete_topic("t")
    cluster.tick_until_idle()
    cluster.crash(1)
    shutil.rmtree(cluster.root / "broker-1")
    shutil.copytree(tmp_path / "copy", cluster.root / "broker-1")
    assert left_of(cluster, deleted)
    cluster.restart(1)
    cluster.tick_until_idle()
    check_gone(cluster, deleted)


def test_a_restored_cluster_root_is_recognised_and_deletes_nothing(
    start: Start, tmp_path: Path
) -> None:
    """A root from before a topic's creation, and one from before a deletion."""
    cluster = start(0)
    deleted = fill(cluster)
    cluster.crash(0)
    shutil.copytree(cluster.root / "cluster", tmp_path / "before")
    cluster.restart(0)
    cluster.create_topic("later")
    cluster.produce("later", 0, [b"kept"])
    cluster.tick_until_idle()
    later = topic_id(cluster, "later")
    cluster.delete_topic("t")
    cluster.tick_until_idle()
    cluster.crash(0)
    shutil.copytree(cluster.root / "cluster", tmp_path / "after")
    restored = cluster.root / "cluster"

    shutil.rmtree(restored)
    shutil.copytree(tmp_path / "before", restored)
    # Without the epochs of the broker, which show the same.
    registered = rows(cluster, None, TOPICS)
    assert [one["topic_id"] for one in registered] == [deleted]
    with pytest.raises(StorageError, match="is older than"):
        cluster.restart(0)
    assert [key.topic_id for key in journal(cluster, 0).partitions()] == [later]

    shutil.rmtree(restored)
    shutil.copytree(tmp_path / "after", restored)
    cluster.restart(0)
    cluster.tick_until_idle()
    assert values(cluster.consume("later", 0)) == ["kept"]


def test_a_cluster_root_from_before_a_deletion_is_recognised_by_the_version_of_topics(
    start: Start, tmp_path: Path
) -> None:
    """Otherwise the topic would be live again, without its records."""
    cluster = start(0)
    fill(cluster)
    shutil.copytree(cluster.root / "cluster", tmp_path / "before")
    cluster.delete_topic("t")
    cluster.tick_until_idle()
    cluster.crash(0)
    shutil.rmtree(cluster.root / "cluster")
    shutil.copytree(tmp_path / "before", cluster.root / "cluster")
    with pytest.raises(StorageError, match="has removed replicas of deleted topics by version"):
        cluster.restart(0)


@pytest.mark.parametrize("phase", ["deleted by nobody", "removed by one", "removed by all", "over"])
def test_a_topic_of_the_same_name_is_another_one(start: Start, phase: str) -> None:
    """In each phase of the deletion the name is free, and nothing of the old topic is read."""
    cluster = start(0, 1)
    deleted = fill(cluster)
    retried = cluster.produce("t", 0, [b"late"], producer=cluster.idempotent_producer())
    cluster.delete_topic("t")
    if phase != "deleted by nobody":
        cluster.leader_tick(0)
    if phase == "removed by all":
        cluster.leader_tick(1)
    if phase == "over":
        cluster.tick_until_idle()
    cluster.create_topic("t", assignment={0: [1, 0]})
    assert topic_id(cluster) != deleted
    pending = cluster.produce("t", 0, [b"new"])
    cluster.tick_until_idle()
    check_gone(cluster, deleted)
    assert error(pending) == "NONE"
    assert pending.response is not None
    assert pending.response.base_offset == 0
    assert error(retried) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert values(cluster.consume("t", 0)) == ["new"]
    new = TopicIdPartition(topic_id(cluster), 0)
    assert CommittedOffsets(cluster.connection.root.consumer_offsets).fetch("g").get(new) is None
    check_at_rest(cluster, "new")


def test_of_two_admins_that_delete_a_topic_one_is_refused(start: Start) -> None:
    """The second one finds no topic, and does not delete one of the same name."""
    cluster = start(0)
    other = Admin(Connection(str(cluster.root / "cluster")))
    other.list_topics()
    cluster.delete_topic("t")
    with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        other.delete_topic("t")
    assert states(cluster) == [("t", "deleting")]


def test_deletion_can_be_forbidden(start: Start) -> None:
    """delete.topic.enable=false."""
    cluster = start(0, delete_topic_enable=False)
    with pytest.raises(ProtocolError, match=r"TOPIC_DELETION_DISABLED.*delete\.topic\.enable"):
        cluster.delete_topic("t")
    assert states(cluster) == [("t", "live")]
    assert Settings().delete_topic_enable


def test_a_partition_without_a_leader_is_removed(start: Start) -> None:
    """Offline: its only in-sync replica is away, and removes it later."""
    cluster = start(0, 1, assignment={0: [1]})
    deleted = fill(cluster)
    cluster.crash(1)
    cluster.fence(1)
    assert cluster.partition("t", 0).leader is None
    cluster.delete_topic("t")
    cluster.tick_until_idle()
    assert states(cluster) == [("t", "deleted")]
    cluster.restart(1)
    cluster.tick_until_idle()
    check_gone(cluster, deleted)


def test_a_paused_leader_that_appends_to_a_deleted_topic(start: Start) -> None:
    """It acts on outdated metadata, and removes all of it when it has newer ones."""
    cluster = start(0, 1)
    deleted = fill(cluster)
    cluster.produce("t", 0, [b"late"])
    cluster.pause(0)
    cluster.delete_topic("t")
    cluster.controller_tick()
    cluster.leader_tick(1)
    cluster.leader_tick(0)
    assert "batches of broker 0" in left_of(cluster, deleted)
    cluster.resume(0)
    cluster.tick_until_idle()
    check_gone(cluster, deleted)


def test_a_topic_that_is_deleted_while_a_follower_copies(
    start: Start, before_rule: BeforeRule
) -> None:
    """The copies are not committed, or are removed by the next tick."""
    cluster = start(0, 1)
    deleted = fill(cluster)
    cluster.produce("t", 0, [b"c"])
    cluster.leader_tick(0)
    before_rule("fetch", lambda: cluster.delete_topic("t"))
    cluster.follower_tick(1)
    cluster.tick_until_idle()
    check_gone(cluster, deleted)


def test_a_fetch_that_waits_for_more_bytes_is_dropped(start: Start) -> None:
    """replica.fetch.min.bytes: the delayed fetch does not outlive the topic."""
    cluster = start(0, 1, replica_fetch_min_bytes=1_000_000)
    deleted = topic_id(cluster)
    cluster.produce("t", 0, [b"a"])
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    assert [row["kind"] for row in rows(cluster, 1, DELAYED_OPERATIONS)] == ["DelayedFetch"]
    cluster.delete_topic("t")
    cluster.tick_until_idle()
    check_gone(cluster, deleted)


def test_the_oldest_records_of_deletions_are_forgotten(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest ones are kept."""
    monkeypatch.setattr(topic_changes, "KEPT_DELETIONS", 2)
    cluster = start(0)
    for name in ("a", "b", "c"):
        cluster.create_topic(name)
    for name in ("b", "a", "c"):
        cluster.delete_topic(name)
        cluster.tick_until_idle()
    assert states(cluster) == [("t", "live"), ("a", "deleted"), ("c", "deleted")]


def test_a_damaged_replica_of_a_deleted_topic_is_removed(start: Start) -> None:
    """Its damage is not repaired any more."""
    cluster = start(0, 1, log_scrub_bytes_per_second=1_000_000)
    deleted = fill(cluster)
    for file in (cluster.root / "broker-1" / "log" / "_inbox").glob("*.parquet"):
        file.write_bytes(b"damaged")
    cluster.clock.advance(1_001)
    cluster.delete_topic("t")
    cluster.tick_until_idle()
    check_gone(cluster, deleted)


def test_a_damaged_table_of_clients_does_not_end_the_controllers_ticks(start: Start) -> None:
    """The deletion is finished when the table is restored.

    Found by hostile commits: clients write to `consumer_offsets`. Once it was damaged, each tick of
    the controller failed as soon as a topic was deleted, and the application ended after
    tick.failure.timeout.ms.
    """
    cluster = start(0)
    cluster.create_topic("other", assignment={0: [0]})
    cluster.tick_until_idle()
    log_folder = cluster.root / "cluster" / CONSUMER_OFFSETS.name / "_delta_log"
    hostile = log_folder / f"{len(list(log_folder.glob('*.json'))):020}.json"
    hostile.write_bytes(b'{"protocol":{"minReaderVersion":0,"minWriterVersion":0}}')
    cluster.delete_topic("other")
    cluster.tick_until_idle()
    assert ("other", "deleting") in states(cluster)
    pending = cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert error(pending) == "NONE"
    hostile.unlink()
    cluster.tick_until_idle()
    assert ("other", "deleting") not in states(cluster)
