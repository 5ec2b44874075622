"""The simulated producers and consumers: the product's clients, and a record of their history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from sparklog.cluster.connection import Connection
from sparklog.errors import ProtocolError
from sparklog.model import batch_id, new_batch_path
from sparklog.producer.produce_requests import (
    Acks,
    PendingProduce,
    ProduceClient,
    RequestedBatch,
)
from sparklog.producer.producer_ids import ProducerIds
from sparklog.storage.batch_files import BatchFileWriter, read_records, records_table
from sparklog.storage.record_log import RecordLog
from sparklog.testing import History
from sparklog.testing.local_producer import LocalProducer
from tests.faults.simulation.scheduler import ProcessClock

TOPIC = "t"
_TIMEOUT_MS = 30_000
_RETRY_MS = 40_000
"""The time without an answer after which an idempotent producer sends a batch again, in ms."""

_KEYS = 3

_ALL: Acks = "all"


def key_of(value: bytes) -> bytes:
    """Return the key of a record: few keys, so that each has many records."""
    return b"%d" % (int(value.rsplit(b".", 1)[1]) % _KEYS)


class _Batch(NamedTuple):
    """A batch in flight; `stamped` has the sequence number of an idempotent producer."""

    partition: int
    table: pa.Table
    values: list[bytes]
    numbers: tuple[int, ...]
    acks: Acks
    stamped: RequestedBatch | None = None
    pending: PendingProduce | None = None
    sent_ms: int = 0


class SimulatedProducer:
    """A producer with one batch in flight, which retries if it is idempotent."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        clock: ProcessClock,
        history: History,
        *,
        is_idempotent: bool,
    ) -> None:
        self.name = name
        self._clock = clock
        self._history = history
        self._connection = connection
        self._client = ProduceClient(self._connection, client_id=name, clock=clock)
        self._ids = ProducerIds(self._connection, clock=clock)
        self._is_idempotent = is_idempotent
        self._identity: LocalProducer | None = None
        self._batch: _Batch | None = None
        self._sent = 0
        self.errors: list[str] = []
        """The answers of a kind that a correct cluster does not give to an idempotent producer."""
        self._late: list[PendingProduce] = []
        """The requests of which the answer has not come in time."""
        self.stored: list[tuple[int, int, list[bytes]]] = []
        """Partition, base offset and values of each batch answered since the last check."""
        self.timestamps_ms: dict[bytes, int] = {}
        """The timestamp of each record, by its value."""

    @property
    def is_done(self) -> bool:
        """Whether no batch waits for an answer."""
        return self._batch is None

    def send(self, partition: int, count: int, acks: Acks) -> None:
        """Send a batch of new records, unless one is in flight."""
        if self._batch is not None:
            self.poll()
            return
        if self._is_idempotent and self._identity is None:
            self._identity = LocalProducer(self._ids.allot(), lambda pending: pending)
        values = [f"{self.name}.{self._sent + one}".encode() for one in range(count)]
        self._sent += count
        numbers = tuple(
            self._history.record_sent(self.name, TOPIC, value, partition) for value in values
        )
        keys = [key_of(value) for value in values]
        now_ms = self._clock.now_ms()
        self.timestamps_ms |= dict.fromkeys(values, now_ms)
        table = records_table(values, keys, now_ms)
        acks = _ALL if self._is_idempotent else acks
        self._batch = _Batch(partition, table, values, numbers, acks)
        self._send_batch()

    def poll(self) -> None:
        """Read the answer of the batch in flight, and send it again if that is due."""
        batch = self._batch
        if batch is None:
            return
        waited_ms = self._clock.monotonic_ms() - batch.sent_ms
        if batch.pending is None:
            self._send_batch()
            return
        response = batch.pending.response
        if response is None:
            if batch.acks == 0:
                self._answer("NONE", -1)
            elif waited_ms > _RETRY_MS:
                self._late.append(batch.pending)
                self._retry("REQUEST_TIMED_OUT")
        elif response.error == "NONE":
            if batch.acks != 0 and response.base_offset >= 0:
                self.stored.append((batch.partition, response.base_offset, batch.values))
            self._answer("NONE", response.base_offset if batch.acks == _ALL else -1)
        else:
            self._retry(response.error)

    def poll_late(self) -> None:
        """Poll the answers of all leaders; they stay in journals for minutes."""
        for responses in self._client._responses.values():
            responses.poll()
        self._late = [one for one in self._late if one.response is None]

    def unanswered(self) -> list[str]:
        """Return a sentence for each request that no broker has answered, late answers included.

        A request is in its leader's inbox once its commit has landed, so the broker answers it,
        perhaps after a restart and with an error. Call it when all brokers have run for a while.
        """
        self.poll_late()
        return [f"request {one.request_id} is not answered" for one in self._late]

    def _retry(self, error: str) -> None:
        if self._is_idempotent and ProtocolError(error).retriable:
            self._send_batch()
            return
        if self._is_idempotent:
            self.errors.append(error)
            self._identity = None
        self._answer(error, -1)

    def _answer(self, error: str, base_offset: int) -> None:
        batch = self._batch
        assert batch is not None
        for index, number in enumerate(batch.numbers):
            offset = base_offset + index if base_offset >= 0 else -1
            self._history.record_answer(self.name, number, error, batch.partition, offset)
        self._batch = None

    def _send_batch(self) -> None:
        """Store the file of the batch in the leader's inbox, and append the request."""
        batch = self._batch
        assert batch is not None
        if not self._is_idempotent and batch.stamped is not None:
            # It may have arrived: a producer without sequence numbers does not send it again.
            self._answer("REQUEST_TIMED_OUT", -1)
            return
        state = self._connection.metadata().partition(TOPIC, batch.partition)
        known = batch.stamped
        path = new_batch_path() if known is None else new_batch_path(batch_id(known.file.path))
        writer = BatchFileWriter(self._connection.leader_location(state).child("log"), path)
        writer.write(batch.table)
        file = writer.close()
        if known is not None:
            stamped = known._replace(state=state, file=file)
        else:
            stamped = RequestedBatch(state, file)
            if self._identity is not None:
                stamped = self._identity.stamp(stamped)
        self._batch = batch = batch._replace(stamped=stamped, pending=None)
        pending = self._client.send([stamped], batch.acks, _TIMEOUT_MS)
        self._batch = batch._replace(pending=pending, sent_ms=self._clock.monotonic_ms())


class SimulatedConsumer:
    """A reader of committed records."""

    def __init__(self, connection: Connection, history: History) -> None:
        self._connection = connection
        self._history = history

    def read(self, partition: int, superseded: Mapping[int, bytes]) -> int:
        """Read a partition from its start to its high watermark; return the number of records.

        `superseded`, the records by their offsets that compaction may have removed: the history
        has them as read.
        """
        state = self._connection.metadata().partition(TOPIC, partition)
        [visible] = self._connection.visible([state])
        log = RecordLog(visible.location)
        log.refresh(visible.log_version)
        start, end = visible.log_start_offset, visible.high_watermark
        found = list(read_records(log.location, log.batches(state.key, start), start, end))
        there: dict[int, bytes | None] = {one.offset: one.value for one in found}
        removed = {at: value for at, value in superseded.items() if start <= at < end}
        records = sorted((removed | there).items())
        self._history.record_read(TOPIC, partition, records, start)
        return len(there)


def is_refused(error: BaseException) -> bool:
    """Return whether a client may get this error from a sound cluster, and tries again later."""
    return isinstance(error, ProtocolError) and error.code.retriable
