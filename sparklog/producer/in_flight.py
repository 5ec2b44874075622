"""Produce requests in flight: polls of their leaders, and one outcome for each partition."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from sparklog.cluster.connection import Connection
from sparklog.cluster.metadata import Metadata
from sparklog.errors import ERROR_CODES, ProtocolError, StorageError
from sparklog.model import TopicIdPartition
from sparklog.producer.answer_polls import AnswerPolls, pause_seconds
from sparklog.producer.produce_requests import (
    METADATA_MS,
    PendingProduce,
    ProduceResponse,
    poll_leaders,
)

_LEADERS_SECONDS = 0.1
"""The minimum time in s between two checks that the leaders of the requests still lead."""


class Outcome(NamedTuple):
    """The end of an attempt to store the batches of a partition.

    `response` is the leader's answer. If `is_answer` is False, the attempt ended without an answer
    and `response` has the error. Errors of a request in flight:

    - NOT_LEADER_OR_FOLLOWER: another leader was elected. A request that names a past leader epoch
      may never be answered.
    - UNKNOWN_TOPIC_OR_PARTITION: the topic was deleted.
    - REQUEST_TIMED_OUT: the time limit of the request has passed.

    `throttle_time_ms` is the time in ms for which the leader is not to be sent further requests.
    """

    response: ProduceResponse
    is_answer: bool = True
    throttle_time_ms: int = 0

    @classmethod
    def failed(cls, error: str) -> Outcome:
        """Return the outcome of an attempt without an answer; `error` is Kafka's name."""
        return cls(ProduceResponse(error, -1, -1), is_answer=False)

    @property
    def is_stored(self) -> bool:
        """Whether the leader has answered that the batches are stored."""
        return self.response.error == "NONE"

    @property
    def is_topic_deleted(self) -> bool:
        """Whether the attempt ended because the metadata no longer contain the topic."""
        return not self.is_answer and self.response.error == _DELETED.response.error


_DEPOSED = Outcome.failed("NOT_LEADER_OR_FOLLOWER")
_DELETED = Outcome.failed("UNKNOWN_TOPIC_OR_PARTITION")
_TIMED_OUT = Outcome.failed("REQUEST_TIMED_OUT")


class InFlightRequests:
    """The unanswered produce requests of a producer. Not thread-safe.

    A producer alternates `poll` and `check_leaders`, with pauses of `seconds_to_poll`. Each
    partition gets one outcome for each request that names it. Invariant: a partition is named by at
    most one request in flight.

    Parameters: `connection`, whose metadata contain the leaders.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._requests: list[_InFlightRequest] = []
        self._polls = AnswerPolls()
        self._next_poll_at = -math.inf
        self._polled_at = -math.inf
        self._checked_at = -math.inf
        self._metadata: Metadata | None = None

    def __bool__(self) -> bool:
        return bool(self._requests)

    def add(self, pending: PendingProduce, timeout_ms: int | None = None) -> None:
        """Add a request that was just sent.

        Parameters: `timeout_ms`, after which its outcomes are REQUEST_TIMED_OUT; `None` if only the
        caller limits the time.
        """
        request = _InFlightRequest(pending, timeout_ms)
        if not self._requests:
            self._next_poll_at = request.sent_at + self._polls.first_seconds
        self._requests.append(request)

    def forget(self) -> None:
        """Remove all requests; their outcomes are no longer returned."""
        for request in self._requests:
            request.pending.forget()
        self._requests.clear()

    @property
    def seconds_to_poll(self) -> float:
        """The pause in s until `poll` polls the leaders again."""
        return max(self._next_poll_at - time.monotonic(), 0.0)

    def poll(self) -> dict[TopicIdPartition, Outcome]:
        """Poll the leaders if a poll is due; return the outcomes since the last poll."""
        if not self._requests or self.seconds_to_poll > 0:
            return {}
        newest = self._requests[-1]
        outcomes = self.poll_now()
        self._polled_at = time.monotonic()
        self._next_poll_at = self._polled_at + pause_seconds(self._polled_at - newest.sent_at)
        return outcomes

    def poll_now(self) -> dict[TopicIdPartition, Outcome]:
        """Poll all leaders at once; return the outcomes since the last poll."""
        metadata, self._metadata = self._metadata, None
        poll_leaders(request.pending for request in self._requests)
        outcomes: dict[TopicIdPartition, Outcome] = {}
        for request in list(self._requests):
            # A request that was sent after the metadata were loaded may name a newer leader.
            is_judged = request.sent_at < self._checked_at
            outcomes |= request.pop_outcomes(metadata if is_judged else None)
            if not request.epochs:
                self._remove(request)
        return outcomes

    def check_leaders(self) -> None:
        """Load the metadata by which the next poll finds deposed leaders and deleted topics.

        The metadata are loaded before that poll. So an answer that a leader gave before it was
        deposed counts. They are loaded once after a poll, every 100 ms at most. On an object store
        they are loaded if they are older than 1 s and than half of the usual duration of a request.
        Raises `StorageError` if the cluster's root cannot be read.
        """
        now = time.monotonic()
        is_due = self._polled_at > self._checked_at and now - self._checked_at >= _LEADERS_SECONDS
        if not self._requests or not is_due:
            return
        self._checked_at = now
        self._metadata = self._connection.metadata(self._polls.leaders_ms(METADATA_MS))

    def _remove(self, request: _InFlightRequest) -> None:
        if not self._connection.root.location.is_local:
            # A poll of a local folder costs no request.
            self._polls.note(time.monotonic() - request.sent_at)
        request.pending.forget()
        self._requests.remove(request)


class _InFlightRequest:
    """A produce request, and the leader epochs that it names for partitions without an outcome.

    `sent_at` is in s of the monotonic clock.
    """

    def __init__(self, pending: PendingProduce, timeout_ms: int | None) -> None:
        self.pending = pending
        self.sent_at = time.monotonic()
        self.epochs = {batch.state.key: batch.state.leader_epoch for batch in pending.batches}
        self._timeout_seconds = math.inf if timeout_ms is None else timeout_ms / 1000

    def pop_outcomes(self, metadata: Metadata | None) -> dict[TopicIdPartition, Outcome]:
        """Return the outcomes that are known by now; each is returned once."""
        answers = self.pending.found()
        outcomes = {}
        for key in list(self.epochs):
            outcome: Outcome | None
            if key in answers:
                time_ms = self.pending.throttle_times_ms.get(key, 0)
                outcome = Outcome(answers[key], throttle_time_ms=time_ms)
            else:
                outcome = self._failure(key, metadata)
            if outcome is not None:
                outcomes[key] = outcome
                del self.epochs[key]
        return outcomes

    def _failure(self, key: TopicIdPartition, metadata: Metadata | None) -> Outcome | None:
        if metadata is not None:
            state = metadata.partitions.get(key)
            if state is None:
                return _DELETED
            if state.leader_epoch != self.epochs[key]:
                return _DEPOSED
        is_timed_out = time.monotonic() > self.sent_at + self._timeout_seconds
        return _TIMED_OUT if is_timed_out else None


class DeletedTopicError(ProtocolError):
    """UNKNOWN_TOPIC_OR_PARTITION for a topic that was deleted: a retry cannot succeed."""

    def __init__(self, key: TopicIdPartition) -> None:
        super().__init__(
            "UNKNOWN_TOPIC_OR_PARTITION",
            f"the topic with id {key.topic_id} was deleted before records for its partition "
            f"{key.partition} were stored: write them again to a topic that exists",
        )

    @property
    def retriable(self) -> bool:
        """Always False, although the error code is retriable."""
        return False


def unanswered(connection: Connection, key: TopicIdPartition) -> str:
    """Return the end of a sentence about a request that was not answered in time.

    Empty unless the leader of the partition is parked.
    """
    try:
        metadata = connection.metadata(METADATA_MS)
    except StorageError:
        return ""
    state = metadata.partitions.get(key)
    leader = metadata.brokers.get(state.leader) if state and state.leader is not None else None
    if leader is None or leader.state != "parked":
        return ""
    return (
        f", and broker {leader.broker_id}, its leader, is parked; the records may be stored. Raise "
        "delivery.timeout.ms above the time between the runs of the brokers"
    )


def partition_error(
    error: str, topic: str, partition: int, detail: str | None = None
) -> ProtocolError:
    """Return the error of a partition whose records were not stored.

    Parameters: `error`, Kafka's name; `detail`, what failed and what to do, by default the
    sentence of the error code.

    >>> print(partition_error("REQUEST_TIMED_OUT", "t", 0, "delivery.timeout.ms has passed"))
    REQUEST_TIMED_OUT: partition 0 of topic t: delivery.timeout.ms has passed
    """
    sentence = detail or ERROR_CODES[error].sentence
    return ProtocolError(error, f"partition {partition} of topic {topic}: {sentence}")
