"""Roots that were restored to an older state while their brokers were down, of several ages.

The other brokers have seen later versions of them, and say so in their own journals.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sparklog.broker import unclean_start
from sparklog.errors import StorageError
from sparklog.maintenance.audit import audit
from sparklog.model import BROKERS
from sparklog.storage.commits import read_commit
from sparklog.storage.journal import seen_in
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest, error, journal, rows, values

Start = Callable[..., LocalCluster]

HEARTBEAT_MS = 2_000


class Timeline:
    """A cluster whose roots are copied at several moments, and restored from the copies."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.moments: list[str] = []

    def copy(self, moment: str) -> None:
        """Copy all roots, as they are now, under this name."""
        shutil.copytree(self.cluster.root, self.folder / moment)
        self.moments.append(moment)

    def restore(self, moment: str, *roots: str) -> None:
        """Restore some roots, by default all, to the state at `moment`."""
        for root in roots or [path.name for path in (self.folder / moment).iterdir()]:
            shutil.rmtree(self.cluster.root / root)
            shutil.copytree(self.folder / moment / root, self.cluster.root / root)

    def write(self, value: str) -> None:
        """Write a record with acks=all; it is acknowledged."""
        pending = self.cluster.produce("t", 0, [value.encode()])
        self.cluster.tick_until_idle()
        assert error(pending) == "NONE"

    def crash_all(self) -> None:
        for broker in list(self.cluster.brokers):
            self.cluster.crash(broker)

    def start(self, *brokers: int) -> None:
        """Start brokers; the cluster's own clients connect again."""
        for broker in brokers:
            self.cluster.restart(broker)
        self.cluster.reconnect()


@pytest.fixture
def alone(start: Start, tmp_path: Path) -> Timeline:
    """Broker 0 was the only in-sync replica when it wrote `b` and `c`; now it has crashed.

    Broker 1 has the other replica and had been fenced. Broker 2 has no replica.
    """
    timeline = Timeline(start(0, 1, 2, assignment={0: [0, 1]}), tmp_path / "copies")
    cluster = timeline.cluster
    timeline.write("a")
    cluster.crash(1)
    cluster.fence(1)
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).isr == [0]
    timeline.copy("before b")
    timeline.write("b")
    timeline.copy("before c")
    timeline.write("c")
    timeline.copy("after c")
    # A heartbeat says what broker 2 has seen.
    cluster.clock.advance(HEARTBEAT_MS)
    cluster.crash(0)
    return timeline


class TestABrokerRootThatWasAlone:
    """No replica has the records that are gone: only the versions show that some were there."""

    @pytest.mark.parametrize("peers", ["running", "stopped"])
    @pytest.mark.parametrize("moment", ["before b", "before c"])
    def test_leaves_the_isr_as_its_last_member(
        self, alone: Timeline, moment: str, peers: str
    ) -> None:
        """The partition is offline rather than shorter: its acknowledged records are missing."""
        cluster = alone.cluster
        if peers == "stopped":
            alone.crash_all()
        alone.restore(moment, "broker-0")
        alone.start(0, *([2] if peers == "stopped" else []), 1)
        state = cluster.partition("t", 0)
        assert (state.isr, state.leader_epoch) == ([], 0)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader is None

    def test_stays_if_it_has_its_newest_state(self, alone: Timeline) -> None:
        """A copy of the newest state is no loss; a move to another disk is one of those."""
        alone.restore("after c", "broker-0")
        cluster = alone.cluster
        alone.start(0)
        assert cluster.partition("t", 0).isr == [0]
        alone.start(1)
        check_at_rest(cluster, "a", "b", "c")
        assert audit(cluster.connection) == []

    def test_is_treated_as_lost_once(self, alone: Timeline) -> None:
        """After that its lower versions count: a crash and a start leave it where it is."""
        cluster = alone.cluster
        alone.restore("before b", "broker-0")
        alone.start(0, 1)
        cluster.elect_leaders("unclean", [("t", 0)])
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).isr == [0, 1]
        cluster.clock.advance(HEARTBEAT_MS)
        for broker in (0, 1):
            cluster.crash(broker)
            cluster.restart(broker)
            assert cluster.partition("t", 0).isr == [0, 1]
        check_at_rest(cluster, "a")

    def test_is_recognised_again_if_the_start_ended_before_it_left(
        self, alone: Timeline, fail_once: Callable[[str, str], None]
    ) -> None:
        """The first start has registered under a new epoch, of which nobody has seen a version."""
        cluster = alone.cluster
        alone.restore("before c", "broker-0")
        fail_once("write", "cluster/partition_state")
        with pytest.raises(OSError, match="is away"):
            cluster.restart(0)
        alone.crash_all()
        alone.start(0)
        assert cluster.partition("t", 0).isr == []

    def test_is_recognised_by_what_a_peer_saw_before_its_own_restarts(
        self, alone: Timeline
    ) -> None:
        """A restarted peer carries on the versions that its earlier process had seen."""
        cluster = alone.cluster
        cluster.fence(0)
        for _ in range(2):
            cluster.crash(2)
            cluster.restart(2)
            cluster.tick_until_idle()
            cluster.clock.advance(HEARTBEAT_MS)
        alone.restore("before c", "broker-0")
        alone.start(0)
        assert cluster.partition("t", 0).isr == []


def test_after_a_reboot_one_version_that_was_not_synced_may_be_gone(
    alone: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others read it from the page cache: it may not have survived the power loss that took it."""
    cluster = alone.cluster
    [newest] = sorted((cluster.root / "broker-0/log/_delta_log").glob("*.json"))[-1:]
    newest.unlink()
    # A copy is written after its commit was synced.
    (cluster.root / "broker-0/log/_second_copies" / newest.name).unlink()
    for module in (unclean_start.__name__, "sparklog.broker.registration"):
        monkeypatch.setattr(f"{module}.boot_id", lambda: "another boot")
    alone.start(0)
    assert cluster.partition("t", 0).isr == [0]
    check_at_rest_of_one(cluster, "a", "b", "c")


def check_at_rest_of_one(cluster: LocalCluster, *expected: str) -> None:
    cluster.tick_until_idle()
    assert values(cluster.consume("t", 0)) == list(expected)


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory, empty_roots: Path) -> Timeline:
    """Three in-sync replicas under min.insync.replicas=2; all brokers have crashed at the end.

    Broker 2 was out of the ISR for a while, and broker 0 has restarted meanwhile.
    """
    folder = tmp_path_factory.mktemp("replicated")
    shutil.copytree(empty_roots, folder / "cluster")
    timeline = Timeline(LocalCluster(folder / "cluster"), folder / "copies")
    cluster = timeline.cluster
    cluster.create_topic("t", assignment={0: [0, 1, 2]}, configs={"min.insync.replicas": "2"})
    timeline.copy("new")
    timeline.write("a")
    timeline.copy("a")
    cluster.crash(2)
    cluster.fence(2)
    timeline.write("b")
    timeline.copy("b")
    cluster.restart(2)
    timeline.write("c")
    timeline.copy("c")
    cluster.crash(0)
    cluster.restart(0)
    cluster.tick_until_idle()
    timeline.write("d")
    timeline.copy("d")
    timeline.write("e")
    timeline.copy("seconds ago")
    timeline.write("f")
    cluster.clock.advance(HEARTBEAT_MS)
    timeline.crash_all()
    timeline.copy("newest")
    return timeline


MOMENTS: Sequence[str] = ("new", "a", "b", "c", "d", "seconds ago")


@pytest.mark.parametrize("root", [0, 1, 2])
@pytest.mark.parametrize("peers", ["running", "stopped"])
def test_a_restored_broker_root_loses_no_acknowledged_record(
    replicated: Timeline, root: int, peers: str
) -> None:
    """At each age its replica leaves the ISR, follows, and comes back with all records."""
    cluster = replicated.cluster
    others = [one for one in (0, 1, 2) if one != root]
    for moment in MOMENTS:
        replicated.restore("newest")
        if peers == "running":
            replicated.start(*others)
            cluster.tick_until_idle()
        replicated.restore(moment, f"broker-{root}")
        replicated.start(root)
        assert root not in cluster.partition("t", 0).isr, moment
        if peers == "stopped":
            replicated.start(*others)
        check_at_rest(cluster, *"abcdef")
        assert audit(cluster.connection) == [], moment
        replicated.crash_all()


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_restored_cluster_root_is_refused_by_each_broker(
    replicated: Timeline, first: int
) -> None:
    """At each age, whichever broker starts first; nothing is written. The newest state works."""
    cluster = replicated.cluster
    # Nothing in the cluster root has changed in the last seconds.
    for moment in MOMENTS[:-2]:
        replicated.restore("newest")
        replicated.restore(moment, "cluster")
        before = rows(cluster, None, BROKERS)
        with pytest.raises(StorageError, match=r"the cluster root .* is older than .*: restore"):
            cluster.restart(first)
        assert rows(cluster, None, BROKERS) == before
    replicated.restore("newest")
    replicated.start(first, *(one for one in (0, 1, 2) if one != first))
    check_at_rest(cluster, *"abcdef")
    replicated.crash_all()


def test_a_cluster_root_without_the_last_change_of_an_isr_is_refused(
    start: Start, tmp_path: Path
) -> None:
    """No epoch has changed: the older in-sync set has a replica that lacks committed records."""
    timeline = Timeline(start(0, 1), tmp_path / "copies")
    cluster = timeline.cluster
    timeline.copy("both in sync")
    cluster.crash(1)
    cluster.fence(1)
    cluster.tick_until_idle()
    timeline.write("a")
    timeline.crash_all()
    timeline.restore("both in sync", "cluster")
    for broker in (0, 1):
        with pytest.raises(StorageError, match=r"its table \w+ has version \d+, and broker 0 has"):
            cluster.restart(broker)


def test_each_commit_of_a_journal_carries_what_its_broker_has_seen(start: Start) -> None:
    """Heartbeats and steps do; the number of journals is that of the registered roots."""
    cluster = start(0, 1)
    for _ in range(3):
        cluster.crash(1)
        cluster.restart(1)
        cluster.tick_until_idle()
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    opened = journal(cluster, 0)
    commit = read_commit(opened.location, opened.version)
    assert commit is not None
    assert commit.added or commit.user_metadata
    seen = seen_in(commit)
    assert seen is not None
    [of] = seen.journals
    assert of == (1, 0, cluster.brokers[1].broker_epoch)
    assert seen.journals[of] <= journal(cluster, 1).version
