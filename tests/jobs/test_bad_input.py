"""Bad input: one line on standard error, exit code 2, and nothing half-created."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sparklog.model import BROKERS
from tests.jobs.processes import ROOT, Client, Cluster, Process


def tree(folder: Path) -> set[str]:
    """Return the paths of everything in a folder, except the files that the tests themselves
    write.
    """
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.suffix not in (".yaml", ".out", ".err")
    }


def refusal(process: Process) -> str:
    """Return the only line with which a process has refused its input."""
    assert process.exit_code() == 2, process.stderr
    assert process.stdout == ""
    [line] = process.stderr.splitlines()
    assert line.startswith("sparklog: ")
    return line


@pytest.mark.parametrize(
    ("job", "change", "named"),
    [
        ("jobs.cluster", {"replica.lag.time.max": 1}, "did you mean replica.lag.time.max.ms?"),
        ("jobs.cluster", {"min.insync.replicas": "many"}, "min.insync.replicas"),
        ("jobs.broker", {"cluster.root": ""}, "cluster.root"),
        ("jobs.broker", {"broker.heartbeat.interval.ms": 60_000}, "must be below"),
    ],
)
def test_a_bad_configuration_is_named_and_nothing_is_created(
    cluster: Cluster, job: str, change: dict[str, object], named: str
) -> None:
    """An invalid configuration is named, and nothing is created."""
    file = cluster.configuration(0 if job == "jobs.broker" else None)
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | change))
    line = refusal(cluster.start([sys.executable, "-m", job, "--config", str(file)]))
    assert named in line
    assert str(file) in line
    assert tree(cluster.folder) == set()


def test_a_file_that_cannot_be_read_is_named(cluster: Cluster) -> None:
    """An unreadable configuration file is named."""
    for job, file in (("jobs.cluster", cluster.folder / "none.yaml"), ("jobs.broker", ROOT)):
        line = refusal(cluster.start([sys.executable, "-m", job, "--config", str(file)]))
        assert f"configuration file {file} cannot be read" in line


def test_a_bad_log_level_is_answered_with_those_that_there_are(cluster: Cluster) -> None:
    """The error for an unknown log level lists the levels."""
    for broker_id in (None, 0):
        line = refusal(cluster.run("--log-level", "loud", broker_id=broker_id))
        assert "'loud' is unknown: use debug, info, warning, error" in line
    assert tree(cluster.folder) == set()


@pytest.mark.parametrize("broker_id", [None, 0])
def test_a_cluster_that_is_not_to_be_created_is_not(
    cluster: Cluster, broker_id: int | None
) -> None:
    """With auto.create.cluster.enable=false brokers without a cluster root create nothing."""
    cluster.settings["auto.create.cluster.enable"] = False
    # With Spark, because the refusal must come before Spark starts.
    line = refusal(cluster.run(broker_id=broker_id, with_spark=True))
    assert f"there is no cluster root at {cluster.folder}/cluster, and auto.create.cluster" in line
    assert tree(cluster.folder) == set()


def test_a_broker_of_another_cluster_creates_none_by_a_typo(cluster: Cluster) -> None:
    """A broker whose log directory belongs to a cluster never creates another cluster root."""
    made = cluster.run("--until-idle", broker_id=0)
    assert made.exit_code() == 0, made.stderr
    before = tree(cluster.folder)
    cluster.settings["cluster.root"] = "clutser"
    line = refusal(cluster.run(broker_id=0))
    belongs = f"{cluster.folder}/broker-0 belongs to broker 0"
    assert f"there is no cluster root at {cluster.folder}/clutser, but {belongs}" in line
    # A directory whose `format` was lost is not a new one, either.
    (cluster.folder / "broker-0" / "format").rename(cluster.folder / "format")
    assert "broker-0/format is damaged: it is missing" in refusal(cluster.run(broker_id=0))
    (cluster.folder / "format").rename(cluster.folder / "broker-0" / "format")
    assert tree(cluster.folder) == before


def _foreign_file(folder: Path) -> str:
    (folder / "broker-1").mkdir()
    (folder / "broker-1" / "holiday.jpg").touch()
    return "'holiday.jpg'"


def _file_in_place_of_a_folder(folder: Path) -> str:
    (folder / "broker-2").touch()
    return "is a file"


@pytest.mark.parametrize("prepare", [_foreign_file, _file_in_place_of_a_folder])
def test_a_foreign_folder_is_refused_before_anything_is_created(
    cluster: Cluster, prepare: Callable[[Path], str]
) -> None:
    """A folder with other files is refused before anything is created."""
    named = prepare(cluster.folder)
    before = tree(cluster.folder)
    # With Spark, because the refusal must come before Spark starts.
    assert named in refusal(cluster.run(with_spark=True))
    assert tree(cluster.folder) == before


def test_a_folder_that_cannot_be_created_is_named(cluster: Cluster) -> None:
    """A folder that cannot be created is named."""
    (cluster.folder / "disk").touch()
    cluster.settings["cluster.root"] = "disk/cluster"
    line = refusal(cluster.run())
    assert f"{cluster.folder}/disk" in line
    assert tree(cluster.folder) == {"disk"}


def test_roots_of_others_are_refused_before_anything_is_created(cluster: Cluster) -> None:
    """Roots of another broker or cluster are refused before anything is created."""
    made = cluster.run("--until-idle")
    assert made.exit_code() == 0, made.stderr
    before = tree(cluster.folder)
    rows = cluster.rows(BROKERS)

    cluster.settings["cluster.root"] = "another"
    line = refusal(cluster.run(with_spark=True))
    assert f"{cluster.folder}/broker-0 belongs to broker 0 of cluster " in line

    cluster.settings["cluster.root"] = "broker-0"
    line = refusal(cluster.run(broker_id=1, with_spark=True))
    assert "name the cluster root" in line

    cluster.settings["cluster.root"] = "cluster"
    file = cluster.configuration(1, log_dirs="broker-2")
    command = [sys.executable, "-m", "jobs.broker", "--config", str(file)]
    assert "broker-2 belongs to broker 2 of" in refusal(cluster.start(command))

    file = cluster.configuration(0, log_dirs="broker-0, broker-1")
    command = [sys.executable, "-m", "jobs.broker", "--config", str(file)]
    assert "broker-1 belongs to broker 1 of" in refusal(cluster.start(command))

    assert tree(cluster.folder) == before
    assert cluster.rows(BROKERS) == rows


def test_a_cluster_that_was_refused_starts_once_the_cause_is_gone(cluster: Cluster) -> None:
    """A cluster that was refused starts once the cause is removed."""
    foreign = cluster.folder / "broker-2" / "holiday.jpg"
    foreign.parent.mkdir()
    foreign.touch()
    refusal(cluster.run())
    foreign.unlink()
    process = cluster.run()
    client = Client(cluster)
    client.create_topic()
    client.produce(b"a")
    assert process.end() == 0


def test_an_unforeseen_error_is_a_plain_traceback_without_the_values_of_variables(
    cluster: Cluster,
) -> None:
    """Frames with their values, as typer prints them, would show a store's secrets."""
    file = cluster.configuration()
    values = yaml.safe_load(file.read_text())
    values["storage.options"] = {"s3://bucket": {"AWS_SECRET_ACCESS_KEY": "hunter2"}}
    file.write_text(yaml.safe_dump(values))
    code = (
        "import sparklog.cli, sparklog.cli.application\n"
        "def broken(*_, **__):\n    raise RuntimeError('unforeseen')\n"
        "sparklog.cli.application.run_application = broken\n"
        "sparklog.cli.app()\n"
    )
    process = cluster.start([sys.executable, "-c", code, "cluster", "--config", str(file)])
    assert process.exit_code() == 1
    assert "RuntimeError: unforeseen" in process.stderr
    assert "hunter2" not in process.stderr
    assert "╭" not in process.stderr
