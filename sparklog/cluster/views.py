"""SQL views of a cluster's state: the tables of the cluster root and of each broker.

`create_views` creates them on Spark. The `sparklog query` command offers the same names on DuckDB,
except for `records`.
"""

from __future__ import annotations

import json
import warnings
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from sparklog.cluster.arguments import check_session
from sparklog.cluster.connection import Connection, connection_of
from sparklog.cluster.naming import ClusterName
from sparklog.cluster.past import BROKER_PAST, CLUSTER_PAST, PAST_VIEWS
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
from sparklog.session import spark_errors
from sparklog.storage.journal import CHECKPOINTS, Journal
from sparklog.storage.location import Location, StorageOptions
from sparklog.storage.parallel import in_parallel
from sparklog.storage.spark_files import check_secrets, file_systems_needed, spark_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATE_TABLE, STATE_OF_ROOT = "sparklog.state.table", "sparklog.state.root"
STATE_STORE = "sparklog.state.secret"
"""Options of `format("sparklog")` with which the views read the state of replicas.

They are the name of a checkpoint table, the broker root, and the options of its store as JSON.
Spark redacts the latter because of the option's name.
"""

_BROKER_ID = pa.field("broker_id", pa.int32())

READ_BY_SPARKLOG: dict[str, pa.Schema] = {
    **{schema.name: schema.columns for schema in CHECKPOINTS},
    PRODUCE_REQUESTS.name: REQUEST_INDEX,
    **{name: one.columns for name, one in (CLUSTER_PAST | BROKER_PAST).items()},
}
"""The columns of the tables whose rows sparklog reads in place of Spark.

The checkpoints lag behind the journal, and the tables with the past behind their sources. The rows
of `produce_requests` are the actions of its log.
"""

BROKER_VIEWS: dict[str, pa.Schema] = {
    **{
        schema.name: pa.schema([_BROKER_ID, *schema.columns])
        for schema in BROKER_TABLES
        if schema is not LOG
    },
    PRODUCE_REQUESTS.name: pa.schema([_BROKER_ID, *REQUEST_INDEX]),
    **{name: pa.schema([_BROKER_ID, *one.columns]) for name, one in BROKER_PAST.items()},
    "batches": pa.schema([_BROKER_ID, *BATCH_INDEX, ("next_offset", pa.int64())]),
}
"""The columns of each broker's views: its tables, its past, and the batches of its log."""

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
    join topics t
        on t.topic_id = s.topic_id and t.state = 'live' and s.partition < t.partitions
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
"""The SQL text of a query for the committed records in `records`.

It returns the records up to the latest offset of each partition. The query fails with
OFFSET_NOT_AVAILABLE or LEADER_NOT_AVAILABLE while the latest offset of a partition is unknown
(rules 2.6, 10.2), so that no query returns fewer records than an earlier one. The offset is unknown
during an election, before the first tick of a new topic's leader, and if the leader's root could
not be read. Conditions on `topic_id`, `topic` and `partition` exclude the other partitions.
"""

LEADER_IMBALANCE = """
select
    broker_id,
    count(*) as preferred,
    cast(sum(lacks) as bigint) as led_by_others,
    cast(100.0 * sum(lacks) / count(*) as double) as leader_imbalance
from (
    select p.broker_id, case when p.leader = p.broker_id then 0 else 1 end as lacks
    from partition_state p
    join topics t on t.topic_id = p.topic_id and t.state = 'live' and p.partition < t.partitions
    where p.replica_index = 0
) of_preferred
group by broker_id
"""
"""The SQL text of the view `leader_imbalance`, for Spark and DuckDB.

Of each broker the number of partitions of which it is the preferred leader, the number of those
that it does not lead, and their percentage (leader.imbalance.per.broker.percentage, rule 7.6).
"""


SQL_VIEWS = {"leader_imbalance": LEADER_IMBALANCE, **PAST_VIEWS}
"""The SQL texts of the views over other views, in their order, for Spark and DuckDB."""


def create_views(
    spark: SparkSession,
    connection: Connection | ClusterName,
    *,
    storage_options: StorageOptions | None = None,
) -> list[str]:
    """Create temporary views over a cluster's state; they replace views of the same names.

    The views are every table of the cluster root; every table of the broker roots, as the union
    over all brokers with `broker_id` as the first column; `batches`, the record batches of each
    broker's log, one row per file; `records`, every record of every replica; `leader_imbalance`,
    the share of each broker's preferred partitions that it does not lead; and the past:
    `isr_history`, `elections`, `replica_progress`, `lag`, `refusals`, `high_watermark_history`
    (docs/questions.md).

    The views read the newest tables each time they are queried. A broker that registers later is
    included after the next call. `high_watermark_checkpoint`, `leader_epoch_checkpoint` and
    `delayed_operations` are as of the broker's journal, and are read with the connection's storage
    options; Spark reads the other tables with settings made of these. A broker root that cannot be
    read is left out with a `UserWarning` that names it.

    `records` shows all records in the logs, committed or not, once for every replica. The tail that
    a failed leader left behind is shown until it is truncated. `COMMITTED_RECORDS` joins it with
    the leader's high watermark and keeps the committed records. With conditions on `topic_id`,
    `topic`, `partition` and `leader_epoch`, Spark skips the other files.

    Parameters
    ----------
    spark : SparkSession
        The session in which the views are created.
    connection : Connection, str or os.PathLike
        The cluster: a connection, the path or URI of its root, or its configuration file (*.yaml).
    storage_options : dict of str to dict, optional
        The options of object stores by URI prefix, unless `connection` is a Connection; see there.

    Returns
    -------
    list of str
        The names of the views, sorted.

    Raises
    ------
    ConfigError
        The configuration file or a storage option is not usable, or Spark would show a secret.
    SparklogError
        `spark` is not a session, or lacks the file system of an object store.
    StorageError
        There is no cluster at that root.

    Examples
    --------
    >>> from sparklog import create_views
    >>> names = create_views(spark, "sparklog-data/cluster")
    >>> names[:3]
    ['batches', 'brokers', 'cleaner_offset_checkpoint']
    >>> spark.sql("select topic, partitions from topics where topic = 'clicks'").collect()
    [Row(topic='clicks', partitions=2)]
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    check_session(spark)
    connection = connection_of(connection, storage_options)
    roots = [
        (broker.broker_id, uri)
        for broker in connection.metadata().brokers.values()
        for uri in broker.online_roots.values()
    ]
    cluster = connection.root.location
    options = connection.storage_options
    of_cluster = {cluster.uri: cluster.options}
    for location in (cluster, *(Location.of(uri, options) for _, uri in roots)):
        check_secrets(spark, location)
    views: dict[str, DataFrame] = {}
    found: dict[tuple[int, str], dict[str, DataFrame] | StorageError] = {}

    def open_table(schema: TableSchema) -> None:
        views[schema.name] = _load(spark, cluster, schema)

    for name in CLUSTER_PAST:
        views[name] = _load_state(spark, cluster, name, of_cluster)

    def open_root(root: tuple[int, str]) -> None:
        try:
            found[root] = _broker_views(spark, options, *root)
        except StorageError as error:
            found[root] = error

    # Delta runs a small job to open a table, so they are opened in parallel on any storage.
    stored = [schema for schema in CLUSTER_TABLES if schema.name not in CLUSTER_PAST]
    tables = [partial(open_table, schema) for schema in stored]
    in_parallel([*tables, *(partial(open_root, root) for root in roots)], is_local=False)
    readable = []
    for broker_id, root in roots:
        frames = found[broker_id, root]
        if isinstance(frames, StorageError):
            warnings.warn(
                f"broker {broker_id} is left out, its root {root} cannot be read: {frames}",
                stacklevel=2,
            )
        else:
            readable.append(frames)
    for name, columns in (BROKER_VIEWS | {"records": RECORDS}).items():
        parts = [frames[name].select(columns.names) for frames in readable]
        # Spark Connect takes no empty Arrow table.
        empty = spark.createDataFrame([], from_arrow_schema(columns))
        views[name] = reduce(lambda one, other: one.unionAll(other), parts or [empty])
    for name, frame in views.items():
        frame.createOrReplaceTempView(name)
    for name, text in SQL_VIEWS.items():
        spark.sql(text).createOrReplaceTempView(name)
    return sorted([*views, *SQL_VIEWS])


def _load(spark: SparkSession, root: Location, schema: TableSchema) -> DataFrame:
    files = spark_files(root.child(schema.name))
    with file_systems_needed(spark):
        frame = spark.read.format("delta").options(**files.options).load(files.uri)
        # Spark Connect opens a table when its columns are read.
        _ = frame.schema
    return frame


def _load_state(
    spark: SparkSession, root: Location, name: str, options: StorageOptions
) -> DataFrame:
    """Return a table of `READ_BY_SPARKLOG`; every query reads it again."""
    reader = spark.read.format("sparklog").option(STATE_TABLE, name)
    return reader.option(STATE_OF_ROOT, root.uri).option(STATE_STORE, json.dumps(options)).load()


def _broker_views(
    spark: SparkSession, options: StorageOptions, broker_id: int, uri: str
) -> dict[str, DataFrame]:
    """Return the views of one broker root; raises `StorageError` if it cannot be read."""
    from pyspark.sql import functions as sf

    root = Location.of(uri, options)
    of_root = {root.uri: root.options}
    Journal(root)
    try:
        frames = {
            schema.name: _load_state(spark, root, schema.name, of_root)
            if schema.name in READ_BY_SPARKLOG
            else _load(spark, root, schema)
            for schema in BROKER_TABLES
        }
        frames |= {
            name: _load_state(spark, root, name, of_root)
            for name in BROKER_PAST
            if name not in frames
        }
    except spark_errors() as error:
        # The following lines are the JVM's stack trace.
        raise StorageError(" ".join(str(error).splitlines()[:2])) from error
    log = frames.pop(LOG.name)
    frames |= {"batches": _batches(log), "records": _records(log)}
    return {
        name: frame.withColumn("broker_id", sf.lit(broker_id)) for name, frame in frames.items()
    }


def _records(log: DataFrame) -> DataFrame:
    return log.withColumn("offset", log.base_offset + log.offset_delta)


def _batches(log: DataFrame) -> DataFrame:
    """Group the log by file, because Spark does not show the contents of Delta's add actions."""
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
