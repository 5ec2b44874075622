"""Checkpoints lag behind the journal; a checkpoint and the later commits give the journal's
state.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.broker.checkpoints import MOST_COMMITS
from sparklog.cluster.connection import Connection
from sparklog.errors import DamagedError
from sparklog.model import HIGH_WATERMARK_CHECKPOINT, LEADER_EPOCH_CHECKPOINT
from sparklog.storage.commits import LOG_VERSION
from sparklog.storage.delta_checkpoints import await_checkpoints
from sparklog.storage.journal import CHECKPOINTS, Journal
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error, journal, log, table, values

Start = Callable[..., LocalCluster]
FailOnce = Callable[[str, str], None]


def described(cluster: LocalCluster, broker: int) -> list[int]:
    """Return the journal versions that the checkpoints of a broker describe."""
    found = [table(cluster, broker, schema).held_by(LOG_VERSION) for schema in CHECKPOINTS]
    return [version or 0 for version in found]


def commits(cluster: LocalCluster, broker: int) -> list[Path]:
    """Return the remaining commits of a broker's journal, oldest first."""
    return sorted((Path(cluster.root) / f"broker-{broker}/log/_delta_log").glob("*.json"))


def test_they_are_written_at_intervals_and_not_with_every_step(start: Start) -> None:
    """A checkpoint is written once its interval has passed, and not after every tick."""
    cluster = start(0, 1)
    before = described(cluster, 0)
    for n in range(3):
        cluster.produce("t", 0, [b"%d" % n], acks=1)
        cluster.leader_tick(0)
    assert described(cluster, 0) == before
    cluster.clock.advance(5_000)
    cluster.leader_tick(0)
    version = journal(cluster, 0).version
    assert described(cluster, 0)[0] == version
    rows = table(cluster, 0, HIGH_WATERMARK_CHECKPOINT).rows().to_pylist()
    assert [(row["log_end_offset"], row["log_version"]) for row in rows] == [(3, version)]


def test_a_table_whose_rows_stay_the_same_keeps_up_too(start: Start) -> None:
    """An unchanged table is checkpointed too. Otherwise the commits after it would be cleaned up at
    some time, and the root could not be opened.
    """
    cluster = start(0)
    for n in range(MOST_COMMITS + 20):
        cluster.produce("t", 0, [b"%d" % n], acks=1)
        cluster.leader_tick(0)
        cluster.clock.advance(5_000)
    version = journal(cluster, 0).version
    assert min(described(cluster, 0)) > version - MOST_COMMITS
    [_] = table(cluster, 0, LEADER_EPOCH_CHECKPOINT)._files


def test_what_they_describe_needs_no_commit(start: Start) -> None:
    """A process that opens the root after clean-up reads the same state as a follower of the
    journal.
    """
    cluster = start(0, 1)
    for n in range(3):
        cluster.produce("t", 0, [b"%d" % n])
        cluster.tick_until_idle()
    cluster.brokers[0]._replicas[0].checkpoints.write()
    cluster.produce("t", 0, [b"after"], acks=1)
    cluster.leader_tick(0)
    before = journal(cluster, 0)
    from deltalake import DeltaTable

    DeltaTable(before.location.uri).create_checkpoint()
    for commit in commits(cluster, 0):
        if int(commit.stem) < min(described(cluster, 0)):
            commit.unlink()
    after = journal(cluster, 0)
    assert (after.rows, after.epochs, after.operations) == (
        before.rows,
        before.epochs,
        before.operations,
    )
    cluster.crash(0)
    cluster.restart(0)
    check_at_rest(cluster, "0", "1", "2", "after")


def test_a_failing_checkpoint_fails_no_tick(start: Start, fail_once: FailOnce) -> None:
    """A tick succeeds although its checkpoint cannot be written; a later tick writes the
    checkpoint.
    """
    cluster = start(0, 1)
    cluster.clock.advance(5_000)
    before = described(cluster, 0)
    fail_once("write", "broker-0/high_watermark_checkpoint")
    pending = cluster.produce("t", 0, [b"a"], acks=1)
    cluster.leader_tick(0)
    assert error(pending) == "NONE"
    assert described(cluster, 0)[0] == before[0]
    cluster.clock.advance(5_000)
    cluster.leader_tick(0)
    assert described(cluster, 0)[0] == journal(cluster, 0).version


def test_a_clean_stop_leaves_nothing_to_be_replayed(start: Start) -> None:
    """After a park or a stop all checkpoints describe the newest version of the journal."""
    cluster = start(0, 1)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    for stop in ("park", "stop"):
        getattr(cluster.brokers[0], stop)()
        assert set(described(cluster, 0)) == {journal(cluster, 0).version}


class TestAMissingCommit:
    """Another tool removed a commit after the checkpoints, before Delta's own checkpoint."""

    @pytest.fixture
    def cluster(self, start: Start) -> LocalCluster:
        cluster = start(0, 1, 2)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        cluster.produce("t", 0, [b"b"])
        cluster.tick_until_idle()
        missing = commits(cluster, 0)[described(cluster, 0)[0] + 1]
        from deltalake import DeltaTable

        DeltaTable(journal(cluster, 0).location.uri).create_checkpoint()
        missing.unlink()
        return cluster

    def test_is_named_to_a_process_that_opens_the_root(self, cluster: LocalCluster) -> None:
        """Opening the root raises `DamagedError`, which names the missing commit."""
        with pytest.raises(DamagedError, match="it is missing"):
            Journal(cluster.location(0))

    def test_is_made_up_for_from_the_log_when_the_broker_starts(
        self, cluster: LocalCluster
    ) -> None:
        """A starting broker rebuilds its journal's state from its log.

        As with a damaged checkpoint, it leaves the ISR if others remain, and joins again later.
        """
        cluster.crash(0)
        cluster.restart(0)
        assert cluster.partition("t", 0).isr == [1, 2]
        check_at_rest(cluster, "a", "b")

    def test_does_not_matter_to_those_who_have_read_it(self, cluster: LocalCluster) -> None:
        """A follower that has already read the missing commit goes on copying."""
        cluster.produce("t", 0, [b"c"])
        cluster.tick_until_idle()
        assert log(cluster, 2) == ["a", "b", "c"]


def test_the_root_of_an_earlier_release_is_opened_and_goes_on(start: Start) -> None:
    """Checkpoints of an earlier release name no version and contain the complete state."""
    cluster = start(0, 1)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    for broker in (0, 1):
        cluster.brokers[broker]._replicas[0].checkpoints.write()
        cluster.crash(broker)
        await_checkpoints()
        for schema in CHECKPOINTS:
            opened = table(cluster, broker, schema)
            rows = opened.rows()
            folder = Path(opened.location.uri)
            for file in sorted(folder.rglob("*"), reverse=True):
                file.unlink() if file.is_file() else file.rmdir()
            folder.rmdir()
            from sparklog.storage.control_table import ControlTable, create_table

            create_table(opened.root, schema)
            ControlTable(opened.root, schema).compare_and_set(rows)
    found = journal(cluster, 0)
    assert [row["high_watermark"] for row in found.rows.values()] == [1]
    for broker in (0, 1):
        cluster.restart(broker)
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"b"])
    check_at_rest(cluster, "a", "b")
    assert values(cluster.consume("t", 0)) == ["a", "b"]
    assert Connection(str(Path(cluster.root) / "cluster")).metadata().brokers.keys() == {0, 1}
