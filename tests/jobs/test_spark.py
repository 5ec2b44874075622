"""The jobs on Spark: started by `python -m` and by spark-submit, and their ends."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pyspark
import pytest

from sparklog.jars import resolve_jars
from sparklog.java import find_java
from sparklog.model import BROKERS
from tests.jobs.processes import ROOT, Client, Cluster, Process, wait_for

PARKED = {0: "parked", 1: "parked", 2: "parked"}


def states(cluster: Cluster) -> dict[int, str]:
    return {row["broker_id"]: row["state"] for row in cluster.rows(BROKERS)}


def spark_submit(cluster: Cluster, *options: str) -> Process:
    """Submit jobs/cluster.py as README describes."""
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    jars = ",".join(str(jar) for jar in resolve_jars())
    of_spark = ["--master", "local[2]", "--driver-memory", "1g", "--jars", jars]
    of_spark += ["--conf", "spark.ui.enabled=false"]
    of_spark += ["--driver-java-options", "-XX:TieredStopAtLevel=1"]
    job = [str(ROOT / "jobs" / "cluster.py"), "--config", str(cluster.configuration()), *options]
    return cluster.start(
        [submit, *of_spark, *job],
        find_java().launch_environment()
        | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
    )


def test_a_signal_parks_a_resident_cluster_on_spark_though_spark_has_a_handler_of_its_own(
    cluster: Cluster,
) -> None:
    """A signal parks a resident cluster on Spark, which has a signal handler of its own."""
    process = cluster.run(with_spark=True)
    process.wait_for_event("broker started")
    client = Client(cluster)
    client.create_topic()
    assert [client.produce(b"a", b"b"), client.produce(b"c")] == [0, 2]
    assert client.committed() == [b"a", b"b", b"c"]
    assert process.end(signal.SIGINT) == 0, process.stderr
    assert states(cluster) == PARKED
    assert process.stdout == ""
    assert "Traceback" not in process.stderr
    wait_for(process.has_left_nothing, "end of Spark")


def test_a_signal_while_spark_starts_ends_the_process_and_creates_nothing(cluster: Cluster) -> None:
    """A signal during the start of Spark ends the process, and nothing is created."""
    process = cluster.run(with_spark=True)
    java = f"/proc/{process.popen.pid}/task/{process.popen.pid}/children"
    if not Path(java).exists():
        pytest.skip("this system does not list a process's children")
    wait_for(lambda: Path(java).read_text(), "Java", process)
    assert process.end() == -signal.SIGTERM
    assert not (cluster.folder / "cluster").exists()
    wait_for(process.has_left_nothing, "end of Java")


def test_spark_submit_does_the_pending_work_and_ends_with_success(cluster: Cluster) -> None:
    """spark-submit handles pending requests and exits with 0."""
    created = cluster.run("--until-idle")
    assert created.exit_code() == 0, created.stderr
    client = Client(cluster)
    client.create_topic()
    pending = [client.send([b"a", b"b"]), client.send([b"c"])]
    process = spark_submit(cluster, "--until-idle")
    assert process.exit_code() == 0, process.stderr
    assert [one.response.error for one in pending if one.response] == ["NONE", "NONE"]
    assert client.committed() == [b"a", b"b", b"c"]
    assert cluster.log(0) == cluster.log(1) == cluster.log(2)
    assert states(cluster) == PARKED


def test_spark_submit_hands_on_the_exit_code_and_the_one_line_of_bad_input(
    cluster: Cluster,
) -> None:
    """spark-submit returns the exit code and the one line for bad input."""
    (cluster.folder / "cluster").mkdir()
    (cluster.folder / "cluster" / "holiday.jpg").touch()
    process = spark_submit(cluster)
    assert process.exit_code() == 2
    # Spark prints a job's standard error to its own standard output.
    [line] = [one for one in process.stdout.splitlines() if one.startswith("sparklog: ")]
    assert "'holiday.jpg'" in line


def test_a_signal_to_spark_submit_parks_the_brokers_before_its_jvm_ends(cluster: Cluster) -> None:
    """A signal to spark-submit reaches its JVM alone, and a container may end with it."""
    process = spark_submit(cluster)
    client = Client(cluster)
    client.create_topic()
    client.produce(b"a")
    assert process.end() == 128 + signal.SIGTERM
    assert states(cluster) == PARKED
    assert "Spark has ended" not in process.stdout
    wait_for(process.has_left_nothing, "end of Python")


def test_brokers_do_not_outlive_the_spark_that_they_copy_with(cluster: Cluster) -> None:
    """SIGKILL to spark-submit kills the JVM alone: its Python process would go on sending
    heartbeats.
    """
    process = spark_submit(cluster)
    Client(cluster).create_topic()
    process.kill()
    wait_for(lambda: states(cluster) == PARKED, "parked brokers")
    wait_for(process.has_left_nothing, "end of Python")
