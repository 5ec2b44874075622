"""Consuming: committed records as a Spark DataFrame."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING

from sparklog.clients.connection import Connection, Visible
from sparklog.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        of_log: dict[tuple[Location, int], list[Visible]] = defaultdict(list)
        for one in self._connection.visible(states):
            of_log[one.location.child("log"), one.log_version].append(one)
        frames = [
            self._scan(log, version, members, offsets) for (log, version), members in of_log.items()
        ]
        return reduce(lambda first, second: first.unionAll(second), frames)

    def _scan(
        self, log: Location, version: int, members: list[Visible], offsets: Mapping[int, int]
    ) -> DataFrame:
        """Scan the slices of one log, at the version that its leader's row describes."""
        from pyspark.sql import functions as sf

        wanted = sf.lit(False)
        for one in members:
            first = max(one.log_start_offset, offsets.get(one.state.partition, 0))
            wanted |= (
                (sf.col("partition") == one.state.partition)
                # On the header alone, so that whole files above the high watermark are skipped.
                & (sf.col("base_offset") < one.high_watermark)
                & sf.col("offset").between(first, one.high_watermark - 1)
            )
        return (
            self._spark.read.format("delta")
            .option("versionAsOf", version)
            .load(log.uri)
            .where(sf.col("topic_id") == members[0].state.topic_id)
            .withColumn("offset", sf.col("base_offset") + sf.col("offset_delta"))
            .where(wanted)
            .select(
                "key",
                "value",
                "topic",
                "partition",
                "offset",
                "timestamp",
                sf.lit(0).alias("timestampType"),
                "headers",
            )
        )
