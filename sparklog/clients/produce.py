"""Produce requests: naming batch files to their leaders, and waiting for the answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple

from sparklog.broker.leader_roots import UNREADABLE
from sparklog.clients.answer_polls import pause_seconds
from sparklog.clients.connection import Connection
from sparklog.clock import Clock, SystemClock
from sparklog.errors import DamagedError, ProtocolError, error_code
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import ALL, LOG, TopicIdPartition
from sparklog.storage.batch_files import BatchFile
from sparklog.storage.delta_log import (
    MOST_AHEAD,
    commit_contents,
    has_commit,
    newest_version,
    parse_commit,
)
from sparklog.storage.journal import answers_in
from sparklog.storage.location import Location, one_line
from sparklog.storage.metadata import PartitionState
from sparklog.storage.request_appends import RequestAppends
from sparklog.storage.request_files import Request
from sparklog.storage.side_by_side import side_by_side

Acks = Literal[0, 1, -1, "all"]

_UPLOADS_BESIDE, _BYTES_BESIDE = 4, 1 << 20
"""How many files are uploaded beside their request, and how many bytes, at most."""

METADATA_MS = 1_000
"""The maximum age of metadata on an object store, in ms, where a producer polls it."""

_CHECK_INTERVAL_S = 60
"""Seconds without a commit after which a reader may have fallen behind clean-up."""

_RootOfBroker = tuple[str, "int | None"]
"""A root's URI and the epoch of the broker there, see `Connection.registered_epoch`."""


_logger = get_logger(__name__)


class ProduceResponse(NamedTuple):
    """The answer for one partition of a request; `error` is Kafka's name, NONE when all is well."""

    error: str
    base_offset: int
    last_offset: int


class RequestedBatch(NamedTuple):
    """A batch file in a leader's inbox and the partition that it is for."""

    state: PartitionState
    file: BatchFile
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


class Responses:
    """The answers in the journal of one leader's root, read as they arrive."""

    def __init__(self, location: Location) -> None:
        self._log = location.child(LOG.name)
        self._failures = RepeatedFailures(_logger)
        self._version = newest_version(self._log)
        self._looked_at = time.monotonic()
        self._caught_up = 0
        self._is_behind = True
        self._expected: set[str] = set()
        self._answers: dict[tuple[str, TopicIdPartition], ProduceResponse] = {}

    @property
    def is_local(self) -> bool:
        """Whether the root is a folder."""
        return self._log.is_local

    def expect(self, request_id: str) -> None:
        """Keep the answers to this request; those to others' requests are passed over."""
        self._is_behind |= not self._expected
        self._expected.add(request_id)

    @property
    def is_far_behind(self) -> bool:
        """Whether more commits than one are likely to lie between here and the journal's end."""
        return self._is_behind and self._caught_up > 1 and not self.is_local

    def forget(self, request_id: str) -> None:
        """Pass over the answers to this request from now on."""
        self._expected.discard(request_id)
        self._answers = {of: one for of, one in self._answers.items() if of[0] != request_id}

    def poll(self) -> None:
        """Read the answers that have arrived; from a root that is away, none do."""
        try:
            self._read_on()
        except UNREADABLE as error:
            self._failures.warning("responses", "responses not readable", error=one_line(error))

    def _read_on(self) -> None:
        """Read the commits up to the journal's end.

        An object store is asked for as many at once as there were after the last rest, and as many
        again while all of them are there: the brokers go on while nobody waits for an answer.
        """
        start = self._version
        count = self._caught_up if self._is_behind else 1
        while True:
            end = self._version + max(count, 1)
            for content in commit_contents(self._log, self._version + 1, end):
                if content is None:
                    self._check_in_place()
                    break
                self._version += 1
                self._looked_at = time.monotonic()
                self._note_answers(content)
            if self._version < end:
                break
            count = self._version - start
        if self._is_behind:
            self._caught_up = min(self._version - start, MOST_AHEAD)
            self._is_behind = False

    def _note_answers(self, content: bytes) -> None:
        """Keep the answers of the commit that was just read, as far as they are expected."""
        # Most commits of a busy leader have none: to parse them all takes a processor.
        if not any(request_id.encode() in content for request_id in self._expected):
            return
        try:
            commit = parse_commit(self._log, self._version, content, lambda _: True)
        except DamagedError as error:
            # Its answers are lost; a batch that is sent again is recognised by its leader.
            self._failures.warning(self._version, "answers lost", error=str(error))
            return
        for row in answers_in(commit):
            if row["request_id"] in self._expected:
                key = TopicIdPartition(row["topic_id"], row["partition"])
                response = ProduceResponse(
                    error_code(row["error_code"]).name, row["base_offset"], row["last_offset"]
                )
                # A request that was sent twice may be answered twice: the first answer stands.
                self._answers.setdefault((row["request_id"], key), response)

    def _check_in_place(self) -> None:
        """Go on at the journal's end where clean-up has taken what was to be read next."""
        if time.monotonic() - self._looked_at < _CHECK_INTERVAL_S:
            return
        self._looked_at = time.monotonic()
        if not has_commit(self._log, self._version):
            self._version = newest_version(self._log)

    def take(self, request_id: str, key: TopicIdPartition) -> ProduceResponse | None:
        """Return an answer that has arrived, once."""
        return self._answers.pop((request_id, key), None)


class PendingProduce:
    """A produce request on its way; it never retries by itself."""

    def __init__(
        self,
        request_id: str,
        waiting: dict[TopicIdPartition, Responses],
        answered: dict[TopicIdPartition, ProduceResponse],
        batches: Sequence[RequestedBatch],
        acks: Acks,
        timeout_ms: int,
    ) -> None:
        self.request_id = request_id
        self.batches = tuple(batches)
        self.acks: Acks = acks
        self.timeout_ms = timeout_ms
        self._waiting = waiting
        self._answered = answered

    def poll(self) -> dict[TopicIdPartition, ProduceResponse]:
        """Return the answers that have arrived, by partition."""
        poll_leaders([self])
        return self.take()

    def take(self) -> dict[TopicIdPartition, ProduceResponse]:
        """Return the answers that earlier polls have found, by partition."""
        for key, responses in list(self._waiting.items()):
            response = responses.take(self.request_id, key)
            if response is not None:
                self._answered[key] = response
                del self._waiting[key]
                if responses not in self._waiting.values():
                    responses.forget(self.request_id)
        return dict(self._answered)

    @property
    def leaders(self) -> Iterable[Responses]:
        """The responses of the leaders that have not answered yet, one for each partition."""
        return self._waiting.values()

    def forget(self) -> None:
        """Wait for no more answers."""
        for responses in self._waiting.values():
            responses.forget(self.request_id)
        self._waiting.clear()

    @property
    def is_done(self) -> bool:
        """Whether every answer has arrived; with acks=0 none is awaited."""
        self.poll()
        return not self._waiting

    @property
    def response(self) -> ProduceResponse | None:
        """The answer, of a request for one partition; `None` while it is delayed."""
        return next(iter(self.poll().values()), None)

    def result(self, timeout_ms: int = 120_000) -> dict[TopicIdPartition, ProduceResponse]:
        """Wait for all answers; REQUEST_TIMED_OUT where they do not come in `timeout_ms`."""
        began = time.monotonic()
        deadline = began + timeout_ms / 1000
        while not self.is_done:
            if time.monotonic() > deadline:
                raise ProtocolError(
                    "REQUEST_TIMED_OUT",
                    f"{len(self._waiting)} partitions were not answered within {timeout_ms} ms: "
                    "see that their leaders run",
                )
            time.sleep(pause_seconds(time.monotonic() - began))
        return self.poll()


def poll_leaders(requests: Iterable[PendingProduce]) -> None:
    """Poll the leaders that have to answer these requests, each once and all in parallel."""
    leaders = list({id(one): one for request in requests for one in request.leaders}.values())
    # A request each, if nothing has arrived.
    is_local = all(one.is_local for one in leaders)
    side_by_side(lambda one: one.poll(), leaders, 0, is_local=is_local)


class ProduceClient:
    """Sends produce requests to leaders: one append to each leader's request table."""

    def __init__(
        self, connection: Connection, *, client_id: str = "", clock: Clock | None = None
    ) -> None:
        self._connection = connection
        self._client_id = client_id
        self._clock = clock or SystemClock()
        self._responses: dict[_RootOfBroker, Responses] = {}
        self._requests: dict[_RootOfBroker, RequestAppends] = {}

    def send(
        self,
        batches: Sequence[RequestedBatch],
        acks: Acks,
        timeout_ms: int = 30_000,
        uploads: Sequence[Callable[[], None]] = (),
    ) -> PendingProduce:
        """Name batches in one request (3.4); their files lie in the leaders' inboxes already.

        Parameters: `acks`, 0, 1 or "all"; `timeout_ms`, how long the leader may take; `uploads`,
        what puts files there that are not there yet: beside the request, if they are few and
        small, since a leader waits for a file for some seconds. A partition without a leader is
        answered with LEADER_NOT_AVAILABLE at once. Raises INVALID_REQUIRED_ACKS for any other
        `acks`, and what an upload raises.
        """
        number = acks_number(acks)
        request_id = uuid.uuid4().hex
        waiting: dict[TopicIdPartition, Responses] = {}
        answered: dict[TopicIdPartition, ProduceResponse] = {}
        by_leader: dict[_RootOfBroker, tuple[Location, list[RequestedBatch]]] = {}
        for batch in batches:
            try:
                location = self._connection.leader_location(batch.state)
            except ProtocolError as error:
                answered[batch.state.key] = ProduceResponse(error.code.name, -1, -1)
                continue
            of = location.uri, self._connection.registered_epoch(location)
            by_leader.setdefault(of, (location, []))[1].append(batch)
        appends: list[Callable[[], None]] = []
        for of, (location, members) in by_leader.items():
            responses = self._responses_of(location, of)
            if number != 0:
                responses.expect(request_id)
                waiting |= dict.fromkeys((batch.state.key for batch in members), responses)
            rows = [self._row(request_id, batch, number, timeout_ms) for batch in members]
            appends.append(partial(self._requests_of(location, of).append, rows))
            if responses.is_far_behind:
                appends.append(responses.poll)
        # At once, so that brokers that tick side by side find all of them.
        is_local = all(location.is_local for location, _ in by_leader.values())
        size_bytes = sum(batch.file.size_bytes for batch in batches)
        steps: Sequence[Sequence[Callable[[], None]]] = uploads, appends
        if not is_local and len(uploads) <= _UPLOADS_BESIDE and size_bytes <= _BYTES_BESIDE:
            steps = [[*appends, *uploads]]
        for step in steps:
            side_by_side(lambda action: action(), step, size_bytes, is_local=is_local)
        return PendingProduce(request_id, waiting, answered, batches, acks, timeout_ms)

    def _responses_of(self, location: Location, of: _RootOfBroker) -> Responses:
        if of not in self._responses:
            self._responses[of] = Responses(location)
        return self._responses[of]

    def _requests_of(self, location: Location, of: _RootOfBroker) -> RequestAppends:
        if of not in self._requests:
            self._requests[of] = RequestAppends(location)
        return self._requests[of]

    def _row(self, request_id: str, batch: RequestedBatch, acks: int, timeout_ms: int) -> Request:
        file = batch.file
        return {
            "request_id": request_id,
            "topic_id": batch.state.topic_id,
            "topic": batch.state.topic,
            "partition": batch.state.partition,
            "leader_epoch": batch.state.leader_epoch,
            "path": file.path,
            "record_count": file.record_count,
            "byte_size": file.size_bytes,
            "checksum": file.checksum,
            "min_timestamp_ms": file.min_timestamp_ms,
            "max_timestamp_ms": file.max_timestamp_ms,
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "base_sequence": batch.base_sequence,
            "acks": acks,
            "timeout_ms": timeout_ms,
            "client_id": self._client_id,
            "created_at_ms": self._clock.now_ms(),
        }


def acks_number(acks: object) -> int:
    """Return acks as the protocol's number; INVALID_REQUIRED_ACKS for what is not one."""
    numbers: dict[object, int] = {0: 0, 1: 1, -1: ALL, "0": 0, "1": 1, "-1": ALL, "all": ALL}
    number = numbers.get(acks) if isinstance(acks, (int, str)) else None
    if number is None:
        raise ProtocolError("INVALID_REQUIRED_ACKS", f"acks must be 0, 1 or 'all', not {acks!r}")
    return number
