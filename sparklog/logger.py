"""Events, through Python's logging: their name and their fields.

A library prints nothing by itself; who uses it says by Python's logging what becomes of its events.
A plain formatter shows `broker fenced broker=0`, a handler that wants the parts asks `event_of`.
"""

from __future__ import annotations

import logging
from typing import Any, cast

import structlog

ROOT = "sparklog"
"""The name above those of all of the library's loggers."""

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
    """Return the fields of a log record, its name among them as `event`."""
    fields: dict[str, Any] = getattr(record, "fields", {})
    return {"event": getattr(record, "event", record.getMessage()), **fields}


def _record_of(
    _: object, __: str, fields: structlog.typing.EventDict
) -> tuple[tuple[str], dict[str, Any]]:
    exc_info, event = fields.pop("exc_info", None), fields.pop("event")
    text = f"{event} {_as_text(None, '', dict(fields))}".rstrip()
    return (text,), {"exc_info": exc_info, "extra": {"event": event, "fields": fields}}
