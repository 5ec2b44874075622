"""The engine that runs the rules: heads, checks of inputs and outputs, threads (`rules.py`)."""

from __future__ import annotations

import re
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
    RowTuples,
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
    """A head describes the rule in words, with rule numbers, and declares its tables."""
    assert len(rule_names()) >= 20
    for name in rule_names():
        text = rule(name).text
        statement = text[: text.index("-- takes")]
        assert any(character.isdigit() for character in statement), name
        assert all(len(line) <= 100 for line in text.splitlines()), name


def test_a_head_declares_tables_columns_types_and_nulls() -> None:
    """A list continues in indented lines; a question mark allows nulls; prose is ignored."""
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


def test_a_list_may_begin_below_its_head() -> None:
    below = TEXT.replace("takes rows: a int, b", "takes rows:\n--   a int,\n--   b")
    assert parse_rule("made_up", below)[2:] == parse_rule("made_up", TEXT)[2:]


def crowded_lists(text: str) -> list[str]:
    """Return the lists in a head of more than eight columns that have not one column a line."""
    heads = re.findall(r"^-- (takes \w+|gives):(.*(?:\n--   .*)*)", text, re.MULTILINE)
    return [
        head
        for head, columns in heads
        if columns.count(",") + 1 > 8 and not re.fullmatch(r"(\n--   \w+ \w+\??,?)+", columns)
    ]


def test_a_long_list_of_a_head_has_one_column_a_line() -> None:
    for name in rule_names():
        assert crowded_lists(rule(name).text) == [], name


def test_a_crowded_list_is_found() -> None:
    names = [f"c{number} int" for number in range(9)]
    below, beside = ",\n--   ".join(names), ", ".join(names)
    assert crowded_lists(f"-- takes t: {', '.join(names[1:])}\n-- gives: a int\n") == []
    assert crowded_lists(f"-- takes t:\n--   {below}\n-- gives: a int\n") == []
    assert crowded_lists(f"-- takes t: {beside}\n-- gives: a int\n") == ["takes t"]
    assert crowded_lists(f"-- takes t: a int\n-- gives: {below}\n") == ["gives"]
    assert crowded_lists(f"-- takes t:\n--   {beside}\n-- gives: a int\n") == ["takes t"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("a boolean", "a bool", "'a bool' for a column", id="an unknown type"),
        pytest.param("a boolean", "a", "'a' for a column", id="no type"),
        pytest.param("takes others: a boolean", "takes others:", "'' for a column", id="no list"),
        pytest.param("  c string", "c string", "'' for a column", id="a line not indented"),
        pytest.param("takes others", "takes rows", "table rows twice", id="a table twice"),
        pytest.param("-- gives: a int, b bigint?\n", "", "one line `gives`", id="no output"),
        pytest.param("takes others", "gives", "one line `gives`", id="two outputs"),
        pytest.param("takes", "wants", "must have lines `takes`", id="no input"),
    ],
)
def test_a_head_of_another_form_is_refused(old: str, new: str, message: str) -> None:
    """The error is one sentence with the rule's name."""
    with pytest.raises(RuleError, match=message) as refusal:
        parse_rule("made_up", TEXT.replace(old, new))
    assert "made_up" in str(refusal.value)


def test_an_unknown_rule_is_refused(rules: Rules) -> None:
    """The message names the existing rules."""
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
            {"operations": [OPERATION | {"now_ms": "soon"}]}, "does not have the type", id="a text"
        ),
        pytest.param(
            {"operations": [OPERATION | {"now_ms": 2**63}]},
            "does not have the type",
            id="a huge number",
        ),
        pytest.param(
            {"operations": pa.Table.from_pylist([OPERATION | {"now_ms": "soon"}])},
            "does not have the type",
            id="a text in an Arrow table",
        ),
    ],
)
def test_a_wrong_input_is_refused(rules: Rules, inputs: dict[str, Any], message: str) -> None:
    """A missing column is not treated as null, and a null is not treated as a value."""
    with pytest.raises(RuleError, match=message) as refusal:
        rules.run("expired_operations", **inputs)
    assert "expired_operations" in str(refusal.value)


def test_rows_and_arrow_tables_are_taken_alike(rules: Rules) -> None:
    """Additional columns are ignored, and narrower integers are widened."""
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


def test_rows_are_taken_as_tuples(rules: Rules) -> None:
    """Columns may have any order; a missing column and values of other types are refused."""
    names = ("more", "now_ms", "operation_id", "deadline_ms")
    rows = RowTuples(names, [("x", 6, "o", 5), ("y", 6, "p", 7)])
    assert len(rows) == 2
    assert [row["operation_id"] for row in rows] == ["o", "p"]
    assert rules.run("expired_operations", operations=rows) == EXPIRED
    assert rules.run("expired_operations", operations=RowTuples(names, [])) == []
    with pytest.raises(RuleError, match="the column deadline_ms is missing"):
        rules.run("expired_operations", operations=RowTuples(names[:-1], [("x", 6, "o")]))
    with pytest.raises(RuleError, match="does not have the type of the rule"):
        rules.run("expired_operations", operations=RowTuples(names, [("x", "now", "o", 5)]))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> dict[str, Rule]:
    """Return rules that a test defines, by name."""
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
    """A text whose rows differ from its head is a programming error."""
    made_up["made_up"] = parse_rule("made_up", TEXT.replace("select a, b from rows", query))
    rows = [{"a": 1, "b": None, "c": "x"}]
    with pytest.raises(RuleError, match=message):
        rules.run("made_up", rows=rows, others=[])


def test_a_text_reads_nothing_but_its_inputs(rules: Rules, made_up: dict[str, Rule]) -> None:
    """DuckDB would use a Python variable as a table of its name."""
    text = TEXT.replace("select a, b from rows", "select a, b from of_rule, checked, inputs")
    made_up["made_up"] = parse_rule("made_up", text)
    with pytest.raises((duckdb.CatalogException, sqlite3.NotSupportedError)):
        rules.run("made_up", rows=[], others=[])


def test_a_failed_run_leaves_nothing_behind(rules: Rules, made_up: dict[str, Rule]) -> None:
    """The next rule does not see the tables of the failed run."""
    made_up["bad"] = parse_rule("bad", TEXT.replace("select a,", "select nonsense as a,"))
    made_up["curious"] = parse_rule("curious", TEXT.replace("rows: a", "other_rows: a"))
    rows = [{"a": 1, "b": None, "c": "x"}]
    with pytest.raises((duckdb.BinderException, sqlite3.NotSupportedError)):
        rules.run("bad", rows=rows, others=[])
    with pytest.raises((duckdb.CatalogException, sqlite3.NotSupportedError)):
        rules.run("curious", other_rows=rows, others=[])


def test_rows_of_a_failed_run_are_not_seen_by_the_next(made_up: dict[str, Rule]) -> None:
    """SQLite keeps its tables between runs."""
    rules = SQLiteRules()
    text = TEXT.replace("select a, b from rows", "select a, abs(b) as b from rows")
    made_up["made_up"] = parse_rule("made_up", text)
    with pytest.raises(sqlite3.Error, match="integer overflow"):
        rules.run("made_up", rows=[{"a": 1, "b": -(2**63), "c": "x"}], others=[])
    rows = [{"a": 2, "b": -3, "c": "x"}]
    assert rules.run("made_up", rows=rows, others=[]) == [{"a": 2, "b": 3}]


def test_remainders_have_the_sign_of_the_dividend(rules: Rules, made_up: dict[str, Rule]) -> None:
    """Python's remainders have the sign of the divisor. `greatest` and `least` ignore nulls."""
    query = "select mod(a, 3) as a, greatest(least(b, 5), a) as b from rows"
    made_up["made_up"] = parse_rule("made_up", TEXT.replace("select a, b from rows", query))
    rows = [{"a": a, "b": b, "c": "x"} for a, b in ((-4, None), (4, 7), (-3, -9))]
    expected = [{"a": -1, "b": 5}, {"a": 1, "b": 5}, {"a": 0, "b": -3}]
    assert rules.run("made_up", rows=rows, others=[]) == expected


def test_few_rows_go_to_sqlite_and_more_to_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of all inputs are counted together; a text that SQLite cannot run runs on DuckDB."""
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
    """Only that run goes to DuckDB: the next one goes to SQLite again."""
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
    """Python may have an old SQLite."""
    query = "select cast(list_sum([a, 1]) as int) as a, b from rows"
    made_up["made_up"] = parse_rule("made_up", TEXT.replace("select a, b from rows", query))
    rules = DriverRules()
    rows = [{"a": 1, "b": None, "c": "x"}]
    for _ in range(2):
        assert rules.run("made_up", rows=rows, others=[]) == [{"a": 2, "b": None}]
    assert rules._not_on_sqlite == {"made_up"}


def run_in_threads(rules: Rules, threads: int, runs: int) -> list[list[dict[str, Any]]]:
    """Run one rule in several threads at once, each with its own rows; return all results."""
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
    """Brokers of one process tick in parallel."""
    results = run_in_threads(rules, threads=4, runs=25)
    found = [row["operation_id"] for rows in results for row in rows]
    assert sorted(found) == sorted(f"{one}/{run}" for one in range(4) for run in range(25))


def test_threads_do_not_see_each_others_rows_on_spark(spark: SparkSession) -> None:
    """View names are global to the session, so each run uses names of its own."""
    results = run_in_threads(SparkRules(spark), threads=2, runs=3)
    found = [row["operation_id"] for rows in results for row in rows]
    assert sorted(found) == sorted(f"{one}/{run}" for one in range(2) for run in range(3))


def test_the_users_views_are_left_alone_on_spark(spark: SparkSession) -> None:
    """A session may have a view with the name of a rule's table; it is neither read nor dropped."""
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
    """The checks are the same for all engines; a failed run leaves no view."""
    rules = SparkRules(spark)
    with pytest.raises(RuleError, match="deadline_ms is missing"):
        rules.run("expired_operations", operations=[{"operation_id": "o", "now_ms": 6}])
    query = "select cast(null as int) as a, b from rows"
    made_up["made_up"] = parse_rule("made_up", TEXT.replace("select a, b from rows", query))
    with pytest.raises(RuleError, match="a is null"):
        rules.run("made_up", rows=[{"a": 1, "b": None, "c": "x"}], others=[])
    assert not [one for one in spark.catalog.listTables() if one.name.startswith("sparklog_")]
