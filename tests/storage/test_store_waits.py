"""Fetches that wait at idle leaders of the same process, and cost no request on an object store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.producer.plain import Producer
from tests.storage.test_s3 import Store, pytestmark, store
from tests.storage.test_store_heartbeats import Cluster, Requests, requests

__all__ = ["pytestmark", "requests", "store"]

WAIT_MS, ROUNDS, JOURNALS = 500, 10, 6


@pytest.fixture(scope="module")
def cluster(store: Store) -> Iterator[Cluster]:
    """Three brokers of one process, each of which reads the journals of both others."""
    made = Cluster(store)
    connection = Connection(f"{made.bucket}/cluster", storage_options=made.options)
    replicas = {one: [one, (one + 1) % 3, (one + 2) % 3] for one in range(3)}
    Admin(connection).create_topic("u", assignment=replicas)
    while made.application.round(to_end=True).changed:
        pass
    yield made
    made.application.stop()
    made.application.run()


def journal_polls(cluster: Cluster, requests: Requests, rounds: int, advance_ms: int = 0) -> int:
    """Return the number of GETs of journals in some rounds."""
    requests.clear()
    for _ in range(rounds):
        cluster.application.round()
        cluster.clock.advance(advance_ms)
    return sum("/log/_delta_log/" in path for name, path in requests if name == "get")


def end_waits(cluster: Cluster, requests: Requests) -> None:
    """Let all waits end, so that each journal is polled once, and begin new ones."""
    while cluster.application.round(to_end=True).changed:
        pass
    cluster.clock.advance(WAIT_MS)
    assert journal_polls(cluster, requests, 1) == JOURNALS


def test_a_fetch_waits_for_500_ms(cluster: Cluster, requests: Requests) -> None:
    """In rounds at 50 ms journals are polled once every replica.fetch.wait.max.ms."""
    end_waits(cluster, requests)
    assert journal_polls(cluster, requests, ROUNDS) == 0
    cluster.clock.advance(WAIT_MS)
    assert journal_polls(cluster, requests, 2 * ROUNDS, WAIT_MS // ROUNDS) == 2 * JOURNALS


def test_a_wait_costs_no_commit(cluster: Cluster, requests: Requests) -> None:
    """A fetch with nothing new is not persisted."""
    journal_polls(cluster, requests, ROUNDS, WAIT_MS)
    assert not [path for name, path in requests if name.startswith("put")]


def test_dynamic_configs_are_read_once_for_each_change(
    cluster: Cluster, requests: Requests
) -> None:
    """An idle round sends no request for them."""

    def reads() -> int:
        requests.clear()
        while cluster.application.round(to_end=True).changed:
            pass
        return sum("/configs/" in path for _, path in requests)

    connection = Connection(f"{cluster.bucket}/cluster", storage_options=cluster.options)
    assert reads() == 0
    Admin(connection).alter_broker_configs(None, {"log.retention.ms": 1_000_000})
    assert reads() > 0
    assert {one.settings.log_retention_ms for one in cluster.brokers.values()} == {1_000_000}
    assert reads() == 0


def test_a_commit_of_the_leader_ends_the_wait(cluster: Cluster, requests: Requests) -> None:
    """A record is replicated and answered while the clock stands still."""
    end_waits(cluster, requests)
    connection = Connection(f"{cluster.bucket}/cluster", storage_options=cluster.options)
    with Producer(connection) as producer:
        sent = producer.send("t", b"a", partition=0)
        while not sent.done():
            cluster.application.round()
        assert sent.result(0).offset >= 0


def test_a_fetch_for_no_bytes_does_not_wait(
    cluster: Cluster, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With replica.fetch.min.bytes = 0 every round polls, as in Kafka."""
    end_waits(cluster, requests)
    settings = cluster.application.config.model_copy(update={"replica_fetch_min_bytes": 0})
    for broker in cluster.brokers.values():
        monkeypatch.setattr(broker._journal_waits, "_settings", settings)
    assert journal_polls(cluster, requests, ROUNDS) == ROUNDS * JOURNALS


def test_a_fetch_at_another_process_polls_in_every_round(
    cluster: Cluster, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits of other processes are known only by polling."""
    end_waits(cluster, requests)
    for broker in cluster.brokers.values():
        monkeypatch.setattr(broker._journal_waits, "_newest_version", lambda _: None)
    assert journal_polls(cluster, requests, ROUNDS) == ROUNDS * JOURNALS
