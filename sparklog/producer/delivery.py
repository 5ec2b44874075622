"""Delivery of batch files: produce requests, responses, retries, and rows that are sent again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import tenacity

from sparklog.clock import SystemClock
from sparklog.cluster.arguments import whole_number
from sparklog.cluster.connection import Connection
from sparklog.cluster.metadata import PartitionState
from sparklog.errors import AccessDeniedError, ProtocolError, SparklogError, StorageError
from sparklog.logger import get_logger
from sparklog.model import Batch, TopicIdPartition, batch_id, new_batch_path
from sparklog.producer.in_flight import (
    DeletedTopicError,
    InFlightRequests,
    Outcome,
    partition_error,
    unanswered,
)
from sparklog.producer.lost_rows import OtherRowsError, lost_rows, read_sent
from sparklog.producer.produce_requests import (
    Acks,
    PendingProduce,
    ProduceClient,
    ProduceResponse,
    RequestedBatch,
    acks_number,
)
from sparklog.producer.stream_writes import Files, MicroBatch, SentFile, StreamWrites
from sparklog.producer.throttle import Throttle
from sparklog.storage.batch_files import BatchFile
from sparklog.storage.copying import Copy
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.location import Location, one_line
from sparklog.storage.record_log import RecordLog

if TYPE_CHECKING:
    from sparklog.storage.execution import Execution

_log = get_logger(__name__)

States = Mapping[TopicIdPartition, PartitionState]

Rewrite = Callable[[], Files]
"""A function that writes the rows of a micro-batch to new files, and returns the files."""


class Moved(NamedTuple):
    """The result of copying files to other leaders.

    `requested` are the files that are named to these leaders. `files` has the original in place of
    each file that could not be copied. `missing` are the batch ids of those.
    """

    requested: Files
    files: Files
    missing: frozenset[str]


class FileSender:
    """Sends files in leaders' inboxes to the cluster of `connection`.

    Parameters: `execution`, the place in which files are copied to the new leaders after the
    leaders have changed.
    """

    def __init__(self, connection: Connection, execution: Execution, client_id: str) -> None:
        self.connection = connection
        self._execution = execution
        self._client = ProduceClient(connection, client_id=client_id)
        self._clock = SystemClock()
        self._throttle = Throttle()
        self.stream_writes = StreamWrites(connection)

    def send(
        self,
        files: Files,
        acks: Acks,
        timeout_ms: int,
        once: MicroBatch | None = None,
        rewrite: Rewrite | None = None,
    ) -> PendingSend:
        """Send new files in one request; files in other inboxes are moved to the leaders first.

        Parameters: `once`, the micro-batch of the files: they are noted before the request, and if
        another run of it has noted its files first, those are sent instead; `rewrite`, as for
        `send_again`.

        Raises UNKNOWN_TOPIC_OR_PARTITION and LEADER_NOT_AVAILABLE.
        """
        states = self.states(files)
        for key in files.keys() - states.keys():
            raise DeletedTopicError(key)
        gathered = self._gather(files, states)
        if once is not None:
            write = self.stream_writes.begin(once, gathered)
            if write.files is not gathered:
                return self.send_again(write.files, acks, timeout_ms, once, rewrite)
        pending = PendingSend(self, gathered, acks, timeout_ms, once, rewrite)
        pending.begin(states)
        return pending

    def send_again(
        self,
        files: Files,
        acks: Acks,
        timeout_ms: int,
        once: MicroBatch,
        rewrite: Rewrite | None = None,
    ) -> PendingSend:
        """Send the noted files of a micro-batch to the current leaders.

        Parameters: `rewrite`, which is called if files are lost and in no leader's log, for example
        because the disk of a leader failed before the append.
        """
        pending = PendingSend(self, files, acks, timeout_ms, once, rewrite)
        pending.begin()
        return pending

    def states(self, keys: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, PartitionState]:
        """Return the current states of these partitions, except partitions of deleted topics."""
        partitions = self.connection.metadata().partitions
        return {key: partitions[key] for key in keys if key in partitions}

    def submit(self, files: Files, states: States, acks: Acks, timeout_ms: int) -> PendingProduce:
        """Send a produce request for files to the leaders in whose inboxes they are stored.

        Waits first for the throttle times of these leaders, `timeout_ms` at most.

        Raises KAFKA_STORAGE_ERROR if a leader's root cannot be read. The requests to the other
        leaders may have been sent then.
        """
        batches = [RequestedBatch(states[key], sent.file) for key, sent in _each(files)]
        leaders = [states[key].leader for key in files]
        left_ms = self._throttle.left_ms(leaders, self._clock.monotonic_ms())
        if left_ms:
            _log.info("throttled", throttle_time_ms=left_ms)
            time.sleep(min(left_ms, timeout_ms) / 1000)
        try:
            return self._client.send(batches, acks, timeout_ms)
        except AccessDeniedError:
            raise
        except UNREADABLE as error:
            raise _away(error) from error

    def note_throttle(self, states: States, outcomes: Mapping[TopicIdPartition, Outcome]) -> None:
        """Note the throttle times in answers of the leaders in `states`."""
        now_ms = self._clock.monotonic_ms()
        for key, outcome in outcomes.items():
            if key in states:
                self._throttle.note([states[key].leader], outcome.throttle_time_ms, now_ms)

    def move(self, files: Files, states: States) -> Moved:
        """Copy files, under new paths, to the inboxes of the current leaders.

        A copy keeps the batch id, so a leader recognises a batch that it already has. It does so
        even if the copy failed because the source's disk is lost.
        """
        requested: Files = {}
        origins: list[tuple[TopicIdPartition, SentFile]] = []
        copies: list[Copy] = []
        for key, members in files.items():
            log = self._leader_log(states[key])
            for sent in members:
                file, path = sent.file, new_batch_path(batch_id(sent.file.path))
                origins.append((key, sent))
                copies.append(Copy(sent.log, file.path, log, path, file.size_bytes, file.checksum))
        there: Files = {}
        missing: set[str] = set()
        for (key, sent), copied in zip(origins, self._execution.copy(copies), strict=True):
            target = SentFile(self._leader_log(states[key]), sent.file._replace(path=copied.path))
            requested.setdefault(key, []).append(target)
            if copied.fault is not None:
                _log.warning(
                    "batch not moved to its leader", path=sent.file.path, fault=copied.fault
                )
                missing.add(batch_id(sent.file.path))
            there.setdefault(key, []).append(sent if copied.fault is not None else target)
        return Moved(requested, there, frozenset(missing))

    def known(self, state: PartitionState, batch_ids: Iterable[str]) -> dict[str, SentFile]:
        """Return those of the batches that are in the leader's log, by batch id.

        Raises KAFKA_STORAGE_ERROR if the log cannot be read.
        """
        root = self.connection.leader_location(state)
        try:
            log = RecordLog(root)
        except UNREADABLE as error:
            raise _away(error) from error
        return {
            batch.batch_id: SentFile(log.location, _file(batch)) for batch in log.find(batch_ids)
        }

    def _gather(self, files: Files, states: States) -> Files:
        """Return the files in the inboxes of the leaders in `states`; others are moved there."""
        elsewhere = {
            key: away
            for key, members in files.items()
            if (away := [one for one in members if one.log != self._leader_log(states[key])])
        }
        if not elsewhere:
            return files
        moved = {
            batch_id(sent.file.path): sent
            for members in self.move(elsewhere, states).requested.values()
            for sent in members
        }
        return {
            key: [moved.get(batch_id(sent.file.path), sent) for sent in members]
            for key, members in files.items()
        }

    def _leader_log(self, state: PartitionState) -> Location:
        return self.connection.leader_location(state).child("log")


class PendingSend:
    """Batch files in inboxes, and their delivery: `SparkProducer.send` returns it.

    Parameters
    ----------
    sender : FileSender
        The sender of the files.
    files : dict of TopicIdPartition to list of SentFile
        The files of each partition, in order.
    acks : {"all", -1, 1, 0}
        Required acknowledgements: 0 none, 1 the leader, all every in-sync replica.
    timeout_ms : int
        The time in ms within which leaders may append the files and answer. Attempts of `result`
        name the time until its own deadline.
    once : MicroBatch or None
        The micro-batch that the files are.
    rewrite : callable or None
        A function that writes the micro-batch's rows to new files, if files are lost.

    Examples
    --------
    >>> from sparklog import SparkProducer
    >>> rows = spark.createDataFrame([("one",), ("two",)], "value string")
    >>> pending = SparkProducer("sparklog-data/cluster", spark).send(rows, "orders")
    >>> pending.record_count
    2
    >>> sum(one.last_offset - one.base_offset + 1 for one in pending.result().values())
    2
    >>> pending.is_done
    True
    """

    def __init__(
        self,
        sender: FileSender,
        files: Files,
        acks: Acks,
        timeout_ms: int,
        once: MicroBatch | None,
        rewrite: Rewrite | None,
    ) -> None:
        self._sender = sender
        self._noted = files
        self._files = dict(files)
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._once = once
        self._rewrite = rewrite
        self._states: dict[TopicIdPartition, PartitionState] = {}
        self._missing: frozenset[str] = frozenset()
        self._in_flight = InFlightRequests(sender.connection)
        self._outcomes: dict[TopicIdPartition, Outcome] = {}
        self._is_sent = False
        self._deadline: float | None = None

    @property
    def record_count(self) -> int:
        """The number of records that are being sent."""
        return sum(sent.file.record_count for _, sent in _each(self._files))

    @property
    def is_done(self) -> bool:
        """Whether every answer has arrived, errors included; always True with acks=0.

        True also after a failed first attempt: `result` and `retry` send the files again.
        """
        self._take_answers()
        return not self._in_flight

    def responses(self) -> dict[int, ProduceResponse]:
        """Return the outcomes so far; errors are not retried.

        If the files are of several topics, partitions with the same number share one entry.

        Returns
        -------
        dict of int to ProduceResponse
            The answers that have arrived, by partition.
        """
        self._take_answers()
        return {key.partition: outcome.response for key, outcome in self._outcomes.items()}

    def begin(self, states: States | None = None) -> None:
        """Send the files for the first time; retriable failures are left to `result`.

        With acks=0 each failure is raised, since `result` neither waits nor retries then.

        Parameters
        ----------
        states : dict of TopicIdPartition to PartitionState, optional
            The states of the partitions, if the files are in the inboxes of their leaders; `None`
            to copy the files to the current leaders first.

        Raises
        ------
        ProtocolError
            An error that is not retriable, or any with acks=0.
        """
        try:
            if states is None:
                self._send_waiting()
            else:
                self._submit(self._files, states)
        except ProtocolError as error:
            if not _is_retriable(error) or acks_number(self._acks) == 0:
                raise
            _log.info("files not sent yet", error=str(error))
            self._outcomes = dict.fromkeys(self._files, Outcome.failed(error.code.name))

    def retry(self) -> None:
        """Send the files that have failed or were not answered again, to the current leaders.

        The files keep their batch ids, so a leader does not write a batch twice (rule 3.7). In a
        micro-batch the rows of lost files are sent in new files.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, or INVALID_PRODUCER_EPOCH if a newer
            run of the query has sent a later micro-batch.
        SparklogError
            This run of the micro-batch has other rows than the first, so that the lost rows cannot
            be identified.
        """
        self._take_answers()
        if self._once is not None and self._rewrite is not None and (lost := self._lost()):
            self._send_rows_of(lost, self._once, self._rewrite)
        self._send_waiting()

    def result(self, delivery_timeout_ms: int = 120_000) -> dict[int, ProduceResponse]:
        """Wait until every partition is answered with NONE; retry after retriable errors.

        Parameters
        ----------
        delivery_timeout_ms : int, default 120000
            The time in ms after which retries end (delivery.timeout.ms).

        Returns
        -------
        dict of int to ProduceResponse
            The answers by partition; at once an empty dict with acks=0, and for a micro-batch that
            is stored already.

        Raises
        ------
        ProtocolError
            The first error that is not retriable, or the last one after `delivery_timeout_ms`.
        SparklogError
            As `retry` does.
        """
        delivery_timeout_ms = whole_number(delivery_timeout_ms, "delivery_timeout_ms")
        if acks_number(self._acks) == 0:
            return {}
        deadline = self._deadline = time.monotonic() + delivery_timeout_ms / 1000
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_retriable),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=1),
            stop=tenacity.stop_after_delay(delivery_timeout_ms / 1000),
            reraise=True,
        )
        is_sent = self._is_sent
        try:
            for attempt in retrying:
                with attempt:
                    if not is_sent:
                        self.retry()
                    is_sent = False
                    self._await(deadline)
        finally:
            self._deadline = None
        if self._once is not None:
            self._sender.stream_writes.finish(self._once)
        return self.responses()

    # --- steps ----------------------------------------------------------------------------------

    def _take_answers(self) -> None:
        self._note(self._in_flight.poll_now())

    def _note(self, outcomes: dict[TopicIdPartition, Outcome]) -> None:
        self._sender.note_throttle(self._states, outcomes)
        self._outcomes |= outcomes

    def _submit(self, files: Files, states: States) -> None:
        """Send a request for files in the inboxes of the leaders; it replaces earlier requests."""
        timeout_ms = self._timeout_ms
        if self._deadline is not None:
            # A leader must not append after this call has reported that the files failed.
            timeout_ms = max(round((self._deadline - time.monotonic()) * 1000), 1)
        pending = self._sender.submit(files, states, self._acks, timeout_ms)
        self._in_flight.forget()
        self._outcomes = {key: self._outcomes[key] for key in self._stored()}
        self._states |= states
        self._is_sent = True
        if acks_number(self._acks) != 0:
            self._in_flight.add(pending)

    def _stored(self) -> list[TopicIdPartition]:
        return [key for key, outcome in self._outcomes.items() if outcome.is_stored]

    def _send_waiting(self) -> None:
        """Copy the files that are not stored to the current leaders, and send the request."""
        stored = self._stored()
        waiting = {key: of for key, of in self._files.items() if key not in stored}
        if not waiting:
            return
        states = self._sender.states(waiting)
        for key in waiting.keys() - states.keys():
            raise DeletedTopicError(key)
        if self._once is not None:
            # An older run of the query must not send files that a newer run has replaced.
            self._sender.stream_writes.check(self._once, self._noted)
        moved = self._sender.move(waiting, states)
        self._files |= moved.files
        self._missing = moved.missing
        self._submit(moved.requested, states)

    def _lost(self) -> Files:
        """Return the files whose rows are neither in an inbox nor in a leader's log.

        A leader that refuses a batch has taken every earlier request for it. Therefore its log
        decides whether the batch is stored.
        """
        lost: Files = {}
        for key, members in self._files.items():
            outcome = self._outcomes.get(key)
            away = [sent for sent in members if batch_id(sent.file.path) in self._missing]
            if outcome is None or outcome.response.error != "CORRUPT_MESSAGE" or not away:
                continue
            ids = [batch_id(sent.file.path) for sent in away]
            known = self._sender.known(self._states[key], ids)
            nowhere = [sent for sent in away if batch_id(sent.file.path) not in known]
            if nowhere:
                lost[key] = nowhere
        return lost

    def _send_rows_of(self, lost: Files, once: MicroBatch, rewrite: Rewrite) -> None:
        """Write the rows of lost files to new files, and note these in place of the lost ones."""
        gone = {sent.file.path for _, sent in _each(lost)}
        kept: Files = {}
        for key, sent in _each(self._files):
            if sent.file.path not in gone:
                kept.setdefault(key, []).append(sent)
        count = sum(sent.file.record_count for _, sent in _each(lost))
        _log.warning("rows of lost files are sent again", micro_batch=str(once), records=count)
        try:
            found = lost_rows(rewrite(), self._rows(kept), count)
        except OtherRowsError as error:
            [_, example], *_ = _each(lost)
            raise SparklogError(
                f"{once} cannot be completed, since {example.log.uri}/{example.file.path} is lost "
                f"and this run of the micro-batch has other rows than the first ({error}): start "
                "the query with a new checkpoint, which writes its records again"
            ) from error
        after = {key: list(members) for key, members in kept.items()}
        for key, sent in _each(found):
            after.setdefault(key, []).append(sent)
        self._sender.stream_writes.replace(once, self._noted, after)
        self._noted = after
        self._files = dict(after)
        self._outcomes = {key: one for key, one in self._outcomes.items() if key not in found}

    def _rows(self, files: Files) -> Iterator[tuple[TopicIdPartition, pa.Table]]:
        """Yield the rows of files, read from their inboxes or from the leaders' logs."""
        states = self._sender.states(files)
        for key, sent in _each(files):
            try:
                yield key, read_sent(sent.log, sent.file.path)
            except (OSError, pa.ArrowException) as error:
                found = self._sender.known(states[key], [batch_id(sent.file.path)])
                if not found:
                    raise StorageError(
                        f"{sent.log.uri}/{sent.file.path} cannot be read: {one_line(error)}"
                    ) from error
                [batch] = found.values()
                yield key, read_sent(batch.log, batch.file.path)

    def _await(self, deadline: float) -> None:
        """Wait for outcomes until `deadline`, in s of the monotonic clock; raise on failure."""
        # An outcome without an answer ends the wait: the files of a deposed leader are sent again
        # before the other leaders have answered.
        while self._in_flight and all(one.is_answer for one in self._outcomes.values()):
            time.sleep(self._in_flight.seconds_to_poll)
            self._note(self._in_flight.poll())
            if time.monotonic() > deadline:
                break
            self._in_flight.check_leaders()
        for key, outcome in self._outcomes.items():
            if outcome.is_topic_deleted:
                raise DeletedTopicError(key)
            if not outcome.is_stored:
                raise self._error(outcome.response.error, key)
        if unanswered_keys := self._files.keys() - self._outcomes.keys():
            key = min(unanswered_keys)
            detail = "delivery.timeout.ms has passed" + unanswered(self._sender.connection, key)
            raise self._error("REQUEST_TIMED_OUT", key, detail)

    def _error(self, error: str, key: TopicIdPartition, detail: str | None = None) -> ProtocolError:
        away = [sent for sent in self._files[key] if batch_id(sent.file.path) in self._missing]
        if error == "CORRUPT_MESSAGE" and away:
            detail = (
                f"{away[0].log.uri}/{away[0].file.path} is lost, and the leader does not have its "
                "records: write them again, as another run of the same micro-batch does"
            )
        return partition_error(error, self._states[key].topic, key.partition, detail)


def _away(error: Exception) -> ProtocolError:
    return ProtocolError("KAFKA_STORAGE_ERROR", f"a leader's root is away: {one_line(error)}")


def _each(files: Files) -> Iterator[tuple[TopicIdPartition, SentFile]]:
    return ((key, sent) for key, members in files.items() for sent in members)


def _file(batch: Batch) -> BatchFile:
    return BatchFile(
        batch.path,
        batch.size_bytes,
        batch.checksum,
        batch.record_count,
        batch.min_timestamp_ms,
        batch.max_timestamp_ms,
    )


def _is_retriable(error: BaseException) -> bool:
    return isinstance(error, ProtocolError) and error.retriable
