"""The requests of heartbeats and their observers on an object store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from sparklog.broker.application import Application
from sparklog.broker.broker import Broker
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.model import LOG
from sparklog.storage.delta_log_files import commit_path, newest_version
from sparklog.storage.location import Location
from sparklog.storage.object_store import ObjectStore
from sparklog.testing import ManualClock
from tests.storage.test_s3 import Store, pytestmark, store

__all__ = ["pytestmark", "store"]

Requests = list[tuple[str, str]]


class Cluster:
    """Three idle brokers with a topic on brokers 0 and 1; time passes only by the manual clock."""

    def __init__(self, store: Store, tick_interval_ms: int = 50) -> None:
        self.bucket = store.bucket()
        self.options = store.options()
        self.clock = ManualClock()
        config = {
            "cluster.root": f"{self.bucket}/cluster",
            "brokers": [
                {"broker.id": one, "log.dirs": [f"{self.bucket}/broker-{one}"]} for one in range(3)
            ],
            "storage.options": self.options,
            # The tests make the heartbeats themselves.
            "broker.heartbeat.interval.ms": 3_600_000,
            "broker.session.timeout.ms": 4 * 3_600_000,
            "log.merger.enable": False,
            "tick.interval.ms": tick_interval_ms,
        }
        self.application = Application(
            parse(ClusterConfig, config, "the test's configuration"), clock=self.clock
        )
        self.application.start()
        self.brokers: dict[int, Broker] = self.application._brokers
        connection = Connection(f"{self.bucket}/cluster", storage_options=self.options)
        Admin(connection).create_topic("t", assignment={0: [0, 1]})
        while self.application.round(to_end=True).changed:
            pass

    def version(self, broker: int) -> int:
        """Return the newest version of a broker's journal."""
        root = Location.of(f"{self.bucket}/broker-{broker}", self.options)
        return newest_version(root.child(LOG.name))


@pytest.fixture
def cluster(store: Store) -> Iterator[Cluster]:
    made = Cluster(store)
    yield made
    made.application.stop()
    made.application.run()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    """The requests of the object store client since the fixture was requested, with the ends of
    their keys.
    """
    noted: Requests = []

    def arrange(name: str) -> None:
        original: Callable[..., object] = getattr(ObjectStore, name)

        def call(of: ObjectStore, path: str, *arguments: object) -> object:
            noted.append((name, path))
            return original(of, path, *arguments)

        monkeypatch.setattr(ObjectStore, name, call)

    for name in ("get", "size_bytes", "put", "put_new", "remove", "names", "pages"):
        arrange(name)
    return noted


def next_commit(cluster: Cluster, broker: int) -> str:
    return f"broker-{broker}/log/{commit_path(cluster.version(broker) + 1)}"


def test_a_heartbeat_of_an_idle_broker_is_one_conditional_put(
    cluster: Cluster, requests: Requests
) -> None:
    """The PUT goes to its own root: nothing is read or written in the cluster root."""
    path = next_commit(cluster, 1)
    cluster.brokers[1]._heartbeats.note()
    requests.clear()
    cluster.brokers[1].heartbeat()
    assert requests == [("put_new", path)]


def test_a_heartbeat_of_the_controller_checks_its_lease(
    cluster: Cluster, requests: Requests
) -> None:
    """A heartbeat of the controller polls its lease with one GET and commits with one PUT."""
    [holder] = [one for one, broker in cluster.brokers.items() if broker.is_controller]
    path = next_commit(cluster, holder)
    requests.clear()
    cluster.brokers[holder].heartbeat()
    assert [name for name, _ in requests] == ["get", "put_new"]
    assert requests[0][1].startswith("cluster/controller/_delta_log/")
    assert requests[1][1] == path


def holder(cluster: Cluster) -> int:
    [found] = [one for one, broker in cluster.brokers.items() if broker.is_controller]
    return found


class TestHeartbeatsThatAreDue:
    """A broker is silent for at most two intervals; an application checks twice per interval."""

    INTERVAL_MS = 3_600_000

    def commits(self, cluster: Cluster, broker: int, checks: int) -> int:
        """Return the number of commits of a broker in this number of half intervals."""
        before = cluster.version(broker)
        for _ in range(checks):
            cluster.clock.advance(self.INTERVAL_MS // 2)
            cluster.brokers[broker].heartbeat()
        return cluster.version(broker) - before

    def test_an_idle_broker_makes_one_in_two_intervals(self, cluster: Cluster) -> None:
        """An idle broker makes a heartbeat every two intervals."""
        cluster.brokers[2].heartbeat()
        assert self.commits(cluster, 2, 3) == 0
        assert self.commits(cluster, 2, 1) == 1
        assert self.commits(cluster, 2, 8) == 2

    def test_the_controller_renews_its_lease_as_often(self, cluster: Cluster) -> None:
        """The controller renews its lease every two intervals."""
        broker = holder(cluster)
        cluster.brokers[broker].heartbeat()
        log = cluster.brokers[broker]._roots[0].log
        for _ in range(2):
            for _ in range(2):
                assert self.commits(cluster, broker, 1) == 0
            # Other commits show that it is alive, but do not renew the lease.
            log.heartbeat()
            before = log.renewal
            assert self.commits(cluster, broker, 2) == 1
            assert log.renewal != before

    def test_a_commit_puts_it_off(self, cluster: Cluster) -> None:
        """The delay is two intervals from the previous check, as the commit may be that old."""
        broker = next(one for one in cluster.brokers if one != holder(cluster))
        cluster.brokers[broker].heartbeat()
        for _ in range(3):
            assert self.commits(cluster, broker, 3) == 0
            cluster.brokers[broker]._roots[0].log.heartbeat()
        assert self.commits(cluster, broker, 3) == 0
        assert self.commits(cluster, broker, 1) == 1

    def test_one_that_failed_is_made_at_the_next_check(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A heartbeat that failed is repeated at the next check."""
        broker = cluster.brokers[2]
        broker.heartbeat()
        assert self.commits(cluster, 2, 3) == 0

        def away(*_: object) -> bool:
            raise OSError("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(broker._roots[0].log, "heartbeat", away)
            with pytest.raises(OSError, match="away"):
                self.commits(cluster, 2, 1)
        assert self.commits(cluster, 2, 1) == 1


def test_a_journal_is_read_once_a_round_for_all_roles(cluster: Cluster, requests: Requests) -> None:
    """A journal is read once per round, also one that only the controller reads, and without a
    LIST.

    The controller reads versions alone.
    """
    broker = cluster.brokers[0]
    versions = {one: cluster.version(one) for one in (1, 2)}
    for ms in (1_000, 1_000):
        cluster.clock.advance(ms)
        requests.clear()
        broker.poll_ahead()
        broker.controller_tick()
        broker.leader_tick()
        broker.follower_tick()
        assert max(Counter(requests).values()) == 1
        assert not [path for name, path in requests if name in ("names", "pages")]
        journals = [path for _, path in requests if path.startswith(("broker-1/", "broker-2/"))]
        assert sorted(journals) == [
            f"broker-{one}/log/{commit_path(versions[one] + 1)}" for one in (1, 2)
        ]


def test_the_brokers_follow_each_others_heartbeats(cluster: Cluster) -> None:
    """No broker is fenced, and nothing changes in `brokers`."""
    rows = cluster.brokers[0]._cluster.brokers
    before = rows.version
    for _ in range(2):
        cluster.clock.advance(4 * 3_600_000)
        for broker in cluster.brokers.values():
            broker.heartbeat()
        cluster.application.round(to_end=True)
    rows.refresh()
    # The versions of the logs.
    assert rows.version <= before + 2
    assert [row["state"] for row in rows.rows().to_pylist()] == ["alive"] * 3
