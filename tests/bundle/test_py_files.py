"""The zip of the bundle under spark-submit: the driver imports the package from it.

`test_executors.py` has the tests of the zip on executors.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jobs.bundle import Bundle
from tests.bundle.submitting import Submitter
from tests.jobs.processes import Client, Cluster


@pytest.fixture
def submitter(bundle: Bundle, bare_python: Path, cluster: Cluster) -> Submitter:
    """The bundle's files, submitted beside the processes of the cluster."""
    return Submitter(bundle, bare_python, cluster)


def test_the_environment_has_the_dependencies_but_not_the_package(bare_python: Path) -> None:
    code = "import pyspark, deltalake, duckdb, importlib.util as u; print(u.find_spec('sparklog'))"
    answer = subprocess.run(
        [bare_python, "-c", code], cwd="/", env={}, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "None\n"


def test_a_cluster_from_the_zip_does_the_pending_work(
    cluster: Cluster, submitter: Submitter
) -> None:
    """The driver imports the package, its rules and its data from the zip."""
    created = cluster.run("--until-idle")
    assert created.exit_code() == 0, created.stderr
    client = Client(cluster)
    client.create_topic()
    pending = client.send([b"a", b"b"])

    submitter.run("cluster", "--config", cluster.configuration(), "--until-idle")

    assert pending.response is not None
    assert pending.response.error == "NONE"
    assert client.committed() == [b"a", b"b"]
    assert cluster.log(0) == cluster.log(1) == cluster.log(2)


def test_bad_input_is_one_line_and_an_exit_code(submitter: Submitter) -> None:
    process = submitter.start("topics", "list", "--cluster", "/nowhere/cluster")
    assert process.exit_code() == 2
    told = [one for one in process.stdout.splitlines() if one.startswith("sparklog: ")]
    assert len(told) == 1
