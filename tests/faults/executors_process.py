"""A broker whose Spark application has one executor, a process of its own.

python -m tests.faults.executors_process CONFIG
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.spark_home import spark_home
from sparklog.cli import app
from sparklog.session import spark_session

_MASTER = "local-cluster[1,1,1024]"


def main(config: str) -> None:
    """Start Spark on a cluster of one worker, then run the broker in its session."""
    home = spark_home(Path(config).with_suffix(".spark"))
    os.environ["SPARK_HOME"] = str(home)
    # Executors inherit it; they have the package from this folder.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    os.chdir(home)
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    spark_session("torture-broker", master=_MASTER, memory="512m", config=settings)
    app(["broker", "--config", config], prog_name="sparklog")


if __name__ == "__main__":
    main(*sys.argv[1:])
