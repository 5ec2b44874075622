"""`Producer` and `Consumer` in a simulation: each step makes one round of what their threads do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import NamedTuple

from sparklog.cluster.connection import Connection
from sparklog.consumer.consumer import Consumer
from sparklog.errors import ProtocolError
from sparklog.model import TopicPartition
from sparklog.producer.accumulator import RecordMetadata
from sparklog.producer.plain import Producer
from sparklog.producer.produce_requests import Acks
from sparklog.testing import History
from tests.faults.simulation.clients import TOPIC, key_of
from tests.faults.simulation.scheduler import ProcessClock

_UNKNOWN_OUTCOME = "REQUEST_TIMED_OUT"
"""The error of a record that may be stored."""


class _Sent(NamedTuple):
    """A record without an outcome so far."""

    number: int
    partition: int
    value: bytes
    outcome: Future[RecordMetadata]


class PublicProducer:
    """A `Producer` with the interface of `SimulatedProducer`; sends no batch before the last ended.

    Parameters: `acks`, those of all records; an idempotent producer has acks=all.
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        clock: ProcessClock,
        history: History,
        acks: Acks,
        *,
        is_idempotent: bool,
    ) -> None:
        self.name = name
        self._clock = clock
        self._history = history
        self._acks = "all" if is_idempotent else acks
        self._producer = Producer(
            connection,
            acks=self._acks,
            enable_idempotence=is_idempotent,
            linger_ms=0,
            client_id=name,
        )
        self._sender = self._producer._sender
        # It starts no thread if it has one: `poll` makes the rounds.
        self._sender._thread = threading.current_thread()
        self._is_idempotent = is_idempotent
        self._pending: list[_Sent] = []
        self._count = 0
        self.errors: list[str] = []
        self.stored: list[tuple[int, int, list[bytes]]] = []
        self.timestamps_ms: dict[bytes, int] = {}

    @property
    def is_done(self) -> bool:
        """Whether each record has an outcome."""
        return not self._pending

    def send(self, partition: int, count: int, _acks: Acks) -> None:
        """Send new records, unless some are without an outcome."""
        if not self._pending:
            for _ in range(count):
                self._send_one(partition)
        self.poll()

    def _send_one(self, partition: int) -> None:
        value = f"{self.name}.{self._count}".encode()
        self._count += 1
        number = self._history.record_sent(self.name, TOPIC, value, partition)
        now_ms = self._clock.now_ms()
        self.timestamps_ms[value] = now_ms
        outcome = self._producer.send(
            TOPIC, value, key_of(value), partition=partition, timestamp_ms=now_ms
        )
        self._pending.append(_Sent(number, partition, value, outcome))

    def poll(self) -> None:
        """Make one round of the producer's thread, and record the outcomes."""
        self._sender.round()
        for sent in [one for one in self._pending if one.outcome.done()]:
            self._pending.remove(sent)
            self._record(sent)

    def _record(self, sent: _Sent) -> None:
        failure = sent.outcome.exception()
        if failure is None:
            offset = sent.outcome.result().offset
            if offset >= 0:
                self.stored.append((sent.partition, offset, [sent.value]))
            # Without acks=all the record may be lost later.
            offset = offset if self._acks == "all" else -1
            self._history.record_answer(self.name, sent.number, "NONE", sent.partition, offset)
            return
        assert isinstance(failure, ProtocolError), failure
        name = failure.code.name
        self._history.record_answer(self.name, sent.number, name, sent.partition)
        if self._is_idempotent and name != _UNKNOWN_OUTCOME:
            self.errors.append(name)

    def poll_late(self) -> None:
        """Do nothing: `Producer` sends a batch without an answer again."""

    def unanswered(self) -> list[str]:
        """Return nothing: its requests stay in it, and a killed process has no outcomes."""
        return []


class PublicConsumer:
    """A `Consumer` that reads partitions on from where it was; it skips only what is removed.

    Parameters: `is_removed`, whether retention, an administrator or compaction may have removed the
    record at an offset of a partition; `has_lost_records`, whether a power loss of a cluster that
    does not sync has taken records of a partition: its consumer begins again.
    """

    def __init__(
        self,
        connection: Connection,
        history: History,
        partitions: Collection[int],
        is_removed: Callable[[int, int], bool],
        has_lost_records: Callable[[int], bool],
    ) -> None:
        self._consumer = Consumer(connection, auto_offset_reset="earliest")
        self._consumer.assign([TopicPartition(TOPIC, one) for one in partitions])
        self._history = history
        self._is_removed = is_removed
        self._has_lost_records = has_lost_records
        self.positions = dict.fromkeys(partitions, 0)
        """The offset after the last record that was read, by partition."""

    def poll(self, superseded: Mapping[int, Mapping[int, bytes]]) -> int:
        """Read on; return the number of records.

        Parameters: `superseded`, by partition the records by their offsets that compaction may have
        removed: the history has them as read.
        """
        count = 0
        for partition, records in self._consumer.poll(0).items():
            count += len(records)
            of = partition.partition
            found = {one.offset: one.value for one in records}
            first, last = min(found), max(found)
            assert [*found] == sorted(found), f"{partition} is read in the order {[*found]}"
            if self._has_lost_records(of):
                self.positions[of] = min(self.positions[of], first)
            assert first >= self.positions[of], f"{partition} is read again from {first}"
            for offset in range(self.positions[of], last):
                assert offset in found or self._is_removed(of, offset), (
                    f"the consumer of {partition} skipped {offset} between {self.positions[of]} "
                    f"and {[*found]}"
                )
            removed = superseded.get(of, {})
            between = {at: value for at, value in removed.items() if first <= at <= last}
            self._history.record_read(TOPIC, of, sorted((between | found).items()), first)
            self.positions[of] = last + 1
        return count
