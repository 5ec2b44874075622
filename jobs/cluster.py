"""`sparklog cluster` as a file for spark-submit: all brokers of a cluster in one application.

Run it continuously, or with --until-idle from a scheduler:

    python -m jobs.cluster --config conf/cluster.yaml
    spark-submit jobs/cluster.py --config conf/cluster.yaml --until-idle
"""

from __future__ import annotations

import sys

from sparklog.cli import app

if __name__ == "__main__":
    app(["cluster", *sys.argv[1:]], prog_name="sparklog")
