"""A connection judges each partition for itself (rules 2.6, 7.7)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Connection, Visible
from sparklog.cluster.metadata import PartitionState
from sparklog.errors import DamagedError, ProtocolError
from sparklog.maintenance.repair import repair
from sparklog.maintenance.scrub import scrub
from sparklog.protocol.driver_rules import DriverRules
from sparklog.protocol.rules import RuleInput
from sparklog.storage.delta_log import LONG_AGO_S
from sparklog.storage.delta_log_files import commit_path
from sparklog.testing import LocalCluster


class CountedRules(DriverRules):
    """Counts how often each rule is run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def run(self, name: str, **inputs: RuleInput) -> list[dict[str, Any]]:
        self.names.append(name)
        return super().run(name, **inputs)


@pytest.fixture
def rules() -> CountedRules:
    return CountedRules()


@pytest.fixture
def failing_over(tmp_path: Path, rules: CountedRules) -> Connection:
    """Of topic t, partition 0 is led by broker 1; 1 by the same, which has yet to run as its
    leader; 2 is offline."""
    cluster = LocalCluster(tmp_path, [0, 1, 2])
    cluster.create_topic("t", assignment={0: [1, 0], 1: [0, 1], 2: [0, 2]})
    for partition in range(3):
        cluster.produce("t", partition, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(2)
    cluster.fence(2)
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.fence(0)
    return Connection(str(tmp_path / "cluster"), rules=rules)


def states(connection: Connection) -> list[PartitionState]:
    metadata = connection.metadata()
    return [metadata.partition("t", number) for number in range(3)]


def names(found: dict[Any, Any]) -> list[str]:
    return [
        f"visible below {one.high_watermark}" if isinstance(one, Visible) else one.code.name
        for one in found.values()
    ]


def test_a_partition_that_is_not_available_hides_none_of_the_others(
    failing_over: Connection, rules: CountedRules
) -> None:
    asked = states(failing_over)
    found = failing_over.fetchable(reversed(asked))
    assert list(found) == [state.key for state in reversed(asked)]
    assert names(found) == ["LEADER_NOT_AVAILABLE", "OFFSET_NOT_AVAILABLE", "visible below 1"]
    assert rules.names == ["visible_offsets"]


def test_the_first_error_is_raised_where_all_partitions_are_needed(
    failing_over: Connection,
) -> None:
    first, second, third = states(failing_over)
    assert [one.state for one in failing_over.visible([first])] == [first]
    with pytest.raises(ProtocolError, match="OFFSET_NOT_AVAILABLE"):
        failing_over.visible([first, second, third])
    with pytest.raises(ProtocolError, match="LEADER_NOT_AVAILABLE"):
        failing_over.visible([third, second])


def test_offline_partitions_alone_cost_no_run_of_a_rule(
    failing_over: Connection, rules: CountedRules
) -> None:
    assert names(failing_over.fetchable(states(failing_over)[2:])) == ["LEADER_NOT_AVAILABLE"]
    assert failing_over.fetchable([]) == {}
    assert rules.names == []


def test_committed_logs_judge_the_partitions_of_a_root_at_once(
    failing_over: Connection, rules: CountedRules
) -> None:
    found = CommittedLogs(failing_over).visible(one.key for one in states(failing_over))
    assert sorted(names(found)) == [
        "LEADER_NOT_AVAILABLE",
        "OFFSET_NOT_AVAILABLE",
        "visible below 1",
    ]
    assert rules.names == ["visible_offsets"]


@pytest.mark.parametrize("is_removed", [False, True], ids=["empty", "removed"])
def test_a_repaired_log_is_read_by_those_who_had_not_read_the_damaged_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    """A running broker writes a checkpoint in the place of the commit. A client that had read less
    could not read the log until it was restarted: it asked for the damaged commit, or took the
    removed one for the end of the log.
    """
    without_copies = {str(tmp_path): {"sync": "false"}}
    cluster = LocalCluster(tmp_path, [0], storage_options=without_copies)
    cluster.create_topic("t")
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    connection = Connection(str(tmp_path / "cluster"), storage_options=without_copies)
    root = connection.leader_location(connection.metadata().partition("t", 0))
    behind = connection.journal(root).version
    for value in (b"b", b"c"):
        cluster.produce("t", 0, [value])
        cluster.tick_until_idle()
    log, path = root.child("log"), commit_path(behind + 1)
    log.remove(path) if is_removed else log.replace(path, b"")
    scrub(cluster.connection, clock=cluster.clock)
    repair(cluster.connection, clock=cluster.clock)
    cluster.tick_until_idle()
    if is_removed:
        assert connection.journal(root).version == behind
        passed = time.monotonic() + LONG_AGO_S + 1
        monkeypatch.setattr(time, "monotonic", lambda: passed)
    [state] = connection.metadata().partitions.values()
    batches = connection.journal(root).batches(state.key)
    assert [one.base_offset for one in batches] == [0, 1, 2]


def test_a_lost_commit_is_named_to_those_who_had_not_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They took it for the end of the log, and said nothing."""
    cluster = LocalCluster(tmp_path, [0])
    cluster.create_topic("t")
    connection = Connection(str(tmp_path / "cluster"))
    root = connection.leader_location(connection.metadata().partition("t", 0))
    behind = connection.journal(root).version
    for value in (b"a", b"b"):
        cluster.produce("t", 0, [value])
        cluster.tick_until_idle()
    root.child("log").remove(commit_path(behind + 1))
    passed = time.monotonic() + LONG_AGO_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: passed)
    with pytest.raises(DamagedError, match=commit_path(behind + 1)):
        connection.journal(root)


def test_a_damaged_commit_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, [0])
    cluster.create_topic("t")
    connection = Connection(str(tmp_path / "cluster"))
    root = connection.leader_location(connection.metadata().partition("t", 0))
    behind = connection.journal(root).version
    cluster.produce("t", 0, [b"b"])
    cluster.tick_until_idle()
    path = commit_path(behind + 1)
    root.child("log").replace(path, b"")
    for _ in range(2):
        with pytest.raises(DamagedError, match=path):
            connection.journal(root)
