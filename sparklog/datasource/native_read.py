"""`sparklog.read`: a batch read by Spark's own scan of the batch files, at Spark's own speed."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from sparklog.clients.arguments import check_session
from sparklog.clients.spark_consumer import RecordRange, scan_records
from sparklog.datasource.batch_read import batch_ranges, seen_by_batch
from sparklog.datasource.columns import ddl
from sparklog.datasource.kept_logs import with_logs
from sparklog.datasource.options import parse_read_options
from sparklog.datasource.subscription import Subscription
from sparklog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, **options: object) -> DataFrame:
    """Return committed records with the columns of `spark.read.format("sparklog")`.

    The options are those of the format, with the same meaning; JSON may be given as a dict. Where
    to start and end is decided by this call. Filters and columns are pushed down by Spark, which
    reaches object stores with its own settings. Raises `ConfigError` for an option that is wrong,
    and whatever a batch read of the format raises.
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
    return with_logs(parsed.cluster, lambda logs: _frame(spark, Subscription(parsed, logs)))


def _frame(spark: SparkSession, subscription: Subscription) -> DataFrame:
    """Return the records that a subscription's options ask for."""
    seen = seen_by_batch(subscription)
    ranges = [
        RecordRange(seen[one.partition], one.start, one.end)
        for one in batch_ranges(subscription, seen)
        if one.size > 0
    ]
    include_headers = subscription.options.include_headers
    if not ranges:
        return spark.createDataFrame([], ddl(include_headers=include_headers))
    return scan_records(spark, subscription.logs, ranges, include_headers=include_headers)


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
