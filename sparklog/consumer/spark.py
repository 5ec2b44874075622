"""Consuming: committed records as a Spark DataFrame, with Spark's own scan of the batch files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from sparklog.cluster.arguments import check_session, numbers_by_number, numbers_list
from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Connection, Visible, connection_of
from sparklog.cluster.naming import ClusterName
from sparklog.cluster.sound_replicas import replicas_with_sound_files, sound_replica
from sparklog.config import Settings
from sparklog.errors import SparklogError
from sparklog.storage.execution import spark_execution
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.spark_files import check_secrets, file_systems_needed, spark_files, spark_uri

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_FEW_FILES = 64
"""Maximum number of files in a query whose headers are passed in the query's text."""

_GLOB = frozenset("*?[]{}\\")
"""Characters that Spark's file sources interpret as patterns."""

_FILE_COLUMNS = (
    "offset_delta int, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
# Kafka's number for the producer's time; nullable like all columns of Spark's Kafka source.
_TIMESTAMP_TYPE = "if(offset_delta is null, null, 0) as timestampType"
_HEADERS = "if(size(headers) > 0, headers, null) as headers"


class RecordRange(NamedTuple):
    """The records of a partition with start <= offset < end, in the replica `seen`."""

    seen: Visible
    start: int
    end: int


class SparkConsumer:
    """Reads committed records of a cluster as Spark DataFrames.

    Parameters
    ----------
    connection : Connection, str or os.PathLike
        The cluster: a connection, the path or URI of its root, or its configuration file (*.yaml).
    spark : SparkSession
        The session that reads the batch files.
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
    >>> from sparklog import SparkConsumer
    >>> consumer = SparkConsumer("sparklog-data/cluster", spark)
    >>> clicks = consumer.read("clicks").orderBy("partition", "offset")
    >>> clicks.selectExpr("offset", "cast(value as string) as value").show()
    +------+------+
    |offset| value|
    +------+------+
    |     0| first|
    |     1|second|
    |     2| third|
    +------+------+
    """

    def __init__(
        self,
        connection: Connection | ClusterName,
        spark: SparkSession,
        *,
        storage_options: StorageOptions | None = None,
    ) -> None:
        check_session(spark)
        self._connection = connection_of(connection, storage_options)
        self._spark = spark

    def read(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        from_offsets: Mapping[int, int] | None = None,
    ) -> DataFrame:
        """Return the committed records of a topic: those below the high watermark (rule 2.6).

        The high watermarks are those at the time of this call.

        Parameters
        ----------
        topic : str
            The name of the topic.
        partitions : iterable of int, optional
            The numbers of the partitions; all by default.
        from_offsets : dict of int to int, optional
            The first offset of each partition; the earliest by default.

        Returns
        -------
        DataFrame
            The columns are those of Spark's Kafka source: key, value, topic, partition, offset,
            timestamp, timestampType, headers.

        Raises
        ------
        ProtocolError
            UNKNOWN_TOPIC_OR_PARTITION; LEADER_NOT_AVAILABLE if a partition is offline;
            OFFSET_NOT_AVAILABLE if a new leader has not caught up.
        SparklogError
            `from_offsets` has a partition that is not read.

        Examples
        --------
        >>> consumer.read("clicks", partitions=[0], from_offsets={0: 2}).count()
        1
        """
        metadata = self._connection.metadata()
        count = metadata.topic(topic).partitions
        numbers = range(count) if partitions is None else numbers_list(partitions, "partitions")
        states = [metadata.partition(topic, number) for number in numbers]
        offsets = numbers_by_number(from_offsets or {}, "from_offsets")
        for number in offsets.keys() - {state.partition for state in states}:
            raise SparklogError(
                f"from_offsets names partition {number} of topic {topic}, which is not read: "
                "add it to partitions, or leave it out"
            )
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
    """Return the records of at least one range, in the columns of Spark's Kafka source.

    A few files are scanned directly. Many files are selected by Delta's log, which takes longer to
    start. Spark opens object stores with settings that are made of the storage options. Spark does
    not verify the checksums of batch files, so all files of the ranges are read and verified first.

    Raises `ConfigError` if Spark would show a secret, and `SparklogError` if it lacks the file
    system of a store. Raises CORRUPT_MESSAGE if no in-sync replica has sound files of a range.
    """
    ranges = [
        one._replace(seen=sound_replica(logs, one.seen, one.start, one.end)) for one in ranges
    ]
    settings = Settings()
    execution = spark_execution(
        spark,
        is_always=False,
        min_bytes=settings.execution_spark_min_bytes,
        bytes_per_task=settings.execution_spark_bytes_per_task,
    )
    sound = replicas_with_sound_files(logs, ranges, execution.read)
    ranges = [one._replace(seen=seen) for one, seen in zip(ranges, sound, strict=True)]
    for location in {one.seen.location for one in ranges}:
        check_secrets(spark, location)
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
    """A batch file in a log, and the values of its header."""

    uri: str
    log: Location
    topic: str
    partition: int
    base_offset: int
    next_offset: int

    @property
    def name(self) -> str:
        """The file's name, which is unique."""
        return self.uri.rpartition("/")[2]


def _files(logs: CommittedLogs, wanted: RecordRange) -> list[_File]:
    """Return the files that hold records of a range."""
    seen, start, end = wanted
    log, state = seen.location.child("log"), seen.state
    uri = spark_uri(log)
    return [
        _File(
            f"{uri}/{batch.path}",
            log,
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
    """Scan files directly; the values of their headers are looked up by file name.

    With conditions on topic and partition, Spark skips the other files. Columns that are not
    selected are not looked up.
    """
    topic = _by_name(files, lambda file: f"'{file.topic}'")
    partition = _by_name(files, lambda file: str(file.partition))
    base_offset = _by_name(files, lambda file: f"{file.base_offset}L")
    logs = {file.log for file in files}
    options = {name: value for log in logs for name, value in spark_files(log).options.items()}
    read = (
        spark.read.schema(_FILE_COLUMNS)
        # Regardless of the session's settings, committed records must not be skipped.
        .options(ignoreMissingFiles=False, ignoreCorruptFiles=False, **options)
    )
    frame = (
        _opened(spark, logs, lambda: read.parquet(*(file.uri for file in files)))
        # A projection of its own: with a condition, Spark would otherwise build all of `_metadata`
        # for each row.
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
        # The first and the last file may contain records outside the range.
        if any(file.base_offset < start or file.next_offset > end for file in own):
            is_other = f"topic != '{of[0]}' or partition != {of[1]}"
            frame = frame.where(f"{is_other} or offset between {start} and {end - 1}")
    return frame


def _by_name(files: list[_File], value: Callable[[_File], str]) -> str:
    """Return the SQL expression of a value that each file has; names contain no quotes."""
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
    """Scan the ranges of one log at one version."""
    from pyspark.sql import functions as sf

    log, version = place
    files = spark_files(log)
    read = spark.read.format("delta").option("versionAsOf", version).options(**files.options)
    return (
        _opened(spark, {log}, lambda: read.load(files.uri))
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


def _opened(
    spark: SparkSession, logs: set[Location], open_frame: Callable[[], DataFrame]
) -> DataFrame:
    """Return a DataFrame over files of these logs; raises if a store's file system is missing.

    Spark Connect opens the files when the columns are read.
    """
    if all(log.is_local for log in logs):
        return open_frame()
    with file_systems_needed(spark):
        frame = open_frame()
        _ = frame.schema
    return frame


def _is_in(logs: CommittedLogs, wanted: RecordRange) -> Column:
    """Return the condition for the records of a range.

    It begins with columns of the header, so that Spark skips whole files before and after the
    range.
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
