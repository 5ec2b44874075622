"""The work of a tick follows the partitions that changed, by counts of calls and partitions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from sparklog.broker.following.due_partitions import DuePartitions
from sparklog.cluster.changed_partitions import REMEMBERED_CHANGES, ChangedPartitions
from sparklog.model import TopicIdPartition
from sparklog.testing import LocalCluster
from tests.broker.states import error

FEW, MANY = 20, 400


def calls(work: Callable[[], object]) -> int:
    """Return the number of Python and C functions that `work` calls, generators included."""
    count = 0

    def note(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def cluster_with(folder: Path, partitions: int) -> LocalCluster:
    """Return a cluster at rest whose leaders are spread evenly."""
    cluster = LocalCluster(folder, brokers=[0, 1, 2])
    replicas = {n: [n % 3, (n + 1) % 3, (n + 2) % 3] for n in range(partitions)}
    cluster.create_topic("t", assignment=replicas)
    cluster.tick_until_idle()
    # Each role notes the commits that the other has made last.
    cluster.tick_until_idle()
    return cluster


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalCluster, LocalCluster]:
    """Return clusters with few and with many partitions."""
    folder = tmp_path_factory.mktemp("idle")
    return cluster_with(folder / "few", FEW), cluster_with(folder / "many", MANY)


@pytest.mark.parametrize("role", ["controller_tick", "leader_tick", "follower_tick"])
def test_an_idle_tick_does_the_same_work_for_many_partitions_as_for_few(
    clusters: tuple[LocalCluster, LocalCluster], role: str
) -> None:
    """Neither reports, lags, positions nor rows of unchanged partitions are examined."""
    few, many = (
        calls(lambda one=cluster: getattr(one.brokers[1], role)())  # type: ignore[misc]
        for cluster in clusters
    )
    assert many < few + FEW


def test_a_record_in_one_partition_costs_the_same_among_many_partitions_as_among_few(
    clusters: tuple[LocalCluster, LocalCluster],
) -> None:
    """The append, both copies and the answer; three brokers tick until they are idle."""
    counts = []
    for cluster in clusters:
        pending = cluster.produce("t", 1, [b"a"])
        counts.append(calls(cluster.tick_until_idle))
        assert error(pending) == "NONE"
    few, many = counts
    assert many < 1.1 * few


@contextmanager
def examinations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield a list to which each follower tick adds the number of partitions it examines."""
    counts: list[int] = []
    examined = DuePartitions.examined

    def counted(self: DuePartitions) -> list[object]:
        found = examined(self)
        counts.append(len(found))
        return list(found)

    with monkeypatch.context() as patch:
        patch.setattr(DuePartitions, "examined", counted)
        yield counts


def test_all_rows_are_renewed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower examines all partitions once their rows are due, and in no tick before (5.1)."""
    cluster = cluster_with(tmp_path, FEW)
    renewal_ms = cluster.settings.replica_lag_time_max_ms // 3
    followed = sum(1 for n in range(FEW) if n % 3 != 1)
    with examinations(monkeypatch) as counts:
        for _ in range(3):
            cluster.follower_tick(1)
        cluster.clock.advance(renewal_ms - 1)
        assert not cluster.follower_tick(1).changed
        assert sum(counts) == 0
        cluster.clock.advance(1)
        assert cluster.follower_tick(1).changed
        assert counts[-1] == followed
        cluster.follower_tick(1)
        assert not cluster.follower_tick(1).changed
        assert counts[-1] == 0
    assert all(
        cluster.brokers[1]._replicas[0][key].reported_at_ms == cluster.clock.now_ms()
        for key in cluster.brokers[1]._replicas[0].partitions()
        if cluster.brokers[1]._replicas[0][key].role == "follower"
    )


def test_a_follower_examines_the_partitions_that_have_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records in two of many partitions: each follower tick examines these two at most."""
    cluster = cluster_with(tmp_path, FEW)
    with examinations(monkeypatch) as counts:
        pending = [cluster.produce("t", number, [b"a"]) for number in (0, 3)]
        cluster.tick_until_idle()
        assert [error(one) for one in pending] == ["NONE", "NONE"]
        for broker in (1, 2):
            cluster.follower_tick(broker)
            cluster.follower_tick(broker)
    assert max(counts) == 2
    assert counts[-1] == 0


def test_a_follower_copies_until_it_has_all_that_its_leader_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that one fetch does not return are fetched later, without news of their leader."""
    config = {"replica.fetch.response.max.bytes": 1, "replica.fetch.max.bytes": 1}
    cluster = LocalCluster(tmp_path, brokers=[0, 1], config=config)
    cluster.create_topic("t", assignment={n: [0, 1] for n in range(4)})
    cluster.tick_until_idle()
    for number in range(4):
        for _ in range(3):
            cluster.produce("t", number, [b"a"], acks=1)
    cluster.leader_tick(0)
    ticks = 0
    with examinations(monkeypatch) as counts:
        while cluster.follower_tick(1).changed:
            ticks += 1
    assert ticks >= 12
    assert counts[0] == 4
    assert [cluster.replica(1, "t", n).log_end_offset for n in range(4)] == [3] * 4


def keys(*numbers: int) -> set[TopicIdPartition]:
    """Return keys of partitions."""
    return {TopicIdPartition("id", number) for number in numbers}


class TestChangedPartitions:
    """Each reader asks for the changes since the last one that it knows."""

    def test_readers_at_different_paces_miss_nothing(self) -> None:
        """A partition that changes repeatedly is returned once, by its last change."""
        changes = ChangedPartitions()
        changes.note(keys(1, 2))
        first = changes.number
        changes.note(keys(2, 3))
        changes.note(set())
        assert changes.since(0) == keys(1, 2, 3)
        assert changes.since(first) == keys(2, 3)
        assert changes.since(changes.number) == set()

    def test_a_reader_that_is_too_late_gets_no_partial_result(self) -> None:
        """Partitions that are gone are forgotten, and a reader that may have missed them knows."""
        changes = ChangedPartitions()
        for number in range(3 * REMEMBERED_CHANGES):
            changes.note(keys(number))
        assert changes.since(0) is None
        assert changes.since(changes.number - REMEMBERED_CHANGES) == keys(
            *range(2 * REMEMBERED_CHANGES, 3 * REMEMBERED_CHANGES)
        )
        assert len(changes._numbers) == REMEMBERED_CHANGES
