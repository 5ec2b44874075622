"""All brokers of a cluster in one Spark application: the embedded default.

Run it resident, or with --until-idle from a scheduler:

    python -m jobs.cluster --config conf/cluster.yaml
    spark-submit jobs/cluster.py --config conf/cluster.yaml --until-idle
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparklog.cli.application import configure_logging, one_line_errors, run_application
from sparklog.config import ClusterConfig, load

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    config: Annotated[Path, typer.Option(help="The cluster's configuration, a YAML file.")],
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when there is nothing left to do.")
    ] = False,
    without_spark: Annotated[
        bool, typer.Option("--without-spark", help="Copy files in this process, not in tasks.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Play all brokers of a cluster."""
    with one_line_errors():
        configure_logging(log_level)
        loaded = load(ClusterConfig, config)
        run_application(loaded, until_idle=until_idle, with_spark=not without_spark)


if __name__ == "__main__":
    app()
