"""Runs the protocol's rules in this process: few rows on SQLite, more on DuckDB."""

from __future__ import annotations

import sqlite3
from typing import Any

from sparklog.logger import get_logger
from sparklog.protocol.rules import DuckDBRules, RuleInput
from sparklog.protocol.sqlite_rules import SQLiteRules

_log = get_logger(__name__)

FEW_ROWS = 60
"""Maximum number of rows in all inputs of a run on SQLite."""


class DriverRules:
    """Runs rules where they are fastest: on SQLite, or on DuckDB (decision 23)."""

    def __init__(self) -> None:
        self._few = SQLiteRules()
        self._many = DuckDBRules()
        self._not_on_sqlite: set[str] = set()

    def run(self, name: str, **inputs: RuleInput) -> list[dict[str, Any]]:
        """Run a rule; see `Rules.run`."""
        rows = sum(map(len, inputs.values()))
        if rows <= FEW_ROWS and name not in self._not_on_sqlite:
            try:
                return self._few.run(name, **inputs)
            except sqlite3.NotSupportedError as error:
                # Python may come with an old SQLite.
                self._not_on_sqlite.add(name)
                _log.info("rule not run on SQLite", rule=name, error=str(error))
            except sqlite3.Error as error:
                # A number has overflowed; DuckDB knows larger ones, or refuses it.
                _log.debug("rule failed on SQLite", rule=name, error=str(error))
        return self._many.run(name, **inputs)
