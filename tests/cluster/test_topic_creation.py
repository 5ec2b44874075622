"""Creating a topic: one of several admins wins, and a failed creation leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.errors import ProtocolError
from sparklog.model import BROKERS
from sparklog.storage.control_table import ControlTable
from sparklog.testing import LocalCluster

CREATION_MS = 60_000


class Creating:
    """A cluster of two brokers, and an admin that is interrupted between two commits."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.cluster = LocalCluster(folder, [0, 1])
        self.cluster.create_topic("old", assignment={0: [0, 1]})
        self.cluster.tick_until_idle()
        self.connection = Connection(str(folder / "cluster"))
        self._monkeypatch = monkeypatch

    def interrupt(self, number: int, action: Callable[[], None]) -> None:
        """Run `action` just before the commit `number` of the admin of `connection`."""
        commits = 0
        root = self.connection.root

        def interrupted(update: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal commits
                commits += 1
                if commits == number:
                    action()
                return update(*args, **kwargs)

            return call

        table = root.partition_state
        self._monkeypatch.setattr(root.topics, "update", interrupted(root.topics.update))
        self._monkeypatch.setattr(table, "change_rows", interrupted(table.change_rows))

    def create(self) -> None:
        Admin(self.connection).create_topic("t", 2, 2)

    def create_with_another(self) -> None:
        Admin(Connection(str(self.folder / "cluster"))).create_topic("t", 2, 2)

    def rows(self, table: ControlTable) -> list[dict[str, Any]]:
        table.refresh()
        return list(table.rows().to_pylist())

    def check_one_topic(self) -> None:
        """Check that one topic t has rows, that all of them exist, and that it has a leader."""
        root = Connection(str(self.folder / "cluster")).root
        [topic] = [row for row in self.rows(root.topics) if row["topic"] == "t"]
        assert topic["state"] == "live"
        states = [row for row in self.rows(root.partition_state) if row["topic"] == "t"]
        assert {row["topic_id"] for row in states} == {topic["topic_id"]}
        assert len(states) == 4

    def rows_of_t(self) -> int:
        root = Connection(str(self.folder / "cluster")).root
        tables = (root.topics, root.partition_state)
        return sum(row["topic"] == "t" for table in tables for row in self.rows(table))


@pytest.fixture
def creating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Creating:
    return Creating(tmp_path, monkeypatch)


@pytest.mark.parametrize("commit", [1, 2, 3])
def test_of_two_admins_that_create_one_topic_one_wins_and_the_other_leaves_nothing(
    creating: Creating, commit: int
) -> None:
    """The commits of one come between any two commits of the other."""
    refused: list[str] = []

    def attempt(create: Callable[[], None]) -> None:
        try:
            create()
        except ProtocolError as error:
            refused.append(error.code.name)

    creating.interrupt(commit, lambda: attempt(creating.create_with_another))
    attempt(creating.create)
    assert refused == ["TOPIC_ALREADY_EXISTS"]
    creating.check_one_topic()
    creating.cluster.produce("t", 1, [b"a"])
    creating.cluster.tick_until_idle()
    assert len(creating.cluster.consume("t", 1)) == 1


@pytest.mark.parametrize("commit", [2, 3])
def test_what_an_admin_that_died_has_left_is_not_elected_and_is_removed_after_a_minute(
    creating: Creating, commit: int
) -> None:
    """An incomplete creation by a dead admin gets no leader, and is removed after a minute."""

    def die() -> None:
        raise OSError("the admin's process is killed here")

    creating.interrupt(commit, die)
    with pytest.raises(OSError, match="killed"):
        creating.create()
    cluster = creating.cluster
    cluster.tick_until_idle()
    left = creating.rows_of_t()
    assert left == (5 if commit == 3 else 1)
    cluster.crash(0)
    cluster.fence(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    assert cluster.partition("old", 0).leader_epoch > 0
    root = creating.cluster.connection.root
    of_t = [row for row in creating.rows(root.partition_state) if row["topic"] == "t"]
    assert {(row["leader_epoch"], row["partition_epoch"]) for row in of_t} <= {(0, 0)}
    with pytest.raises(ProtocolError, match="TOPIC_ALREADY_EXISTS: topic 't' is being created"):
        creating.create_with_another()
    cluster.clock.advance(CREATION_MS - 10_000)
    cluster.tick_until_idle()
    assert creating.rows_of_t() == left
    cluster.clock.advance(20_000)
    cluster.tick_until_idle()
    assert creating.rows_of_t() == 0
    creating.create_with_another()
    creating.check_one_topic()


@pytest.mark.parametrize("commit", [2, 3])
def test_an_admin_that_resumes_after_its_creation_was_removed_creates_nothing(
    creating: Creating, commit: int
) -> None:
    """An admin that resumes after its creation was removed creates nothing."""

    def suspend() -> None:
        creating.cluster.tick_until_idle()
        creating.cluster.clock.advance(CREATION_MS + 1)
        creating.cluster.tick_until_idle()
        assert creating.rows_of_t() == 0

    creating.interrupt(commit, suspend)
    with pytest.raises(ProtocolError, match="REQUEST_TIMED_OUT: the creation of topic 't'"):
        creating.create()
    assert creating.rows_of_t() == 0


def test_rows_without_a_topic_are_removed_by_the_controller(creating: Creating) -> None:
    """Older admins wrote partitions first, and the loser of two creations left them."""
    cluster = creating.cluster
    cluster.create_topic("t", 2, 2)
    cluster.tick_until_idle()
    root = creating.connection.root
    root.topics.update(lambda rows: (rows.filter(pc.equal(rows["topic"], "old")), None))
    cluster.tick_until_idle()
    assert creating.rows_of_t() == 4
    cluster.clock.advance(CREATION_MS + 1)
    cluster.tick_until_idle()
    assert creating.rows_of_t() == 0
    assert cluster.partition("old", 0).leader == 0


def test_the_first_leader_is_elected_as_any_other(creating: Creating) -> None:
    """Rule 7.5: a broker that is about to stop comes last."""

    def stop(rows: pa.Table) -> tuple[pa.Table, None]:
        states = {0: "stopping"}
        changed = [
            row | {"state": states.get(row["broker_id"], row["state"])} for row in rows.to_pylist()
        ]
        return BROKERS.rows(changed), None

    creating.connection.root.brokers.update(stop)
    topic = Admin(creating.connection).create_topic(
        "t", assignment={0: [0, 1], 1: [1, 0], 2: [0, 1]}
    )
    epochs = creating.connection.metadata().brokers[1].broker_epoch, 0, 0
    assert [(state.leader, state.isr) for state in topic.partitions] == [
        (1, [0, 1]),
        (1, [0, 1]),
        (1, [0, 1]),
    ]
    assert {
        (state.leader_broker_epoch, state.leader_epoch, state.partition_epoch)
        for state in topic.partitions
    } == {epochs}
    assert {state.min_isr for state in topic.partitions} == {None}


def test_min_insync_replicas_above_the_replication_factor_is_refused(creating: Creating) -> None:
    """min.insync.replicas above the replication factor is refused."""
    admin = Admin(creating.connection)
    for placed in ({"partitions": 1, "replication_factor": 2}, {"assignment": {0: [0, 1]}}):
        with pytest.raises(ProtocolError) as refused:
            admin.create_topic("t", **placed, configs={"min.insync.replicas": 3})
        assert str(refused.value) == (
            "INVALID_CONFIG: min.insync.replicas=3 of topic 't' is above its replication factor 2: "
            "set it to 2 or less"
        )
    assert creating.rows_of_t() == 0
    admin.create_topic("t", 2, 2, configs={"min.insync.replicas": 2})
    creating.check_one_topic()
