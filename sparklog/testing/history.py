"""A recording of sent records, their answers and reads, for a consistency check.

`history_check.check` reports violations: acknowledged records that are lost, and records that are
duplicated, reordered, moved or never sent. It requires only that values differ from each other, so
it can test any cluster under faults:

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

from sparklog.errors import ProtocolError, SparklogError
from sparklog.producer.accumulator import RecordMetadata
from sparklog.producer.plain import Producer


class SentRecord(NamedTuple):
    """A record as it was sent.

    Attributes
    ----------
    producer : str
        The name of the producer.
    number : int
        The number of the producer's records before it.
    topic : str
        The name of the topic.
    partition : int or None
        The partition that the producer has named, or `None`.
    value : bytes
        The value, which no other record of the topic has.

    Examples
    --------
    >>> from sparklog.testing import History
    >>> history = History()
    >>> number = history.record_sent("orders-1", "orders", b"an order")
    >>> history.sent
    [SentRecord(producer='orders-1', number=0, topic='orders', partition=None, value=b'an order')]
    """

    producer: str
    number: int
    topic: str
    partition: int | None
    value: bytes

    def __str__(self) -> str:
        return f"record {self.number} of producer {self.producer}"


class Answer(NamedTuple):
    """The answer for a record.

    Attributes
    ----------
    producer : str
        The name of the producer.
    number : int
        The number of the record.
    error : str
        The name of Kafka's error, or NONE.
    partition : int
        The number of the partition; -1 if it is unknown.
    offset : int
        The offset of the record; -1 if it is unknown.

    Examples
    --------
    >>> from sparklog.testing import History
    >>> history = History()
    >>> number = history.record_sent("orders-1", "orders", b"an order")
    >>> history.record_answer("orders-1", number, "NONE", partition=0, offset=0)
    >>> history.answers[0].is_acknowledgement
    True
    """

    producer: str
    number: int
    error: str
    partition: int = -1
    offset: int = -1

    @property
    def is_acknowledgement(self) -> bool:
        """Whether it acknowledges an offset; with acks=0 it does not."""
        return self.error == "NONE" and self.offset >= 0


class Read(NamedTuple):
    """One pass over a partition.

    Attributes
    ----------
    topic : str
        The name of the topic.
    partition : int
        The number of the partition.
    first_offset : int
        The offset at which the pass began.
    records : tuple of (int, bytes or None)
        All records from there on, as (offset, value).

    Examples
    --------
    >>> from sparklog.testing import History
    >>> history = History()
    >>> history.record_read("orders", 0, [(0, b"an order")])
    >>> history.reads
    [Read(topic='orders', partition=0, first_offset=0, records=((0, b'an order'),))]
    """

    topic: str
    partition: int
    first_offset: int
    records: tuple[tuple[int, bytes | None], ...]


class Place(NamedTuple):
    """The position of a record."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"offset {self.offset} of {self.topic}-{self.partition}"


class History:
    """Sent records, their answers and reads, in the order in which they were recorded.

    Threads may share an instance. Records are identified by their values, which must differ within
    a topic. Each sending thread counts as a separate producer, since order is known only within a
    thread.

    Attributes
    ----------
    sent : list of SentRecord
        The records, in the order in which they were sent.
    answers : list of Answer
        The answers, in the order in which they came.
    reads : list of Read
        The passes over partitions, in order.

    Examples
    --------
    >>> from sparklog.testing import History, check
    >>> history = History()
    >>> number = history.record_sent("orders-1", "orders", b"an order")
    >>> history.record_answer("orders-1", number, "NONE", partition=0, offset=0)
    >>> history.record_read("orders", 0, [(0, b"an order")])
    >>> check(history)
    []
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
        """Record that a producer is about to send a record.

        Parameters
        ----------
        producer : str
            The name of the producer.
        topic : str
            The name of the topic.
        value : bytes
            The value, which no other record of the topic has.
        partition : int, optional
            The partition, if the producer names one.

        Returns
        -------
        int
            The number of the record among those of the producer, from 0.

        Raises
        ------
        SparklogError
            The value was sent to the topic before.
        """
        with self._lock:
            record = SentRecord(producer, self._numbers[producer], topic, partition, value)
            self._add(record)
            return record.number

    def record_answer(
        self, producer: str, number: int, error: str, partition: int = -1, offset: int = -1
    ) -> None:
        """Record the answer for a record: NONE with its position, or the name of an error.

        A record without an answer, or without a position (acks=0), may exist or not.

        Parameters
        ----------
        producer : str
            The name of the producer.
        number : int
            The number of the record, from `record_sent`.
        error : str
            The name of Kafka's error, or NONE.
        partition : int, default -1
            The number of the partition; -1 if it is unknown.
        offset : int, default -1
            The offset of the record; -1 if it is unknown.

        Raises
        ------
        SparklogError
            The record was not sent.
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

        Record the passes over a partition in the order in which they were made, and the last one
        after all producers have ended.

        Parameters
        ----------
        topic : str
            The name of the topic.
        partition : int
            The number of the partition.
        records : iterable of (int, bytes or None)
            All records found, as (offset, value).
        first_offset : int, default 0
            The offset at which the pass began.
        """
        with self._lock:
            self.reads.append(Read(topic, partition, first_offset, tuple(records)))

    def merge(self, other: History) -> None:
        """Add the events of another history with other producers; its reads count as later ones.

        Parameters
        ----------
        other : History
            The history to be added.

        Raises
        ------
        SparklogError
            A producer is in both.
        """
        with self._lock:
            both = sorted(self._numbers.keys() & other._numbers.keys())
            if both:
                raise SparklogError(f"producer {both[0]} is in both histories: rename one")
            for record in other.sent:
                self._add(record)
            self.answers += other.answers
            self.reads += other.reads

    def save(self, file: str | Path) -> None:
        """Write the history as lines of JSON, for `load` in another process.

        Parameters
        ----------
        file : str or os.PathLike
            The path of the file; an existing file is replaced.

        Examples
        --------
        >>> history.save("history.json")
        >>> check(History.load("history.json"))
        []
        """
        with self._lock:
            events = [*self.sent, *self.answers, *self.reads]
        lines = [json.dumps([type(event).__name__, *map(_to_json, event)]) for event in events]
        Path(file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    @classmethod
    def load(cls, file: str | Path) -> History:
        """Return the history in a file that `save` wrote.

        Parameters
        ----------
        file : str or os.PathLike
            The path of the file.

        Returns
        -------
        History
            The history.
        """
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
        """Return the numbers of records sent, acknowledged and read, in one line."""
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
                "identified by their values, so give each its own"
            )
        self._values.add((record.topic, record.value))
        self._numbers[record.producer] = max(self._numbers[record.producer], record.number + 1)
        self.sent.append(record)


class RecordedProducer:
    """A `Producer` whose sends and answers are recorded.

    Parameters
    ----------
    producer : Producer
        The producer that sends.
    name : str
        The producer's name in the history.
    history : History
        The history in which sends and answers are recorded.

    Examples
    --------
    >>> from sparklog import Producer
    >>> from sparklog.testing import History, RecordedProducer
    >>> history = History()
    >>> with Producer("sparklog-data/cluster") as producer:
    ...     recorded = RecordedProducer(producer, "orders-1", history)
    ...     sent = recorded.send("orders", b"a recorded order")
    >>> history.answers[0].error
    'NONE'
    """

    def __init__(self, producer: Producer, name: str, history: History) -> None:
        self._producer = producer
        self._name = name
        self._history = history

    def send(
        self, topic: str, value: bytes, *, partition: int | None = None, **of: Any
    ) -> Future[RecordMetadata]:
        """Send a record as `Producer.send` does, and record it.

        Parameters
        ----------
        topic : str
            The name of the topic.
        value : bytes
            The value, which no other record of the topic has.
        partition : int, optional
            The number of the partition; chosen by the partitioner by default.
        **of
            Further arguments of `Producer.send`.

        Returns
        -------
        Future of RecordMetadata
            As of `Producer.send`.

        Raises
        ------
        ProtocolError, SparklogError
            As `Producer.send` does.
        """
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
