"""Produce requests: appending them to the leaders' request tables, and reading the answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple

from sparklog.clock import Clock, SystemClock, wait_until
from sparklog.cluster.connection import Connection
from sparklog.cluster.metadata import PartitionState
from sparklog.errors import DamagedError, ProtocolError
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import ALL, LOG, TopicIdPartition
from sparklog.producer.answer_polls import pause_seconds
from sparklog.storage.batch_files import BatchFile
from sparklog.storage.commits import commit_contents, parse_commit
from sparklog.storage.delta_log_files import has_commit, newest_version
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.journal import answers_in
from sparklog.storage.location import Location, one_line
from sparklog.storage.parallel import MOST_AHEAD, map_in_parallel
from sparklog.storage.request_appends import RequestAppends
from sparklog.storage.request_files import ProduceRequest

Acks = Literal[0, 1, -1, "all"]

_UPLOADS_BESIDE, _BYTES_BESIDE = 4, 1 << 20
"""The maximum number of files and of bytes that are uploaded in parallel with their request."""

METADATA_MS = 1_000
"""The maximum age in ms of a producer's metadata on an object store."""

_CHECK_INTERVAL_S = 60
"""Seconds without a commit after which a reader checks whether clean-up has overtaken it."""

_SURELY_KEPT_S = 300
"""Seconds for which a journal keeps its commits in any case: half of what its table says."""

_RootOfBroker = tuple[str, "int | None"]
"""A root's URI and the epoch of the broker there, see `Connection.registered_epoch`."""


_logger = get_logger(__name__)


class ProduceResponse(NamedTuple):
    """The answer for one partition of a request.

    Attributes
    ----------
    error : str
        The name of Kafka's error; NONE for success.
    base_offset : int
        The offset of the first record; -1 with an error.
    last_offset : int
        The offset of the last record; -1 with an error.

    Examples
    --------
    >>> from sparklog.testing import LocalCluster
    >>> cluster = LocalCluster("answering", brokers=[0])
    >>> cluster.create_topic("t")
    >>> pending = cluster.produce("t", 0, [b"a", b"b"])
    >>> cluster.tick_until_idle()
    >>> pending.response
    ProduceResponse(error='NONE', base_offset=0, last_offset=1)
    """

    error: str
    base_offset: int
    last_offset: int


class RequestedBatch(NamedTuple):
    """A batch file in a leader's inbox, and the state of its partition."""

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
        self._polled_at = time.monotonic()
        self._caught_up = 0
        self._is_behind = True
        self._expected: set[str] = set()
        self._answers: dict[tuple[str, TopicIdPartition], ProduceResponse] = {}
        self._throttle_times_ms: dict[str, int] = {}

    @property
    def is_local(self) -> bool:
        """Whether the root is a local folder."""
        return self._log.is_local

    def expect(self, request_id: str) -> None:
        """Keep the answers to this request; answers to unexpected requests are skipped.

        It is called before the request is sent: where clean-up has removed the next commits while
        no answer was expected, reading continues at the journal's end before there is an answer.
        """
        if not self._expected:
            self._is_behind = True
            try:
                self._check_in_place(_SURELY_KEPT_S)
            except UNREADABLE as error:
                self._failures.warning("responses", "responses not readable", error=one_line(error))
        self._expected.add(request_id)

    @property
    def is_far_behind(self) -> bool:
        """Whether the journal probably has several unread commits; False for a local folder."""
        return self._is_behind and self._caught_up > 1 and not self.is_local

    def forget(self, request_id: str) -> None:
        """Drop the answers to this request, and skip later ones."""
        self._expected.discard(request_id)
        self._throttle_times_ms.pop(request_id, None)
        self._answers = {of: one for of, one in self._answers.items() if of[0] != request_id}

    def poll(self) -> None:
        """Read the answers that have arrived; a root that cannot be read is logged and skipped."""
        try:
            self._read_on()
        except UNREADABLE as error:
            self._failures.warning("responses", "responses not readable", error=one_line(error))

    def _read_on(self) -> None:
        """Read the commits up to the journal's end.

        Brokers commit also while no answer is awaited. After such a pause, as many commits are
        requested first as were read after the previous pause; otherwise one is. If all of them
        exist, as many more are requested as were read so far. On an object store the requests are
        made in parallel.
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
                self._polled_at = time.monotonic()
                self._note_answers(content)
            if self._version < end:
                break
            count = self._version - start
        if self._is_behind:
            self._caught_up = min(self._version - start, MOST_AHEAD)
            self._is_behind = False

    def _note_answers(self, content: bytes) -> None:
        """Keep the expected answers of the commit that was just read."""
        # Most commits of a busy leader have no expected answers, and parsing all of them would
        # occupy a processor.
        if not any(request_id.encode() in content for request_id in self._expected):
            return

        def lost(error: Exception) -> None:
            # A batch that is sent again is recognised by its leader.
            self._failures.warning(self._version, "answers lost", error=str(error))

        try:
            commit = parse_commit(self._log, self._version, content, lambda _: True)
        except DamagedError as error:
            lost(error)
            return
        answers = answers_in(commit, on_invalid=lost)
        for answer in answers:
            if answer.request_id in self._expected:
                key = TopicIdPartition(answer.topic_id, answer.partition)
                response = ProduceResponse(answer.error, answer.base_offset, answer.last_offset)
                # A request that was sent twice may be answered twice: the first answer counts.
                self._answers.setdefault((answer.request_id, key), response)
                if answer.throttle_time_ms:
                    self._throttle_times_ms[answer.request_id] = answer.throttle_time_ms

    def _check_in_place(self, interval_s: float = _CHECK_INTERVAL_S) -> None:
        """Continue behind commits that are gone, if none was read for a time.

        Clean-up has removed the last one that was read, and those after it up to the newest ones,
        or commits were lost while later ones are there.
        """
        if time.monotonic() - self._polled_at < interval_s:
            return
        self._polled_at = time.monotonic()
        newest = newest_version(self._log)
        if not has_commit(self._log, self._version):
            self._version = newest
        while self._version + 1 < newest and not has_commit(self._log, self._version + 1):
            self._version += 1

    def throttle_time_ms(self, request_id: str) -> int:
        """Return the throttle time in ms of the newest answer to a request, 0 without one."""
        return self._throttle_times_ms.get(request_id, 0)

    def pop(self, request_id: str, key: TopicIdPartition) -> ProduceResponse | None:
        """Return and remove an answer; `None` if it has not arrived."""
        return self._answers.pop((request_id, key), None)


class PendingProduce:
    """A produce request that was sent; `LocalCluster.produce` returns it. It does not retry.

    Parameters
    ----------
    request_id : str
        The id of the request.
    waiting : dict of TopicIdPartition to Responses
        The responses of the leader, for each partition that is not answered.
    answered : dict of TopicIdPartition to ProduceResponse
        The answers so far.
    batches : sequence of RequestedBatch
        The batch files, one for each partition.
    acks : {"all", -1, 1, 0}
        The required acknowledgements.
    timeout_ms : int
        The time in ms that a leader may take to answer.

    Attributes
    ----------
    throttle_times_ms : dict of TopicIdPartition to int
        The times in ms for which the leaders of answered partitions are not to be sent further
        requests, where the client id is over its quota (Kafka's throttle_time_ms).

    Examples
    --------
    >>> from sparklog.testing import LocalCluster
    >>> cluster = LocalCluster("requesting", brokers=[0])
    >>> cluster.create_topic("t")
    >>> pending = cluster.produce("t", 0, [b"a"])
    >>> pending.is_done
    False
    >>> cluster.tick_until_idle()
    >>> pending.is_done, pending.response.base_offset
    (True, 0)
    """

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
        self.throttle_times_ms: dict[TopicIdPartition, int] = {}
        self._waiting = waiting
        self._answered = answered

    def poll(self) -> dict[TopicIdPartition, ProduceResponse]:
        """Poll the leaders once.

        Returns
        -------
        dict of TopicIdPartition to ProduceResponse
            The answers that have arrived, by partition.
        """
        poll_leaders([self])
        return self.found()

    def found(self) -> dict[TopicIdPartition, ProduceResponse]:
        """Return the answers that earlier polls have found.

        Returns
        -------
        dict of TopicIdPartition to ProduceResponse
            The answers, by partition.
        """
        for key, responses in list(self._waiting.items()):
            response = responses.pop(self.request_id, key)
            if response is not None:
                self._answered[key] = response
                time_ms = responses.throttle_time_ms(self.request_id)
                if time_ms:
                    self.throttle_times_ms[key] = time_ms
                del self._waiting[key]
                if responses not in self._waiting.values():
                    responses.forget(self.request_id)
        return dict(self._answered)

    @property
    def leaders(self) -> Iterable[Responses]:
        """The responses of the leaders that have not answered yet, one for each partition."""
        return self._waiting.values()

    def forget(self) -> None:
        """Stop waiting for answers."""
        for responses in self._waiting.values():
            responses.forget(self.request_id)
        self._waiting.clear()

    @property
    def is_done(self) -> bool:
        """Whether every answer has arrived; always True with acks=0."""
        self.poll()
        return not self._waiting

    @property
    def response(self) -> ProduceResponse | None:
        """The answer to a request for one partition; `None` until it has arrived."""
        return next(iter(self.poll().values()), None)

    def result(self, timeout_ms: int = 120_000) -> dict[TopicIdPartition, ProduceResponse]:
        """Wait for all answers.

        Parameters
        ----------
        timeout_ms : int, default 120000
            The longest wait in ms.

        Returns
        -------
        dict of TopicIdPartition to ProduceResponse
            The answers, by partition; an answer may be an error.

        Raises
        ------
        ProtocolError
            REQUEST_TIMED_OUT after `timeout_ms`.
        """

        def pause_ms(waited_ms: float) -> float:
            return pause_seconds(waited_ms / 1000) * 1000

        if not wait_until(lambda: self.is_done, timeout_ms, pause_ms=pause_ms):
            raise ProtocolError(
                "REQUEST_TIMED_OUT",
                f"{len(self._waiting)} partitions were not answered within {timeout_ms} ms: "
                "see that their leaders run",
            )
        return self.poll()


def poll_leaders(requests: Iterable[PendingProduce]) -> None:
    """Poll each leader that has to answer these requests once, in parallel on object stores."""
    leaders = list({id(one): one for request in requests for one in request.leaders}.values())
    # Without new commits a poll of an object store is one request.
    is_local = all(one.is_local for one in leaders)
    map_in_parallel(lambda one: one.poll(), leaders, 0, is_local=is_local)


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
        """Send one request for batches whose files are in the leaders' inboxes (3.4).

        Parameters: `acks`, 0, 1 or "all"; `timeout_ms`, the time that a leader may take to answer;
        `uploads`, functions that upload the files that are not stored yet. Few and small files are
        uploaded to an object store in parallel with the request, since a leader waits some seconds
        for a file. Other files are uploaded before it.

        A partition without a leader is answered with LEADER_NOT_AVAILABLE at once. Raises
        INVALID_REQUIRED_ACKS for any other `acks`, and the errors of an upload.
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
            requests = [self.request(request_id, one, number, timeout_ms) for one in members]
            appends.append(partial(self._requests_of(location, of).append, requests))
            if responses.is_far_behind:
                appends.append(responses.poll)
        # All appends at once, so that brokers that tick in parallel find all of them.
        is_local = all(location.is_local for location, _ in by_leader.values())
        size_bytes = sum(batch.file.size_bytes for batch in batches)
        steps: Sequence[Sequence[Callable[[], None]]] = uploads, appends
        if not is_local and len(uploads) <= _UPLOADS_BESIDE and size_bytes <= _BYTES_BESIDE:
            steps = [[*appends, *uploads]]
        for step in steps:
            map_in_parallel(lambda action: action(), step, size_bytes, is_local=is_local)
        return PendingProduce(request_id, waiting, answered, batches, acks, timeout_ms)

    def _responses_of(self, location: Location, of: _RootOfBroker) -> Responses:
        if of not in self._responses:
            self._responses[of] = Responses(location)
        return self._responses[of]

    def _requests_of(self, location: Location, of: _RootOfBroker) -> RequestAppends:
        if of not in self._requests:
            self._requests[of] = RequestAppends(location)
        return self._requests[of]

    def request(
        self, request_id: str, batch: RequestedBatch, acks: int, timeout_ms: int
    ) -> ProduceRequest:
        """Return the row of a request table that names one batch of a request."""
        state, file = batch.state, batch.file
        return ProduceRequest(
            request_id=request_id,
            topic_id=state.topic_id,
            topic=state.topic,
            partition=state.partition,
            named_leader_epoch=state.leader_epoch,
            path=file.path,
            record_count=file.record_count,
            byte_size=file.size_bytes,
            checksum=file.checksum,
            min_timestamp_ms=file.min_timestamp_ms,
            max_timestamp_ms=file.max_timestamp_ms,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            acks=acks,
            timeout_ms=timeout_ms,
            client_id=self._client_id,
            created_at_ms=self._clock.now_ms(),
        )


def acks_number(acks: object) -> int:
    """Return acks as the protocol's number; raise INVALID_REQUIRED_ACKS for any other value."""
    numbers: dict[object, int] = {0: 0, 1: 1, -1: ALL, "0": 0, "1": 1, "-1": ALL, "all": ALL}
    number = numbers.get(acks) if isinstance(acks, (int, str)) else None
    if number is None:
        raise ProtocolError("INVALID_REQUIRED_ACKS", f"acks must be 0, 1 or 'all', not {acks!r}")
    return number
