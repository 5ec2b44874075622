"""`sparklog broker` and `sparklog cluster`: running one broker of a cluster, or all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sparklog.config import BrokerConfig, ClusterConfig

_Config = Annotated[Path, typer.Option(metavar="FILE", help="The configuration, a YAML file.")]
_UntilIdle = Annotated[bool, typer.Option("--until-idle", help="Exit when no work is left.")]
_WithoutSpark = Annotated[
    bool, typer.Option("--without-spark", help="Copy files in this process, not in tasks.")
]
_LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]


def broker(
    config: _Config,
    until_idle: _UntilIdle = False,
    without_spark: _WithoutSpark = False,
    log_level: _LogLevel = "info",
) -> None:
    """Run one broker of a cluster, until SIGTERM or until it is idle.

    The file has the keys cluster.root, broker.id and log.dirs. Events are
    logged to standard error.
    """
    from sparklog.config import BrokerConfig

    _run(BrokerConfig, config, until_idle, without_spark, log_level)


def cluster(
    config: _Config,
    until_idle: _UntilIdle = False,
    without_spark: _WithoutSpark = False,
    log_level: _LogLevel = "info",
) -> None:
    """Run all brokers of a cluster, until SIGTERM or until they are idle.

    The file has the keys cluster.root and brokers. Missing roots are created.
    Events are logged to standard error.
    """
    from sparklog.config import ClusterConfig

    _run(ClusterConfig, config, until_idle, without_spark, log_level)


def _run(
    kind: type[ClusterConfig | BrokerConfig],
    config: Path,
    until_idle: bool,
    without_spark: bool,
    log_level: str,
) -> None:
    from sparklog.cli.application import configure_logging, run_application
    from sparklog.config import load

    configure_logging(log_level)
    run_application(load(kind, config), until_idle=until_idle, with_spark=not without_spark)
