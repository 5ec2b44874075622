"""Fixtures of the rules' tests: the engines of this process; `test_engines` compares Spark's
results.
"""

from __future__ import annotations

import pytest

from sparklog.protocol.rules import DuckDBRules, Rules
from sparklog.protocol.sqlite_rules import SQLiteRules


@pytest.fixture(scope="session", params=[DuckDBRules, SQLiteRules], ids=["duckdb", "sqlite"])
def rules(request: pytest.FixtureRequest) -> Rules:
    """The rules on each engine that runs in this process."""
    engine: Rules = request.param()
    return engine
