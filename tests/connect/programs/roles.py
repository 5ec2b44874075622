"""Play the roles of brokers with all rules and all record work on Spark Connect.

`python roles.py FOLDER SCENARIO` also plays a scenario, and prints the jobs of ticks as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sparklog
from sparklog.session import is_connect
from sparklog.testing import LocalCluster
from tests.scenario import play, scenarios

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ON_SPARK = {"execution": "spark", "rules.engine": "spark"}


def jobs_of_ticks(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Replicate one batch, and return the number of jobs of each tick."""
    cluster = LocalCluster(folder, brokers=[0, 1], spark=spark, config=ON_SPARK)
    cluster.create_topic("t", assignment={0: [0, 1]})
    pending = cluster.produce("t", 0, [b"a"])
    leader, follower = cluster.leader_tick(0), cluster.follower_tick(1)
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    cluster.controller_tick()
    idle = (cluster.leader_tick(0), cluster.follower_tick(1), cluster.controller_tick())
    cluster.close()
    return {
        "error": pending.response.error if pending.response else None,
        "leader": leader.spark_jobs,
        "follower": follower.spark_jobs,
        "copied": follower.files_copied,
        "idle": [one.spark_jobs for one in idle],
    }


def main() -> None:
    folder, name = Path(sys.argv[1]), sys.argv[2]
    spark = sparklog.spark_session()
    results = jobs_of_ticks(spark, folder / "jobs")
    [case] = [one for one in scenarios() if one["name"] == name]
    config = case.get("config", {}) | ON_SPARK
    place = folder / "scenario"
    play(case, LocalCluster(place, brokers=case["brokers"], spark=spark, config=config))
    results["is connect"] = is_connect(spark)
    spark.stop()
    from pyspark import SparkContext

    results["jvm"] = SparkContext._gateway is not None
    print(json.dumps(results))


if __name__ == "__main__":
    main()
