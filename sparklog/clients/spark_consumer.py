"""Consuming: committed records as a Spark DataFrame, on Spark's own scan of the batch files."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from sparklog.clients.arguments import check_session, numbers_by_number, numbers_list
from sparklog.clients.committed_logs import CommittedLogs
from sparklog.clients.connection import Connection, Visible, connection_of
from sparklog.clients.sound_replicas import sound_replica
from sparklog.errors import SparklogError
from sparklog.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_FEW_FILES = 64
"""Files of a query at most for which Spark is handed their headers in the query's text."""

_GLOB = frozenset("*?[]{}\\")
"""What Spark's file sources would take for patterns."""

_FILE_COLUMNS = (
    "offset_delta int, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
# Kafka's number of the producer's time; as nullable as all columns of its source.
_TIMESTAMP_TYPE = "if(offset_delta is null, null, 0) as timestampType"
_HEADERS = "if(size(headers) > 0, headers, null) as headers"


class RecordRange(NamedTuple):
    """The records of a partition with start <= offset < end, in the replica that `seen` names."""

    seen: Visible
    start: int
    end: int


class SparkConsumer:
    """Reads committed records of the cluster that `connection` is of."""

    def __init__(
        self, connection: Connection | str | os.PathLike[str], spark: SparkSession
    ) -> None:
        check_session(spark)
        self._connection = connection_of(connection)
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
        count = metadata.topic(topic).partitions
        numbers = range(count) if partitions is None else numbers_list(partitions, "partitions")
        states = [metadata.partition(topic, number) for number in numbers]
        offsets = numbers_by_number(from_offsets or {}, "from_offsets")
        for number in offsets.keys() - {state.partition for state in states}:
            raise SparklogError(f"from_offsets name partition {number}, which is not read")
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

    A few files are scanned as such; of many, Delta's log says which belong to the ranges, which
    takes longer to begin with.
    """
    ranges = [
        one._replace(seen=sound_replica(logs, one.seen, one.start, one.end)) for one in ranges
    ]
    files = [file for one in ranges for file in _files(logs, one)]
    if len(files) <= _FEW_FILES and not any(_GLOB & set(file.uri) for file in files):
        return _scan_files(spark, ranges, files, include_headers)
    of_log: dict[tuple[Location, int], list[RecordRange]] = defaultdict(list)
    for one in ranges:
        of_log[one.seen.location.child("log"), one.seen.log_version].append(one)
    frames = [
        _scan(spark, logs, place, members, include_headers) for place, members in of_log.items()
    ]
    return reduce(lambda first, second: first.unionAll(second), frames)


class _File(NamedTuple):
    """A batch file, and what its header says of its records."""

    uri: str
    topic: str
    partition: int
    base_offset: int
    next_offset: int

    @property
    def name(self) -> str:
        """The last part of its path, which no other file has."""
        return self.uri.rpartition("/")[2]


def _files(logs: CommittedLogs, wanted: RecordRange) -> list[_File]:
    """Return the files that hold records of a range."""
    seen, start, end = wanted
    log, state = seen.location.child("log"), seen.state
    return [
        _File(
            f"{log.uri}/{batch.path}",
            state.topic,
            state.partition,
            batch.base_offset,
            batch.next_offset,
        )
        for batch in logs.batches(seen, start)
        if batch.base_offset < end
    ]


def _scan_files(
    spark: SparkSession, ranges: list[RecordRange], files: list[_File], include_headers: bool
) -> DataFrame:
    """Scan files as they are; what their headers say is looked up by their names.

    Conditions on topic and partition spare Spark the other files, and what is not selected is not
    looked up.
    """
    topic = _by_name(files, lambda file: f"'{file.topic}'")
    partition = _by_name(files, lambda file: str(file.partition))
    base_offset = _by_name(files, lambda file: f"{file.base_offset}L")
    frame = (
        spark.read.schema(_FILE_COLUMNS)
        # Whatever the session is told: a record that is committed is not passed over.
        .options(ignoreMissingFiles=False, ignoreCorruptFiles=False)
        .parquet(*(file.uri for file in files))
        # By itself, or a condition would have Spark make the whole of `_metadata` for each row.
        .selectExpr("*", "_metadata.file_name as file_name")
        .selectExpr(
            "key",
            "value",
            f"cast({topic} as string) as topic",
            f"cast({partition} as int) as partition",
            f"cast({base_offset} as bigint) + offset_delta as offset",
            "timestamp",
            _TIMESTAMP_TYPE,
            *([_HEADERS] if include_headers else []),
        )
    )
    for seen, start, end in ranges:
        of = seen.state.topic, seen.state.partition
        own = [file for file in files if (file.topic, file.partition) == of]
        # Only a slice of the first and the last file may be wanted.
        if any(file.base_offset < start or file.next_offset > end for file in own):
            is_other = f"topic != '{of[0]}' or partition != {of[1]}"
            frame = frame.where(f"{is_other} or offset between {start} and {end - 1}")
    return frame


def _by_name(files: list[_File], value: Callable[[_File], str]) -> str:
    """Return the SQL expression of a value that each file has; no name has quotes in it."""
    if not files:
        return "null"
    cases = " ".join(f"when '{file.name}' then {value(file)}" for file in files)
    return f"case file_name {cases} end"


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
            sf.expr(_TIMESTAMP_TYPE),
            *([sf.expr(_HEADERS)] if include_headers else []),
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
