"""Fixtures of the state machine's tests: the brokers' warnings are not logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from sparklog.logger import ROOT


@pytest.fixture(autouse=True)
def _without_logs() -> Iterator[None]:
    logger = logging.getLogger(ROOT)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
