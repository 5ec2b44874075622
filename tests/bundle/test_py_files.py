"""The zip of the bundle under spark-submit: brokers and executors import the package from it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pyspark
import pytest

from jobs.bundle import Bundle
from sparklog.jars import resolve_jars
from sparklog.java import find_java
from tests.jobs.processes import Client, Cluster, Process

LOCAL_CLUSTER = "local-cluster[2,1,1024]"
"""A master with two workers, whose executors are processes of their own."""


PATIENCE = 300
"""Timeout in seconds: up to five Java processes start on a machine with two cores."""


class Submitted:
    """spark-submit of the bundle, in the environment without the package."""

    def __init__(self, bundle: Bundle, python: Path, cluster: Cluster) -> None:
        self._bundle = bundle
        self._python = python
        self._cluster = cluster

    def start(
        self, *arguments: str | Path, file: Path | None = None, master: str = "local[2]"
    ) -> Process:
        """Submit sparklog-submit.py, or another file, with arguments."""
        jars = ",".join(str(jar) for jar in resolve_jars())
        options = ["--master", master, "--driver-memory", "1g", "--jars", jars]
        options += ["--conf", "spark.ui.enabled=false"]
        options += ["--conf", "spark.driver.host=127.0.0.1"]
        options += ["--conf", "spark.driver.bindAddress=127.0.0.1"]
        options += ["--driver-java-options", "-XX:TieredStopAtLevel=1"]
        # The first job begins when both executors are there.
        options += ["--conf", "spark.scheduler.minRegisteredResourcesRatio=1"]
        options += ["--conf", f"spark.scheduler.maxRegisteredResourcesWaitingTime={PATIENCE}s"]
        options += ["--py-files", str(self._bundle.py_files)]
        application = file or self._bundle.submit
        home = spark_home(self._cluster.folder / "spark")
        command = [
            str(home / "bin" / "spark-submit"),
            *options,
            str(application),
            *map(str, arguments),
        ]
        return self._cluster.start(command, environment(self._python, home))

    def run(
        self, *arguments: str | Path, file: Path | None = None, master: str = "local[2]"
    ) -> Process:
        """Submit, and wait for the end, which must be a success."""
        process = self.start(*arguments, file=file, master=master)
        assert process.popen.wait(PATIENCE) == 0, process.stderr + process.stdout
        return process


def spark_home(folder: Path) -> Path:
    """Return a folder with all of pyspark, in which workers may create their folder `work`."""
    folder.mkdir(exist_ok=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        link = folder / entry.name
        if not link.is_symlink():
            link.symlink_to(entry)
    return folder


def environment(python: Path, home: Path) -> Mapping[str, str]:
    """Return the variables of a machine where only this Python and Java are installed."""
    return {
        **find_java().launch_environment(),
        # A folder that does not exist, since an empty text would be the folder of the checkout.
        "PYTHONPATH": "/nowhere",
        "PYSPARK_PYTHON": str(python),
        "SPARK_HOME": str(home),
    }


@pytest.fixture
def submitted(bundle: Bundle, bare_python: Path, cluster: Cluster) -> Submitted:
    return Submitted(bundle, bare_python, cluster)


def test_the_environment_has_the_dependencies_but_not_the_package(bare_python: Path) -> None:
    code = "import pyspark, deltalake, duckdb, importlib.util as u; print(u.find_spec('sparklog'))"
    answer = subprocess.run(
        [bare_python, "-c", code], cwd="/", env={}, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "None\n"


def test_a_cluster_from_the_zip_does_the_pending_work(
    cluster: Cluster, submitted: Submitted
) -> None:
    """The driver imports the package, its rules and its data from the zip."""
    created = cluster.run("--until-idle")
    assert created.exit_code() == 0, created.stderr
    client = Client(cluster)
    client.create_topic()
    pending = client.send([b"a", b"b"])

    submitted.run("cluster", "--config", cluster.configuration(), "--until-idle")

    assert pending.response is not None
    assert pending.response.error == "NONE"
    assert client.committed() == [b"a", b"b"]
    assert cluster.log(0) == cluster.log(1) == cluster.log(2)


EXECUTORS = """
import json, sys
import sparklog.session

def report(_):
    import os, sparklog
    from sparklog.protocol.rules import rule_names
    yield os.path.abspath(sparklog.__file__), len(rule_names()), os.getcwd()

spark = sparklog.session.spark_session("where is sparklog")
found = spark.sparkContext.parallelize(range(4), 4).mapPartitions(report).collect()
print("found:" + json.dumps(found))
"""


def test_executors_import_the_package_and_the_texts_of_its_rules_from_the_zip(
    submitted: Submitted, bundle: Bundle, tmp_path: Path
) -> None:
    """Each executor has a copy of the zip in a folder of its own."""
    file = tmp_path / "executors.py"
    file.write_text(EXECUTORS)
    process = submitted.run(file=file, master=LOCAL_CLUSTER)
    [line] = [one for one in process.stdout.splitlines() if one.startswith("found:")]
    found = json.loads(line.removeprefix("found:"))
    rules = len(list((Path(__file__).parents[2] / "sparklog").rglob("*.sql")))
    assert {count for _, count, _ in found} == {rules}
    for package, _, folder in found:
        assert package == f"{folder}/{bundle.py_files.name}/sparklog/__init__.py"
    assert len({folder for _, _, folder in found}) == 2


def test_a_table_goes_to_a_topic_and_into_another_table_on_executors(
    cluster: Cluster, submitted: Submitted, tmp_path: Path
) -> None:
    """Tasks of produce and consume run the format sparklog of the zip on executors."""
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    orders = pa.table({"order_id": list(range(1000)), "city": ["Łódź"] * 1000})
    write_deltalake(tmp_path / "orders", orders)
    config = cluster.configuration()
    running = cluster.run()
    Client(cluster).create_topic()

    of_cluster = ["--cluster", str(config)]
    select = ["cast(order_id as string) as key", "to_json(struct(*)) as value"]
    submitted.run(
        *("produce", "t", *of_cluster, f"--from={tmp_path / 'orders'}"),
        *(f"--select={one}" for one in select),
        master=LOCAL_CLUSTER,
    )
    submitted.run(
        *("consume", "t", *of_cluster, f"--to={tmp_path / 'copy'}"),
        f"--checkpoint={tmp_path / 'checkpoint'}",
        "--select=offset",
        "--select=get_json_object(cast(value as string), '$.city') as city",
        master=LOCAL_CLUSTER,
    )

    assert running.popen.poll() is None
    copied = DeltaTable(tmp_path / "copy").to_pyarrow_table().sort_by("offset").to_pydict()
    assert copied == {"offset": list(range(1000)), "city": ["Łódź"] * 1000}


def test_bad_input_is_one_line_and_an_exit_code(submitted: Submitted) -> None:
    process = submitted.start("topics", "list", "--cluster", "/nowhere/cluster")
    assert process.exit_code() == 2
    told = [one for one in process.stdout.splitlines() if one.startswith("sparklog: ")]
    assert len(told) == 1
