"""Every reachable state within the quick bounds holds the invariants, and the shipped SQL takes
every decision of the model equally, on all engines.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sparklog.protocol.rules import DuckDBRules, SparkRules
from sparklog.protocol.sqlite_rules import SQLiteRules
from tests.model.configurations import FULL, QUICK
from tests.model.explore import RESULTS, bounds_of
from tests.model.explorer import explore
from tests.model.replay import QUESTIONS, Case, collected_cases, differences, forget_cases
from tests.model.story import told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# One process explores, for all engines.
pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    """The distinct decisions of all quick explorations, each of which is complete and without
    violation.
    """
    forget_cases()
    for name, setting in QUICK.items():
        found = explore(setting)
        assert found.violation is None, f"{name}\n{told(found.violation)}"
        assert found.is_complete
        recorded = json.loads(RESULTS.read_text(encoding="utf-8"))[name]
        counts = {"states": found.states, "transitions": found.transitions, "depth": found.depth}
        assert counts.items() <= recorded.items(), f"{name}: run `make explore` again"
    return collected_cases()


def test_the_results_written_down_are_of_these_bounds_and_clean() -> None:
    """explored.json is written by `make explore`; after other changes it has to be run again."""
    every = {**QUICK, **FULL}
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert results.keys() >= QUICK.keys()
    for name, result in results.items():
        assert result["bounds"] == bounds_of(every[name]), name
        assert result["broken"] is None, name


def test_every_reachable_state_holds_the_invariants(cases: dict[str, list[Case]]) -> None:
    """9.1-9.7 in every state within the quick bounds; and every decision was taken at least
    once.
    """
    assert all(cases[name] for name in QUESTIONS)


@pytest.mark.parametrize("name", QUESTIONS)
def test_duckdb_decides_as_the_model_did(name: str, cases: dict[str, list[Case]]) -> None:
    """The rules on DuckDB decide every case like the model."""
    assert differences(DuckDBRules(), name, cases[name]) == []


@pytest.mark.parametrize("name", QUESTIONS)
def test_sqlite_decides_as_the_model_did(name: str, cases: dict[str, list[Case]]) -> None:
    """The rules on SQLite decide every case like the model."""
    assert differences(SQLiteRules(), name, cases[name]) == []


@pytest.mark.parametrize("name", QUESTIONS)
def test_spark_decides_as_the_model_did(
    name: str, cases: dict[str, list[Case]], spark: SparkSession
) -> None:
    """The rules on Spark decide every case like the model."""
    assert differences(SparkRules(spark), name, cases[name]) == []
