"""Running an application of brokers: configuration, Spark, signals, one-line errors."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import structlog

from sparklog.broker.application import Application, check_roots
from sparklog.config import BrokerConfig, ClusterConfig
from sparklog.errors import SparklogError
from sparklog.logger import ROOT, event_of
from sparklog.session import spark_session

USAGE_ERROR = 2
"""The exit code for bad input, as everywhere on the command line."""

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


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
    # Whatever hosts this process, as spark-submit does, would print every event once more.
    logger.propagate = False


def _with_fields(
    _: object, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    return {**event, **event_of(event["_record"])}


def run_application(
    config: ClusterConfig | BrokerConfig, *, until_idle: bool, with_spark: bool
) -> None:
    """Run brokers until they are idle, or until SIGTERM or SIGINT ends them in good order.

    The first signal ends them after the round that they are in; a second one at once. A run
    until idle that a signal has ended exits with 128 plus its number, since work may be left.
    """
    check_roots(config)
    spark = spark_session(app_name="sparklog") if with_spark else None
    application = Application(config, spark)
    # Not before Spark has started: it sets a handler of its own, and there is nothing to end.
    received = _stop_on_signals(application)
    application.start()
    if not until_idle:
        application.run()
        return
    application.run_until_idle()
    if received:
        sys.exit(128 + received[0])


def _stop_on_signals(application: Application) -> list[int]:
    """Let signals end `application`; the returned list names those that have arrived."""
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)
        # Not here: the interrupted code may hold the very lock that stopping needs.
        Thread(target=application.stop, name="stop").start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return received
