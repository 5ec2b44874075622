"""A producer without Spark: a background thread sends records in small batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sparklog.clock import SystemClock
from sparklog.cluster.arguments import callback, milliseconds, whole_number
from sparklog.cluster.connection import Connection, connection_of
from sparklog.cluster.metadata import Metadata, TopicInfo
from sparklog.cluster.naming import ClusterName
from sparklog.config import ProducerConfig, parse
from sparklog.errors import ProtocolError, SparklogError
from sparklog.logger import get_logger
from sparklog.model import TopicPartition
from sparklog.producer.accumulator import Delivered, ProducerRecord, RecordMetadata
from sparklog.producer.partitioner import DefaultPartitioner, Partitioner
from sparklog.producer.sender import Sender
from sparklog.producer.serializers import Serializers
from sparklog.storage.batch_actions import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.location import StorageOptions, one_line

if TYPE_CHECKING:
    from typing_extensions import Self

_log = get_logger(__name__)

_RECORD_OVERHEAD_BYTES = 32

_TOPICS_MS, _STORE_TOPICS_MS = 1_000, 300_000
"""The age in ms from which on topics are loaded again, in a local folder and on an object store.

The latter, where it costs requests, is Kafka's metadata.max.age.ms.
"""

Bytes = bytes | bytearray | memoryview
"""The types of a record's key and value, as in Kafka's Python clients."""


class Producer:
    """Sends single records to a cluster; threads may share it.

    Records of one partition are stored in the order in which they were sent. Each is stored once
    (enable.idempotence, the default with acks=all), even if leaders fail repeatedly. At the end of
    a `with` block it is closed.

    Parameters
    ----------
    connection : Connection, str or os.PathLike
        The cluster: a connection, the path or URI of its root, or its configuration file (*.yaml).
    partitioner : callable, optional
        A function that returns the `Partitioner` for a topic with the given number of partitions;
        Kafka's by default: murmur2 of the key, sticky runs for null keys (KIP-480).
    key_serializer, value_serializer : callable, optional
        Functions that return the key and the value of a record as bytes or `None`; or objects with
        the method `serialize(topic, object)`. `send` takes bytes by default.
    storage_options : dict of str to dict, optional
        The options of object stores by URI prefix, unless `connection` is a Connection; see there.
    **config
        Kafka's keys with underscores, such as `linger_ms=20`; see `ProducerConfig`.

    Attributes
    ----------
    config : ProducerConfig
        All settings.

    Raises
    ------
    ConfigError
        A key is unknown or a value is not usable.
    StorageError
        There is no cluster at that root.

    Examples
    --------
    >>> from sparklog import Producer
    >>> with Producer("sparklog-data/cluster", linger_ms=20) as producer:
    ...     sent = producer.send("orders", b"an order", key=b"user-7")
    >>> sent.result().topic
    'orders'
    """

    def __init__(
        self,
        connection: Connection | ClusterName,
        *,
        partitioner: Callable[[int], Partitioner] | None = None,
        key_serializer: object = None,
        value_serializer: object = None,
        storage_options: StorageOptions | None = None,
        **config: Any,
    ) -> None:
        self._serializers = Serializers(key_serializer, value_serializer)
        keys = {name.replace("_", "."): value for name, value in config.items()}
        self.config = parse(ProducerConfig, keys, "Producer(...)")
        callback(partitioner, "partitioner")
        self._connection = connection_of(connection, storage_options)
        self._sender = Sender(self._connection, self.config, partitioner or DefaultPartitioner)
        self._clock = SystemClock()
        self._topics: dict[str, TopicInfo] = {}
        self._metadata: Metadata | None = None
        self._loaded_ms = 0
        self._topics_lock = threading.Lock()
        is_local = self._connection.root.location.is_local
        self._topics_ms = _TOPICS_MS if is_local else _STORE_TOPICS_MS

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Iterable[tuple[str, Bytes | None]] | Mapping[str, Bytes | None] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Delivered | None = None,
    ) -> Future[RecordMetadata]:
        """Send one record asynchronously.

        Parameters
        ----------
        topic : str
            The name of the topic.
        value : bytes, bytearray, memoryview or None
            The value; `None` for a tombstone. With a `value_serializer` its argument.
        key : bytes, bytearray, memoryview or None, optional
            The key. With a `key_serializer` its argument.
        headers : iterable of (str, bytes or None) or dict of str to bytes or None, optional
            The headers (KIP-82).
        partition : int, optional
            The number of the partition; chosen by the partitioner by default.
        timestamp_ms : int, optional
            The record's time in ms since 1970; now by default.
        on_delivery : callable, optional
            Called with (error, metadata) from the producer's thread; one of them is `None`.

        Returns
        -------
        Future of RecordMetadata
            If the record fails, the future has its `ProtocolError`, or a `SparklogError` if the
            partitioner failed.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION; MESSAGE_TOO_LARGE (max.request.size); REQUEST_TIMED_OUT if
            buffer.memory stays full for max.block.ms.
        SparklogError
            The producer is closed, an argument is not valid, or a serializer failed; nothing was
            sent.

        Examples
        --------
        >>> delivered = []
        >>> with Producer("sparklog-data/cluster") as producer:
        ...     sent = producer.send(
        ...         "orders",
        ...         b"an order",
        ...         headers={"source": b"web"},
        ...         partition=1,
        ...         on_delivery=lambda error, metadata: delivered.append(metadata),
        ...     )
        >>> delivered == [sent.result()]
        True
        """
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        stamp = wall_ms if timestamp_ms is None else whole_number(timestamp_ms, "a timestamp")
        if isinstance(topic, str):
            key, value = self._serializers.key(topic, key), self._serializers.value(topic, value)
        value, key, pairs = _plain(value), _plain(key), _pairs(headers)
        _check_types(value, key, pairs, stamp)
        callback(on_delivery, "on_delivery")
        found = self._topic(topic)
        if partition is not None:
            partition = whole_number(partition, "a partition's number")
        if partition is not None and not 0 <= partition < found.partitions:
            raise ProtocolError(
                "UNKNOWN_TOPIC_OR_PARTITION",
                f"topic {topic!r} has the partitions 0 to {found.partitions - 1}, not {partition}: "
                "name one of them",
            )
        size = _RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
        size += sum(len(name) + len(one or b"") for name, one in pairs or ())
        limit = self.config.max_request_size
        if size > limit:
            raise ProtocolError(
                "MESSAGE_TOO_LARGE",
                f"a record of {size} bytes for topic {topic} is larger than "
                f"max.request.size={limit}: raise it, or split the record",
            )
        future: Future[RecordMetadata] = Future()
        # A record that is being sent cannot be cancelled.
        future.set_running_or_notify_cancel()
        self._sender.append(
            found,
            ProducerRecord(
                topic, value, key, pairs, partition, stamp, size, now_ms, future, on_delivery
            ),
        )
        return future

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic.

        Parameters
        ----------
        topic : str
            The name of the topic.

        Returns
        -------
        list of TopicPartition
            The partitions, by number.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION.

        Examples
        --------
        >>> with Producer("sparklog-data/cluster") as producer:
        ...     [partition.partition for partition in producer.partitions_for("orders")]
        [0, 1]
        """
        return [TopicPartition(topic, one) for one in range(self._topic(topic).partitions)]

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return counts of this producer since its creation, by Kafka's group and names.

        Returns
        -------
        dict of str to dict of str to float
            `producer-metrics`: `record-send-total` and `record-retry-total` (records in requests,
            and in repeated requests), `record-error-total`, `request-total`, `outgoing-byte-total`
            (of batch files), `batch-size-avg` and `-max`, `record-size-avg` and `-max` in bytes,
            `records-per-request-avg` and `-max`, `record-queue-time-avg` and `-max` in ms,
            `requests-in-flight` (batches without an answer), `buffer-total-bytes`,
            `buffer-available-bytes`.

        Examples
        --------
        >>> with Producer("sparklog-data/cluster") as producer:
        ...     where = producer.send("orders", b"an order").result(timeout=60)
        ...     producer.metrics()["producer-metrics"]["record-send-total"]
        1
        """
        return {"producer-metrics": self._sender.metrics()}

    def flush(self, timeout_ms: int | None = None) -> None:
        """Send all records without lingering, and wait until each is delivered or has failed.

        Parameters
        ----------
        timeout_ms : int, optional
            The longest wait in ms; unlimited by default.

        Raises
        ------
        ProtocolError
            REQUEST_TIMED_OUT if that takes longer than `timeout_ms`.

        Examples
        --------
        >>> producer = Producer("sparklog-data/cluster")
        >>> sent = producer.send("orders", b"another order")
        >>> producer.flush()
        >>> sent.done()
        True
        """
        left = self._sender.flush(_seconds(timeout_ms))
        if left:
            raise ProtocolError(
                "REQUEST_TIMED_OUT",
                f"{left} records were not delivered within {timeout_ms} ms: see that the leaders "
                "run, or wait longer",
            )

    def close(self, timeout_ms: int | None = None) -> None:
        """Flush and close; records that are undelivered after the time fail with REQUEST_TIMED_OUT.

        Parameters
        ----------
        timeout_ms : int, optional
            The longest wait in ms; unlimited by default.

        Examples
        --------
        >>> producer.close(timeout_ms=10_000)
        """
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
            raise SparklogError(f"a topic's name must be text, not {topic!r}")
        with self._topics_lock:
            found = self._known_topics().get(topic)
            if found is None:
                metadata = self._connection.metadata()
                found = metadata.topic(topic)
                self._take_topics(metadata)
        return found

    def _known_topics(self) -> Mapping[str, TopicInfo]:
        """Return the topics by name, as one of the two threads has loaded them.

        The sender's thread loads them with each request. They are loaded here for the first record
        after a pause of `_topics_ms`.
        """
        now_ms = self._clock.monotonic_ms()
        metadata, loaded_ms = self._sender.loaded or (None, 0)
        if metadata is not None and loaded_ms > self._loaded_ms:
            self._take_topics(metadata, loaded_ms)
        elif self._metadata is not None and now_ms - self._loaded_ms >= self._topics_ms:
            try:
                self._take_topics(self._connection.metadata())
            except UNREADABLE as error:
                # The topics that were loaded last are used until the cluster can be read again.
                self._loaded_ms = now_ms
                _log.warning("topics not loaded", error=one_line(error))
        return self._topics

    def _take_topics(self, metadata: Metadata, loaded_ms: int | None = None) -> None:
        self._loaded_ms = self._clock.monotonic_ms() if loaded_ms is None else loaded_ms
        if self._metadata is None or metadata.topics is not self._metadata.topics:
            self._topics = {one.topic: one for one in metadata.topics.values()}
        self._metadata = metadata


def _seconds(timeout_ms: int | None) -> float | None:
    if timeout_ms is None:
        return None
    return min(milliseconds(timeout_ms, "timeout_ms") / 1000, threading.TIMEOUT_MAX)


def _plain(given: Bytes | None) -> bytes | None:
    """Return a mutable buffer as a copy in `bytes`, and any other value unchanged."""
    return bytes(given) if isinstance(given, bytearray | memoryview) else given


def _pairs(headers: object) -> list[tuple[str, bytes | None]] | None:
    """Return headers as (name, value) pairs."""
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
    """Return whether UTF-8 can encode a text: not if it has half a surrogate pair."""
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
    """Raise `SparklogError` for an invalid record in the caller's thread, before it is sent."""
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
