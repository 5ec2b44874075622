"""Consuming: committed records as a Spark DataFrame, on Spark's own scan of the Delta tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from sparklog.clients.committed_logs import CommittedLogs
from sparklog.clients.connection import Connection, Visible
from sparklog.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class RecordRange(NamedTuple):
    """The records of a partition with start <= offset < end, in the replica that `seen` names."""

    seen: Visible
    start: int
    end: int


class SparkConsumer:
    """Reads committed records of the cluster that `connection` is of."""

    def __init__(self, connection: Connection, spark: SparkSession) -> None:
        self._connection = connection
        self._spark = spark

    def read(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        from_offsets: Mapping[int, int] | None = None,
    ) -> DataFrame:
        """Return the committed records of `topic` (rule 2.6): offsets below the high watermark.

        Parameters: `partitions`, all where left out; `from_offsets`, the first offset of a
        partition, the earliest where left out. The columns are those of Spark's Kafka source: key,
        value, topic, partition, offset, timestamp, timestampType, headers. The high watermarks
        are those of this call. Raises as `Connection.visible` does.
        """
        metadata = self._connection.metadata()
        numbers = range(metadata.topic(topic).partitions) if partitions is None else partitions
        states = [metadata.partition(topic, number) for number in numbers]
        offsets = dict(from_offsets or {})
        ranges = [
            RecordRange(
                one,
                max(one.log_start_offset, offsets.get(one.state.partition, 0)),
                one.high_watermark,
            )
            for one in self._connection.visible(states)
        ]
        return scan_records(self._spark, CommittedLogs(self._connection), ranges)


def scan_records(
    spark: SparkSession,
    logs: CommittedLogs,
    ranges: Iterable[RecordRange],
    *,
    include_headers: bool = True,
) -> DataFrame:
    """Return the records of one range at least, in the columns of Spark's Kafka source.

    Each log is scanned at the version that its ranges were seen in; files that hold none of the
    records are skipped by their headers alone.
    """
    of_log: dict[tuple[Location, int], list[RecordRange]] = defaultdict(list)
    for one in ranges:
        of_log[one.seen.location.child("log"), one.seen.log_version].append(one)
    frames = [
        _scan(spark, logs, place, members, include_headers) for place, members in of_log.items()
    ]
    return reduce(lambda first, second: first.unionAll(second), frames)


def _scan(
    spark: SparkSession,
    logs: CommittedLogs,
    place: tuple[Location, int],
    members: list[RecordRange],
    include_headers: bool,
) -> DataFrame:
    """Scan the slices of one log at one version."""
    from pyspark.sql import functions as sf

    log, version = place
    headers = [sf.expr("if(size(headers) > 0, headers, null)").alias("headers")]
    return (
        spark.read.format("delta")
        .option("versionAsOf", version)
        .load(log.uri)
        .withColumn("offset", sf.col("base_offset") + sf.col("offset_delta"))
        .where(reduce(lambda one, other: one | other, [_is_in(logs, one) for one in members]))
        .select(
            "key",
            "value",
            "topic",
            "partition",
            "offset",
            "timestamp",
            # Kafka's number of the producer's time; as nullable as all columns of its source.
            sf.expr("if(offset is null, null, 0)").alias("timestampType"),
            *(headers if include_headers else []),
        )
    )


def _is_in(logs: CommittedLogs, wanted: RecordRange) -> Column:
    """Return the condition for the records of a range.

    It begins with the headers, so that whole files before and after the range are skipped.
    """
    from pyspark.sql import functions as sf

    seen, start, end = wanted
    of_slice = (sf.col("topic_id") == seen.state.topic_id) & (
        sf.col("partition") == seen.state.partition
    )
    if start > seen.log_start_offset:
        batches = logs.batches(seen, start)
        first = batches[0].base_offset if batches else end
        of_slice &= sf.col("base_offset") >= first
    return of_slice & (sf.col("base_offset") < end) & sf.col("offset").between(start, end - 1)
