"""The engines on which the rules' facts are shown; `test_engines` shows that Spark agrees."""

from __future__ import annotations

import pytest

from sparklog.protocol.rules import DuckDBRules, Rules
from sparklog.protocol.sqlite_rules import SQLiteRules


@pytest.fixture(scope="session", params=[DuckDBRules, SQLiteRules], ids=["duckdb", "sqlite"])
def rules(request: pytest.FixtureRequest) -> Rules:
    """The rules on each engine that runs in this process."""
    engine: Rules = request.param()
    return engine
