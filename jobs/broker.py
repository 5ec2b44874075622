"""One broker of a cluster as a separate Spark application.

Brokers that start on an empty store create the cluster, also at the same time.

    python -m jobs.broker --config conf/broker.yaml
    spark-submit jobs/broker.py --config conf/broker.yaml --until-idle
"""

from __future__ import annotations

from sparklog.cli.application import application_command
from sparklog.config import BrokerConfig

app = application_command(BrokerConfig)

if __name__ == "__main__":
    app()
