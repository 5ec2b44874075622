"""Registers `format("sparklog")` with Spark.

Spark imports modules with the prefix `pyspark_` by itself and registers their `DefaultSource`. If
it does not, call `spark.dataSource.register(pyspark_sparklog.DefaultSource)`.

The readers and writers are implemented in `sparklog.datasource`; this package has only the classes
that Spark's interface requires. Each Spark application imports this module as soon as it reads any
Python source, so its own imports are few.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_sparklog.from_files import FromFiles

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from sparklog.datasource.write_options import WriteOptions


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Make Spark show a sparklog error as its message, without the worker's stack."""
    try:
        yield
    except Exception as error:
        from sparklog.errors import show_in_one_line

        show_in_one_line(error)
        raise


class DefaultSource(FromFiles, DataSource):
    """`format("sparklog")` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`.

    Options are those of Spark's Kafka connector. An option that is unknown or has no meaning is
    refused with a `ConfigError` that names it. The configuration file is read where the query is
    planned, on the driver or the server of Spark Connect; `sparklog.cluster_options` replaces it.

    Read Options
    ------------
    cluster : str, required
        The path or URI of the cluster root, or its configuration file (*.yaml). A relative path is
        relative to the folder in which Spark was started.
    storageOptions : JSON
        The options of object stores by URI prefix; they take precedence over the file's. Secrets
        are references, `${NAME}`, to environment variables of the driver and the executors.
    assign : JSON
        One of `assign`, `subscribe` and `subscribePattern` is required: the partitions by topic,
        such as `{"topicA":[0,1]}`.
    subscribe : list of names separated by commas
        The topics.
    subscribePattern : str
        A Python regular expression that a topic's whole name matches.
    startingOffsets : earliest, latest or JSON, default earliest in a batch, latest in a stream
        The first offset of each partition; in JSON -2 is the earliest, -1 the latest:
        `{"topicA":{"0":23,"1":-2}}`. A stream that has a checkpoint continues there.
    startingTimestamp : int
        In place of offsets: the first record of every partition at or after a time in ms since
        1970.
    startingOffsetsByTimestamp : JSON
        The same with a time for each partition; it takes precedence over offsets.
    startingOffsetsByTimestampStrategy : error or latest, default error
        The start in a partition without a record at or after its time.
    endingOffsets : latest or JSON, default latest
        The offset before which a batch ends.
    endingTimestamp : int
        In place of `endingOffsets`: a time in ms since 1970.
    endingOffsetsByTimestamp : JSON
        The same with a time for each partition.
    failOnDataLoss : bool, default true
        Whether a query fails if records that it has to read are gone; otherwise it warns.
    maxOffsetsPerTrigger : int
        The most records of a micro-batch; Spark 4.2 or newer.
    minOffsetsPerTrigger : int
        The number of records that a micro-batch waits for; Spark 4.2 or newer.
    maxTriggerDelay : duration, default 15m
        The longest wait for `minOffsetsPerTrigger`.
    minPartitions : int
        The least number of tasks.
    maxRecordsPerPartition : int
        The most records of a task.
    includeHeaders : bool, default false
        Whether there is a column `headers`.
    groupIdPrefix : str
        The beginning of the name of a consumer group to which a stream commits its progress.
    kafka.group.id : str
        The name of that group; it takes precedence over `groupIdPrefix`.
    replica : leader, nearest or a broker id, default leader
        The replica that is read (KIP-392).
    clientRack : str
        With `replica=nearest`: the rack of the replica.
    fetchOffset.numRetries : int, default 60
        The number of times that a query polls for a leader that has caught up.
    fetchOffset.retryIntervalMs : int, default 1000
        The interval of these polls in ms.

    Write Options
    -------------
    cluster, storageOptions : str, JSON
        As for reading.
    topic : str
        The topic of all rows; without it the column `topic` is required.
    acks, kafka.acks : all, -1, 1 or 0, default all
        Required acknowledgements: 0 none, 1 the leader, all every in-sync replica.
    partitioner : str
        A class `package.module:Class` in place of Kafka's partitioner; see
        `sparklog.producer.partitioner.Partitioner`.
    includeHeaders : bool, default true
        Only true: the column `headers` is written if there is one.
    kafka.request.timeout.ms : int, default 30000
        The time in ms that a leader may take to answer before a request is repeated.
    kafka.delivery.timeout.ms : int, default 120000
        The time in ms after which the write fails.
    kafka.client.id : str, default spark
        The client's name in the brokers' tables, to which quotas apply.
    checkpointLocation, queryName : str
        Spark's own.

    Examples
    --------
    >>> orders = spark.range(3).selectExpr("cast(id as string) as key", "'an order' as value")
    >>> (
    ...     orders.write.format("sparklog")
    ...     .mode("append")
    ...     .option("cluster", "sparklog-data/cluster")
    ...     .option("topic", "orders")
    ...     .save()
    ... )
    >>> frame = (
    ...     spark.read.format("sparklog")
    ...     .option("cluster", "sparklog-data/cluster")
    ...     .option("subscribe", "clicks")
    ...     .load()
    ... )
    >>> [bytes(row.value) for row in frame.orderBy("offset").collect()]
    [b'first', b'second', b'third']
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "sparklog"

    @errors_in_one_line()
    def schema(self) -> str:
        """Return the columns of Spark's Kafka source, or those of a sink for a view with a topic.

        Returns
        -------
        str
            The columns, as Spark's DDL.

        Raises
        ------
        ConfigError
            An option is not valid for any kind of query, or the statement is CREATE TABLE.
        """
        from sparklog.datasource.columns import ddl
        from sparklog.datasource.options import parse_read_options
        from sparklog.datasource.plan_options import check_plan_options
        from sparklog.datasource.replica_state import asks_for_state, state_ddl
        from sparklog.datasource.sql_options import refuse_table, sink_ddl

        refuse_table(self.options)
        if asks_for_state(self.options):
            return state_ddl(self.options)
        check_plan_options(self.options)
        if (columns := sink_ddl(self.options)) is not None:
            return columns
        return ddl(include_headers=parse_read_options(self.options).include_headers)

    @errors_in_one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query.

        Parameters
        ----------
        schema : StructType
            The columns that Spark expects.

        Returns
        -------
        DataSourceReader
            The reader.

        Raises
        ------
        ConfigError
            An option is not valid for a batch.
        """
        from pyspark_sparklog.readers import BatchReader, StateReader
        from sparklog.datasource.columns import check_schema
        from sparklog.datasource.options import parse_read_options
        from sparklog.datasource.plan_options import check_plan_options
        from sparklog.datasource.replica_state import asks_for_state

        if asks_for_state(self.options):
            return StateReader(dict(self.options))
        # Spark calls `schema` only if the query has no schema of its own.
        check_plan_options(self.options)
        options = parse_read_options(self.options, "batch")
        check_schema(schema.simpleString(), include_headers=options.include_headers)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a stream; errors of its options are raised by its methods.

        Parameters
        ----------
        schema : StructType
            The columns that Spark expects.

        Returns
        -------
        DataSourceStreamReader
            The reader.
        """
        from pyspark_sparklog.readers import RefusedStreamReader, stream_reader
        from sparklog.datasource.columns import check_schema
        from sparklog.datasource.options import parse_read_options
        from sparklog.datasource.plan_options import check_plan_options
        from sparklog.errors import SparklogError

        try:
            check_plan_options(self.options)
            options = parse_read_options(self.options, "stream")
            check_schema(schema.simpleString(), include_headers=options.include_headers)
            return stream_reader(options)
        except SparklogError as error:
            return RefusedStreamReader(error)

    @errors_in_one_line()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a DataFrame.

        Parameters
        ----------
        schema : StructType
            The columns of the DataFrame.
        overwrite : bool
            Whether Spark's mode is overwrite, which is refused.

        Returns
        -------
        DataSourceWriter
            The writer.

        Raises
        ------
        ConfigError
            An option, a column or the mode is not valid.
        """
        from pyspark_sparklog.writers import BatchWriter
        from sparklog.errors import ConfigError

        if overwrite:
            raise ConfigError("a log is only appended to: use mode('append')")
        return BatchWriter(self._write_options(schema))

    @errors_in_one_line()
    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002 - Spark's
    ) -> DataSourceStreamWriter:
        """Return the writer of a stream.

        Parameters
        ----------
        schema : StructType
            The columns of the stream.
        overwrite : bool
            Whether Spark's output mode is complete: each micro-batch appends all rows of the
            result, as in Kafka's sink.

        Returns
        -------
        DataSourceStreamWriter
            The writer.

        Raises
        ------
        ConfigError
            An option or a column is not valid.
        """
        from pyspark_sparklog.writers import StreamWriter

        return StreamWriter(self._write_options(schema))

    def _write_options(self, schema: StructType) -> WriteOptions:
        from sparklog.datasource.plan_options import check_plan_options
        from sparklog.datasource.write_options import parse_write_options
        from sparklog.datasource.write_schema import check_write_schema

        check_plan_options(self.options)
        options = parse_write_options(self.options)
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_write_schema(types, options)
        return options
