"""Commits in the background: order, outcomes, callbacks and rebalances."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from sparklog.consumer.consumer import Consumer
from sparklog.errors import ProtocolError, SparklogError
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata
from sparklog.model import TopicPartition
from sparklog.storage.sharded_table import ShardedTable
from sparklog.testing import LocalCluster

pytestmark = pytest.mark.usefixtures("local")

T0 = TopicPartition("t", 0)


@pytest.fixture
def local(tmp_path: Path) -> LocalCluster:
    """A cluster with five records in t-0."""
    cluster = LocalCluster(tmp_path, [0])
    cluster.create_topic("t", assignment={0: [0]})
    cluster.produce("t", 0, [b"%d" % one for one in range(5)])
    cluster.tick_until_idle()
    return cluster


class Told:
    """A callback that notes its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[TopicPartition, int], str | None]] = []

    def __call__(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: Exception | None
    ) -> None:
        found = {name: one.offset for name, one in offsets.items()}
        code = error.code.name if isinstance(error, ProtocolError) else None
        self.calls.append((found, code))


def consumer_of(folder: Path, **config: Any) -> Consumer:
    given: dict[str, Any] = {
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    return Consumer(folder / "cluster", **(given | config))


def committed(folder: Path, group_id: str = "g") -> int | None:
    with consumer_of(folder, group_id=group_id) as consumer:
        found = consumer.committed(T0)
        return None if found is None else found.offset


def test_positions_are_committed_and_the_callback_runs_in_poll(tmp_path: Path) -> None:
    """The future is done without a poll; the callback runs in the consumer's thread."""
    told = Told()
    with consumer_of(tmp_path, max_poll_records=2) as consumer:
        consumer.assign([T0])
        consumer.poll()
        assert consumer.commit_async(callback=told).result(60) is None
        assert told.calls == []
        assert committed(tmp_path) == 2
        consumer.poll()
        assert told.calls == [({T0: 2}, None)]
        assert consumer.metrics()["consumer-coordinator-metrics"]["commit-total"] == 1


def test_commits_keep_their_order_and_later_ones_wait(tmp_path: Path) -> None:
    """The last offset wins, also over a commit in the foreground; close waits for all."""
    told = Told()
    with consumer_of(tmp_path) as consumer:
        consumer.assign([T0])
        for offset in (1, 2, 3):
            consumer.commit_async({T0: offset}, told)
        consumer.commit({T0: 2})
        assert told.calls == [({T0: offset}, None) for offset in (1, 2, 3)]
        assert committed(tmp_path) == 2
        consumer.commit_async({T0: 4}, told)
    assert told.calls[-1] == ({T0: 4}, None)
    assert committed(tmp_path) == 4


def test_gathered_commits_are_written_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 requests during one commit take one more commit of the table."""
    begun, may_go = Event(), Event()
    commit = CommittedOffsets.commit

    def slow(self: CommittedOffsets, *arguments: Any) -> None:
        begun.set()
        assert may_go.wait(60)
        commit(self, *arguments)

    monkeypatch.setattr(CommittedOffsets, "commit", slow)
    with consumer_of(tmp_path) as consumer:
        consumer.assign([T0])
        futures = [consumer.commit_async({T0: 0})]
        assert begun.wait(60)
        futures += [consumer.commit_async({T0: 1 + one % 5}) for one in range(20)]
        may_go.set()
        for future in futures:
            future.result(60)
        assert consumer.metrics()["consumer-coordinator-metrics"]["commit-total"] == 2
    assert committed(tmp_path) == 5


def test_one_invalid_commit_does_not_fail_the_others(tmp_path: Path) -> None:
    """A refused commit has its error in its future and its callback."""
    told = Told()
    with consumer_of(tmp_path) as consumer:
        consumer.assign([T0])
        futures = [consumer.commit_async({T0: offset}, told) for offset in (1, -1, 2)]
        consumer.commit_async({T0: -1})
        with pytest.raises(ProtocolError, match="OFFSET_OUT_OF_RANGE"):
            futures[1].result(60)
    assert told.calls == [({T0: 1}, None), ({T0: -1}, "OFFSET_OUT_OF_RANGE"), ({T0: 2}, None)]
    assert committed(tmp_path) == 2


def test_a_store_that_fails_is_reported_and_not_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next commit is tried again, with the newest offset."""
    change_rows = ShardedTable.change_rows
    failures = [OSError("the disk is full")]

    def failing(self: ShardedTable, *arguments: Any, **cause: Any) -> Any:
        if failures:
            raise failures.pop()
        return change_rows(self, *arguments, **cause)

    monkeypatch.setattr(ShardedTable, "change_rows", failing)
    with consumer_of(tmp_path) as consumer:
        consumer.assign([T0])
        with pytest.raises(OSError, match="the disk is full"):
            consumer.commit_async({T0: 1}).result(60)
        consumer.commit_async({T0: 2}).result(60)
    assert committed(tmp_path) == 2


def test_a_commit_of_an_earlier_generation_is_refused(tmp_path: Path) -> None:
    """A commit that was requested before a rebalance, and arrives after it, changes nothing."""
    with consumer_of(tmp_path) as consumer:
        consumer.subscribe(["t"])
        while not consumer.poll(100):
            pass
        assert consumer.commit_async().result(60) is None
        coordinator = consumer._commits.coordinator
        assert coordinator is not None
        member, check = coordinator.commit_check()
        consumer.unsubscribe()
        consumer.subscribe(["t"])
        while consumer.poll(100) or not consumer.assignment():
            pass
        late = consumer._commits._background.submit(
            {key: (T0.topic, OffsetAndMetadata(1)) for key in [consumer._assigned[T0].key]},
            member,
            check,
            None,
        )
        with pytest.raises(ProtocolError, match="ILLEGAL_GENERATION: the commit was requested in"):
            late.result(60)
        found = consumer.committed(T0)
    assert found is not None
    assert found.offset == 5


def test_what_is_refused_at_once(tmp_path: Path) -> None:
    """A commit without a group, of a closed consumer or with invalid arguments."""
    with consumer_of(tmp_path, group_id=None) as alone:
        alone.assign([T0])
        with pytest.raises(ProtocolError, match="INVALID_GROUP_ID"):
            alone.commit_async()
    with consumer_of(tmp_path) as consumer:
        with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            consumer.commit_async({TopicPartition("nowhere", 0): 1})
        with pytest.raises(SparklogError, match="callback must be a function"):
            consumer.commit_async({T0: 1}, callback="print")  # type: ignore[arg-type]
    with pytest.raises(SparklogError, match="the consumer is closed"):
        consumer.commit_async({T0: 1})
