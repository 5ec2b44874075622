"""Events with a name and fields, through Python's logging.

The library prints nothing by itself; its user configures Python's logging. A plain formatter prints
`broker fenced broker=0`. A handler that needs the fields calls `event_of`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, cast

import structlog

from sparklog.counts import FAILURES

ROOT = "sparklog"
"""The common parent of the library's loggers."""

logging.getLogger(ROOT).addHandler(logging.NullHandler())

_as_text = structlog.processors.LogfmtRenderer()


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of the module `name`; its events take their fields as keywords."""
    logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, _record_of],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return cast("structlog.stdlib.BoundLogger", logger)


def event_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a log record, with its name as the field `event`."""
    fields: dict[str, Any] = getattr(record, "fields", {})
    return {"event": getattr(record, "event", record.getMessage()), **fields}


def _record_of(
    _: object, __: str, fields: structlog.typing.EventDict
) -> tuple[tuple[str], dict[str, Any]]:
    exc_info, event = fields.pop("exc_info", None), fields.pop("event")
    text = f"{event} {_as_text(None, '', dict(fields))}".rstrip()
    return (text,), {"exc_info": exc_info, "extra": {"event": event, "fields": fields}}


REPEATED_EVERY_S = 60
"""Seconds between two log lines about a continuing failure."""


MOST_FAILURES = 1_000
"""The number of failures that are known at once. Keys may contain texts that never repeat."""


class _Failure(NamedTuple):
    """A failure that continues.

    `logged_at` is the time of its last log line in s, `unlogged` the number of occurrences since.
    """

    event: str
    logged_at: float
    unlogged: int
    occurrences: int


class RepeatedFailures:
    """Failures that repeat at each attempt: each is logged at first, and then once a minute.

    The end of a failure is logged with the number of its occurrences. Each occurrence is counted in
    `sparklog.counts.FAILURES`.

    Parameters: `logger`, from `get_logger`; `monotonic`, a clock in seconds. A failure is
    identified by its key, regardless of its message.
    """

    def __init__(
        self,
        logger: structlog.stdlib.BoundLogger,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._monotonic = monotonic
        self._known: dict[Hashable, _Failure] = {}

    def warning(self, key: Hashable, event: str, **fields: Any) -> None:
        """Log a failure as a warning, unless it was logged less than a minute ago."""
        self._log(self._logger.warning, key, event, fields)

    def error(self, key: Hashable, event: str, **fields: Any) -> None:
        """Log a failure as an error, unless it was logged less than a minute ago."""
        self._log(self._logger.error, key, event, fields)

    def over(self, key: Hashable, *, logs: bool = True) -> bool:
        """Forget a failure that has ended, and log that; return whether it was known.

        Parameters: `logs`, whether its end is logged, which some callers do with more fields.
        """
        known = self._known.pop(key, None)
        if known is not None and logs:
            self._logger.info("failure ended", failure=known.event, occurrences=known.occurrences)
        return known is not None

    def _log(
        self, log: Callable[..., Any], key: Hashable, event: str, fields: dict[str, Any]
    ) -> None:
        FAILURES.add(event)
        now = self._monotonic()
        known = self._known.get(key) or _Failure(event, -math.inf, 0, 0)
        occurrences = known.occurrences + 1
        if now - known.logged_at < REPEATED_EVERY_S:
            self._known[key] = known._replace(unlogged=known.unlogged + 1, occurrences=occurrences)
            return
        log(event, **fields, **({"repeated": known.unlogged} if known.unlogged else {}))
        # Moved to the end: the failures that were logged longest ago come first.
        self._known.pop(key, None)
        self._known[key] = _Failure(event, now, 0, occurrences)
        while len(self._known) > MOST_FAILURES:
            del self._known[next(iter(self._known))]
