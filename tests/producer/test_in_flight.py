"""Produce requests in flight, and the outcomes of their partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from sparklog.errors import StorageError
from sparklog.model import TopicIdPartition
from sparklog.producer import in_flight
from sparklog.producer.in_flight import DeletedTopicError, InFlightRequests, partition_error
from sparklog.producer.produce_requests import PendingProduce, ProduceResponse

if TYPE_CHECKING:
    from sparklog.cluster.connection import Connection
    from sparklog.producer.produce_requests import RequestedBatch, Responses

P0, P1 = TopicIdPartition("id", 0), TopicIdPartition("id", 1)


class Leader:
    """Returns the answers that a test has set."""

    is_local = True

    def __init__(self) -> None:
        self.answers: dict[TopicIdPartition, ProduceResponse] = {}
        self.forgotten: list[str] = []

    def poll(self) -> None:
        pass

    def pop(self, _request_id: str, key: TopicIdPartition) -> ProduceResponse | None:
        return self.answers.get(key)

    def throttle_time_ms(self, _request_id: str) -> int:
        return 0

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)


class Cluster:
    """A fake connection to a cluster with one leader, and the leader epochs of its partitions."""

    def __init__(self) -> None:
        self.leader = Leader()
        self.epochs = {P0: 3, P1: 3}
        self.loads = 0
        self.root = SimpleNamespace(location=SimpleNamespace(is_local=True))
        self.is_away = False

    def metadata(self, _max_age_ms: int) -> Any:
        if self.is_away:
            raise StorageError("the cluster's root is away")
        self.loads += 1
        partitions = {
            key: SimpleNamespace(key=key, leader_epoch=epoch) for key, epoch in self.epochs.items()
        }
        return SimpleNamespace(partitions=partitions)

    def request(self, *keys: TopicIdPartition) -> PendingProduce:
        batches = [
            SimpleNamespace(state=SimpleNamespace(key=key, leader_epoch=self.epochs[key]))
            for key in keys
        ]
        waiting = dict.fromkeys(keys, cast("Responses", self.leader))
        return PendingProduce(
            "request", waiting, {}, cast("list[RequestedBatch]", batches), "all", 30_000
        )


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(in_flight, "pause_seconds", lambda _: 0.0)
    return Cluster()


@pytest.fixture
def requests(cluster: Cluster) -> InFlightRequests:
    return InFlightRequests(cast("Connection", cluster))


def errors(requests: InFlightRequests) -> dict[TopicIdPartition, str]:
    return {key: outcome.response.error for key, outcome in requests.poll().items()}


def test_each_partition_has_one_outcome_and_then_the_request_is_forgotten(
    cluster: Cluster, requests: InFlightRequests
) -> None:
    requests.add(cluster.request(P0, P1))
    assert errors(requests) == {}
    cluster.leader.answers[P1] = ProduceResponse("NOT_ENOUGH_REPLICAS", -1, -1)
    assert errors(requests) == {P1: "NOT_ENOUGH_REPLICAS"}
    cluster.leader.answers[P0] = ProduceResponse("NONE", 5, 6)
    [(key, outcome)] = requests.poll().items()
    assert (key, outcome.is_stored, outcome.response.base_offset) == (P0, True, 5)
    assert not requests
    assert set(cluster.leader.forgotten) == {"request"}


def test_a_deposed_leader_is_not_waited_for(cluster: Cluster, requests: InFlightRequests) -> None:
    requests.add(cluster.request(P0, P1))
    requests.poll()
    cluster.epochs[P0] = 4
    requests.check_leaders()
    [(key, outcome)] = requests.poll().items()
    assert (key, outcome.response.error) == (P0, "NOT_LEADER_OR_FOLLOWER")
    assert not outcome.is_answer
    assert requests, "the leader of the other partition still leads"


def test_an_answer_that_a_leader_gave_before_it_was_deposed_counts(
    cluster: Cluster, requests: InFlightRequests
) -> None:
    requests.add(cluster.request(P0))
    requests.poll()
    cluster.leader.answers[P0] = ProduceResponse("NONE", 0, 0)
    cluster.epochs[P0] = 4
    requests.check_leaders()
    assert errors(requests) == {P0: "NONE"}


def test_a_deleted_topic_is_distinguished_from_an_answer_of_the_same_name(
    cluster: Cluster, requests: InFlightRequests
) -> None:
    requests.add(cluster.request(P0, P1))
    requests.poll()
    cluster.leader.answers[P1] = ProduceResponse("UNKNOWN_TOPIC_OR_PARTITION", -1, -1)
    del cluster.epochs[P0]
    requests.check_leaders()
    found = requests.poll()
    assert {one.response.error for one in found.values()} == {"UNKNOWN_TOPIC_OR_PARTITION"}
    assert {key: one.is_topic_deleted for key, one in found.items()} == {P0: True, P1: False}


def test_a_request_is_not_judged_by_metadata_that_are_older_than_it(
    cluster: Cluster, requests: InFlightRequests
) -> None:
    """The leader in the request may have been elected after the metadata were loaded."""
    requests.add(cluster.request(P0))
    requests.poll()
    requests.check_leaders()
    cluster.epochs[P1] = 4
    requests.add(cluster.request(P1))
    assert errors(requests) == {}


def test_a_request_times_out_if_it_has_a_time_limit(
    cluster: Cluster, requests: InFlightRequests
) -> None:
    requests.add(cluster.request(P0), timeout_ms=-1)
    requests.add(cluster.request(P1))
    assert errors(requests) == {P0: "REQUEST_TIMED_OUT"}
    assert requests


def test_leaders_are_checked_after_polls_and_not_more_often_than_the_interval(
    cluster: Cluster, requests: InFlightRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests.check_leaders()
    requests.add(cluster.request(P0))
    requests.check_leaders()
    assert cluster.loads == 0, "a request that may be answered at the first poll costs no check"
    monkeypatch.setattr(in_flight, "_LEADERS_SECONDS", 60.0)
    for _ in range(3):
        requests.poll()
        requests.check_leaders()
    assert cluster.loads == 1
    monkeypatch.setattr(in_flight, "_LEADERS_SECONDS", 0.0)
    for _ in range(3):
        requests.poll()
        requests.check_leaders()
        requests.check_leaders()
    assert cluster.loads == 4


def test_answers_arrive_and_requests_time_out_while_the_cluster_root_is_away(
    cluster: Cluster, requests: InFlightRequests
) -> None:
    requests.add(cluster.request(P0))
    requests.add(cluster.request(P1), timeout_ms=0)
    cluster.is_away = True
    found = errors(requests)
    with pytest.raises(StorageError):
        requests.check_leaders()
    cluster.leader.answers[P0] = ProduceResponse("NONE", 0, 0)
    assert found | errors(requests) == {P0: "NONE", P1: "REQUEST_TIMED_OUT"}


def test_forgotten_requests_have_no_outcomes(cluster: Cluster, requests: InFlightRequests) -> None:
    requests.add(cluster.request(P0))
    requests.forget()
    cluster.leader.answers[P0] = ProduceResponse("NONE", 0, 0)
    assert (errors(requests), bool(requests)) == ({}, False)
    assert cluster.leader.forgotten == ["request"]


def test_errors_name_the_partition_and_say_whether_a_retry_may_help() -> None:
    error = partition_error("NOT_LEADER_OR_FOLLOWER", "t", 2)
    assert str(error) == (
        "NOT_LEADER_OR_FOLLOWER: partition 2 of topic t: The broker does not lead the partition."
    )
    assert error.retriable
    assert not DeletedTopicError(P0).retriable
