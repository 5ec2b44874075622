"""Read and write a cluster on an object store, in a classic session or one of Spark Connect.

`python stores.py FILE [JAR ...]` takes the cluster's configuration file and Spark's further JARs,
and prints the results as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import TYPE_CHECKING, Any

import sparklog
from sparklog import SparklogError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def explained(frame: DataFrame) -> str:
    """Return Spark's explanation of a plan with all of its steps."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain("extended")
    return printed.getvalue()


def main() -> None:
    [_, file, *jars] = sys.argv
    config = {
        "spark.jars": ",".join(jars),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    spark = sparklog.spark_session("stores", master="local[2]", memory="1g", config=config)
    results: dict[str, Any] = {}
    try:
        frame = sparklog.read(spark, cluster=file, subscribe="t")
        results["sparklog.read"] = frame.count()
    except SparklogError as error:
        results["refused"] = str(error)
        print(json.dumps(results))
        return
    options = sparklog.cluster_options(file)
    orders = spark.range(20).selectExpr("cast(id as string) key", "'an order' value")
    writer = orders.write.format("sparklog").mode("append").options(**options)
    writer.option("topic", "u").save()
    written = spark.read.format("sparklog").options(**options).option("subscribe", "u").load()
    results["format"] = written.count()
    sparklog.create_views(spark, file)
    views = {name: spark.table(name) for name in ("records", "brokers", "produce_requests")}
    results["records"] = views["records"].where("topic = 't'").count()
    results["brokers"] = views["brokers"].count()
    views["produce_requests"].count()
    plans = [explained(one) for one in (frame, written, *views.values())]
    results["plans"] = "\n".join(plans)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
