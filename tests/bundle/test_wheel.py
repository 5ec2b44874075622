"""The wheel, installed into an environment of its own, has everything that its commands need."""

from __future__ import annotations

import subprocess
import sys
from email import message_from_string
from pathlib import Path
from zipfile import ZipFile

import pytest

from jobs.bundle import Bundle
from tests.jobs.processes import ROOT, Cluster


@pytest.fixture(scope="module")
def installed(bundle: Bundle, bare_python: Path) -> Path:
    """The command of the wheel; its dependencies are there already."""
    pip = [sys.executable, "-m", "pip", "--python", str(bare_python), "install"]
    options = ["--no-deps", "--no-index", "--force-reinstall", str(bundle.wheel)]
    subprocess.run([*pip, *options], check=True, capture_output=True, timeout=300)
    return bare_python.with_name("sparklog")


def run(command: Path, *arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command, *map(str, arguments)],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin"},
        input="an order\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_installed_commands_run_a_cluster(
    installed: Path, cluster: Cluster, tmp_path: Path
) -> None:
    """A cluster is created, its brokers run until idle, and its tables are checked."""
    config = cluster.configuration()

    def succeeds(*arguments: str | Path) -> str:
        finished = run(installed, *arguments, folder=tmp_path)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    succeeds("cluster", "--config", config, "--until-idle", "--without-spark")
    succeeds("topics", "create", "orders", "--cluster", config, "--replication-factor=3")
    options = ["linger.ms=0", "request.timeout.ms=500", "delivery.timeout.ms=1000"]
    properties = [f"--command-property={one}" for one in options]
    unanswered = run(
        installed, "produce", "orders", "--cluster", config, *properties, folder=tmp_path
    )
    assert unanswered.returncode == 2, "nobody runs"
    assert unanswered.stderr.startswith("sparklog: REQUEST_TIMED_OUT: ")
    succeeds("broker", "--config", cluster.configuration(0), "--until-idle", "--without-spark")
    assert "Wrote checkpoints" in succeeds("maintain", "--cluster", config)
    assert succeeds("audit", "--cluster", config) == "No inconsistencies found: 1 partition.\n"


def test_it_has_the_texts_of_all_rules_and_no_file_of_the_checkout_beside_the_packages(
    bundle: Bundle,
) -> None:
    with ZipFile(bundle.wheel) as wheel:
        names = set(wheel.namelist())
    rules = {str(one.relative_to(ROOT)) for one in (ROOT / "sparklog").rglob("*.sql")}
    assert rules < names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"sparklog", "pyspark_sparklog"}
    assert {"sparklog/log4j2.properties", "sparklog/java_home/bin/java"} < names


def test_the_requirements_are_those_of_the_wheel(bundle: Bundle) -> None:
    """The file of requirements lists the dependencies, without those of the extras."""
    with ZipFile(bundle.wheel) as wheel:
        [name] = [one for one in wheel.namelist() if one.endswith("/METADATA")]
        metadata = message_from_string(wheel.read(name).decode())
    listed = bundle.requirements.read_text().splitlines()
    assert len(listed) == 13
    assert set(listed) < set(metadata.get_all("Requires-Dist") or [])
    assert not any("pyspark" in one for one in listed)


def test_an_entry_point_returns_after_a_success_and_raises_after_a_failure(
    installed: Path, tmp_path: Path
) -> None:
    """Databricks counts every SystemExit of a task as a failure, also one with code 0."""
    code = (
        "import sys\n"
        "from importlib.metadata import entry_points\n"
        "[entry] = [one for one in entry_points(group='console_scripts') if one.name=='sparklog']\n"
        "sys.argv = ['task', *sys.argv[1:]]\n"
        "entry.load()()\n"
        "print('returned')\n"
    )
    python = installed.with_name("python")
    listed = run(python, "-c", code, "format", "--cluster", tmp_path / "c", folder=tmp_path)
    assert listed.stdout.endswith("returned\n"), listed.stderr
    failed = run(python, "-c", code, "topics", "list", "--cluster", tmp_path / "x", folder=tmp_path)
    assert failed.returncode == 2
    assert "returned" not in failed.stdout
