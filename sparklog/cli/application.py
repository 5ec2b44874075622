"""Running an application of brokers: configuration, Spark, signals and one-line errors."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Thread
from typing import Any

import structlog

from sparklog.broker.application import Application, check_start
from sparklog.cli.exit_codes import OF_SIGNALS, ExitCode, exit_code
from sparklog.cli.jvm_shutdown import stop_before_jvm
from sparklog.config import BrokerConfig, ClusterConfig
from sparklog.errors import SparklogError
from sparklog.logger import ROOT, event_of
from sparklog.session import spark_session

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_SIGNALS_SECONDS = 0.5
"""The longest time in s until a signal is handled."""

_LATER_MS = 2_000
"""ms for which Spark's JVM waits beyond the bound of a stop."""

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print an expected error, a `SparklogError`, as one line and exit with its `ExitCode`."""
    try:
        yield
    except SparklogError as error:
        _print_line(str(error))
        sys.exit(exit_code(error))


def _print_line(message: str) -> None:
    print(f"sparklog: {' '.join(message.split())}", file=sys.stderr, flush=True)


def configure_logging(level: str) -> None:
    """Log events at or above `level` to standard error: readable on a terminal, else as JSON."""
    number = _LEVELS.get(level.lower())
    if number is None:
        raise SparklogError(f"log level {level!r} is unknown: use {', '.join(_LEVELS)}")
    for_people = sys.stderr.isatty()
    renderers: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=not os.environ.get("NO_COLOR"))]
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


def run_application(
    config: ClusterConfig | BrokerConfig, *, until_idle: bool, with_spark: bool
) -> None:
    """Run brokers until they are idle, or until SIGTERM or SIGINT stops them cleanly.

    The first signal stops them after their current round, within controlled.shutdown.timeout.ms; a
    second one ends the process at once. If a signal has ended a run until idle, work may be left,
    and the exit code is 128 plus its number. Must be called in the main thread.
    """
    check_start(config)
    spark = spark_session(app_name="sparklog") if with_spark else None
    application = Application(config, spark)
    # Installed after Spark has started: it sets its own handler, and there is nothing to stop
    # before.
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    received = _stop_on_signals(application)
    if spark is not None:
        # Python is given its whole bound, and ends itself at that.
        bound_ms = config.controlled_shutdown_timeout_ms
        stop_before_jvm(spark, application.stop, bound_ms + _LATER_MS)
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            application.start()
            application.run_until_idle() if until_idle else application.run()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    # In a thread of its own: Python handles signals in the main thread, between two instructions,
    # so a request that hangs there would delay them.
    Thread(target=run, name="application", daemon=True).start()
    Thread(target=_end_in_time, args=(application, outcome), name="bound", daemon=True).start()
    try:
        # A signal that another thread receives, or that arrives just before the wait begins, does
        # not interrupt it: Python's handlers run when this thread continues.
        while wait([outcome], _SIGNALS_SECONDS).not_done:
            pass
        outcome.result()
    finally:
        # The process may be a host that runs other code afterwards.
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if until_idle and received:
        sys.exit(OF_SIGNALS + received[0])


def _stop_on_signals(application: Application) -> list[int]:
    """Stop `application` on signals; the returned list contains the numbers of those received."""
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        application.stop()

    for number in _SIGNALS:
        signal.signal(number, stop)
    return received


def _end_in_time(application: Application, outcome: Future[None]) -> None:
    """End the process controlled.shutdown.timeout.ms after the application has begun to end.

    Each step of a broker is one commit, so a process can end at any time without a loss.
    """
    application.await_end()
    timeout_ms = application.config.controlled_shutdown_timeout_ms
    since = time.monotonic()
    wait([outcome], timeout_ms / 1000)
    bound = f"not ended within controlled.shutdown.timeout.ms={timeout_ms}"
    if not outcome.done():
        failure = application.failure
        reason = f"{failure}; " if failure is not None else ""
        _print_line(
            f"{reason}{bound}: {'; '.join(application.unfinished())}; acknowledged records are "
            "safe, and the next start waits for broker.session.timeout.ms"
        )
        os._exit(ExitCode.NOT_STOPPED if failure is None else exit_code(failure))
    time.sleep(max(0.0, since + timeout_ms / 1000 - time.monotonic()))
    if _is_exiting():
        # The interpreter waits for the threads of pools.
        _print_line(f"{bound}: the brokers have ended, but requests of this process hang")
        os._exit(ExitCode.NOT_STOPPED)


def _is_exiting() -> bool:
    """Return whether the interpreter is about to exit: it starts no further work of pools."""
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int)
    except RuntimeError:
        return True
    return False
