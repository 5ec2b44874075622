"""The state of a cluster as SQL views: what the brokers agreed on, and what each of them holds.

`create_views` makes them on Spark. The `sparklog query` command offers the same names, but for
`records`, on DuckDB.
"""

from __future__ import annotations

import json
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from sparklog.clients.arguments import check_session
from sparklog.clients.connection import Connection, connection_of
from sparklog.errors import StorageError
from sparklog.model import (
    BATCH_INDEX,
    BROKER_TABLES,
    CLUSTER_TABLES,
    LOG,
    PRODUCE_REQUESTS,
    REQUEST_INDEX,
    TableSchema,
)
from sparklog.storage.journal import CHECKPOINTS, Journal
from sparklog.storage.location import Location, StorageOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATE_TABLE, STATE_OF_ROOT = "sparklog.state.table", "sparklog.state.root"
STATE_STORE = "sparklog.state.secret"
"""The options of `format("sparklog")` by which the views read the state of replicas: the name of a
checkpoint table, the broker root, and its store's options as JSON, which Spark redacts by the name.
"""

_BROKER_ID = pa.field("broker_id", pa.int32())

READ_BY_SPARKLOG = (*CHECKPOINTS, PRODUCE_REQUESTS)
"""The tables of broker roots whose rows Spark does not read itself: those that lag behind the
journal, and that of requests, whose rows are the actions of its log."""

BROKER_VIEWS: dict[str, pa.Schema] = {
    **{
        schema.name: pa.schema([_BROKER_ID, *schema.columns])
        for schema in BROKER_TABLES
        if schema is not LOG
    },
    PRODUCE_REQUESTS.name: pa.schema([_BROKER_ID, *REQUEST_INDEX]),
    "batches": pa.schema([_BROKER_ID, *BATCH_INDEX, ("next_offset", pa.int64())]),
}
"""The columns of what each broker holds: its tables, and the batches that its log consists of."""

RECORDS = pa.schema(
    [
        _BROKER_ID,
        *(LOG.columns.field(name) for name in ("topic_id", "topic", "partition")),
        ("offset", pa.int64()),
        *(LOG.columns.field(name) for name in ("leader_epoch", "timestamp", "key", "value")),
        LOG.columns.field("headers"),
    ]
)
"""The columns of `records`: every record of every replica's log."""

COMMITTED_RECORDS = """
with ends as (
    select
        s.topic_id, s.topic, s.partition, s.leader, c.log_start_offset, c.high_watermark,
        case
            when s.leader is null then 'LEADER_NOT_AVAILABLE'
            when coalesce(c.leader_epoch <> s.leader_epoch, true)
                or coalesce(c.high_watermark < e.start_offset, true) then 'OFFSET_NOT_AVAILABLE'
        end as error
    from partition_state s
    join topics t on t.topic_id = s.topic_id and t.state = 'live'
    left join high_watermark_checkpoint c
        on c.topic_id = s.topic_id and c.partition = s.partition and c.broker_id = s.leader
    left join leader_epoch_checkpoint e
        on e.topic_id = s.topic_id and e.partition = s.partition and e.broker_id = s.leader
        and e.epoch = s.leader_epoch
    where s.replica_index = 0
), unavailable as (
    select
        topic_id, topic, partition,
        max(concat(
            error, ': the latest offset of ', topic, '-', partition,
            ' is not known before its leader is elected and has caught up: try again'
        )) as reason
    from ends
    group by topic_id, topic, partition
)
select r.*
from records r
join ends on ends.topic_id = r.topic_id and ends.partition = r.partition
    and ends.leader = r.broker_id
where ends.error is null
    and r.offset >= ends.log_start_offset and r.offset < ends.high_watermark
union all
select
    cast(raise_error(reason) as int), topic_id, topic, partition,
    cast(raise_error(reason) as bigint), cast(raise_error(reason) as int),
    cast(raise_error(reason) as timestamp), cast(raise_error(reason) as binary),
    cast(raise_error(reason) as binary),
    cast(raise_error(reason) as array<struct<key: string, value: binary>>)
from unavailable
where reason is not null and raise_error(reason) is null
"""
"""The committed records of `records`, up to the latest offset of each partition, as SQL.

The query fails with OFFSET_NOT_AVAILABLE or LEADER_NOT_AVAILABLE while the latest offset of a
partition is unknown (rules 2.6, 10.2), so that no query returns fewer records than an earlier one:
during an election, before the first tick of a new topic's leader, and where the leader's root could
not be read. Conditions on `topic_id`, `topic` and `partition` leave out the other partitions.
"""


def create_views(spark: SparkSession, connection: Connection | str | os.PathLike[str]) -> list[str]:
    """Create temporary views over a cluster's state, in place of any of the same names.

    Returns their names, sorted: every table of the cluster root; every table of the broker
    roots, as the union over all brokers with a `broker_id` column first; `batches`, the record
    batches of each broker's log, one row a file; `records`, every record of every replica.

    The views are evaluated when they are queried, over the newest tables; a broker that registers
    later is seen after the next call. `high_watermark_checkpoint`, `leader_epoch_checkpoint` and
    `delayed_operations` are as of the broker's journal, and are read with the connection's storage
    options. Spark reads the other tables on object stores with its own settings. A broker root that
    cannot be read is left out with a `UserWarning` that names it.

    `records` shows what lies in the logs, committed or not, once for every replica; a tail that
    a failed leader left behind is seen until it is truncated. `COMMITTED_RECORDS` joins it with
    the leader's high watermark and keeps the committed records. Conditions on
    `topic_id`, `topic`, `partition` and `leader_epoch` spare Spark the other files.
    """
    check_session(spark)
    connection = connection_of(connection)
    roots = [
        (broker.broker_id, uri)
        for broker in connection.metadata().brokers.values()
        for uri in broker.online_roots.values()
    ]
    cluster = connection.root.location.uri
    # Delta runs a small job to open a table, so they are opened side by side.
    with ThreadPoolExecutor(max_workers=8) as pool:
        opened = pool.map(partial(_load, spark, cluster), CLUSTER_TABLES)
        options = connection.storage_options or {}
        of_roots = [pool.submit(_broker_views, spark, options, *root) for root in roots]
        views = {schema.name: frame for schema, frame in zip(CLUSTER_TABLES, opened, strict=True)}
    readable = []
    for (broker_id, root), frames in zip(roots, of_roots, strict=True):
        try:
            readable.append(frames.result())
        except StorageError as error:
            warnings.warn(
                f"broker {broker_id} is left out, its root {root} cannot be read: {error}",
                stacklevel=2,
            )
    for name, columns in (BROKER_VIEWS | {"records": RECORDS}).items():
        parts = [frames[name].select(columns.names) for frames in readable]
        empty = spark.createDataFrame(columns.empty_table())
        views[name] = reduce(lambda one, other: one.unionAll(other), parts or [empty])
    for name, frame in views.items():
        frame.createOrReplaceTempView(name)
    return sorted(views)


def _load(spark: SparkSession, root: str, schema: TableSchema) -> DataFrame:
    return spark.read.format("delta").load(f"{root}/{schema.name}")


def _load_state(
    spark: SparkSession, root: str, schema: TableSchema, options: StorageOptions
) -> DataFrame:
    """Return a table whose newest rows the root's journal has, read anew by every query."""
    reader = spark.read.format("sparklog").option(STATE_TABLE, schema.name)
    return reader.option(STATE_OF_ROOT, root).option(STATE_STORE, json.dumps(options)).load()


def _broker_views(
    spark: SparkSession, options: StorageOptions, broker_id: int, root: str
) -> dict[str, DataFrame]:
    """Return the views of one broker root; `StorageError` where it cannot be read."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as sf

    Journal(Location.of(root, options))
    try:
        frames = {
            schema.name: _load_state(spark, root, schema, options)
            if schema in READ_BY_SPARKLOG
            else _load(spark, root, schema)
            for schema in BROKER_TABLES
        }
    except (PySparkException, Py4JError) as error:
        # What follows is the JVM's stack trace.
        raise StorageError(" ".join(str(error).splitlines()[:2])) from error
    log = frames.pop(LOG.name)
    frames |= {"batches": _batches(log), "records": _records(log)}
    return {
        name: frame.withColumn("broker_id", sf.lit(broker_id)) for name, frame in frames.items()
    }


def _records(log: DataFrame) -> DataFrame:
    return log.withColumn("offset", log.base_offset + log.offset_delta)


def _batches(log: DataFrame) -> DataFrame:
    """Group the log by its files; Spark does not show what Delta's add actions say of them."""
    from pyspark.sql import functions as sf

    time_ms = sf.unix_millis("timestamp")
    last_offset_delta = sf.max("offset_delta")
    return (
        log.withColumn("path", sf.regexp_extract("_metadata.file_path", ".*/log/(.*)", 1))
        .withColumn("size_bytes", sf.col("_metadata.file_size"))
        .groupBy("path", "size_bytes", *LOG.partition_by)
        .agg(
            sf.count("*").alias("record_count"),
            last_offset_delta.alias("last_offset_delta"),
            sf.min(time_ms).alias("min_timestamp_ms"),
            sf.max(time_ms).alias("max_timestamp_ms"),
            (sf.col("base_offset") + last_offset_delta + 1).alias("next_offset"),
        )
    )
