"""The engine on which the rules' facts are shown; `test_engines` shows that Spark agrees."""

from __future__ import annotations

import pytest

from sparklog.protocol.rules import DuckDBRules, Rules


@pytest.fixture(scope="session")
def rules() -> Rules:
    """The rules on DuckDB."""
    return DuckDBRules()
