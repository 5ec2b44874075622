"""`sparklog.read`: a batch read by Spark's own Parquet scan of the batch files."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from sparklog.cluster.arguments import check_session
from sparklog.consumer.spark import RecordRange, scan_records
from sparklog.datasource.batch_read import batch_ranges, seen_by_batch
from sparklog.datasource.columns import ddl
from sparklog.datasource.kept_logs import with_logs
from sparklog.datasource.offset_reader import OffsetReader
from sparklog.datasource.options import parse_read_options
from sparklog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, **options: object) -> DataFrame:
    """Return committed records with the columns of `spark.read.format("sparklog")`.

    The start and end offsets are determined by this call. Spark pushes filters and columns down,
    and accesses object stores with settings that are made of the storage options.

    Parameters
    ----------
    spark : SparkSession
        The session.
    **options
        The read options of a batch, see `pyspark_sparklog.DefaultSource`, except minPartitions and
        maxRecordsPerPartition. JSON may be given as a dict, and lists of topics as a list. The
        storage options are not part of a plan here.

    Returns
    -------
    DataFrame
        The columns are those of Spark's Kafka source: key, value, topic, partition, offset,
        timestamp, timestampType and, with includeHeaders, headers.

    Raises
    ------
    ConfigError
        An option is unknown, missing or has an unusable value, or Spark would show a secret.
    SparklogError
        Spark lacks the file system of an object store.
    ProtocolError
        UNKNOWN_TOPIC_OR_PARTITION; LEADER_NOT_AVAILABLE or OFFSET_NOT_AVAILABLE after
        fetchOffset.numRetries retries.

    Examples
    --------
    >>> from sparklog import read
    >>> frame = read(
    ...     spark,
    ...     cluster="sparklog-data/cluster",
    ...     subscribe="clicks",
    ...     startingOffsets={"clicks": {"0": 1, "1": -2}},
    ... )
    >>> [bytes(row.value) for row in frame.orderBy("offset").collect()]
    [b'second', b'third']
    """
    check_session(spark)
    if "cluster" in options and not isinstance(options["cluster"], str | os.PathLike):
        raise ConfigError(
            f"option cluster is the cluster's root or its configuration file, as text: got "
            f"{options['cluster']!r}"
        )
    given = {name: _text(value) for name, value in options.items() if value is not None}
    parsed = parse_read_options(given, "batch")
    if parsed.min_partitions is not None or parsed.max_records_per_partition is not None:
        raise ConfigError(
            "options minPartitions and maxRecordsPerPartition have no meaning for sparklog.read, "
            "where Spark splits files by itself: repartition the DataFrame"
        )
    return with_logs(
        parsed.cluster,
        lambda logs: _frame(spark, OffsetReader(parsed, logs)),
        parsed.storage_options,
    )


def _frame(spark: SparkSession, offset_reader: OffsetReader) -> DataFrame:
    """Return the records that a reader's options select."""
    seen = seen_by_batch(offset_reader)
    ranges = [
        RecordRange(seen[one.partition], one.start, one.end)
        for one in batch_ranges(offset_reader, seen)
        if one.size > 0
    ]
    include_headers = offset_reader.options.include_headers
    if not ranges:
        return spark.createDataFrame([], ddl(include_headers=include_headers))
    return scan_records(spark, offset_reader.logs, ranges, include_headers=include_headers)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except TypeError as error:
            raise ConfigError(f"{value!r} cannot be written as JSON: {error}") from None
    if isinstance(value, list | tuple | set):
        return ",".join(map(str, value))
    return str(value)
