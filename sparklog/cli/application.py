"""Running an application of brokers: configuration, Spark, signals and one-line errors."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Annotated, Any

import structlog
import typer

from sparklog.broker.application import Application, check_roots
from sparklog.config import BrokerConfig, ClusterConfig, load
from sparklog.errors import SparklogError
from sparklog.logger import ROOT, event_of
from sparklog.session import spark_session

USAGE_ERROR = 2
"""The exit code for invalid input, the same for all commands."""

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print an expected error, a `SparklogError`, as one line and exit with code 2."""
    try:
        yield
    except SparklogError as error:
        print(f"sparklog: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(USAGE_ERROR)


def configure_logging(level: str) -> None:
    """Log events at or above `level` to standard error: readable on a terminal, else as JSON."""
    number = _LEVELS.get(level.lower())
    if number is None:
        raise SparklogError(f"log level {level!r} is unknown: use {', '.join(_LEVELS)}")
    for_people = sys.stderr.isatty()
    renderers: list[Any] = (
        [structlog.dev.ConsoleRenderer()]
        if for_people
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                _with_fields,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso"),
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logger = logging.getLogger(ROOT)
    logger.handlers = [handler]
    logger.setLevel(number)
    # A host of this process such as spark-submit would print each event a second time.
    logger.propagate = False


def _with_fields(
    _: object, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    return {**event, **event_of(event["_record"])}


def application_command(kind: type[ClusterConfig | BrokerConfig]) -> typer.Typer:
    """Return the command that runs the brokers of a configuration of this kind."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    what = "all brokers" if kind is ClusterConfig else "one broker"

    @app.command(help=f"Run {what} of a cluster.")
    def main(
        config: Annotated[Path, typer.Option(help="The configuration, a YAML file.")],
        until_idle: Annotated[
            bool, typer.Option("--until-idle", help="Exit when no work is left.")
        ] = False,
        without_spark: Annotated[
            bool, typer.Option("--without-spark", help="Copy files in this process, not in tasks.")
        ] = False,
        log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    ) -> None:
        with one_line_errors():
            configure_logging(log_level)
            loaded: ClusterConfig | BrokerConfig = load(kind, config)
            run_application(loaded, until_idle=until_idle, with_spark=not without_spark)

    return app


def run_application(
    config: ClusterConfig | BrokerConfig, *, until_idle: bool, with_spark: bool
) -> None:
    """Run brokers until they are idle, or until SIGTERM or SIGINT stops them cleanly.

    The first signal stops them after their current round; a second one stops the process at once.
    If a signal has ended a run until idle, work may be left, and the exit code is 128 plus its
    number.
    """
    check_roots(config)
    spark = spark_session(app_name="sparklog") if with_spark else None
    application = Application(config, spark)
    # Installed after Spark has started: it sets its own handler, and there is nothing to stop
    # before.
    received = _stop_on_signals(application)
    application.start()
    if not until_idle:
        application.run()
        return
    application.run_until_idle()
    if received:
        sys.exit(128 + received[0])


def _stop_on_signals(application: Application) -> list[int]:
    """Stop `application` on signals; the returned list contains the numbers of those received."""
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)
        # In a thread, since the interrupted code may hold the lock that stopping needs.
        Thread(target=application.stop, name="stop").start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return received
