"""A server of Spark Connect on a port of this machine, until standard input is closed.

`python tests/connect/server.py PORT` prints `ready` when clients can connect. The clients are
processes without a JVM.
"""

from __future__ import annotations

import sys

from sparklog.session import spark_session


def main() -> None:
    [_, port, *jars] = sys.argv
    config = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.jars": ",".join(jars),
    }
    spark = spark_session("sparklog-connect", master="local[2]", memory="1g", config=config)
    print("ready", flush=True)
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main()
