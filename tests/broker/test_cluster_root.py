"""A cluster root that is missing, older than its brokers, or from another cluster."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.broker.cluster_root_age import check_not_older
from sparklog.cluster.roots import BrokerRoot, ClusterRoot
from sparklog.errors import StorageError
from sparklog.model import BROKERS, PARTITION_STATE
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.broker.states import check_at_rest

Start = Callable[..., LocalCluster]


def cluster_root(cluster: LocalCluster) -> Path:
    return Path(cluster.root) / "cluster"


def files(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with its content; empty if the folder is missing."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def put_in_place(copy: Path, root: Path) -> None:
    shutil.rmtree(root)
    shutil.copytree(copy, root)


class TestRunningBrokers:
    """Each role of each broker reports it and writes nothing; all go on once the root is
    restored.
    """

    def said_by_all(self, cluster: LocalCluster, said: str, *, is_older: bool = False) -> None:
        before = files(cluster.root)
        for broker in cluster.brokers.values():
            actions = [broker.controller_tick, broker.leader_tick, broker.follower_tick]
            # A heartbeat is a commit of the broker's own root, which is intact. The ticks fail, so
            # that heartbeats end after a session.
            if not is_older:
                actions.append(broker.heartbeat)  # type: ignore[arg-type]
            for action in actions:
                for _ in range(2):
                    with pytest.raises(StorageError, match=said):
                        action()
        assert files(cluster.root) == before

    @pytest.fixture
    def cluster(self, start: Start) -> LocalCluster:
        """A cluster with a record, and a copy of its root from before that record's leader was
        elected.
        """
        cluster = start(0, 1)
        shutil.copytree(cluster_root(cluster), cluster.root / "copy")
        cluster.crash(0)
        cluster.fence(0)
        cluster.restart(0)
        cluster.tick_until_idle()
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 1
        return cluster

    def test_of_a_root_that_is_gone(self, cluster: LocalCluster) -> None:
        """Every role refuses to write while the cluster root is missing or empty."""
        away = cluster.root / "away"
        shutil.move(cluster_root(cluster), away)
        self.said_by_all(cluster, "there is no cluster root at .*cluster any more: restore it")
        assert not cluster_root(cluster).exists()
        cluster_root(cluster).mkdir()
        self.said_by_all(cluster, "there is no cluster root at .*cluster any more: restore it")
        put_in_place(away, cluster_root(cluster))
        check_at_rest(cluster, "a")

    def test_of_a_root_that_is_another_clusters(self, cluster: LocalCluster) -> None:
        """Every role refuses to write while the cluster root is the one of another cluster."""
        away = cluster.root / "away"
        shutil.move(cluster_root(cluster), away)
        ClusterRoot.create(Location.of(str(cluster_root(cluster))))
        self.said_by_all(cluster, "holds cluster .* now, and this")
        put_in_place(away, cluster_root(cluster))
        check_at_rest(cluster, "a")

    def test_of_a_root_that_is_older(self, cluster: LocalCluster) -> None:
        """Every role refuses to write while the cluster root is an older copy."""
        shutil.copytree(cluster_root(cluster), cluster.root / "newest")
        put_in_place(cluster.root / "copy", cluster_root(cluster))
        self.said_by_all(cluster, "lost or restored", is_older=True)
        put_in_place(cluster.root / "newest", cluster_root(cluster))
        check_at_rest(cluster, "a")

    def test_of_a_root_that_is_older_and_was_written_to_since(self, cluster: LocalCluster) -> None:
        """The older root's tables have more commits by then than the brokers have seen."""
        put_in_place(cluster.root / "copy", cluster_root(cluster))
        location = Location.of(str(cluster_root(cluster)))
        for schema in (BROKERS, PARTITION_STATE):
            table = ControlTable(location, schema)
            for _ in range(60):
                table.compare_and_set(table.rows())
        self.said_by_all(cluster, "lost or restored", is_older=True)


class TestStart:
    """At its start a broker compares its own roots with the cluster root before it writes."""

    def refused(self, cluster: LocalCluster, broker_id: int, said: str) -> None:
        before = files(cluster.root)
        with pytest.raises(StorageError, match=said) as refusal:
            cluster.restart(broker_id)
        assert "\n" not in str(refusal.value)
        assert files(cluster.root) == before

    @pytest.fixture
    def cluster(self, start: Start) -> LocalCluster:
        """Two crashed brokers, without any loss so far."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        shutil.copytree(cluster_root(cluster), cluster.root / "copy")
        cluster.crash(0)
        return cluster

    @pytest.mark.parametrize("is_folder", [True, False])
    def test_is_refused_where_the_root_is_gone(
        self, cluster: LocalCluster, is_folder: bool
    ) -> None:
        """A new cluster root in its place would not match the brokers' roots."""
        shutil.rmtree(cluster_root(cluster))
        if is_folder:
            cluster_root(cluster).mkdir()
        self.refused(
            cluster,
            0,
            r"there is no cluster root at .*cluster, but .*broker-0 belongs to broker 0 of "
            "cluster .*: restore the cluster root, or correct cluster.root or log.dirs",
        )
        assert cluster_root(cluster).exists() == is_folder

    def test_is_refused_where_the_root_knows_an_earlier_registration(
        self, cluster: LocalCluster
    ) -> None:
        """A start is refused if the cluster root has a lower broker epoch than the broker's own
        root.
        """
        cluster.restart(0)
        cluster.crash(0)
        put_in_place(cluster.root / "copy", cluster_root(cluster))
        self.refused(
            cluster,
            0,
            "is older than .*broker-0: the root knows broker epoch 1 of broker 0, and the broker "
            "had 3: restore the newest state of the cluster root",
        )

    def test_is_not_refused_where_another_process_registered_between_two_reads(
        self, cluster: LocalCluster
    ) -> None:
        """Two processes that start at once may both have read `brokers` before either registered.

        The one that is later finds the other's broker epoch in the broker's root.
        """
        opened = ClusterRoot(Location(str(cluster_root(cluster))))
        cluster.restart(0)
        cluster.crash(0)
        roots = [BrokerRoot(Location(str(cluster.root / "broker-0")))]
        check_not_older(opened, 0, roots)
        put_in_place(cluster.root / "copy", cluster_root(cluster))
        opened = ClusterRoot(Location(str(cluster_root(cluster))))
        with pytest.raises(StorageError, match="the root knows broker epoch 1 of broker 0"):
            check_not_older(opened, 0, roots)

    def test_is_refused_where_the_root_knows_an_earlier_leader(self, cluster: LocalCluster) -> None:
        """Broker 1 was elected since then; its own registration is unchanged."""
        cluster.fence(0)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 1
        cluster.crash(1)
        put_in_place(cluster.root / "copy", cluster_root(cluster))
        self.refused(
            cluster, 1, "older than .*broker-1: .* leader epoch 0 of t-0, and the broker had 1"
        )

    def test_is_refused_where_the_root_does_not_know_a_topic(self, cluster: LocalCluster) -> None:
        """A start is refused if the broker has records of a topic that the cluster root does not
        have.
        """
        cluster.create_topic("u", assignment={0: [1]})
        cluster.tick_until_idle()
        cluster.produce("u", 0, [b"u"])
        cluster.tick_until_idle()
        cluster.crash(1)
        put_in_place(cluster.root / "copy", cluster_root(cluster))
        self.refused(cluster, 1, "older than .*broker-1: .* no topic u .* records of u-0")

    def test_goes_on_with_the_newest_state(self, cluster: LocalCluster) -> None:
        """A start succeeds if the cluster root has the newest state."""
        cluster.restart(0)
        check_at_rest(cluster, "a")
