"""The work of a sink's task: write its rows as batch files to the inboxes of the leaders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cluster.connection import Connection
from sparklog.datasource.write_options import WriteOptions, make_partitioner
from sparklog.errors import SparklogError
from sparklog.model import TopicIdPartition
from sparklog.producer.encoder import EncodedFile, Encoder
from sparklog.producer.stream_writes import SentFile
from sparklog.storage.location import Location

_RECORD = {"key": pa.binary(), "value": pa.binary(), "partition": pa.int32()}


class WrittenFile(NamedTuple):
    """A file that a task wrote, for one partition."""

    topic: str
    key: TopicIdPartition
    sent: SentFile


def write_task(batches: Iterable[pa.RecordBatch], options: WriteOptions) -> list[WrittenFile]:
    """Write rows to the inboxes of their partitions' leaders, and return the files.

    Raises `SparklogError` for a row without a topic, and as `Connection.metadata` does.
    """
    topics = _Topics(options)
    for batch in batches:
        for topic, rows in _by_topic(batch, options):
            topics.write(topic, rows)
    return topics.close()


class _Topics:
    """The topics that a task writes to; the cluster is opened with the first row."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._connection: Connection | None = None
        self._encoders: dict[str, Encoder] = {}
        self._logs: dict[str, dict[int, tuple[TopicIdPartition, Location]]] = {}
        self._files: list[WrittenFile] = []

    def write(self, topic: str, rows: pa.RecordBatch) -> None:
        if topic not in self._encoders:
            self._open(topic)
        self._note(topic, self._encoders[topic].add(rows))

    def close(self) -> list[WrittenFile]:
        for topic, encoder in self._encoders.items():
            self._note(topic, encoder.close())
        return self._files

    def _open(self, topic: str) -> None:
        if self._connection is None:
            options = self._options
            self._connection = Connection(options.cluster, storage_options=options.storage_options)
        connection = self._connection
        metadata = connection.metadata()
        count = metadata.topic(topic).partitions
        states = [metadata.partition(topic, number) for number in range(count)]
        self._logs[topic] = {
            state.partition: (state.key, connection.leader_location(state).child("log"))
            for state in states
        }
        logs = {number: log for number, (_, log) in self._logs[topic].items()}
        self._encoders[topic] = Encoder(logs, make_partitioner(self._options, count))

    def _note(self, topic: str, files: Iterator[EncodedFile]) -> None:
        for partition, file in files:
            key, log = self._logs[topic][partition]
            self._files.append(WrittenFile(topic, key, SentFile(log, file)))


def _by_topic(batch: pa.RecordBatch, options: WriteOptions) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic as records; as in Kafka's sink, the option takes precedence."""
    if not batch.num_rows:
        return
    records = _records(batch)
    if options.topic is not None:
        yield options.topic, records
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise SparklogError(
            "the column topic is null in a row: fill it, or give option topic for all rows"
        )
    for topic in pc.unique(topics).to_pylist():
        yield topic, records.filter(pc.equal(topics, topic))


def _records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of a record; other columns are left out, as in Kafka's sink."""
    columns: dict[str, Any] = {}
    for name, kind in _RECORD.items():
        if name in batch.schema.names:
            columns[name] = batch.column(name).cast(kind)
        elif name == "key":
            columns[name] = pa.nulls(batch.num_rows, kind)
    if "headers" in batch.schema.names:
        columns["headers"] = batch.column("headers")
    return pa.RecordBatch.from_pydict(columns)
