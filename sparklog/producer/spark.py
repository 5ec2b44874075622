"""Producing a Spark DataFrame: tasks write batch files, the driver sends the produce requests."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from sparklog.cluster.arguments import check_session, whole_number
from sparklog.cluster.connection import Connection, connection_of
from sparklog.cluster.naming import ClusterName
from sparklog.config import Settings
from sparklog.errors import SparklogError, show_in_one_line
from sparklog.producer.delivery import FileSender, PendingSend
from sparklog.producer.encoder import Encoder
from sparklog.producer.partitioner import DefaultPartitioner, Partitioner
from sparklog.producer.produce_requests import Acks, acks_number
from sparklog.producer.stream_writes import Files, MicroBatch, SentFile
from sparklog.session import is_connect
from sparklog.storage.batch_files import BatchFile
from sparklog.storage.execution import spark_execution
from sparklog.storage.location import Location, StorageOptions

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
"""The maximum size in bytes, by Spark's statistics, of a DataFrame that the driver encodes."""

_OPTIMIZED = re.compile(
    r"^== Optimized Logical Plan ==\n(?P<node>\w+).*, Statistics\((?P<statistics>[^\n]*)\)$",
    re.MULTILINE,
)
"""The first node of an optimized plan, in Spark's explanation with costs."""

_SIZE = re.compile(r"sizeInBytes=(?P<number>[\d.]+) (?P<unit>\w+)")
_UNITS = {"B": 1, "KiB": 1 << 10}

_TYPES = {"value": "binary", **_OPTIONAL}
_CAST_FROM = {
    "key": ("string", "binary", "varchar", "char", "void"),
    "value": ("string", "binary", "varchar", "char", "void"),
    "headers": ("array<struct<", "void"),
}
"""Prefixes of the Spark types that are accepted for these columns."""

# Text is stored as its bytes. Arrow does this without a copy; Spark would copy row by row.
_TAKEN = dict.fromkeys(("key", "value"), ("binary", "string"))


class SparkProducer:
    """Produces DataFrames to a cluster.

    Parameters
    ----------
    connection : Connection, str or os.PathLike
        The cluster: a connection, the path or URI of its root, or its configuration file (*.yaml).
    spark : SparkSession
        The session whose tasks write the records.
    partitioner : Partitioner, optional
        The partitioner for records without an explicit partition; as in Kafka's clients by default:
        murmur2 of the key, sticky runs for null keys (KIP-480).
    client_id : str, default "spark"
        The client's name in the brokers' tables (client.id), to which quotas apply.
    storage_options : dict of str to dict, optional
        The options of object stores by URI prefix, unless `connection` is a Connection; see there.

    Raises
    ------
    SparklogError
        `spark` is not a session.
    StorageError
        There is no cluster at that root.

    Examples
    --------
    >>> from sparklog import SparkProducer
    >>> producer = SparkProducer("sparklog-data/cluster", spark)
    >>> orders = spark.range(10).selectExpr("cast(id as string) as key", "'an order' as value")
    >>> responses = producer.send(orders, "orders").result()
    >>> {response.error for response in responses.values()}
    {'NONE'}
    """

    def __init__(
        self,
        connection: Connection | ClusterName,
        spark: SparkSession,
        *,
        partitioner: Partitioner | None = None,
        client_id: str = "spark",
        storage_options: StorageOptions | None = None,
    ) -> None:
        check_session(spark)
        connection = connection_of(connection, storage_options)
        self._connection = connection
        self._spark = spark
        self._partitioner = partitioner
        defaults = Settings()
        execution = spark_execution(
            spark,
            is_always=False,
            min_bytes=defaults.execution_spark_min_bytes,
            bytes_per_task=defaults.execution_spark_bytes_per_task,
        )
        self._sender = FileSender(connection, execution, client_id)

    def send(
        self,
        df: DataFrame,
        topic: str,
        acks: Acks = "all",
        timeout_ms: int = 120_000,
        micro_batch: tuple[str, int] | None = None,
    ) -> PendingSend:
        """Produce the rows of a DataFrame to a topic in one request.

        Parameters
        ----------
        df : DataFrame
            The column value (binary or string), and optionally key, headers, partition and
            timestamp, as for Spark's Kafka sink.
        topic : str
            The name of the topic.
        acks : {"all", -1, 1, 0}, default "all"
            Required acknowledgements: 0 none, 1 the leader, all every in-sync replica.
        timeout_ms : int, default 120000
            The time in ms within which leaders may append the rows and answer. If the brokers run
            on a schedule, it must be longer than the time between two runs.
        micro_batch : (str, int), optional
            (query id, batch id), if `df` is that micro-batch of a streaming query. A micro-batch is
            stored once, even if it is sent repeatedly before the next one.

        Returns
        -------
        PendingSend
            The pending send; its `result` waits for the answers and retries.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE or INVALID_REQUIRED_ACKS, before
            anything is written.
        SparklogError
            An argument or a column is not valid, before anything is written.

        Examples
        --------
        >>> batch = spark.createDataFrame([("an order",)], "value string")
        >>> first = producer.send(batch, "orders", micro_batch=("a query", 0))
        >>> len(first.result())
        1
        >>> again = producer.send(batch, "orders", micro_batch=("a query", 0))
        >>> again.record_count, again.result()
        (0, {})
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
        # Files of a partition are in the order of the DataFrame's own partitions.
        for _, partition, *file in sorted(rows, key=itemgetter(0)):
            sent = SentFile(logs[partition], BatchFile(*file))
            files.setdefault(states[partition].key, []).append(sent)
        return files


def _record_columns(df: DataFrame) -> DataFrame:
    """Return the record columns in their types; raise `SparklogError` for others."""
    fields = getattr(getattr(df, "schema", None), "fields", None)
    if fields is None:
        raise SparklogError(f"send takes a DataFrame, not {df!r}")
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
    # SQL texts: a column that is built by API calls takes milliseconds.
    columns = ["cast(value as binary) as value"]
    for name, kind in _OPTIONAL.items():
        if name in names:
            columns.append(f"cast({name} as {kind}) as {name}")
        elif name == "key":
            columns.append(f"cast(null as {kind}) as {name}")
    return df.selectExpr(*columns)


def _once(given: object, topic_id: str) -> MicroBatch:
    if not isinstance(given, tuple | list) or len(given) != 2 or not isinstance(given[0], str):
        raise SparklogError(
            f"micro_batch must be (query id, batch id), such as ('q', 0), not {given!r}"
        )
    return MicroBatch(given[0], whole_number(given[1], "a micro-batch's id"), topic_id)


def _file_schema() -> StructType:
    """Return the schema of a task's rows as a type; the JVM would have to parse a text."""
    from pyspark.sql.types import StructType

    schema = StructType()
    for name, kind in _FILE_COLUMNS.items():
        schema = schema.add(name, kind)
    return schema


def _few_rows_held(records: DataFrame) -> pa.Table | None:
    """Return the rows if Spark already holds them and knows that they are few, else `None`.

    The driver encodes them in less time than a Python task takes to start.
    """
    # A classic session has no text of the plan but by the JVM, where the plan itself is.
    is_few = _explains_few if is_connect(records.sparkSession) else _plans_few
    return records.toArrow() if is_few(cast(Any, records)) else None


def _plans_few(records: Any) -> bool:
    """Return whether a classic session holds the rows and knows that they are few."""
    plan = records._jdf.queryExecution().optimizedPlan()
    is_held = plan.nodeName() == "LocalRelation" or (
        plan.nodeName() == "InMemoryRelation" and plan.cacheBuilder().isCachedColumnBuffersLoaded()
    )
    return bool(is_held and plan.stats().sizeInBytes() <= _FEW_BYTES)


def _explains_few(records: Any) -> bool:
    """Return the same for a session of Spark Connect, by its explanation of the plan."""
    plan = _OPTIMIZED.search(records._explain_string(mode="cost"))
    if plan is None or plan["node"] not in ("LocalRelation", "InMemoryRelation"):
        return False
    # Rows of a cached DataFrame are counted when they are held.
    if plan["node"] == "InMemoryRelation" and "rowCount=" not in plan["statistics"]:
        return False
    size = _SIZE.search(plan["statistics"])
    return size is not None and (
        float(size["number"]) * _UNITS.get(size["unit"], math.inf) <= _FEW_BYTES
    )


def _task(logs: Mapping[int, Location], partitioner: Partitioner) -> Any:
    """Return the function that a Spark task runs on its Arrow batches."""

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
    """Write records to the leaders' inboxes; return one row of `_FILE_COLUMNS` for each file."""
    encoder = Encoder(logs, partitioner)
    files = [file for batch in batches for file in encoder.add(batch)] + [*encoder.close()]
    return [(task, encoded.partition, *encoded.file) for encoded in files]
