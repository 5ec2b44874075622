"""Play the roles of brokers with all rules and all record work on Spark Connect.

`python roles.py FOLDER SCENARIO ...` prints the Spark jobs of ticks as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import sparklog
from sparklog.session import is_connect
from sparklog.testing import LocalCluster
from tests.scenario import play, scenarios

ON_SPARK = {"execution": "spark", "rules.engine": "spark"}


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    spark = sparklog.spark_session()
    played = []
    for number, case in enumerate(one for one in scenarios() if one["name"] in names):
        config = case.get("config", {}) | ON_SPARK
        place = folder / f"scenario-{number}"
        play(case, LocalCluster(place, brokers=case["brokers"], spark=spark, config=config))
        played.append(case["name"])
    results: dict[str, Any] = {"is connect": is_connect(spark), "played": played}
    cluster = LocalCluster(folder / "jobs", brokers=[0, 1], spark=spark, config=ON_SPARK)
    cluster.create_topic("t", assignment={0: [0, 1]})
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"a"])
    results["leader"] = cluster.leader_tick(0).spark_jobs
    copied = cluster.follower_tick(1)
    results["follower"] = copied.spark_jobs
    results["copied"] = copied.files_copied
    cluster.tick_until_idle()
    results["committed"] = [record.value.decode() for record in cluster.consume("t", 0)]
    ticks = (cluster.leader_tick(0), cluster.follower_tick(1), cluster.controller_tick())
    results["idle"] = [one.spark_jobs for one in ticks]
    cluster.close()
    spark.stop()
    from pyspark import SparkContext

    results["jvm"] = SparkContext._gateway is not None
    print(json.dumps(results))


if __name__ == "__main__":
    main()
