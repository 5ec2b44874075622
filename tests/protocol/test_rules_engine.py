"""What runs the rules: heads, checks of what goes in and comes out, threads (`rules.py`)."""

from __future__ import annotations

import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from sparklog.protocol import rules as rules_module
from sparklog.protocol import sqlite_rules
from sparklog.protocol.driver_rules import FEW_ROWS, DriverRules
from sparklog.protocol.rules import (
    DuckDBRules,
    Rule,
    RuleError,
    Rules,
    SparkRules,
    parse_rule,
    rule,
    rule_names,
)
from sparklog.protocol.sqlite_rules import SQLiteRules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPERATION = {"operation_id": "o", "deadline_ms": 5, "now_ms": 6}
EXPIRED = [{"operation_id": "o", "error": "REQUEST_TIMED_OUT"}]

TEXT = """\
-- What it states, and that it takes nothing for granted: int, bigint.
-- takes rows: a int, b bigint?,
--   c string
-- takes others: a boolean
-- gives: a int, b bigint?
select a, b from rows
"""


def test_every_rule_states_itself_in_its_head() -> None:
    """A head says in words what the rule states, with rule numbers, and declares its tables."""
    assert len(rule_names()) >= 20
    for name in rule_names():
        text = rule(name).text
        statement = text[: text.index("-- takes")]
        assert any(character.isdigit() for character in statement), name
        assert all(len(line) <= 100 for line in text.splitlines()), name


def test_a_head_declares_tables_columns_types_and_nulls() -> None:
    """A list goes on in indented lines; a question mark allows nulls; prose is left alone."""
    parsed = parse_rule("made_up", TEXT)
    assert list(parsed.takes) == ["rows", "others"]
    assert parsed.takes["rows"] == pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False),
            pa.field("b", pa.int64()),
            pa.field("c", pa.string(), nullable=False),
        ]
    )
    assert parsed.takes["others"] == pa.schema([pa.field("a", pa.bool_(), nullable=False)])
    assert parsed.gives.names == ["a", "b"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("a boolean", "a bool", "'a bool' for a column", id="an unknown type"),
        pytest.param("a boolean", "a", "'a' for a column", id="no type"),
        pytest.param("  c string", "c string", "'' for a column", id="a line not indented"),
        pytest.param("takes others", "takes rows", "table rows twice", id="a table twice"),
        pytest.param("-- gives: a int, b bigint?\n", "", "once what it gives", id="no output"),
        pytest.param("takes others", "gives", "once what it gives", id="two outputs"),
        pytest.param("takes", "wants", "must say what it takes", id="no input"),
    ],
)
def test_a_head_of_another_form_is_refused(old: str, new: str, message: str) -> None:
    """One clear sentence, with the rule's name."""
    with pytest.raises(RuleError, match=message) as refusal:
        parse_rule("made_up", TEXT.replace(old, new))
    assert "made_up" in str(refusal.value)


def test_an_unknown_rule_is_refused(rules: Rules) -> None:
    """The message names those that there are."""
    with pytest.raises(RuleError, match=r"no rule high_water: .*high_watermark"):
        rules.run("high_water")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        pytest.param({}, r"takes \['operations'\], but was given \[\]", id="no table"),
        pytest.param({"rows": []}, r"was given \['rows'\]", id="another table"),
        pytest.param(
            {"operations": [], "rows": []}, r"given \['operations', 'rows'\]", id="one more table"
        ),
        pytest.param(
            {"operations": [{"operation_id": "o", "now_ms": 6}]},
            "table operations: the column deadline_ms is missing",
            id="no such column",
        ),
        pytest.param(
            {"operations": [OPERATION, {"operation_id": "p", "now_ms": 6}]},
            "the column deadline_ms is missing",
            id="no such column in a later row",
        ),
        pytest.param(
            {"operations": pa.table({"operation_id": ["o"], "now_ms": [6]})},
            "the column deadline_ms is missing",
            id="no such column in an Arrow table",
        ),
        pytest.param({"operations": [OPERATION | {"now_ms": None}]}, "now_ms is null", id="a null"),
        pytest.param(
            {"operations": pa.Table.from_pylist([OPERATION, OPERATION | {"now_ms": None}])},
            "now_ms is null",
            id="a null in an Arrow table",
        ),
        pytest.param(
            {"operations": [OPERATION | {"now_ms": "soon"}]}, "has not the type", id="a text"
        ),
        pytest.param(
            {"operations": [OPERATION | {"now_ms": 2**63}]}, "has not the type", id="a huge number"
        ),
        pytest.param(
            {"operations": pa.Table.from_pylist([OPERATION | {"now_ms": "soon"}])},
            "has not the type",
            id="a text in an Arrow table",
        ),
    ],
)
def test_a_wrong_input_is_refused(rules: Rules, inputs: dict[str, Any], message: str) -> None:
    """Missing columns are never taken for nulls, nor nulls for values."""
    with pytest.raises(RuleError, match=message) as refusal:
        rules.run("expired_operations", **inputs)
    assert "expired_operations" in str(refusal.value)


def test_rows_and_arrow_tables_are_taken_alike(rules: Rules) -> None:
    """Further columns are left out, narrower integers widened."""
    assert rules.run("expired_operations", operations=[OPERATION | {"more": 1}]) == EXPIRED
    narrow = pa.table(
        {
            "now_ms": pa.array([6], pa.int16()),
            "more": ["x"],
            "operation_id": ["o"],
            "deadline_ms": [5],
        }
    )
    assert rules.run("expired_operations", operations=narrow) == EXPIRED


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> dict[str, Rule]:
    """Rules that a test makes up, by name."""
    made: dict[str, Rule] = {}
    for module in (rules_module, sqlite_rules):
        monkeypatch.setattr(module, "rule", lambda name: made.get(name) or rule(name))
    return made


@pytest.mark.parametrize(
    ("query", "message"),
    [
        pytest.param("select a as c, b from rows", r"gives \['c', 'b'\]", id="another column"),
        pytest.param("select b, a from rows", r"gives \['b', 'a'\]", id="another order"),
        pytest.param("select a from rows", r"gives \['a'\]", id="a column less"),
        pytest.param("select cast(null as int) as a, b from rows", "a is null", id="a null"),
    ],
)
def test_a_wrong_output_is_refused(
    rules: Rules, made_up: dict[str, Rule], query: str, message: str
) -> None:
    """A text that does not give what its head says is a programmer's fault."""
    made_up["made_up"] = parse_rule("made_up", TEXT.replace("select a, b from rows", query))
    rows = [{"a": 1, "b": None, "c": "x"}]
    with pytest.raises(RuleError, match=message):
        rules.run("made_up", rows=rows, others=[])


def test_a_text_reads_nothing_but_its_inputs(rules: Rules, made_up: dict[str, Rule]) -> None:
    """DuckDB would take a Python variable for a table of its name."""
    text = TEXT.replace("select a, b from rows", "select a, b from of_rule, checked, inputs")
    made_up["made_up"] = parse_rule("made_up", text)
    with pytest.raises((duckdb.CatalogException, sqlite3.NotSupportedError)):
        rules.run("made_up", rows=[], others=[])


def test_a_failed_run_leaves_nothing_behind(rules: Rules, made_up: dict[str, Rule]) -> None:
    """The next rule does not see the tables of the one that failed."""
    made_up["bad"] = parse_rule("bad", TEXT.replace("select a,", "select nonsense as a,"))
    made_up["curious"] = parse_rule("curious", TEXT.replace("rows: a", "other_rows: a"))
    rows = [{"a": 1, "b": None, "c": "x"}]
    with pytest.raises((duckdb.BinderException, sqlite3.NotSupportedError)):
        rules.run("bad", rows=rows, others=[])
    with pytest.raises((duckdb.CatalogException, sqlite3.NotSupportedError)):
        rules.run("curious", other_rows=rows, others=[])


def test_rows_of_a_failed_run_are_not_seen_by_the_next(made_up: dict[str, Rule]) -> None:
    """SQLite keeps its tables from run to run."""
    rules = SQLiteRules()
    text = TEXT.replace("select a, b from rows", "select a, abs(b) as b from rows")
    made_up["made_up"] = parse_rule("made_up", text)
    with pytest.raises(sqlite3.Error, match="integer overflow"):
        rules.run("made_up", rows=[{"a": 1, "b": -(2**63), "c": "x"}], others=[])
    rows = [{"a": 2, "b": -3, "c": "x"}]
    assert rules.run("made_up", rows=rows, others=[]) == [{"a": 2, "b": 3}]


def test_remainders_have_the_sign_of_the_dividend(rules: Rules, made_up: dict[str, Rule]) -> None:
    """Python gives remainders the sign of the divisor. `greatest` and `least` pass over nulls."""
    query = "select mod(a, 3) as a, greatest(least(b, 5), a) as b from rows"
    made_up["made_up"] = parse_rule("made_up", TEXT.replace("select a, b from rows", query))
    rows = [{"a": a, "b": b, "c": "x"} for a, b in ((-4, None), (4, 7), (-3, -9))]
    expected = [{"a": -1, "b": 5}, {"a": 1, "b": 5}, {"a": 0, "b": -3}]
    assert rules.run("made_up", rows=rows, others=[]) == expected


def test_few_rows_go_to_sqlite_and_more_to_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of all inputs count together; a text that SQLite cannot run goes to DuckDB."""
    engines: list[type] = []

    def note(engine: Any) -> None:
        run = engine.run

        def noted(self: Rules, name: str, **inputs: Any) -> Any:
            engines.append(engine)
            return run(self, name, **inputs)

        monkeypatch.setattr(engine, "run", noted)

    note(SQLiteRules)
    note(DuckDBRules)
    rules = DriverRules()
    few = [OPERATION | {"operation_id": str(number)} for number in range(FEW_ROWS)]
    assert len(rules.run("expired_operations", operations=few)) == FEW_ROWS
    assert len(rules.run("expired_operations", operations=[*few, OPERATION])) == FEW_ROWS + 1
    assert engines == [SQLiteRules, DuckDBRules]


def test_a_number_that_overflows_on_sqlite_is_left_to_duckdb(made_up: dict[str, Rule]) -> None:
    """Only that run: the next one goes to SQLite again."""
    query = "select a, cast(sum(b) over () - 9223372036854775807 as bigint) as b from rows"
    made_up["made_up"] = parse_rule("made_up", TEXT.replace("select a, b from rows", query))
    rules = DriverRules()
    large = [{"a": a, "b": 2**63 - 1, "c": "x"} for a in (1, 2)]
    with pytest.raises(sqlite3.Error, match="overflow"):
        SQLiteRules().run("made_up", rows=large, others=[])
    found = rules.run("made_up", rows=large, others=[])
    assert [row["b"] for row in found] == [2**63 - 1] * 2
    assert rules._not_on_sqlite == set()


def test_a_text_that_sqlite_lacks_is_run_on_duckdb(
    made_up: dict[str, Rule],
) -> None:
    """Python may come with an old SQLite."""
    query = "select cast(list_sum([a, 1]) as int) as a, b from rows"
    made_up["made_up"] = parse_rule("made_up", TEXT.replace("select a, b from rows", query))
    rules = DriverRules()
    rows = [{"a": 1, "b": None, "c": "x"}]
    for _ in range(2):
        assert rules.run("made_up", rows=rows, others=[]) == [{"a": 2, "b": None}]
    assert rules._not_on_sqlite == {"made_up"}


def run_in_threads(rules: Rules, threads: int, runs: int) -> list[list[dict[str, Any]]]:
    """Run one rule in several threads at once, each with rows of its own; return all results."""
    results: list[list[dict[str, Any]]] = []
    start = threading.Barrier(threads)

    def work(thread: int) -> None:
        start.wait()
        for run in range(runs):
            operation = OPERATION | {"operation_id": f"{thread}/{run}"}
            results.append(rules.run("expired_operations", operations=[operation]))

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


def test_threads_do_not_see_each_others_rows(rules: Rules) -> None:
    """Brokers of one process tick side by side."""
    results = run_in_threads(rules, threads=4, runs=25)
    found = [row["operation_id"] for rows in results for row in rows]
    assert sorted(found) == sorted(f"{one}/{run}" for one in range(4) for run in range(25))


def test_threads_do_not_see_each_others_rows_on_spark(spark: SparkSession) -> None:
    """View names are the session's, so each run takes names of its own."""
    results = run_in_threads(SparkRules(spark), threads=2, runs=3)
    found = [row["operation_id"] for rows in results for row in rows]
    assert sorted(found) == sorted(f"{one}/{run}" for one in range(2) for run in range(3))


def test_the_users_views_are_left_alone_on_spark(spark: SparkSession) -> None:
    """A session may have a view of a rule's table's name; it is neither read nor dropped."""
    spark.range(3).createOrReplaceTempView("operations")
    try:
        assert SparkRules(spark).run("expired_operations", operations=[OPERATION]) == EXPIRED
        assert spark.table("operations").count() == 3
        views = [one.name for one in spark.catalog.listTables() if one.isTemporary]
        assert [name for name in views if name.startswith("sparklog_")] == []
    finally:
        spark.catalog.dropTempView("operations")


def test_wrong_inputs_and_outputs_are_refused_on_spark_alike(
    spark: SparkSession, made_up: dict[str, Rule]
) -> None:
    """The checks are the same whatever the engine; a failed run leaves no view."""
    rules = SparkRules(spark)
    with pytest.raises(RuleError, match="deadline_ms is missing"):
        rules.run("expired_operations", operations=[{"operation_id": "o", "now_ms": 6}])
    query = "select cast(null as int) as a, b from rows"
    made_up["made_up"] = parse_rule("made_up", TEXT.replace("select a, b from rows", query))
    with pytest.raises(RuleError, match="a is null"):
        rules.run("made_up", rows=[{"a": 1, "b": None, "c": "x"}], others=[])
    assert not [one for one in spark.catalog.listTables() if one.name.startswith("sparklog_")]
