"""The path of docs/running.md from a checkout to three brokers on a standalone cluster."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
from pathlib import Path

import pytest

from benchmarks.spark_home import spark_home
from jobs.bundle import Bundle
from sparklog import __version__
from sparklog.jars import resolve_jars
from tests.bundle.command_arguments import parsed
from tests.examples import CHECKOUT
from tests.jobs.processes import Cluster

DOCUMENT = (CHECKOUT / "docs" / "running.md").read_text(encoding="utf-8")
PATIENCE = 1_200
"""Timeout in seconds: 16 Java processes start on a machine with two cores."""


def section(heading: str) -> list[str]:
    """Return the commands of a section."""
    text = DOCUMENT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def checkout(tmp_path: Path, bundle: Bundle) -> Path:
    """A folder with what the commands use of a checkout, after `make bundle`."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "dist").symlink_to(bundle.wheel.parent)
    (folder / ".venv").symlink_to(CHECKOUT / ".venv")
    shutil.copytree(CHECKOUT / "conf", folder / "conf")
    return folder


def script(folder: Path, python: Path) -> str:
    """Return the commands as one script, with free ports, and JARs that are there already."""
    lines = section("Three brokers on a standalone cluster")
    assert lines.pop(0) == "make bundle"
    text = "\n".join(lines)
    for port in ("7077", "8080"):
        assert port in text
        text = text.replace(port, str(free_port()))
    jars = ",".join(str(jar) for jar in resolve_jars())
    fetched = re.compile(r"--packages \S+ --conf spark\.jars\.ivy=\S+")
    assert fetched.search(text)
    # The Java processes have small work, for which the first compiler is enough.
    quick = "-XX:TieredStopAtLevel=1"
    options = f"--jars {jars} --driver-memory 1g --conf spark.ui.enabled=false"
    for one in ("driver", "executor"):
        options += f" --conf spark.{one}.extraJavaOptions={quick}"
    text = fetched.sub(options, text)
    # Workers and drivers run in the environment without the package: only the zip has it.
    own = "PYSPARK_PYTHON=$PWD/.venv/bin/python"
    assert own in text
    home = spark_home(folder / "spark")
    text = text.replace(own, f"PYSPARK_PYTHON={python} SPARK_HOME={home} PYTHONPATH=/nowhere")
    commands = re.compile(r"(?<!/)\.venv/bin/(?:python|sparklog) ")
    assert commands.search(text)
    text = commands.sub(rf"env PYTHONPATH={shlex.quote(str(CHECKOUT))} \g<0>", text)
    # The trace of a failed run has the seconds since its start.
    head = f"set -e\nPS4='+ ${{SECONDS}} s: '\nexport SPARK_DAEMON_JAVA_OPTS={quick}\n"
    return f"{head}cd {shlex.quote(str(folder))}\n{text}\n"


def test_the_commands_run_three_brokers_and_survive_a_killed_worker_and_a_killed_broker(
    checkout: Path, bare_python: Path, cluster: Cluster
) -> None:
    file = checkout / "commands.sh"
    file.write_text(script(checkout, bare_python))
    process = cluster.start(["bash", "-x", str(file)])
    code = process.popen.wait(PATIENCE)
    assert code == 0, process.stderr[-5_000:] + process.stdout[-2_000:]
    assert process.stdout.endswith("No inconsistencies found: 2 partitions.\n")
    produced = (checkout / "sparklog-data" / "orders.txt").read_text().splitlines()
    assert sorted(int(one[6:-1]) for one in produced) == list(range(1500))
    applications = {
        path.name for path in (checkout / "sparklog-data").glob("worker-*/app-*") if path.is_dir()
    }
    assert len(applications) == 6, "an application each: four of brokers, two of the producer"


def test_the_other_commands_of_the_document_are_commands() -> None:
    """The command line parses each `sparklog` command, and the version is that of the package."""
    text = "".join(re.findall(r"```console\n(.*?)```", DOCUMENT, re.DOTALL))
    found = re.findall(r"(?:\$ |\| |until )(?:\.venv/bin/)?sparklog ([^|;>\n]+)", text)
    found += re.findall(r"SUBMIT (?:broker|produce) [^&\n\"]+", text)
    names = {parsed(_arguments(command))[0] for command in found}
    commands = {"produce", "consume", "broker", "audit"}
    assert names == commands | {"topics create", "topics describe"}
    assert set(re.findall(r"sparklog-(\d\S*?)-(?:py|req)", DOCUMENT)) == {__version__}
    listed = re.findall(r"^\| `sparklog (\w+)", DOCUMENT, re.MULTILINE)
    assert listed == [
        "broker",
        "cluster",
        "produce",
        "consume",
        "maintain",
        "scrub",
        "state",
        "audit",
    ]


def _arguments(command: str) -> list[str]:
    """Return a command's arguments, with a cluster if SPARKLOG_CLUSTER has to name it."""
    words = shlex.split(command.removeprefix("SUBMIT "))
    is_named = {"--cluster", "--config"} & set(words)
    return words if is_named else [*words, "--cluster", "sparklog-data/cluster"]
