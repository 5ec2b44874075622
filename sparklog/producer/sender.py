"""The background thread of a producer without Spark: batches, requests, answers, retries."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack

from sparklog.clock import SystemClock
from sparklog.cluster.client_metrics import ClientMetrics
from sparklog.cluster.connection import Connection
from sparklog.cluster.metadata import Metadata, PartitionState, TopicInfo
from sparklog.config import ProducerConfig
from sparklog.errors import ERROR_CODES, AccessDeniedError, ProtocolError, SparklogError
from sparklog.logger import get_logger
from sparklog.model import TopicIdPartition, new_batch_path
from sparklog.producer.accumulator import Accumulator, GatheredBatch, ProducerRecord, RecordMetadata
from sparklog.producer.in_flight import InFlightRequests, partition_error, unanswered
from sparklog.producer.partitioner import Partitioner
from sparklog.producer.produce_requests import (
    METADATA_MS,
    PendingProduce,
    ProduceClient,
    RequestedBatch,
    acks_number,
)
from sparklog.producer.producer_ids import RENEWAL_MS, ProducerId, ProducerIds
from sparklog.producer.throttle import Throttle
from sparklog.storage.batch_files import BatchFileWriter
from sparklog.storage.parallel import map_in_parallel

_log = get_logger(__name__)

_WAKE_SECONDS = 0.003
"""The maximum wait of the thread, in s, while requests are in flight or a flush is pending."""


class Sender:
    """A thread that gathers records, writes batch files, sends requests and takes the answers."""

    def __init__(
        self,
        connection: Connection,
        config: ProducerConfig,
        partitioner: Callable[[int], Partitioner],
    ) -> None:
        self._config = config
        # The thread has its own connection: the tables of a connection are for one reader.
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
        # By topic id, the number of partitions and the partitioner for it.
        self._partitioners: dict[str, tuple[int, Partitioner]] = {}
        self._clock = SystemClock()
        self._accumulator = Accumulator(config.batch_size, config.linger_ms)
        self._in_flight = InFlightRequests(self._connection)
        self._throttle = Throttle()
        self._metrics = ClientMetrics(
            ("record-send", "record-retry", "record-error", "request", "outgoing-byte"),
            ("batch-size", "record-size", "records-per-request", "record-queue-time"),
        )
        self._changed = threading.Condition()
        self._arrived: list[tuple[TopicInfo, ProducerRecord]] = []
        self._outstanding: set[Future[RecordMetadata]] = set()
        self._buffered_bytes = 0
        self._flushing = 0
        self._is_closing = False
        self.loaded: tuple[Metadata, int] | None = None
        """The newest metadata, and the monotonic time in ms at which they were loaded."""
        self._thread: threading.Thread | None = None

    # --- called by the producer -----------------------------------------------------------------

    def append(self, topic: TopicInfo, record: ProducerRecord) -> None:
        """Queue a record; wait up to max.block.ms until buffer.memory has room for it."""
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
        """Wait for the outcomes of all queued records; return the number still outstanding."""
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

    def metrics(self) -> dict[str, float]:
        """Return Kafka's `producer-metrics`."""
        total, buffered = self._config.buffer_memory, self._buffered_bytes
        return self._metrics.values() | {
            "requests-in-flight": len(self._accumulator.in_flight),
            "buffer-total-bytes": total,
            "buffer-available-bytes": max(total - buffered, 0),
        }

    def _is_full(self, record: ProducerRecord) -> bool:
        # An empty buffer has room for a record of any size: it could never be sent otherwise.
        after = self._buffered_bytes + record.size_bytes
        return self._buffered_bytes > 0 and after > self._config.buffer_memory

    # --- run by the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_work():
            if not self.round():
                time.sleep(self._config.retry_backoff_ms / 1000)
        self._gather()
        for batch in (*self._accumulator.in_flight.values(), *self._accumulator.waiting()):
            self._fail(batch, "REQUEST_TIMED_OUT", "the producer was closed before its answer came")

    def round(self) -> bool:
        """Send what is due, and take the answers that are there; return whether all steps worked.

        A failed step does not stop the others: if sending fails, answers are still taken and
        batches still expire.
        """
        steps = (
            self._gather,
            self._send_due,
            self._take_outcomes,
            self._in_flight.check_leaders,
            self._expire,
        )
        failed = [step for step in steps if not self._attempt(step)]
        return not failed

    def _attempt(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except SparklogError as error:
            _log.error("producer failed", error=str(error))
            return False
        except Exception as error:  # noqa: BLE001 - the failure may be temporary
            _log.error("producer failed", error=str(error), exc_info=error)
            return False
        return True

    def _wait_for_work(self) -> bool:
        """Wait for a record, an answer or a deadline; return False if the producer is closing."""
        with self._changed:
            if not self._arrived and not self._is_closing:
                self._changed.wait(self._seconds_to_wait())
            return not self._is_closing

    def _seconds_to_wait(self) -> float | None:
        if self._in_flight:
            return _WAKE_SECONDS
        due_ms = self._accumulator.next_due_ms()
        if due_ms is None:
            return None
        if self._flushing:
            return _WAKE_SECONDS
        return max(due_ms - self._clock.monotonic_ms(), 0) / 1000

    def _gather(self) -> None:
        """Put new records into batches; those of a topic fail if its partitioner fails."""
        with self._changed:
            arrived, self._arrived = self._arrived, []
        by_topic: dict[str, list[ProducerRecord]] = defaultdict(list)
        partitions: dict[str, int] = {}
        for topic, record in arrived:
            partitions[topic.topic_id] = topic.partitions
            by_topic[topic.topic_id].append(record)
        for topic_id, records in by_topic.items():
            try:
                count, partitioner = self._partitioners.get(topic_id, (0, None))
                if partitioner is None or count != partitions[topic_id]:
                    count = partitions[topic_id]
                    partitioner = self._make_partitioner(count)
                    self._partitioners[topic_id] = count, partitioner
                self._accumulator.add(topic_id, records, partitioner)
            except Exception as error:  # noqa: BLE001 - a partitioner may be the user's
                refusal = SparklogError(f"the partitioner failed: {error}")
                for record in records:
                    self._tell(record, refusal, None)
                self._release(records)

    def _send_due(self) -> None:
        """Write the batches that are due, and send them in one request per leader."""
        batches = self._accumulator.due(self._clock.monotonic_ms(), self._flushing > 0)
        if not batches:
            return
        due: list[tuple[GatheredBatch, PartitionState]] = []
        refused: list[tuple[GatheredBatch, str]] = []
        try:
            self._renew_transactional_id()
            if self._is_fenced:
                for batch in batches:
                    self._fail(batch, "INVALID_PRODUCER_EPOCH")
                return
            metadata = self._connection.metadata(METADATA_MS)
            self.loaded = metadata, self._clock.monotonic_ms()
            batches = self._without_deleted(batches, metadata)
            batches = self._without_throttled(batches, metadata)
            for batch in batches:
                state = metadata.partitions.get(batch.key)
                if state is None or state.leader is None:
                    is_known = state is not None
                    error = "LEADER_NOT_AVAILABLE" if is_known else "UNKNOWN_TOPIC_OR_PARTITION"
                    refused.append((batch, error))
                else:
                    self._stamp(batch)
                    due.append((batch, state))
            left_ms = self._left_ms(batch for batch, _ in due)
            pending = self._send(due, left_ms)
        except Exception as failure:
            self._not_sent(batches, dict(due), failure)
            raise
        for batch, error in refused:
            self._failed_attempt(batch, error)
        if not due:
            return
        self._note_sent([batch for batch, _ in due])
        if acks_number(self._config.acks) == 0:
            for batch, _ in due:
                self._delivered(batch, -1)
            return
        self._in_flight.add(pending, min(self._config.request_timeout_ms, left_ms))

    def _without_deleted(
        self, batches: list[GatheredBatch], metadata: Metadata
    ) -> list[GatheredBatch]:
        """Return the batches whose topics are not recorded as deleted, and fail the others."""
        kept = []
        for batch in batches:
            if batch.key.topic_id in metadata.deleted:
                self._fail(batch, "UNKNOWN_TOPIC_OR_PARTITION", "the topic was deleted")
            else:
                kept.append(batch)
        return kept

    def _without_throttled(
        self, batches: list[GatheredBatch], metadata: Metadata
    ) -> list[GatheredBatch]:
        """Return the batches whose leaders have named no throttle time; postpone the others."""
        kept, now_ms = [], self._clock.monotonic_ms()
        for batch in batches:
            state = metadata.partitions.get(batch.key)
            left_ms = self._throttle.left_ms([state.leader], now_ms) if state is not None else 0
            if left_ms:
                self._accumulator.again(batch, now_ms + left_ms)
            else:
                kept.append(batch)
        return kept

    def _note_sent(self, batches: Sequence[GatheredBatch]) -> None:
        now_ms, metrics = self._clock.monotonic_ms(), self._metrics
        counts = {batch: len(batch.records) for batch in batches}
        metrics.add("request")
        metrics.add("record-send", sum(counts.values()))
        again = [count for batch, count in counts.items() if batch.attempts > 1]
        metrics.add("record-retry", sum(again))
        metrics.record("records-per-request", sum(counts.values()))
        for batch in batches:
            if batch.attempts == 1:
                metrics.record("batch-size", batch.size_bytes)
                metrics.record("record-size", *(one.size_bytes for one in batch.records))
                metrics.record(
                    "record-queue-time", *(now_ms - one.sent_ms for one in batch.records)
                )

    def _left_ms(self, batches: Iterable[GatheredBatch]) -> int:
        """Return the ms until the first of these batches fails by delivery.timeout.ms."""
        created_ms = min((batch.created_ms for batch in batches), default=0)
        passed_ms = self._clock.monotonic_ms() - created_ms
        return max(self._config.delivery_timeout_ms - passed_ms, 1)

    def _send(
        self, due: Sequence[tuple[GatheredBatch, PartitionState]], left_ms: int
    ) -> PendingProduce:
        """Write batches, and send the request for them; a failure leaves no partial file.

        The request names the time in which it may be served, `left_ms`: a leader that does not run
        now may append the batches in its next run, or never.
        """
        with ExitStack() as unstored:
            # Encoding is bound by the processor, also for files on an object store.
            written = map_in_parallel(
                lambda one: self._written(*one, unstored),
                due,
                sum(record.size_bytes for batch, _ in due for record in batch.records),
                is_local=True,
            )
            sizes = [requested.file.size_bytes for requested, _ in written]
            self._metrics.add("outgoing-byte", sum(sizes))
            return self._client.send(
                [requested for requested, _ in written],
                self._config.acks,
                left_ms,
                [upload for _, upload in written],
            )

    def _written(
        self, batch: GatheredBatch, state: PartitionState, unstored: ExitStack
    ) -> tuple[RequestedBatch, Callable[[], None]]:
        """Encode a batch; return it with the function that stores its file in the inbox."""
        log = self._connection.leader_location(state).child("log")
        writer = BatchFileWriter(log, new_batch_path(batch.batch_id))
        unstored.callback(writer.discard_unless_stored)
        writer.write(batch.table())
        file = writer.finish()
        stamp = batch.producer_id, batch.producer_epoch, batch.base_sequence
        return RequestedBatch(state, file, *stamp), writer.upload

    def _stamp(self, batch: GatheredBatch) -> None:
        """Assign a producer id, epoch and base sequence to a batch, once, if idempotence is on."""
        if self._config.is_idempotent and batch.base_sequence < 0:
            if self._identity is None:
                self._identity = self._ids.allot(self._config.transactional_id)
                self._renew_at_ms = self._clock.now_ms() + RENEWAL_MS
            batch.producer_id, batch.producer_epoch = self._identity
            batch.base_sequence = self._sequences[batch.key]
            self._sequences[batch.key] = (batch.base_sequence + len(batch.records)) % (1 << 31)

    def _renew_transactional_id(self) -> None:
        """Renew the transactional id if that is due; note whether another producer has taken it.

        Called before each request: after an expiry the other producer has another producer id, and
        no broker would refuse the batches of this one.
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

    def _take_outcomes(self) -> None:
        for key, outcome in self._in_flight.poll().items():
            batch = self._accumulator.in_flight[key]
            self._note_throttle(key, outcome.throttle_time_ms)
            if outcome.is_stored:
                self._delivered(batch, outcome.response.base_offset)
            else:
                # Retried also if the topic was deleted: a restored cluster root lacks topics until
                # its newest state is back.
                self._failed_attempt(batch, outcome.response.error)

    def _note_throttle(self, key: TopicIdPartition, time_ms: int) -> None:
        """Send nothing to a partition's leader for a time in ms, since the quota is exceeded."""
        state = self.loaded[0].partitions.get(key) if self.loaded is not None else None
        if time_ms and state is not None:
            self._throttle.note([state.leader], time_ms, self._clock.monotonic_ms())
            _log.info("throttled", leader=state.leader, throttle_time_ms=time_ms)

    def _not_sent(
        self,
        batches: Iterable[GatheredBatch],
        due: Mapping[GatheredBatch, PartitionState],
        error: Exception,
    ) -> None:
        """Fail the batches whose leader, or the cluster root, refuses access; send others again.

        A request may have been written: leaders recognise its batches by their ids.
        """
        for batch in batches:
            if isinstance(error, AccessDeniedError) and self._concerns(error, due.get(batch)):
                self._fail_with(batch, error)
            else:
                self._failed_attempt(batch, "KAFKA_STORAGE_ERROR")

    def _concerns(self, error: AccessDeniedError, state: PartitionState | None) -> bool:
        roots = [self._connection.root.location.uri]
        if state is not None:
            roots.append(self._connection.leader_location(state).uri)
        return state is None or any(error.uri.startswith(f"{root}/") for root in roots)

    def _failed_attempt(self, batch: GatheredBatch, error: str) -> None:
        """Schedule a batch to be sent again, or fail it if the error is not retriable."""
        self._is_fenced |= error == "INVALID_PRODUCER_EPOCH"
        if not ERROR_CODES[error].retriable:
            self._fail(batch, error)
            return
        now_ms = self._clock.monotonic_ms()
        self._accumulator.again(batch, now_ms + self._backoff_ms(batch.attempts))
        _log.info("batch is sent again", partition=batch.key.partition, error=error)

    def _backoff_ms(self, attempts: int) -> int:
        """Return a random pause before the next attempt; its maximum doubles with each attempt."""
        most_ms = self._config.retry_backoff_ms * 2 ** min(attempts - 1, 30)
        return random.randint(1, max(1, min(most_ms, self._config.retry_backoff_max_ms)))

    def _expire(self) -> None:
        """Fail waiting batches older than delivery.timeout.ms, or all of a fenced producer."""
        now_ms = self._clock.monotonic_ms()
        for batch in self._accumulator.waiting():
            if self._is_fenced:
                self._fail(batch, "INVALID_PRODUCER_EPOCH")
            elif now_ms - batch.created_ms > self._config.delivery_timeout_ms:
                detail = "delivery.timeout.ms has passed" + unanswered(self._connection, batch.key)
                self._fail(batch, "REQUEST_TIMED_OUT", detail)

    def _delivered(self, batch: GatheredBatch, base_offset: int) -> None:
        self._accumulator.done(batch)
        for index, record in enumerate(batch.records):
            offset = base_offset + index if base_offset >= 0 else -1
            partition = batch.key.partition
            where = RecordMetadata(record.topic, partition, offset, record.timestamp_ms)
            self._tell(record, None, where)
        self._release(batch.records)

    def _fail(self, batch: GatheredBatch, error: str, detail: str | None = None) -> None:
        self._fail_with(batch, _error(batch, error, detail))

    def _fail_with(self, batch: GatheredBatch, error: SparklogError) -> None:
        self._accumulator.done(batch)
        if batch.base_sequence >= 0 and not self._is_fenced:
            # Later batches would leave a gap in the sequence: they get a new producer id or epoch.
            self._identity = None
            self._sequences.clear()
        for record in batch.records:
            self._tell(record, error, None)
        self._release(batch.records)

    def _tell(
        self, record: ProducerRecord, error: SparklogError | None, where: RecordMetadata | None
    ) -> None:
        if error is not None:
            self._metrics.add("record-error")
            record.future.set_exception(error)
        elif where is not None:
            record.future.set_result(where)
        if record.on_delivery is not None:
            try:
                record.on_delivery(error, where)
            except Exception as failure:  # noqa: BLE001 - a callback's fault is not the producer's
                _log.error("on_delivery failed", error=str(failure), exc_info=failure)

    def _release(self, records: Iterable[ProducerRecord]) -> None:
        with self._changed:
            for record in records:
                self._buffered_bytes -= record.size_bytes
                self._outstanding.discard(record.future)
            self._changed.notify_all()


def _error(batch: GatheredBatch, name: str, detail: str | None) -> ProtocolError:
    return partition_error(name, batch.records[0].topic, batch.key.partition, detail)
