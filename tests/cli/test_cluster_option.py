"""The cluster of a command, and the error if it is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparklog.cli.cluster import Cluster
from tests.cli.command_line import files_in, run

BROKERS = "brokers: [{broker.id: 0, log.dirs: broker-0}]\n"


def test_help_is_there_before_anything_heavy_is_and_no_command_needs_spark() -> None:
    """The command's help imports no heavy module, and no command imports Spark."""
    code = (
        "import sys\n"
        "from sparklog.cli import app\n"
        "heavy = {'duckdb', 'deltalake', 'pyarrow', 'pydantic', 'pyspark'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
        "import sparklog.cli.sql, sparklog.cli.output, sparklog.cluster.admin\n"
        "print('pyspark' in sys.modules)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\nFalse\n"


def test_a_configuration_file_gives_the_root_its_stores_options_and_the_settings(
    tmp_path: Path,
) -> None:
    """A configuration file gives the root, its store's options and the settings."""
    file = tmp_path / "cluster.yml"
    options = "storage.options: {'s3://logs': {AWS_REGION: eu-central-1}}\n"
    file.write_text(f"cluster.root: s3://logs/cluster\n{BROKERS}{options}num.partitions: 4\n")

    cluster = Cluster.of(str(file))

    assert cluster.root == "s3://logs/cluster"
    assert cluster.location().options == {"AWS_REGION": "eu-central-1"}
    assert cluster.location("s3://elsewhere/broker-0").options == {}
    assert cluster.settings is not None
    assert cluster.settings.num_partitions == 4


def test_a_single_brokers_file_names_its_cluster_as_well(tmp_path: Path) -> None:
    """The file of a single broker names its cluster as well."""
    file = tmp_path / "broker.yaml"
    file.write_text("cluster.root: cluster\nbroker.id: 7\nlog.dirs: broker-7\n")
    assert Cluster.of(str(file)).root == str(tmp_path / "cluster")


def test_the_option_wins_over_the_environment(tmp_path: Path) -> None:
    """The option takes precedence over the environment."""
    run("format", "--cluster", tmp_path / "cluster")
    told = run("topics", "list", "--cluster", tmp_path / "cluster", cluster="nowhere")
    assert told.printed == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cluster.yaml cannot be read (No such file or directory): name an existing file"),
        ("a: [", "cluster.yaml is not YAML"),
        ("- 1", "cluster.yaml must have 'key: value' lines"),
        (f"{BROKERS}", "configuration key cluster.root is missing in "),
        (f"cluster.root: c\n{BROKERS}num.partition: 1", "did you mean num.partitions?"),
        (f"cluster.root: c\n{BROKERS}num.partitions: few", "has the value 'few'"),
        ("cluster.root: c\nbroker.id: -1\nlog.dirs: b", "configuration key broker.id in "),
    ],
)
@pytest.mark.parametrize("command", [["format"], ["topics", "create", "t"], ["query", "select 1"]])
def test_a_bad_configuration_file_is_one_line_and_nothing_is_created(
    tmp_path: Path, command: list[str], text: str | None, said: str
) -> None:
    """An invalid configuration file is refused in one line, and nothing is created."""
    file = tmp_path / "cluster.yaml"
    if text is not None:
        file.write_text(text)
    before = files_in(tmp_path)

    assert said in run(*command, "--cluster", file).refusal
    assert files_in(tmp_path) == before


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "list"],
        ["topics", "describe"],
        ["topics", "create", "t"],
        ["query", "from topics"],
    ],
)
def test_where_no_cluster_is_a_command_says_so_and_creates_none(
    tmp_path: Path, command: list[str]
) -> None:
    """A command on a missing cluster root reports that and creates nothing."""
    nowhere = tmp_path / "nowhere"
    assert f"there is no cluster root at {nowhere}: " in run(*command, cluster=nowhere).refusal
    assert not nowhere.exists()


@pytest.mark.parametrize("command", [["format"], ["topics", "list"]])
def test_an_empty_name_never_means_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """An empty name is refused, and does not stand for the current folder."""
    monkeypatch.chdir(tmp_path)
    assert "--cluster is empty" in run(*command, "--cluster", "").refusal
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ["format"],
        ["topics", "create", "--cluster", "c"],
        ["topics", "create", "t", "--cluster", "c", "--partitions", "many"],
        ["topics", "drop", "t"],
        ["query", "select 1", "--cluster", "c", "--xml"],
    ],
)
def test_misuse_is_a_usage_error(arguments: list[str]) -> None:
    """Wrong use of a command is a usage error."""
    finished = run(*arguments)
    assert (finished.exit_code, finished.stdout) == (2, "")
    assert "Usage: " in finished.stderr
