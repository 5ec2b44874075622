"""`sparklog broker` as a file for spark-submit: one broker as a separate Spark application.

Brokers that start on an empty store create the cluster, also at the same time.

    python -m jobs.broker --config conf/broker.yaml
    spark-submit jobs/broker.py --config conf/broker.yaml --until-idle
"""

from __future__ import annotations

import sys

from sparklog.cli import app

if __name__ == "__main__":
    app(["broker", *sys.argv[1:]], prog_name="sparklog")
