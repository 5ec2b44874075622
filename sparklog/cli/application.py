"""Running an application of brokers: configuration, Spark, signals, one-line errors."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from sparklog.broker.application import Application
from sparklog.config import BrokerConfig, ClusterConfig
from sparklog.errors import SparklogError
from sparklog.session import spark_session
from sparklog.storage.location import Location
from sparklog.storage.roots import ClusterRoot

USAGE_ERROR = 2
"""The exit code for bad input, as everywhere on the command line."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print an error that sparklog raises on purpose as one line and exit with code 2."""
    try:
        yield
    except SparklogError as error:
        print(f"sparklog: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(USAGE_ERROR)


def configure_logging(level: str) -> None:
    """Log events at or above `level` to standard error: to a person in words, else as JSON."""
    number = getattr(logging, level.upper(), None)
    if not isinstance(number, int):
        raise SparklogError(f"log level {level!r} is unknown: use debug, info, warning or error")
    renderer: Any = (
        structlog.dev.ConsoleRenderer()
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def run_application(
    config: ClusterConfig | BrokerConfig, *, until_idle: bool, with_spark: bool
) -> None:
    """Run brokers until they are idle, or until SIGTERM or SIGINT ends them in good order."""
    check_roots(config)
    spark = spark_session(app_name="sparklog") if with_spark else None
    application = Application(config, spark)
    application.start()
    if until_idle:
        application.run_until_idle()
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: application.stop())
    application.run()


def check_roots(config: ClusterConfig | BrokerConfig) -> None:
    """Refuse a broker whose cluster is not there, before Spark is started."""
    if isinstance(config, BrokerConfig):
        ClusterRoot(Location.of(config.cluster_root, config.storage_options))
