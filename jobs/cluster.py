"""All brokers of a cluster in one Spark application, the default.

Run it continuously, or with --until-idle from a scheduler:

    python -m jobs.cluster --config conf/cluster.yaml
    spark-submit jobs/cluster.py --config conf/cluster.yaml --until-idle
"""

from __future__ import annotations

from sparklog.cli.application import application_command
from sparklog.config import ClusterConfig

app = application_command(ClusterConfig)

if __name__ == "__main__":
    app()
