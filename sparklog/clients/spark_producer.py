"""Producing a Spark DataFrame: tasks encode and write, the driver names the files to leaders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sparklog.clients.arguments import check_session, whole_number
from sparklog.clients.connection import Connection, connection_of
from sparklog.clients.encoder import Encoder
from sparklog.clients.file_sends import FileSender, PendingSend
from sparklog.clients.partitioner import DefaultPartitioner, Partitioner
from sparklog.clients.produce import Acks, acks_number
from sparklog.clients.stream_writes import Files, MicroBatch, SentFile
from sparklog.errors import SparklogError, show_in_one_line
from sparklog.storage.batch_files import BatchFile
from sparklog.storage.copying import SparkCopier
from sparklog.storage.location import Location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FILE_COLUMNS = {
    "task": "integer",
    "partition": "integer",
    "path": "string",
    "size_bytes": "long",
    "checksum": "string",
    "record_count": "long",
    "min_timestamp_ms": "long",
    "max_timestamp_ms": "long",
}
_OPTIONAL = {
    "key": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "partition": "int",
    "timestamp": "timestamp",
}
_FEW_BYTES = 256 << 10
"""As much as Spark holds of a DataFrame that the driver encodes by itself."""

_TYPES = {"value": "binary", **_OPTIONAL}
_CAST_FROM = {
    "key": ("string", "binary", "varchar", "char", "void"),
    "value": ("string", "binary", "varchar", "char", "void"),
    "headers": ("array<struct<", "void"),
}
"""The beginnings of the types that are stored as these columns."""

# Text is stored as its bytes, which Arrow need not copy and Spark would, row by row.
_TAKEN = dict.fromkeys(("key", "value"), ("binary", "string"))


class SparkProducer:
    """Produces DataFrames to the cluster that `connection` is of.

    Parameters: `partitioner`, how records without an explicit partition are spread; by default
    as Kafka's clients do: by murmur2 of the key, in runs where the key is null.
    """

    def __init__(
        self,
        connection: Connection | str | os.PathLike[str],
        spark: SparkSession,
        *,
        partitioner: Partitioner | None = None,
        client_id: str = "spark",
    ) -> None:
        check_session(spark)
        connection = connection_of(connection)
        self._connection = connection
        self._spark = spark
        self._partitioner = partitioner
        self._sender = FileSender(connection, SparkCopier(spark), client_id)

    def send(
        self,
        df: DataFrame,
        topic: str,
        acks: Acks = "all",
        timeout_ms: int = 30_000,
        micro_batch: tuple[str, int] | None = None,
    ) -> PendingSend:
        """Produce the rows of `df` to `topic` in one request.

        `df` has the column value (binary or string), and may have key, headers, partition and
        timestamp, as for Spark's Kafka sink. `timeout_ms` is how long a leader may take to answer.
        `micro_batch`, (query id, batch id), makes `df` that micro-batch of a streaming query: it is
        stored once however often it is sent, if it is sent again before the next one.
        Returns what is on its way; its `result` waits for the answers and retries. Raises
        `ProtocolError` (UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE,
        INVALID_REQUIRED_ACKS) and `SparklogError` before anything is written.
        """
        acks_number(acks)
        timeout_ms = whole_number(timeout_ms, "timeout_ms")
        records = _record_columns(df)
        found = self._connection.metadata().topic(topic)
        write = partial(self._write, records, topic)
        if micro_batch is None:
            return self._sender.send(write(), acks, timeout_ms)
        once = _once(micro_batch, found.topic_id)
        begun = self._sender.stream_writes.find(once)
        if begun is not None:
            return self._sender.send_again(begun.files, acks, timeout_ms, once, write)
        return self._sender.send(write(), acks, timeout_ms, once, write)

    def _write(self, records: DataFrame, topic: str) -> Files:
        """Write records to files in the inboxes of the topic's leaders."""
        metadata = self._connection.metadata()
        found = metadata.topic(topic)
        states = {number: metadata.partition(topic, number) for number in range(found.partitions)}
        logs = {
            number: self._connection.leader_location(state).child("log")
            for number, state in states.items()
        }
        partitioner = self._partitioner or DefaultPartitioner(found.partitions)
        held = _few_rows_held(records)
        if held is None:
            rows = [
                tuple(row)
                for row in records.mapInArrow(_task(logs, partitioner), _file_schema()).collect()
            ]
        else:
            rows = _encoded(logs, partitioner, held.to_batches(), task=0)
        files: Files = {}
        # Within a partition the order is that of the DataFrame's own partitions.
        for _, partition, *file in sorted(rows, key=itemgetter(0)):
            sent = SentFile(logs[partition], BatchFile(*file))
            files.setdefault(states[partition].key, []).append(sent)
        return files


def _record_columns(df: DataFrame) -> DataFrame:
    """Return a record's columns in their types; `SparklogError` for other columns or types."""
    fields = getattr(getattr(df, "schema", None), "fields", None)
    if fields is None:
        raise SparklogError(f"a DataFrame is sent, not {df!r}")
    types = {field.name: field.dataType.simpleString() for field in fields}
    names = types.keys()
    unknown = sorted(names - {"value", *_OPTIONAL})
    if "value" not in names or unknown:
        wrong = f"has the unknown column {unknown[0]!r}" if unknown else "has no column 'value'"
        raise SparklogError(
            f"the DataFrame {wrong}: give it value and, if wanted, {', '.join(_OPTIONAL)}"
        )
    for name, wanted in _CAST_FROM.items():
        if not types.get(name, wanted[0]).startswith(wanted):
            raise SparklogError(
                f"the column {name} is of type {types[name]}: cast it to {_TYPES[name]}"
            )
    is_complete = "key" in names and len(df.schema.fields) == len(types)
    if is_complete and all(
        kind in _TAKEN.get(name, (_TYPES[name],)) for name, kind in types.items()
    ):
        return df
    # As one text: each column that is built call by call takes milliseconds.
    columns = ["cast(value as binary) as value"]
    for name, kind in _OPTIONAL.items():
        if name in names:
            columns.append(f"cast({name} as {kind}) as {name}")
        elif name == "key":
            columns.append(f"cast(null as {kind}) as {name}")
    return df.selectExpr(*columns)


def _once(given: object, topic_id: str) -> MicroBatch:
    if not isinstance(given, tuple | list) or len(given) != 2 or not isinstance(given[0], str):
        raise SparklogError(f"micro_batch is (query id, batch id), such as ('q', 0), not {given!r}")
    return MicroBatch(given[0], whole_number(given[1], "a micro-batch's id"), topic_id)


def _file_schema() -> StructType:
    """Return what a task gives; as a type, since a text goes to the JVM to be read."""
    from pyspark.sql.types import StructType

    schema = StructType()
    for name, kind in _FILE_COLUMNS.items():
        schema = schema.add(name, kind)
    return schema


def _few_rows_held(records: DataFrame) -> pa.Table | None:
    """Return the rows, where Spark holds them as they are and knows that they are few.

    They come to the driver, which has encoded them before a task of Python's would have begun.
    """
    frame = getattr(records, "_jdf", None)
    if frame is None:
        return None
    plan = frame.queryExecution().optimizedPlan()
    is_held = plan.nodeName() == "LocalRelation" or (
        plan.nodeName() == "InMemoryRelation" and plan.cacheBuilder().isCachedColumnBuffersLoaded()
    )
    if not is_held or plan.stats().sizeInBytes() > _FEW_BYTES:
        return None
    return records.toArrow()


def _task(logs: Mapping[int, Location], partitioner: Partitioner) -> Any:
    """Return the function that a Spark task runs over its Arrow batches."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        try:
            rows = _encoded(logs, partitioner, batches, task)
        except SparklogError as error:
            show_in_one_line(error)
            raise
        if rows:
            columns = [pa.array(column) for column in zip(*rows, strict=True)]
            columns[0], columns[1] = columns[0].cast(pa.int32()), columns[1].cast(pa.int32())
            yield pa.RecordBatch.from_arrays(columns, list(_FILE_COLUMNS))

    return run


def _encoded(
    logs: Mapping[int, Location],
    partitioner: Partitioner,
    batches: Iterable[pa.RecordBatch],
    task: int,
) -> list[tuple[Any, ...]]:
    """Write records to the leaders' inboxes; return one row a file, as `_FILE_COLUMNS` has it."""
    encoder = Encoder(logs, partitioner)
    files = [file for batch in batches for file in encoder.add(batch)] + [*encoder.close()]
    return [(task, encoded.partition, *encoded.file) for encoded in files]
