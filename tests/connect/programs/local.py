"""Start Spark Connect with a local master, or connect to an address without a server.

`python local.py TABLE` or `python local.py sc://HOST:PORT` prints the results as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparklog import SparklogError, session, spark_session
from sparklog.session import is_connect

if TYPE_CHECKING:
    import pyarrow as pa

QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}


def pythons(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the Python of a task in place of its rows."""
    import pyarrow as pa

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.executable]})


def main() -> None:
    [_, place] = sys.argv
    if place.startswith("sc://"):
        session.ANSWER_SECONDS = 1.0
        try:
            spark_session(remote=place)
        except SparklogError as error:
            print(json.dumps({"refused": str(error)}), flush=True)
        return
    wanted = QUICK | {"spark.sql.shuffle.partitions": "3"}
    spark = spark_session("local", remote="local[2]", memory="1g", config=wanted)
    spark.range(10).write.format("delta").save(place)
    [row] = spark.range(1).mapInArrow(pythons, "python string").collect()
    results = {
        "is connect": is_connect(spark),
        "rows": spark.read.format("delta").load(place).count(),
        "is same python": row.python == sys.executable,
        "named": int(spark.conf.get("spark.sql.shuffle.partitions") or 0),
    }
    spark.stop()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
