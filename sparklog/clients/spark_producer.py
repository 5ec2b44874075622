"""Producing a Spark DataFrame: tasks encode and write, the driver names the files to leaders."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import tenacity

from sparklog.clients.connection import Connection
from sparklog.clients.encoder import encode
from sparklog.clients.partitioner import DefaultPartitioner, Partitioner
from sparklog.clients.produce import (
    Acks,
    PendingProduce,
    ProduceClient,
    ProduceResponse,
    RequestedBatch,
    acks_number,
)
from sparklog.clients.stream_writes import Files, SentFile, StreamWrite, StreamWrites
from sparklog.errors import ERROR_CODES, ProtocolError, SparklogError
from sparklog.logger import get_logger
from sparklog.model import TopicIdPartition, batch_id, new_batch_path
from sparklog.storage.batch_files import BatchFile, Copy, SparkCopier
from sparklog.storage.location import Location
from sparklog.storage.metadata import PartitionState

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_log = get_logger(__name__)

_FILE_SCHEMA = (
    "task int, partition int, path string, size_bytes bigint, checksum string, "
    "record_count bigint, min_timestamp_ms bigint, max_timestamp_ms bigint"
)
_OPTIONAL = {
    "key": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "partition": "int",
    "timestamp": "timestamp",
}


class MicroBatch(NamedTuple):
    """Which micro-batch of which streaming query a DataFrame is."""

    query_id: str
    batch_id: int


class SparkProducer:
    """Produces DataFrames to the cluster that `connection` is of.

    Parameters: `partitioner`, how records without an explicit partition are spread; by default
    as Kafka's clients do: by murmur2 of the key, in runs where the key is null.
    """

    def __init__(
        self,
        connection: Connection,
        spark: SparkSession,
        *,
        partitioner: Partitioner | None = None,
        client_id: str = "spark",
    ) -> None:
        self._connection = connection
        self._spark = spark
        self._partitioner = partitioner
        self._client = ProduceClient(connection, client_id=client_id)
        self._stream_writes = StreamWrites(connection)
        self._copier = SparkCopier(spark)

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
        records = _record_columns(df)
        metadata = self._connection.metadata()
        found = metadata.topic(topic)
        once = None if micro_batch is None else MicroBatch(*micro_batch)
        begun = once and self._stream_writes.find(once.query_id, found.topic_id, once.batch_id)
        if once is not None and begun is not None:
            return self._again(topic, acks, timeout_ms, begun, once)
        states = {number: metadata.partition(topic, number) for number in range(found.partitions)}
        logs = {
            number: self._connection.leader_location(state).child("log")
            for number, state in states.items()
        }
        partitioner = self._partitioner or DefaultPartitioner(found.partitions)
        rows = records.mapInArrow(_task(logs, partitioner), _FILE_SCHEMA).collect()
        files: dict[TopicIdPartition, list[SentFile]] = {}
        # Within a partition the order is that of the DataFrame's own partitions.
        for row in sorted(rows, key=lambda row: int(row["task"])):
            key = states[row["partition"]].key
            sent = SentFile(logs[row["partition"]], BatchFile(*row[2:]))
            files.setdefault(key, []).append(sent)
        if once is not None:
            write = self._stream_writes.begin(once.query_id, found.topic_id, once.batch_id, files)
            if write.files is not files:
                return self._again(topic, acks, timeout_ms, write, once)
        return PendingSend(self, topic, acks, timeout_ms, files, states, once)

    def _again(
        self, topic: str, acks: Acks, timeout_ms: int, write: StreamWrite, once: MicroBatch
    ) -> PendingSend:
        """Send the files of a micro-batch that was begun before, to whoever leads now."""
        states = self.partitions(topic)
        files = self.move(write.files, states)
        return PendingSend(self, topic, acks, timeout_ms, files, states, once)

    def finish(self, topic: str, once: MicroBatch) -> None:
        """Note that a micro-batch is stored: another run of it has nothing to do."""
        topic_id = self._connection.metadata().topic(topic).topic_id
        self._stream_writes.finish(once.query_id, topic_id, once.batch_id)

    def submit(
        self,
        files: Mapping[TopicIdPartition, list[SentFile]],
        states: Mapping[int, PartitionState],
        acks: Acks,
        timeout_ms: int,
    ) -> PendingProduce:
        """Name files to the leaders in whose inboxes they lie."""
        batches = [
            RequestedBatch(states[key.partition], sent.file)
            for key, members in files.items()
            for sent in members
        ]
        return self._client.send(batches, acks, timeout_ms)

    def partitions(self, topic: str) -> dict[int, PartitionState]:
        """Return the topic's partitions as they are now."""
        metadata = self._connection.metadata()
        count = metadata.topic(topic).partitions
        return {number: metadata.partition(topic, number) for number in range(count)}

    def move(
        self, files: Mapping[TopicIdPartition, list[SentFile]], states: Mapping[int, PartitionState]
    ) -> dict[TopicIdPartition, list[SentFile]]:
        """Bring files, under new paths, to the inboxes of the leaders that lead now.

        A copy keeps the batch's id, so a leader that has the batch already recognises it, also
        where there is nothing left to copy: the machine on which it lay may be gone.
        """
        moved: dict[TopicIdPartition, list[SentFile]] = {}
        copies: list[Copy] = []
        for key, members in files.items():
            log = self._connection.leader_location(states[key.partition]).child("log")
            for sent in members:
                file = sent.file._replace(path=new_batch_path(batch_id(sent.file.path)))
                copies.append(
                    Copy(
                        sent.log,
                        sent.file.path,
                        log,
                        file.path,
                        file.size_bytes,
                        file.checksum,
                    )
                )
                moved.setdefault(key, []).append(SentFile(log, file))
        for copy, fault in zip(copies, self._copier.copy(copies), strict=True):
            if fault is not None:
                _log.warning("batch not moved to its leader", path=copy.source_path, fault=fault)
        return moved


class PendingSend:
    """A DataFrame on its way: the files are written, the answers are awaited."""

    def __init__(
        self,
        producer: SparkProducer,
        topic: str,
        acks: Acks,
        timeout_ms: int,
        files: Files,
        states: Mapping[int, PartitionState],
        once: MicroBatch | None = None,
    ) -> None:
        self._once = once
        self._producer = producer
        self._topic = topic
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._files = files
        self._states = states
        self._results: dict[TopicIdPartition, ProduceResponse] = {}
        self._pending = producer.submit(files, states, acks, timeout_ms)

    @property
    def record_count(self) -> int:
        """How many records are being sent."""
        return sum(sent.file.record_count for of in self._files.values() for sent in of)

    @property
    def is_done(self) -> bool:
        """Whether every answer has arrived, errors included; with acks=0 none is awaited."""
        return self._pending.is_done

    def responses(self) -> dict[int, ProduceResponse]:
        """Return the answers that have arrived, by partition; errors are not retried here."""
        answered = self._results | self._pending.poll()
        return {key.partition: response for key, response in answered.items()}

    def retry(self) -> None:
        """Send what has failed or was not answered again, to the current leaders.

        The same files go again under the same batch ids, so that a leader that has a batch
        already does not write it twice (rule 3.7).
        """
        answered = self._pending.poll()
        self._results |= {
            key: response for key, response in answered.items() if response.error == "NONE"
        }
        failed = {key: of for key, of in self._files.items() if key not in self._results}
        self._states = self._producer.partitions(self._topic)
        moved = self._producer.move(failed, self._states)
        self._files |= moved
        self._pending = self._producer.submit(moved, self._states, self._acks, self._timeout_ms)

    def result(self, delivery_timeout_ms: int = 120_000) -> dict[int, ProduceResponse]:
        """Wait until every partition is answered with NONE, retrying what may be retried.

        Returns the answers by partition. Raises the first `ProtocolError` that a retry would not
        mend, or the last one when `delivery_timeout_ms` has passed.
        """
        if acks_number(self._acks) == 0:
            return {}
        deadline = time.monotonic() + delivery_timeout_ms / 1000
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_retriable),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=1),
            stop=tenacity.stop_after_delay(delivery_timeout_ms / 1000),
            reraise=True,
        )
        is_first = True
        for attempt in retrying:
            with attempt:
                if not is_first:
                    self.retry()
                is_first = False
                self._await(deadline)
        if self._once is not None:
            self._producer.finish(self._topic, self._once)
        return self.responses()

    def _await(self, deadline: float) -> None:
        """Wait for the answers; raise the first error, or that the leader has moved."""
        while not self._pending.is_done and time.monotonic() < deadline:
            self._check_leaders()
            time.sleep(0.005)
        for partition, response in self.responses().items():
            if response.error != "NONE":
                raise _error(response.error, self._topic, partition)
        if not self._pending.is_done:
            raise _error("REQUEST_TIMED_OUT", self._topic, min(self._waiting()))

    def _waiting(self) -> set[int]:
        answered = self.responses()
        return {key.partition for key in self._files if key.partition not in answered}

    def _check_leaders(self) -> None:
        """A request that names a past leader epoch may never be answered: do not wait for it."""
        current = self._producer.partitions(self._topic)
        for partition in self._waiting():
            if current[partition].leader_epoch != self._states[partition].leader_epoch:
                raise _error("NOT_LEADER_OR_FOLLOWER", self._topic, partition)


def _is_retriable(error: BaseException) -> bool:
    return isinstance(error, ProtocolError) and error.retriable


def _error(name: str, topic: str, partition: int) -> ProtocolError:
    sentence = ERROR_CODES[name].sentence
    return ProtocolError(name, f"partition {partition} of topic {topic}: {sentence}")


def _record_columns(df: DataFrame) -> DataFrame:
    """Return the columns that a record has, in their types; `SparklogError` for what is none."""
    from pyspark.sql import functions as sf

    unknown = sorted(set(df.columns) - {"value", *_OPTIONAL})
    if "value" not in df.columns or unknown:
        wrong = f"has the unknown column {unknown[0]!r}" if unknown else "has no column 'value'"
        raise SparklogError(
            f"the DataFrame {wrong}: give it value and, if wanted, {', '.join(_OPTIONAL)}"
        )
    columns = [sf.col("value").cast("binary").alias("value")]
    for name, kind in _OPTIONAL.items():
        if name in df.columns:
            columns.append(sf.col(name).cast(kind).alias(name))
        elif name == "key":
            columns.append(sf.lit(None).cast(kind).alias(name))
    return df.select(*columns)


def _task(logs: Mapping[int, Location], partitioner: Partitioner) -> Any:
    """Return the function that a Spark task runs over its Arrow batches."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        rows = [
            (task, encoded.partition, *encoded.file)
            for encoded in encode(batches, logs, partitioner)
        ]
        if rows:
            names = [column.split()[0] for column in _FILE_SCHEMA.split(", ")]
            columns = [pa.array(column) for column in zip(*rows, strict=True)]
            columns[0], columns[1] = columns[0].cast(pa.int32()), columns[1].cast(pa.int32())
            yield pa.RecordBatch.from_arrays(columns, names)

    return run
