"""A process that streams numbers from Spark into a topic until SIGTERM.

python -m tests.faults.stream_process CLUSTER TOPIC PARTITIONS CHECKPOINT

A further process with the same checkpoint continues where the one before has ended.
"""

from __future__ import annotations

import signal
import sys
import threading
import time

from pyspark.errors import StreamingQueryException

from sparklog.session import spark_session

ROWS = 200
"""Rows of a micro-batch: those of batch `n` are the numbers from `n * ROWS` on."""

_PAUSE_SECONDS = 1.0


def main(cluster: str, topic: str, partitions: str, checkpoint: str) -> None:
    """Run the query; a query that fails is started again, as a scheduler would do."""
    stopping = threading.Event()
    spark = spark_session("torture-stream", master="local[1]", memory="512m")
    # Installed after Spark has started: it sets its own handler.
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", 2)
        .load()
        .selectExpr(
            "cast(value as string) as value", f"cast(value % {int(partitions)} as int) as partition"
        )
    )
    while not stopping.is_set():
        query = (
            numbers.writeStream.format("sparklog")
            .option("cluster", cluster)
            .option("topic", topic)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        try:
            while not query.awaitTermination(1) and not stopping.is_set():
                pass
        except StreamingQueryException as error:
            print(time.strftime("%H:%M:%S"), error, file=sys.stderr, flush=True)
            stopping.wait(_PAUSE_SECONDS)
        finally:
            query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
