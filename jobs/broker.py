"""One broker of a cluster as a Spark application of its own.

The cluster must be there: start it once with jobs/cluster.py, or with `sparklog format`.

    python -m jobs.broker --config conf/broker.yaml
    spark-submit jobs/broker.py --config conf/broker.yaml --until-idle
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparklog.cli.application import configure_logging, one_line_errors, run_application
from sparklog.config import BrokerConfig, load

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    config: Annotated[Path, typer.Option(help="The broker's configuration, a YAML file.")],
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when there is nothing left to do.")
    ] = False,
    without_spark: Annotated[
        bool, typer.Option("--without-spark", help="Copy files in this process, not in tasks.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Play one broker of a cluster."""
    with one_line_errors():
        configure_logging(log_level)
        loaded = load(BrokerConfig, config)
        run_application(loaded, until_idle=until_idle, with_spark=not without_spark)


if __name__ == "__main__":
    app()
