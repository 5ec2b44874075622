"""What producers sent, what they were told and what was read: recorded, for a check to judge.

`history_check.check` names what must not be: what was acknowledged and is lost, what is there
twice, in another order, at another place, or though nobody has sent it. It needs nothing but values
that differ from each other, so it serves for any cluster that is tried under fire:

    history = History()
    producer = RecordedProducer(Producer(cluster), "orders-1", history)
    ...  # send, while brokers are killed; close; read every partition from its start
    history.record_read("orders", 0, [(record.offset, record.value) for record in records])
    assert not check(history)
"""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from sparklog.clients.accumulator import RecordMetadata
from sparklog.clients.producer import Producer
from sparklog.errors import ProtocolError, SparklogError


class SentRecord(NamedTuple):
    """A record as it was given to a producer; `number` counts the producer's records from 0."""

    producer: str
    number: int
    topic: str
    partition: int | None
    value: bytes

    def __str__(self) -> str:
        return f"record {self.number} of producer {self.producer}"


class Answer(NamedTuple):
    """What a producer was told of a record: Kafka's name of an error, or NONE and where it is."""

    producer: str
    number: int
    error: str
    partition: int = -1
    offset: int = -1

    @property
    def is_acknowledgement(self) -> bool:
        """Whether it promises a place; with acks=0 nothing is promised."""
        return self.error == "NONE" and self.offset >= 0


class Read(NamedTuple):
    """One pass over a partition: all there was, from `first_offset` up, as (offset, value)."""

    topic: str
    partition: int
    first_offset: int
    records: tuple[tuple[int, bytes | None], ...]


class Place(NamedTuple):
    """Where a record lies."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"offset {self.offset} of {self.topic}-{self.partition}"


class History:
    """Events in the order in which they were recorded; threads may share one.

    Records are known by their values, which must differ within a topic. Each thread that sends
    is a producer of its own here, since only the order of one thread is known.
    """

    def __init__(self) -> None:
        self.sent: list[SentRecord] = []
        self.answers: list[Answer] = []
        self.reads: list[Read] = []
        self._numbers: Counter[str] = Counter()
        self._values: set[tuple[str, bytes]] = set()
        self._lock = threading.Lock()

    def record_sent(
        self, producer: str, topic: str, value: bytes, partition: int | None = None
    ) -> int:
        """Record that `producer` is about to send a record, and return the record's number.

        Parameters: `partition`, where the producer names one. Raises `SparklogError` for a value
        that was sent to the topic before.
        """
        with self._lock:
            record = SentRecord(producer, self._numbers[producer], topic, partition, value)
            self._add(record)
            return record.number

    def record_answer(
        self, producer: str, number: int, error: str, partition: int = -1, offset: int = -1
    ) -> None:
        """Record what was told of a record: NONE with its place, or the name of an error.

        What is never answered, or without a place (acks=0), may be there or not. Raises
        `SparklogError` for a record that was not sent.
        """
        with self._lock:
            if not 0 <= number < self._numbers[producer]:
                raise SparklogError(f"producer {producer} has sent no record {number}: send first")
            self.answers.append(Answer(producer, number, error, partition, offset))

    def record_read(
        self,
        topic: str,
        partition: int,
        records: Iterable[tuple[int, bytes | None]],
        first_offset: int = 0,
    ) -> None:
        """Record one pass over a partition, from `first_offset` to the high watermark.

        Parameters: `records`, (offset, value) of everything that was there. The passes over a
        partition are recorded in the order in which they were made, the last of them when all
        producers have ended.
        """
        with self._lock:
            self.reads.append(Read(topic, partition, first_offset, tuple(records)))

    def merge(self, other: History) -> None:
        """Add what another history holds, of other producers; its reads count as later ones.

        Raises `SparklogError` for a producer that is in both.
        """
        with self._lock:
            both = sorted(self._numbers.keys() & other._numbers.keys())
            if both:
                raise SparklogError(f"producer {both[0]} is in both histories: name one anew")
            for record in other.sent:
                self._add(record)
            self.answers += other.answers
            self.reads += other.reads

    def save(self, file: str | Path) -> None:
        """Write the history as lines of JSON, for `load` in another process."""
        with self._lock:
            events = [*self.sent, *self.answers, *self.reads]
        lines = [json.dumps([type(event).__name__, *map(_to_json, event)]) for event in events]
        Path(file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    @classmethod
    def load(cls, file: str | Path) -> History:
        """Read what `save` wrote."""
        history = cls()
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            kind, *fields = json.loads(line)
            if kind == "SentRecord":
                producer, number, topic, asked, value = fields
                history._add(SentRecord(producer, number, topic, asked, _from_json(value) or b""))
            elif kind == "Answer":
                history.answers.append(Answer(*fields))
            else:
                topic, partition, first_offset, pairs = fields
                records = tuple((offset, _from_json(value)) for offset, value in pairs)
                history.reads.append(Read(topic, partition, first_offset, records))
        return history

    def summary(self) -> str:
        """Return how much was sent, acknowledged and read, in one line."""
        acknowledged = sum(answer.is_acknowledgement for answer in self.answers)
        failed = Counter(answer.error for answer in self.answers if answer.error != "NONE")
        producers = len({record.producer for record in self.sent})
        return (
            f"{len(self.sent)} records sent by {producers} producers, {acknowledged} acknowledged, "
            f"{sum(failed.values())} failed {dict(failed)}, "
            f"{sum(len(read.records) for read in self.reads)} read in {len(self.reads)} passes"
        )

    def _add(self, record: SentRecord) -> None:
        if (record.topic, record.value) in self._values:
            raise SparklogError(
                f"the value {record.value!r} was sent to topic {record.topic} before: records are "
                "known by their values, so let each have its own"
            )
        self._values.add((record.topic, record.value))
        self._numbers[record.producer] = max(self._numbers[record.producer], record.number + 1)
        self.sent.append(record)


class RecordedProducer:
    """A `Producer` whose sends and answers are recorded in `history` under `name`."""

    def __init__(self, producer: Producer, name: str, history: History) -> None:
        self._producer = producer
        self._name = name
        self._history = history

    def send(
        self, topic: str, value: bytes, *, partition: int | None = None, **of: Any
    ) -> Future[RecordMetadata]:
        """Send as `Producer.send` does, which takes what `of` holds, too; `value` is its own."""
        number = self._history.record_sent(self._name, topic, value, partition)
        try:
            future = self._producer.send(topic, value, partition=partition, **of)
        except ProtocolError as error:
            self._history.record_answer(self._name, number, error.code.name)
            raise
        future.add_done_callback(self._on_done(number))
        return future

    def _on_done(self, number: int) -> Callable[[Future[RecordMetadata]], None]:
        def done(future: Future[RecordMetadata]) -> None:
            error = future.exception()
            if error is None:
                where = future.result()
                answer = ("NONE", where.partition, where.offset)
            else:
                name = error.code.name if isinstance(error, ProtocolError) else str(error)
                answer = (name, -1, -1)
            self._history.record_answer(self._name, number, *answer)

        return done


def _to_json(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, tuple):
        return [_to_json(one) for one in value]
    return value


def _from_json(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
