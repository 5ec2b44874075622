"""Requests and commits of ticks on an object store, seconds apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from sparklog.broker.pace import TickStep
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.model import HIGH_WATERMARK_CHECKPOINT
from sparklog.producer.accumulator import RecordMetadata
from sparklog.producer.plain import Producer
from tests.jobs.processes import wait_for
from tests.storage.test_s3 import Store, pytestmark, store
from tests.storage.test_store_heartbeats import Cluster, Requests, requests

__all__ = ["pytestmark", "requests", "store"]

TICK_MS = 5_000
TOPIC, PARTITIONS = "spread", 3
CHECKPOINT = HIGH_WATERMARK_CHECKPOINT.name


@pytest.fixture
def cluster(store: Store) -> Iterator[Cluster]:
    """Each of the three brokers leads one partition and follows two."""
    made = Cluster(store, tick_interval_ms=TICK_MS)
    connection = Connection(f"{made.bucket}/cluster", storage_options=made.options)
    replicas = {one: [(one + other) % 3 for other in range(3)] for one in range(PARTITIONS)}
    Admin(connection).create_topic(TOPIC, assignment=replicas)
    while made.application.round(to_end=True).changed:
        pass
    yield made
    made.application.stop()
    made.application.run()


@pytest.fixture
def producer(cluster: Cluster) -> Iterator[Producer]:
    connection = Connection(f"{cluster.bucket}/cluster", storage_options=cluster.options)
    with Producer(connection) as made:
        yield made


def send(producer: Producer, *partitions: int) -> list[Future[RecordMetadata]]:
    """Send a record to each partition, and wait until its request is in the leader's inbox."""
    sent = [producer.send(TOPIC, b"a", partition=one) for one in partitions]
    in_flight = producer._sender._in_flight._requests
    wait_for(lambda: sum(len(one.epochs) for one in in_flight) == len(sent), "requests")
    return sent


def puts(requests: Requests) -> Requests:
    return [one for one in list(requests) if one[0] in ("put", "put_new")]


def of_table(requests: Requests, name: str) -> Requests:
    return [one for one in requests if f"/{name}/_delta_log/" in one[1]]


def journal_commits(requests: Requests) -> Counter[str]:
    """Return the number of commits of journals, by root."""
    return Counter(path.partition("/")[0] for _, path in of_table(puts(requests), "log"))


def tick(cluster: Cluster, later_steps: int = 2) -> None:
    for step in (TickStep.REQUESTS, *[TickStep.JOURNALS] * later_steps):
        cluster.application.round(step=step)


def test_a_tick_answers_what_it_takes(
    cluster: Cluster, producer: Producer, requests: Requests
) -> None:
    """A broker makes three commits: batches, copies, answers."""
    sent = send(producer, *range(PARTITIONS))
    requests.clear()
    tick(cluster)
    assert journal_commits(requests) == {f"broker-{one}": 3 for one in range(3)}
    for one in sent:
        one.result(30)


@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_a_tick_answers_whichever_broker_leads(
    cluster: Cluster, producer: Producer, partition: int
) -> None:
    """A tick answers a record of any leader."""
    [future] = send(producer, partition)
    tick(cluster)
    future.result(30)


def test_high_watermarks_wait_for_the_next_tick(
    cluster: Cluster, producer: Producer, requests: Requests
) -> None:
    """High watermarks of followers are committed with the next tick's batches."""
    for _ in range(2):
        sent = send(producer, *range(PARTITIONS))
        requests.clear()
        tick(cluster, later_steps=3)
        for one in sent:
            one.result(30)
        assert journal_commits(requests).total() == 9
        cluster.clock.advance(TICK_MS)


def test_answers_leave_nothing_to_follow_up(cluster: Cluster, producer: Producer) -> None:
    """After the answers no further round of the tick is needed."""
    sent = send(producer, *range(PARTITIONS))
    found = [
        cluster.application.round(step=step)
        for step in (TickStep.REQUESTS, TickStep.JOURNALS, TickStep.JOURNALS)
    ]
    assert [one.has_more for one in found] == [False, True, False]
    for one in sent:
        one.result(30)


def test_an_idle_tick_polls_each_table_once(cluster: Cluster, requests: Requests) -> None:
    """A broker polls its inbox and the two other journals."""
    tick(cluster, later_steps=1)
    cluster.clock.advance(TICK_MS)
    requests.clear()
    tick(cluster, later_steps=1)
    assert not puts(requests)
    assert len(of_table(requests, "produce_requests")) == 3
    assert len(of_table(requests, "log")) == 6
    assert len(of_table(requests, "partition_state")) == 3


def test_a_round_polls_only_what_its_step_needs(cluster: Cluster, requests: Requests) -> None:
    """A round polls only the tables of its step: the inbox and the metadata, or the journals."""
    cluster.clock.advance(TICK_MS)
    requests.clear()
    cluster.application.round(step=TickStep.REQUESTS)
    assert not of_table(requests, "log")
    requests.clear()
    cluster.application.round(step=TickStep.JOURNALS)
    assert not of_table(requests, "produce_requests")
    assert not of_table(requests, "partition_state")


def test_checkpoints_are_written_at_longer_intervals(
    cluster: Cluster, producer: Producer, requests: Requests
) -> None:
    """Two PUTs of a broker every 60 s, or after 100 commits."""
    written: list[int] = []
    cluster.clock.advance(60_000)
    for _ in range(13):
        requests.clear()
        sent = send(producer, *range(PARTITIONS))
        tick(cluster)
        for one in sent:
            one.result(30)
        for broker in cluster.brokers.values():
            checkpoints = broker._replicas[0].checkpoints
            if checkpoints._writing is not None:
                checkpoints._writing.result()
        written.append(len(of_table(puts(requests), CHECKPOINT)))
        cluster.clock.advance(TICK_MS)
    assert written == [3, *[0] * 11, 3]
