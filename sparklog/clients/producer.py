"""A producer without Spark: records go out in small batches, from a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sparklog.clients.accumulator import Delivered, ProducerRecord, RecordMetadata
from sparklog.clients.arguments import callback, milliseconds, whole_number
from sparklog.clients.connection import Connection, connection_of
from sparklog.clients.partitioner import DefaultPartitioner, Partitioner
from sparklog.clients.sender import Sender
from sparklog.clock import SystemClock
from sparklog.config import ProducerConfig, parse
from sparklog.errors import ProtocolError, SparklogError
from sparklog.storage.batch_actions import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from sparklog.storage.metadata import TopicInfo

if TYPE_CHECKING:
    from typing_extensions import Self

_RECORD_OVERHEAD_BYTES = 32

Bytes = bytes | bytearray | memoryview
"""Keys and values of a record, as Kafka's Python clients take them."""


class Producer:
    """Sends single records to the cluster that `connection` is of; threads may share it.

    Parameters: `connection`, or the URI of the cluster root; `partitioner`, which makes one for a
    topic of so many partitions, by default Kafka's (by murmur2 of the key, in runs where there is
    none); `config`, Kafka's keys with underscores, see `ProducerConfig`.

    Records of one partition are stored in the order in which they were sent, and each once
    (enable.idempotence, the default with acks=all), however often leaders fail meanwhile.
    """

    def __init__(
        self,
        connection: Connection | str | os.PathLike[str],
        *,
        partitioner: Callable[[int], Partitioner] | None = None,
        **config: Any,
    ) -> None:
        keys = {name.replace("_", "."): value for name, value in config.items()}
        self.config = parse(ProducerConfig, keys, "Producer(...)")
        callback(partitioner, "partitioner")
        self._connection = connection_of(connection)
        self._sender = Sender(self._connection, self.config, partitioner or DefaultPartitioner)
        self._clock = SystemClock()
        self._topics: dict[str, TopicInfo] = {}

    def send(
        self,
        topic: str,
        value: Bytes | None,
        key: Bytes | None = None,
        headers: Iterable[tuple[str, Bytes | None]] | Mapping[str, Bytes | None] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Delivered | None = None,
    ) -> Future[RecordMetadata]:
        """Send one record; it is on its way when this returns.

        Parameters: `value`, `None` for a tombstone; `headers`, (name, value) each, or a dict of
        them; `partition`, chosen by key where it is left out; `timestamp_ms`, since 1970, now by
        default; `on_delivery`, called with (error, metadata) from the producer's thread. Returns a
        future: the record's `RecordMetadata`, or the `ProtocolError` that it failed with.

        Raises UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE (max.request.size), REQUEST_TIMED_OUT
        where buffer.memory stays full for max.block.ms, and `SparklogError` after `close` and for
        what is no record.
        """
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        stamp = wall_ms if timestamp_ms is None else whole_number(timestamp_ms, "a timestamp")
        value, key, pairs = _plain(value), _plain(key), _pairs(headers)
        _check_types(value, key, pairs, stamp)
        callback(on_delivery, "on_delivery")
        found = self._topic(topic)
        if partition is not None:
            partition = whole_number(partition, "a partition's number")
        if partition is not None and not 0 <= partition < found.partitions:
            raise ProtocolError(
                "UNKNOWN_TOPIC_OR_PARTITION",
                f"topic {topic!r} has the partitions 0 to {found.partitions - 1}, not {partition}",
            )
        size = _RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
        size += sum(len(name) + len(one or b"") for name, one in pairs or ())
        limit = self.config.max_request_size
        if size > limit:
            raise ProtocolError(
                "MESSAGE_TOO_LARGE",
                f"a record of {size} bytes is larger than max.request.size={limit}: raise it",
            )
        future: Future[RecordMetadata] = Future()
        # On its way it cannot be taken back.
        future.set_running_or_notify_cancel()
        self._sender.take(
            found,
            ProducerRecord(
                topic, value, key, pairs, partition, stamp, size, now_ms, future, on_delivery
            ),
        )
        return future

    def flush(self, timeout_ms: int | None = None) -> None:
        """Send everything without lingering and wait until it is delivered, or has failed.

        Raises REQUEST_TIMED_OUT where that takes longer than `timeout_ms`.
        """
        left = self._sender.flush(_seconds(timeout_ms))
        if left:
            raise ProtocolError(
                "REQUEST_TIMED_OUT", f"{left} records were not delivered within {timeout_ms} ms"
            )

    def close(self, timeout_ms: int | None = None) -> None:
        """Flush, and end; what is not delivered in `timeout_ms` fails with REQUEST_TIMED_OUT."""
        self._sender.close(_seconds(timeout_ms))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _topic(self, topic: str) -> TopicInfo:
        if not isinstance(topic, str):
            raise SparklogError(f"a topic's name is text, not {topic!r}")
        if topic not in self._topics:
            self._topics[topic] = self._connection.metadata().topic(topic)
        return self._topics[topic]


def _seconds(timeout_ms: int | None) -> float | None:
    if timeout_ms is None:
        return None
    return min(milliseconds(timeout_ms, "timeout_ms") / 1000, threading.TIMEOUT_MAX)


def _plain(given: Bytes | None) -> bytes | None:
    """Return a copy of what may be changed after the call, as `bytes`."""
    return bytes(given) if isinstance(given, bytearray | memoryview) else given


def _pairs(headers: object) -> list[tuple[str, bytes | None]] | None:
    """Return headers as (name, value) each."""
    if headers is None:
        return None
    given: object = headers.items() if isinstance(headers, Mapping) else headers
    is_list = isinstance(given, Iterable) and not isinstance(given, str)
    pairs: list[Any] = [*given] if is_list else [given]  # type: ignore[misc]
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise SparklogError(
                "headers are a list of (name, value), such as [('source', b'web')], or a dict: "
                f"got {headers!r}"
            )
    return [(name, _plain(value)) for name, value in pairs]


def _is_utf_8(text: str) -> bool:
    """Return whether UTF-8 can store a text, which it cannot with half a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_types(
    value: object, key: object, headers: Iterable[tuple[object, object]] | None, stamp: int
) -> None:
    """Refuse what no record can hold, here and not in the thread that would meet it later."""
    wrong = [
        f"its {name} is {type(one).__name__}"
        for name, one in (("value", value), ("key", key))
        if not (one is None or isinstance(one, bytes))
    ]
    for name, one in headers or ():
        if not isinstance(name, str) or not (one is None or isinstance(one, bytes)):
            wrong.append(f"its header {name!r} is {type(one).__name__}")
        elif not _is_utf_8(name):
            wrong.append(f"the name of its header {name!r} is not Unicode text")
    if wrong:
        raise SparklogError(f"a record is made of bytes or None, but {wrong[0]}: serialize it")
    if not MIN_TIMESTAMP_MS <= stamp <= MAX_TIMESTAMP_MS:
        raise SparklogError(
            f"the timestamp {stamp!r} is out of range: give ms since 1970, of the years 1 to 9999"
        )
