"""The thread behind a producer without Spark: batches, requests, answers, retries."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import NamedTuple

import tenacity

from sparklog.clients.accumulator import (
    Accumulator,
    ProducerBatch,
    ProducerRecord,
    RecordMetadata,
)
from sparklog.clients.answer_polls import AnswerPolls, pause_seconds
from sparklog.clients.connection import Connection
from sparklog.clients.partitioner import Partitioner
from sparklog.clients.produce import (
    METADATA_MS,
    PendingProduce,
    ProduceClient,
    ProduceResponse,
    RequestedBatch,
    acks_number,
    poll_leaders,
)
from sparklog.clients.producer_ids import RENEWAL_MS, ProducerId, ProducerIds
from sparklog.clock import SystemClock
from sparklog.config import ProducerConfig
from sparklog.errors import ERROR_CODES, ProtocolError, SparklogError
from sparklog.logger import get_logger
from sparklog.model import TopicIdPartition, new_batch_path
from sparklog.storage.batch_files import BatchFileWriter
from sparklog.storage.metadata import Metadata, PartitionState, TopicInfo
from sparklog.storage.side_by_side import side_by_side

_log = get_logger(__name__)

_POLL_SECONDS = 0.003

_LEADERS_SECONDS = 0.1
"""How often it is looked whether whoever is to answer still leads."""


class _InFlight(NamedTuple):
    """A request on its way, its batches, and when it was sent; s of the monotonic clock."""

    pending: PendingProduce
    batches: dict[TopicIdPartition, tuple[ProducerBatch, int]]
    sent_at: float


class Sender:
    """The thread that sends: gathers, writes batch files, names them, takes the answers."""

    def __init__(
        self,
        connection: Connection,
        config: ProducerConfig,
        partitioner: Callable[[int], Partitioner],
    ) -> None:
        self._config = config
        # The thread's own: a connection's tables are one reader's.
        self._connection = Connection(
            connection.cluster, storage_options=connection.storage_options
        )
        self._client = ProduceClient(self._connection, client_id=config.client_id)
        self._ids = ProducerIds(self._connection)
        self._identity: ProducerId | None = None
        self._renew_at_ms = 0
        self._is_fenced = False
        self._sequences: dict[TopicIdPartition, int] = defaultdict(int)
        self._make_partitioner = partitioner
        self._partitioners: dict[str, Partitioner] = {}
        self._backoff = tenacity.wait_random_exponential(
            multiplier=config.retry_backoff_ms, max=config.retry_backoff_max_ms, min=1
        )
        self._clock = SystemClock()
        self._accumulator = Accumulator(config.batch_size, config.linger_ms)
        self._in_flight: list[_InFlight] = []
        self._leaders_checked = 0.0
        self._next_look = 0.0
        self._polls = AnswerPolls()
        self._changed = threading.Condition()
        self._arrived: list[tuple[TopicInfo, ProducerRecord]] = []
        self._outstanding: set[Future[RecordMetadata]] = set()
        self._buffered_bytes = 0
        self._flushing = 0
        self._is_closing = False
        self._thread: threading.Thread | None = None

    # --- the callers' side ----------------------------------------------------------------------

    def take(self, topic: TopicInfo, record: ProducerRecord) -> None:
        """Take a record over, when there is room for it."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
                self._thread.start()
            has_room = self._changed.wait_for(
                lambda: self._is_closing or not self._is_full(record),
                self._config.max_block_ms / 1000,
            )
            if self._is_closing:
                raise SparklogError("the producer is closed: make another one")
            if not has_room:
                raise ProtocolError(
                    "REQUEST_TIMED_OUT",
                    f"buffer.memory={self._config.buffer_memory} was full for max.block.ms="
                    f"{self._config.max_block_ms}: send more slowly, or raise it",
                )
            self._buffered_bytes += record.size_bytes
            self._outstanding.add(record.future)
            self._arrived.append((topic, record))
            self._changed.notify_all()

    def flush(self, timeout_s: float | None) -> int:
        """Wait until nothing sent so far is outstanding; return how much still is."""
        with self._changed:
            waiting = set(self._outstanding)
            self._flushing += 1
            self._changed.notify_all()
        try:
            return len(wait(waiting, timeout_s).not_done)
        finally:
            with self._changed:
                self._flushing -= 1

    def close(self, timeout_s: float | None) -> None:
        """Flush, and end the thread."""
        self.flush(timeout_s)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _is_full(self, record: ProducerRecord) -> bool:
        # One record always has room, however large: it could never be sent otherwise.
        after = self._buffered_bytes + record.size_bytes
        return self._buffered_bytes > 0 and after > self._config.buffer_memory

    # --- the thread's side ----------------------------------------------------------------------

    def _run(self) -> None:
        steps = self._gather, self._send_due, self._take_answers, self._expire
        while self._wait_for_work():
            # Each by itself: while nothing can be sent, answers are taken and batches expire.
            if [step for step in steps if not self._attempt(step)]:
                time.sleep(self._config.retry_backoff_ms / 1000)
        self._gather()
        for batch in (*self._accumulator.on_their_way(), *self._accumulator.waiting()):
            self._fail(batch, "REQUEST_TIMED_OUT", "the producer was closed before its answer came")

    def _attempt(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - what fails now may work the next time
            _log.error("producer failed", error=str(error), exc_info=error)
            return False
        return True

    def _wait_for_work(self) -> bool:
        """Wait for a record, an answer or a deadline; return whether to go on."""
        with self._changed:
            if not self._arrived and not self._is_closing:
                self._changed.wait(self._seconds_to_wait())
            return not self._is_closing

    def _seconds_to_wait(self) -> float | None:
        if self._in_flight:
            return _POLL_SECONDS
        due_ms = self._accumulator.next_due_ms()
        if due_ms is None:
            return None
        if self._flushing:
            return _POLL_SECONDS
        return max(due_ms - self._clock.monotonic_ms(), 0) / 1000

    def _gather(self) -> None:
        """Put what has arrived into batches; what no partition can be found for fails."""
        with self._changed:
            arrived, self._arrived = self._arrived, []
        by_topic: dict[str, list[ProducerRecord]] = defaultdict(list)
        partitions: dict[str, int] = {}
        for topic, record in arrived:
            partitions[topic.topic_id] = topic.partitions
            by_topic[topic.topic_id].append(record)
        for topic_id, records in by_topic.items():
            try:
                if topic_id not in self._partitioners:
                    self._partitioners[topic_id] = self._make_partitioner(partitions[topic_id])
                self._accumulator.add(topic_id, records, self._partitioners[topic_id])
            except Exception as error:  # noqa: BLE001 - a partitioner may be anybody's
                refusal = SparklogError(f"the partitioner failed: {error}")
                for record in records:
                    self._tell(record, refusal, None)
                self._let_go(records)

    def _send_due(self) -> None:
        """Write the batches that are due, and name all of them in one request a leader."""
        batches = self._accumulator.due(self._clock.monotonic_ms(), self._flushing > 0)
        if not batches:
            return
        due: list[tuple[ProducerBatch, PartitionState]] = []
        sent: dict[TopicIdPartition, tuple[ProducerBatch, int]] = {}
        refused: list[tuple[ProducerBatch, str]] = []
        try:
            self._renew_transactional_id()
            if self._is_fenced:
                for batch in batches:
                    self._fail(batch, "INVALID_PRODUCER_EPOCH")
                return
            metadata = self._connection.metadata(METADATA_MS)
            for batch in batches:
                state = metadata.partitions.get(batch.key)
                if state is None or state.leader is None:
                    is_known = state is not None
                    error = "LEADER_NOT_AVAILABLE" if is_known else "UNKNOWN_TOPIC_OR_PARTITION"
                    refused.append((batch, error))
                else:
                    self._stamp(batch)
                    due.append((batch, state))
                    sent[batch.key] = batch, state.leader_epoch
            pending = self._send(due)
        except Exception:
            # Whether a request was written or not: its batches are known again by their ids.
            for batch in batches:
                self._failed_attempt(batch, "KAFKA_STORAGE_ERROR")
            raise
        for batch, error in refused:
            self._failed_attempt(batch, error)
        if not sent:
            return
        if acks_number(self._config.acks) == 0:
            for batch, _ in sent.values():
                self._delivered(batch, -1)
            return
        self._await(pending, sent)

    def _await(
        self, pending: PendingProduce, sent: dict[TopicIdPartition, tuple[ProducerBatch, int]]
    ) -> None:
        """Look for the answers to a request from now on; on an object store not at once."""
        now = time.monotonic()
        if not self._in_flight:
            self._next_look = now + self._polls.first_seconds
        self._in_flight.append(_InFlight(pending, sent, now))

    def _send(self, due: Sequence[tuple[ProducerBatch, PartitionState]]) -> PendingProduce:
        """Write batches, and name them to their leaders; a failure leaves no half of a file."""
        with ExitStack() as unstored:
            # Encoding takes a processor, wherever the files go.
            written = side_by_side(
                lambda one: self._written(*one, unstored),
                due,
                sum(record.size_bytes for batch, _ in due for record in batch.records),
                is_local=True,
            )
            return self._client.send(
                [requested for requested, _ in written],
                self._config.acks,
                self._config.request_timeout_ms,
                [upload for _, upload in written],
            )

    def _written(
        self, batch: ProducerBatch, state: PartitionState, unstored: ExitStack
    ) -> tuple[RequestedBatch, Callable[[], None]]:
        """Write a batch; return it with what puts its file into the leader's inbox."""
        log = self._connection.leader_location(state).child("log")
        writer = BatchFileWriter(log, new_batch_path(batch.batch_id))
        unstored.callback(writer.discard_unless_stored)
        writer.write(batch.table())
        file = writer.finish()
        stamp = batch.producer_id, batch.producer_epoch, batch.base_sequence
        return RequestedBatch(state, file, *stamp), writer.upload

    def _stamp(self, batch: ProducerBatch) -> None:
        """Give a batch this producer's id and its sequence, where it has none."""
        if self._config.is_idempotent and batch.base_sequence < 0:
            if self._identity is None:
                self._identity = self._ids.allot(self._config.transactional_id)
                self._renew_at_ms = self._clock.now_ms() + RENEWAL_MS
            batch.producer_id, batch.producer_epoch = self._identity
            batch.base_sequence = self._sequences[batch.key]
            self._sequences[batch.key] = (batch.base_sequence + len(batch.records)) % (1 << 31)

    def _renew_transactional_id(self) -> None:
        """Keep the transactional id from expiring; fenced where another producer has it by now.

        Before anything is sent: after an expiry the other one has another producer id, and no
        broker would refuse this one's batches.
        """
        transactional_id, held = self._config.transactional_id, self._identity
        now_ms = self._clock.now_ms()
        if transactional_id is None or held is None or now_ms < self._renew_at_ms:
            return
        try:
            self._ids.renew(transactional_id, held)
        except ProtocolError as error:
            _log.warning("producer fenced", error=str(error))
            self._is_fenced = True
        self._renew_at_ms = now_ms + RENEWAL_MS

    def _take_answers(self) -> None:
        # However many records arrive meanwhile: each look reads the leaders' tables.
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + self._pause_seconds()
        metadata = self._leaders_if_due()
        poll_leaders(one.pending for one in self._in_flight)
        for one in list(self._in_flight):
            answers = one.pending.take()
            for key in [key for key in one.batches if key in answers]:
                batch, _ = one.batches.pop(key)
                self._answered(batch, answers[key])
            if metadata is not None:
                self._give_up_deposed(one, metadata)
            if time.monotonic() > one.sent_at + self._config.request_timeout_ms / 1000:
                for batch, _ in one.batches.values():
                    self._failed_attempt(batch, "REQUEST_TIMED_OUT")
                one.batches.clear()
            if not one.batches:
                if not self._connection.root.location.is_local:
                    # In a folder a poll costs nothing.
                    self._polls.note(time.monotonic() - one.sent_at)
                one.pending.forget()
                self._in_flight.remove(one)

    def _pause_seconds(self) -> float:
        """Return the pause before the next look for answers, by the newest request."""
        if not self._in_flight:
            return _POLL_SECONDS
        return pause_seconds(time.monotonic() - self._in_flight[-1].sent_at)

    def _leaders_if_due(self) -> Metadata | None:
        if not self._in_flight or time.monotonic() - self._leaders_checked < _LEADERS_SECONDS:
            return None
        self._leaders_checked = time.monotonic()
        return self._connection.metadata(self._polls.leaders_ms(METADATA_MS))

    def _give_up_deposed(self, one: _InFlight, metadata: Metadata) -> None:
        """A request that names a past leader epoch may never be answered: do not wait for it."""
        for key, (batch, leader_epoch) in list(one.batches.items()):
            state = metadata.partitions.get(key)
            if state is None or state.leader_epoch != leader_epoch:
                del one.batches[key]
                self._failed_attempt(batch, "NOT_LEADER_OR_FOLLOWER")

    def _answered(self, batch: ProducerBatch, response: ProduceResponse) -> None:
        if response.error == "NONE":
            self._delivered(batch, response.base_offset)
        else:
            self._failed_attempt(batch, response.error)

    def _failed_attempt(self, batch: ProducerBatch, error: str) -> None:
        """Let a batch be sent again, or fail where that would not help."""
        self._is_fenced |= error == "INVALID_PRODUCER_EPOCH"
        if not ERROR_CODES[error].retriable:
            self._fail(batch, error)
            return
        now_ms = self._clock.monotonic_ms()
        state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        state.attempt_number = batch.attempts
        self._accumulator.again(batch, now_ms + int(self._backoff(state)))
        _log.info("batch is sent again", partition=batch.key.partition, error=error)

    def _expire(self) -> None:
        """Fail what was sent longer than delivery.timeout.ms ago, or by a fenced producer."""
        now_ms = self._clock.monotonic_ms()
        for batch in self._accumulator.waiting():
            if self._is_fenced:
                self._fail(batch, "INVALID_PRODUCER_EPOCH")
            elif now_ms - batch.created_ms > self._config.delivery_timeout_ms:
                self._fail(batch, "REQUEST_TIMED_OUT", "delivery.timeout.ms has passed")

    def _delivered(self, batch: ProducerBatch, base_offset: int) -> None:
        self._accumulator.done(batch)
        for index, record in enumerate(batch.records):
            offset = base_offset + index if base_offset >= 0 else -1
            partition = batch.key.partition
            where = RecordMetadata(record.topic, partition, offset, record.timestamp_ms)
            self._tell(record, None, where)
        self._let_go(batch.records)

    def _fail(self, batch: ProducerBatch, error: str, detail: str | None = None) -> None:
        self._accumulator.done(batch)
        if batch.base_sequence >= 0 and not self._is_fenced:
            # What comes after it would leave a gap: it goes under a new producer id or epoch.
            self._identity = None
            self._sequences.clear()
        for record in batch.records:
            self._tell(record, _error(batch, error, detail), None)
        self._let_go(batch.records)

    def _tell(
        self, record: ProducerRecord, error: SparklogError | None, where: RecordMetadata | None
    ) -> None:
        if error is not None:
            record.future.set_exception(error)
        elif where is not None:
            record.future.set_result(where)
        if record.on_delivery is not None:
            try:
                record.on_delivery(error, where)
            except Exception as failure:  # noqa: BLE001 - a callback's fault is not the producer's
                _log.error("on_delivery failed", error=str(failure), exc_info=failure)

    def _let_go(self, records: Iterable[ProducerRecord]) -> None:
        with self._changed:
            for record in records:
                self._buffered_bytes -= record.size_bytes
                self._outstanding.discard(record.future)
            self._changed.notify_all()


def _error(batch: ProducerBatch, name: str, detail: str | None = None) -> ProtocolError:
    sentence = detail or ERROR_CODES[name].sentence
    of = f"partition {batch.key.partition} of topic {batch.records[0].topic}"
    return ProtocolError(name, f"{of}: {sentence}")
