"""`sparklog --version`, and completion in shells."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sparklog
from sparklog.cluster.admin import Admin
from sparklog.consumer.consumer import Consumer
from sparklog.model import TopicPartition
from sparklog.testing import LocalCluster
from tests.cli.command_line import run

MAIN = "from sparklog.cli import main; main()"


def completed(line: str, **variables: str) -> list[str]:
    """Return the words that bash offers at the end of a line, with these environment variables."""
    environment = {
        # The machine may be busy.
        "SPARKLOG_COMPLETION_SECONDS": "100",
        **variables,
        "_SPARKLOG_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    found = subprocess.run(
        [sys.executable, "-c", MAIN],
        env=dict(os.environ) | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout.split()


def test_the_version_needs_no_command_and_no_cluster() -> None:
    assert run("--version").printed == f"sparklog {sparklog.__version__}\n"


def test_commands_and_options_are_completed() -> None:
    assert completed("sparklog topics de") == ["delete", "describe"]
    offered = completed("sparklog topics describe --under")
    assert offered == ["--under-replicated-partitions", "--under-min-isr-partitions"]


def test_help_offers_to_install_completion() -> None:
    said = run("--help").stdout
    assert "--install-completion" in said
    assert "--show-completion" in said


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The root of a cluster with topics, a group, and quotas of a client."""
    folder = tmp_path_factory.mktemp("completion")
    cluster = LocalCluster(folder, [0, 1, 12])
    for name in ("orders", "others", "clicks"):
        cluster.create_topic(name)
    cluster.tick_until_idle()
    found = str(folder / "cluster")
    for group in ("billing", "with space"):
        with Consumer(found, group) as consumer:
            consumer.commit({TopicPartition("orders", 0): 0})
    Admin(cluster.connection).alter_client_quotas("loader", {"producer_byte_rate": "1"})
    cluster.close()
    return found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("topics describe o", ["orders", "others"]),
        ("log-dirs --describe --topic-list clicks,", ["clicks,orders", "clicks,others"]),
        ("consume clicks --group ", ["billing"]),
        ("consumer-groups describe billing ", []),
        ("brokers drain 1", ["1", "12"]),
        ("configs alter --entity-type brokers --entity-name ", ["0", "1", "12"]),
        ("configs alter --entity-type clients --entity-name ", ["loader"]),
    ],
)
def test_names_are_completed_from_the_cluster(root: str, line: str, expected: list[str]) -> None:
    """Names are offered once; names with spaces are left out, since shells divide at them."""
    assert completed(f"sparklog {line}", SPARKLOG_CLUSTER=root) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("configs explain min.in", ["min.insync.replicas"]),
        (
            "configs alter --topic t --add-config retention.ms=1,retention.",
            ["retention.ms=1,retention.bytes="],
        ),
        ("configs alter --broker 0 --delete-config log.retention.m", ["log.retention.ms"]),
    ],
)
def test_keys_are_completed_without_a_cluster(line: str, expected: list[str]) -> None:
    """Those of the entity that the options before name; after a comma, the other keys."""
    assert completed(f"sparklog {line}") == expected


def test_the_cluster_is_that_of_the_line(root: str, tmp_path: Path) -> None:
    """--cluster comes before SPARKLOG_CLUSTER, and may be a configuration file."""
    line = f"sparklog topics delete --cluster {root} cl"
    assert completed(line, SPARKLOG_CLUSTER="/absent") == ["clicks"]
    file = tmp_path / "cluster.yaml"
    brokers = "brokers: [{broker.id: 0, log.dirs: broker-0}]"
    file.write_text(f"cluster.root: {root}\n{brokers}\n")
    assert completed(f"sparklog topics delete --cluster {file} cl") == ["clicks"]
    assert completed("sparklog topics delete --cluster ~/cluster cl", HOME=str(Path(root).parent))


@pytest.mark.parametrize("cluster", ["absent.yaml", "s4://b/c"])
def test_a_cluster_that_cannot_be_read_has_no_names(cluster: str) -> None:
    assert completed("sparklog topics describe ", SPARKLOG_CLUSTER=cluster) == []


def test_a_completion_ends_in_bounded_time() -> None:
    """A store that accepts connections and never answers costs the time of the bound."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        keys = {
            "aws_endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "aws_allow_http": "true",
            "aws_access_key_id": "a",
            "aws_secret_access_key": "b",
            "aws_region": "us-east-1",
        }
        began = time.monotonic()
        offered = completed(
            "sparklog topics describe ",
            SPARKLOG_CLUSTER="s3://bucket/cluster",
            SPARKLOG_STORAGE_OPTIONS=json.dumps({"s3://bucket": keys}),
            SPARKLOG_COMPLETION_SECONDS="4",
        )
    took = time.monotonic() - began
    assert offered == []
    # Without the bound the store's client would retry for 3 minutes.
    assert 4 <= took < 60
