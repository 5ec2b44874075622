"""Write and read a cluster by every client that takes a session of Spark Connect.

`python clients.py FOLDER PART ...` finds the cluster of a `RunningCluster` in the folder, and
prints the results as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenacity import retry, retry_if_exception_message, stop_after_attempt

import sparklog
from sparklog.session import has_ended, is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def values(frame: DataFrame) -> list[str]:
    """Return the values of records, sorted."""
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def read(spark: SparkSession, cluster: str, topic: str) -> DataFrame:
    """Return a topic by `format("sparklog")`."""
    reader = spark.read.format("sparklog").option("cluster", cluster)
    return reader.option("subscribe", topic).load()


def batch(spark: SparkSession, cluster: str) -> dict[str, Any]:
    """Write a DataFrame by the sink, and read it in every way."""
    frame = spark.range(100).selectExpr("cast(id as string) key", "concat('v', id) value")
    writer = frame.write.format("sparklog").mode("append").option("cluster", cluster)
    writer.option("topic", "batch").save()
    names = sparklog.create_views(spark, cluster)
    return {
        "format": len(values(read(spark, cluster, "batch"))),
        "sparklog.read": len(values(sparklog.read(spark, cluster=cluster, subscribe="batch"))),
        "SparkConsumer": len(values(sparklog.SparkConsumer(cluster, spark).read("batch"))),
        "views": len(names),
        "records": spark.table("records").where("topic = 'batch'").count(),
        "brokers": spark.table("brokers").count(),
        "batches": spark.table("batches").where("topic = 'batch'").count() % 3,
    }


def produced(spark: SparkSession, cluster: str) -> dict[str, Any]:
    """Send a DataFrame that the client holds and one that tasks make."""
    producer = sparklog.SparkProducer(cluster, spark)
    held = spark.createDataFrame([("k", "held")], "key string, value string")
    made = spark.range(50).selectExpr("concat('made', id) value")
    responses = [*producer.send(held, "produced").result().values()]
    responses += producer.send(made, "produced").result().values()
    once = []
    for _ in range(2):
        pending = producer.send(held, "produced", micro_batch=("q", 0))
        once.append(pending.record_count)
        pending.result()
    return {
        "errors": sorted({one.error for one in responses}),
        "records": read(spark, cluster, "produced").count(),
        "repeated": once,
    }


def streamed(spark: SparkSession, cluster: str, folder: Path) -> list[str]:
    """Copy a topic to another one by a stream, in two runs."""
    for run in range(2):
        one = spark.createDataFrame([(f"of run {run}",)], "value string")
        write = one.write.format("sparklog").mode("append").option("cluster", cluster)
        write.option("topic", "source").save()
        source = spark.readStream.format("sparklog").option("cluster", cluster)
        source = source.option("subscribe", "source").option("startingOffsets", "earliest")
        query = (
            source.load()
            .selectExpr("upper(cast(value as string)) as value")
            .writeStream.format("sparklog")
            .option("cluster", cluster)
            .option("topic", "sink")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return values(read(spark, cluster, "sink"))


@retry(
    retry=retry_if_exception_message(match="(?s).*Python worker failed to connect back"),
    stop=stop_after_attempt(10),
    reraise=True,
)
def started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query with a function.

    Spark gives the function's process 10 s to import pandas and gRPC and to connect, and no
    setting changes that. A busy machine may need longer once; then its files are in memory.
    """
    return writer.start()


def micro_batches(spark: SparkSession, cluster: str, folder: Path) -> list[str]:
    """Send micro-batches by a producer in foreachBatch, which runs on the server."""

    def send(frame: DataFrame, batch_id: int) -> None:
        producer = sparklog.SparkProducer(cluster, frame.sparkSession)
        producer.send(frame, "micro", micro_batch=("a query", batch_id)).result()

    source = spark.readStream.format("sparklog").option("cluster", cluster)
    source = source.option("subscribe", "source").option("startingOffsets", "earliest")
    writer = source.load().select("value").writeStream.foreachBatch(send)
    writer = writer.option("checkpointLocation", str(folder / "micro-checkpoint"))
    started(writer.trigger(availableNow=True)).awaitTermination()
    return values(read(spark, cluster, "micro"))


def refused(spark: SparkSession, cluster: str) -> str:
    """Return the error of a wrong option."""
    try:
        spark.read.format("sparklog").option("cluster", cluster).load().collect()
    except Exception as error:  # noqa: BLE001 - the class differs between the kinds of sessions
        return str(error)
    return "nothing"


def main() -> None:
    folder, parts = Path(sys.argv[1]), sys.argv[2:]
    spark = sparklog.spark_session()
    cluster = str(folder / "cluster")
    results: dict[str, Any] = {
        "is connect": is_connect(spark),
        "same session": sparklog.spark_session() is spark,
        "has ended": has_ended(spark),
    }
    if "batch" in parts:
        results["batch"] = batch(spark, cluster)
        results["refused"] = refused(spark, cluster)
    if "produced" in parts:
        results["produced"] = produced(spark, cluster)
    if "streamed" in parts:
        results["streamed"] = streamed(spark, cluster, folder)
    if "micro" in parts:
        results["micro"] = micro_batches(spark, cluster, folder)
    spark.stop()
    results["has ended after stop"] = has_ended(spark)
    from pyspark import SparkContext

    results["jvm"] = SparkContext._gateway is not None
    print(json.dumps(results))


if __name__ == "__main__":
    main()
