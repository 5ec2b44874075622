"""Raising the number of partitions: one of several admins wins; a failed attempt is not seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.errors import ProtocolError
from sparklog.protocol.placement import place_replicas
from sparklog.testing import LocalCluster

CREATION_MS = 60_000
Before = Callable[[int, Callable[[], object]], None]


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Two brokers and topic `t` with one partition, which has a record."""
    made = LocalCluster(tmp_path, [0, 1])
    made.create_topic("t", assignment={0: [0, 1]}, configs={"min.insync.replicas": 2})
    made.produce("t", 0, [b"old"])
    made.tick_until_idle()
    return made


@pytest.fixture
def admin(cluster: LocalCluster) -> Admin:
    """An admin with a connection of its own."""
    return Admin(Connection(str(cluster.root / "cluster")))


@pytest.fixture
def before(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> Before:
    """Run an action just before a commit of `admin`, given by its number."""
    root = admin._connection.root
    commits = 0

    def arrange(number: int, action: Callable[[], object]) -> None:
        def interrupted(update: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal commits
                commits += 1
                if commits == number:
                    action()
                return update(*args, **kwargs)

            return call

        monkeypatch.setattr(root.topics, "update", interrupted(root.topics.update))
        table = root.partition_state
        monkeypatch.setattr(table, "change_rows", interrupted(table.change_rows))

    return arrange


def count(cluster: LocalCluster, topic: str = "t") -> int:
    """Return the number of partitions; each of them has a state, and no other one has."""
    metadata = cluster.connection.metadata()
    found = metadata.topic(topic)
    numbers = sorted(key.partition for key in metadata.partitions if key[0] == found.topic_id)
    assert numbers == list(range(found.partitions))
    return found.partitions


def stored(cluster: LocalCluster) -> tuple[int, int]:
    """Return the numbers of rows of `topics` and `partition_state`."""
    root = Connection(str(cluster.root / "cluster")).root
    root.topics.refresh()
    root.partition_state.refresh()
    return root.topics.rows().num_rows, root.partition_state.rows().num_rows


def check_works(cluster: LocalCluster, partition: int) -> None:
    pending = cluster.produce("t", partition, [b"new"])
    cluster.tick_until_idle()
    assert pending.response is not None
    assert pending.response.error == "NONE"
    assert [one.value for one in cluster.consume("t", partition)] == [b"new"]
    assert [one.value for one in cluster.consume("t", 0)] == [b"old"]
    assert cluster.partition("t", partition).isr == [0, 1]


def test_new_partitions_are_led_replicated_and_written(cluster: LocalCluster) -> None:
    """The brokers take them over in their next tick, with the topic's min.insync.replicas."""
    cluster.create_partitions("t", 3)
    assert count(cluster) == 3
    state = cluster.connection.metadata().partition("t", 2)
    assert (state.min_isr, state.leader_epoch, state.isr) == (2, 0, [0, 1])
    check_works(cluster, 2)
    assert cluster.controller_tick().commits == 0


def test_the_assignment_may_be_given(cluster: LocalCluster) -> None:
    """By the numbers of the new partitions."""
    cluster.create_partitions("t", 3, {1: [1, 0], 2: [0, 1]})
    assert [cluster.partition("t", one).replicas for one in range(3)] == [[0, 1], [1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("partitions", "assignment", "expected"),
    [
        (1, None, "INVALID_PARTITIONS: topic 't' has 1 partitions already"),
        (0, None, "INVALID_PARTITIONS: topic 't' has 1 partitions already"),
        (100_001, None, "INVALID_PARTITIONS: a topic has 100,000 partitions at most"),
        (2, {0: [0, 1]}, "INVALID_REPLICA_ASSIGNMENT.*must number its partitions from 1"),
        (2, {1: [0]}, "INVALID_REPLICA_ASSIGNMENT.*has 1 replicas, but 2"),
        (3, {1: [0, 1]}, "INVALID_REPLICA_ASSIGNMENT.*has 1 partitions, but 2"),
        (2, {1: [0, 7]}, "INVALID_REPLICA_ASSIGNMENT.*names broker 7"),
    ],
)
def test_what_is_refused(
    cluster: LocalCluster, partitions: int, assignment: dict[int, list[int]] | None, expected: str
) -> None:
    """The number can only be raised, and an assignment must fit the topic."""
    before = stored(cluster)
    with pytest.raises(ProtocolError, match=expected):
        cluster.create_partitions("t", partitions, assignment)
    assert stored(cluster) == before


def test_too_few_live_brokers_are_refused(cluster: LocalCluster) -> None:
    """The replication factor of the topic needs as many."""
    cluster.crash(1)
    cluster.fence(1)
    with pytest.raises(ProtocolError, match="INVALID_REPLICATION_FACTOR"):
        cluster.create_partitions("t", 2)


@pytest.mark.parametrize("racks", [None, {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}])
def test_the_placement_goes_on_as_kafkas(tmp_path: Path, racks: dict[int, str] | None) -> None:
    """The leaders go on where those of the existing partitions ended, and racks alternate.

    Kafka's start is the broker of partition 0's first replica among the brokers by id, also if
    racks alternate, and so is the shift.
    """
    brokers = dict(racks or dict.fromkeys(range(6)))
    cluster = LocalCluster(tmp_path, list(brokers), racks=racks)
    cluster.create_topic("t", assignment={one: [2, 0, 4] for one in range(7)})
    cluster.create_partitions("t", 20)
    placed = {one: cluster.partition("t", one).replicas for one in range(7, 20)}
    whole = place_replicas(brokers, 20, 3, start_index=2, shift=0)
    assert [placed[one][0] for one in placed] == [whole[one][0] for one in placed]
    if racks is None:
        assert placed[7] == [3, 0, 1]
        assert placed[12] == [2, 0, 1], "the shift rises with every round"
    else:
        assert all({racks[one] for one in replicas} == {*"abc"} for replicas in placed.values())


@pytest.mark.parametrize("number", [1, 2, 3])
def test_of_two_admins_at_once_one_wins(
    cluster: LocalCluster, admin: Admin, before: Before, number: int
) -> None:
    """The commits of one come between any two commits of the other."""
    refused = []

    def attempt(grow: Callable[[], object]) -> None:
        try:
            grow()
        except ProtocolError as error:
            refused.append(error.code.name)

    before(number, lambda: attempt(lambda: cluster.create_partitions("t", 4)))
    attempt(lambda: admin.create_partitions("t", 3))
    assert refused == ["INVALID_PARTITIONS"]
    assert count(cluster) == (4 if number == 1 else 3)
    assert stored(cluster) == (1, 2 * count(cluster))
    check_works(cluster, 2)


@pytest.mark.parametrize("number", [2, 3])
def test_what_an_admin_that_died_has_left_is_not_seen_and_is_removed_after_a_minute(
    cluster: LocalCluster, admin: Admin, before: Before, number: int
) -> None:
    """The claim is removed first, then the rows beyond the number of partitions."""

    def die() -> None:
        raise OSError("the admin's process is killed here")

    before(number, die)
    with pytest.raises(OSError, match="killed"):
        admin.create_partitions("t", 3)
    left = (2, 2 if number == 2 else 6)
    cluster.crash(0)
    cluster.fence(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    assert (stored(cluster), count(cluster)) == (left, 1)
    rows = cluster.connection.root.partition_state.rows().to_pylist()
    assert {row["leader_epoch"] for row in rows if row["partition"] > 0} <= {0}, "not elected"
    with pytest.raises(ProtocolError, match="another process is creating partitions"):
        cluster.create_partitions("t", 2)
    cluster.clock.advance(CREATION_MS + 1)
    cluster.tick_until_idle()
    assert (stored(cluster)[0], count(cluster)) == (1, 1)
    cluster.create_partitions("t", 2)
    check_works(cluster, 1)
    cluster.clock.advance(CREATION_MS + 1)
    cluster.tick_until_idle()
    cluster.clock.advance(CREATION_MS + 1)
    cluster.tick_until_idle()
    assert (stored(cluster), count(cluster)) == ((1, 4), 2)


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("other", [False, True], ids=["", "another admin has grown it since"])
def test_an_admin_that_resumes_after_its_claim_was_removed_creates_nothing(
    cluster: LocalCluster, admin: Admin, before: Before, number: int, other: bool
) -> None:
    """Also not over the partitions of another admin."""

    def suspend() -> None:
        cluster.tick_until_idle()
        for _ in range(2):
            cluster.clock.advance(CREATION_MS + 1)
            cluster.tick_until_idle()
        if other:
            cluster.create_partitions("t", 2, {1: [1, 0]})
            check_works(cluster, 1)

    before(number, suspend)
    code = "INVALID_PARTITIONS" if other else "REQUEST_TIMED_OUT"
    with pytest.raises(ProtocolError, match=code):
        admin.create_partitions("t", 3, assignment={1: [0, 1], 2: [0, 1]})
    assert count(cluster) == 1 + other
    if other:
        assert cluster.partition("t", 1).replicas == [1, 0]
        assert [one.value for one in cluster.consume("t", 1)] == [b"new"]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("recreates", [False, True])
def test_a_topic_that_is_deleted_meanwhile_does_not_grow(
    cluster: LocalCluster, admin: Admin, before: Before, number: int, recreates: bool
) -> None:
    """Nor does one that was created under its name."""

    def delete() -> None:
        cluster.delete_topic("t")
        if recreates:
            cluster.create_topic("t", assignment={0: [0, 1]})

    before(number, delete)
    with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        admin.create_partitions("t", 3)
    cluster.tick_until_idle()
    cluster.clock.advance(CREATION_MS + 1)
    cluster.tick_until_idle()
    assert stored(cluster) == ((2, 2) if recreates else (1, 0))
    if recreates:
        assert count(cluster) == 1
