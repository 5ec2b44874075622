"""A program that pipes a topic to another one until it is killed by `test_killed_streams`.

Arguments: the cluster's root, the two topics, and the checkpoint.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sparklog.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def piping(
    spark: SparkSession, cluster: str, source: str, target: str, checkpoint: str
) -> DataStreamWriter:
    """Return the query before its start; its progress is published as the group `piping`."""
    frame = (
        spark.readStream.format("sparklog")
        .option("cluster", cluster)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("kafka.group.id", "piping")
        .load()
    )
    return (
        frame.select("key", "value")
        .writeStream.format("sparklog")
        .option("cluster", cluster)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
    )


if __name__ == "__main__":
    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    session = spark_session("piping", master="local[2]", memory="1g", config=quick)
    query = piping(session, *sys.argv[1:]).trigger(processingTime="0 seconds").start()
    query.awaitTermination()
