"""The library's events go to Python's logging, and by default they are printed nowhere."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from sparklog.errors import SparklogError
from sparklog.logger import event_of, get_logger


def test_an_event_is_a_line_for_people_and_its_fields_for_handlers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An event is one readable line, and handlers get its fields."""
    with caplog.at_level(logging.INFO, "sparklog"):
        get_logger("sparklog.broker.test").info("broker fenced", broker=0, reason="100 % silent")
    [record] = caplog.records
    assert record.getMessage() == 'broker fenced broker=0 reason="100 % silent"'
    assert record.name == "sparklog.broker.test"
    assert event_of(record) == {"event": "broker fenced", "broker": 0, "reason": "100 % silent"}


def test_an_exception_goes_along(caplog: pytest.LogCaptureFixture) -> None:
    """An exception is part of the log record."""
    error = SparklogError("no")
    get_logger("sparklog.test").error("failed", exc_info=error)
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_below_the_level_nothing_is_made_of_an_event(caplog: pytest.LogCaptureFixture) -> None:
    """Below the level an event is not formatted."""

    class Unprintable:
        def __str__(self) -> str:
            raise AssertionError("nobody wants to see this")

    with caplog.at_level(logging.WARNING, "sparklog"):
        get_logger("sparklog.test").info("event", value=Unprintable())
    assert caplog.records == []


def _printed(code: str) -> tuple[str, str]:
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return answer.stdout, answer.stderr


_EVENT = "from sparklog.logger import get_logger\nget_logger('sparklog.x').warning('fenced', a=1)\n"


def test_a_user_who_has_not_asked_for_events_sees_none() -> None:
    """Without any logging configuration no event is printed."""
    assert _printed(_EVENT) == ("", "")


def test_the_applications_print_events_as_json_on_standard_error() -> None:
    code = "from sparklog.cli.application import configure_logging\nconfigure_logging('info')\n"
    out, err = _printed(code + _EVENT)
    event = json.loads(err)
    assert event.pop("timestamp")
    assert (out, event) == ("", {"event": "fenced", "a": 1, "level": "warning"})
