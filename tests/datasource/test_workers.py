"""Imports of Spark's Python workers: few modules, and never a session."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pyspark
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_sparklog import DefaultSource
from sparklog.datasource.columns import arrow_schema
from sparklog.errors import ConfigError, show_in_one_line
from sparklog.java import find_java
from tests.datasource.conftest import Readable

ROOT = Path(__file__).parents[2]
FILES = [*(ROOT / "sparklog/datasource").glob("*.py"), *(ROOT / "pyspark_sparklog").glob("*.py")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_reader_can_start_a_second_spark(file: Path) -> None:
    """`getOrCreate` in a worker would start one silently; a native read gets its session as an
    argument.
    """
    names = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Attribute, ast.Name))
    }
    assert not names & {"getOrCreate", "getActiveSession", "spark_session", "SparkContext"}


def test_the_search_for_the_format_costs_other_programs_next_to_nothing() -> None:
    """Spark imports every module whose name begins with pyspark_ at the first use of a Python
    source.
    """
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_sparklog;"
        "print(*sorted(name for name in set(sys.modules) - before))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["pyspark_sparklog", "pyspark_sparklog.from_files"]


def test_a_task_imports_no_rules_engine_and_no_metadata() -> None:
    """A task imports neither the rules engine nor the broker."""
    code = (
        "import sys, sparklog.datasource.read_task;"
        "print(*sorted(name for name in sys.modules if name.startswith(('duckdb', 'sparklog'))))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = answer.stdout.split()
    assert "sparklog.datasource.read_task" in loaded
    assert not [name for name in loaded if name.startswith(("duckdb", "sparklog.broker"))]
    assert "sparklog.protocol" not in loaded


PROGRAM = """
import sys
from pyspark.sql import SparkSession

frame = SparkSession.builder.getOrCreate().read.format("sparklog")
rows = frame.option("cluster", sys.argv[1]).option("subscribe", "t").load().collect()
print([bytes(row.value).decode() for row in rows])
"""


def test_a_plain_program_under_spark_submit_finds_the_format(
    readable: Readable, tmp_path: Path
) -> None:
    """It names no package, registers nothing, and imports nothing of sparklog."""
    readable.create_topic("t")
    readable.produce("t", b"a", b"b")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    of_spark = ["--master", "local[1]", "--driver-memory", "1g", "--conf", "spark.ui.enabled=false"]
    environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    answer = subprocess.run(
        [submit, *of_spark, program, readable.root],
        cwd=tmp_path,
        env=os.environ | find_java().launch_environment() | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout.splitlines()[-1:] == ["['a', 'b']"], answer.stderr


def test_a_query_with_a_schema_of_its_own_is_searched_for_secrets() -> None:
    """Found by a search of Spark's outputs: `schema`, which found them, is not called then."""
    secret = '{"s3://logs": {"AWS_SECRET_ACCESS_KEY": "hush-hush"}}'
    source = DefaultSource({"cluster": "s3://logs/c", "subscribe": "t", "storageOptions": secret})
    schema = from_arrow_schema(arrow_schema(include_headers=False))
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY of s3://logs is a secret"):
        source.reader(schema)
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY of s3://logs is a secret"):
        source.streamReader(schema).initialOffset()


def test_an_error_of_a_program_keeps_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Spark's Python workers, which end with the error that they report, hide stacks."""
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    with pytest.raises(ConfigError, match="option cluster is missing"):
        DefaultSource({}).schema()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pyspark.daemon", None))
    show_in_one_line(ValueError("a fault of the program"))
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    show_in_one_line(ConfigError("a fault of the user"))
    assert os.environ.pop("SPARK_HIDE_TRACEBACK") == "1"
