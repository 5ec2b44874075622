"""An archive of Spark's classes for the Java processes of the tests.

`python -m tests.spark_classes` makes it once, in half a minute; `tests/conftest.py` names it to all
drivers of Spark that the tests start, if it exists. A driver loads over 10,000 classes from about
200 JARs, which is a third of the CPU time of a short process; from the archive it maps them. Java
ignores an archive that another Java or other JARs have made.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path

from sparklog.java import spark_home
from sparklog.session import spark_session

_FOLDER = Path(sys.prefix) / "spark-classes"
_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The environment variable with options of drivers alone; Java does not print it."""

_QUICK = "-XX:TieredStopAtLevel=1"
"""Short processes end sooner with the first compiler alone."""

_SILENT = "-Xlog:disable -Xlog:all=error:stderr"


def archive() -> Path:
    """Return the path of the archive for the installed Spark, whether it exists or not."""
    jars = sorted(one.name for one in (spark_home() / "jars").iterdir())
    return _FOLDER / f"{hashlib.sha256(repr(jars).encode()).hexdigest()[:16]}.jsa"


def use_archive() -> None:
    """Let the drivers that this process and its children start use the archive, if it exists."""
    options = [os.environ.get(_OPTIONS, ""), _QUICK]
    if archive().exists():
        options += [f"-XX:SharedArchiveFile={archive()}", _SILENT]
    os.environ[_OPTIONS] = " ".join(options).strip()


def make_archive() -> None:
    """Run what the tests run most, and let Java archive the classes that this has loaded."""
    path = archive()
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    os.environ[_OPTIONS] = f"{_QUICK} {_SILENT} -XX:ArchiveClassesAtExit={part}"
    with tempfile.TemporaryDirectory() as folder:
        spark = spark_session("spark-classes", master="local[2]")
        table, copy = f"{folder}/table", f"{folder}/copy"
        for _ in range(2):
            rows = spark.range(100).selectExpr("id", "cast(cast(id as string) as binary) as value")
            rows.write.format("delta").mode("append").save(table)
        spark.sql(f"merge into delta.`{table}` as t using (select 1 as id) as s on t.id = s.id "
                  "when matched then delete")  # fmt: skip
        read = spark.read.format("delta").load(table)
        read.groupBy("id").count().join(read, "id").orderBy("id").mapInArrow(
            lambda batches: batches, "id long, count long, value binary"
        ).collect()
        stream = spark.readStream.format("delta").load(table).writeStream.format("delta")
        stream.trigger(availableNow=True).option("checkpointLocation", f"{folder}/c").start(
            copy
        ).awaitTermination()
        gateway = spark.sparkContext._gateway
        spark.stop()
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    part.rename(path)


if __name__ == "__main__":
    if not archive().exists():
        make_archive()
