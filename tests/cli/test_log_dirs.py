"""`sparklog log-dirs --describe`: directories, their states, and sizes and lags of replicas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparklog.testing import LocalCluster
from tests.cli.command_line import run


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Broker 0 leads `t-0` in directory `a` and `t-1` in `b`; broker 1 has not copied the last
    record of `t-0`.
    """
    cluster = LocalCluster(tmp_path, [0, 1], log_dirs={0: ("a", "b")})
    cluster.create_topic("t", assignment={0: [0, 1], 1: [0, 1]})
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"copied"])
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"not copied"], acks=1)
    cluster.leader_tick(0)
    return cluster


def describe(cluster: LocalCluster, *arguments: str, code: int = 0) -> dict[int, list[Any]]:
    """Return the directories in the JSON that the command prints, by broker."""
    done = run("log-dirs", "--describe", *arguments, cluster=cluster.root / "cluster")
    assert (done.exit_code, done.stderr) == (code, "")
    first, second, text = done.stdout.splitlines()
    found = json.loads(text)
    assert found["version"] == 1
    named = ",".join(str(one["broker"]) for one in found["brokers"])
    assert first == "Querying brokers for log directories information"
    assert second == f"Received log directory information from brokers {named}"
    return {one["broker"]: one["logDirs"] for one in found["brokers"]}


def test_describes_directories_and_replicas(cluster: LocalCluster) -> None:
    """A replica's size is that of its batch files, and its lag the distance to the leader's end."""
    found = describe(cluster)
    sizes = {
        name: sum(one.stat().st_size for one in (cluster.root / name / "log/_inbox").iterdir())
        for name in ("a", "broker-1")
    }
    ids = cluster.connection.metadata().brokers[0].log_table_ids
    assert found[0] == [
        {
            "logDir": f"{cluster.root}/a",
            "error": None,
            "number": 0,
            "id": ids[0],
            "state": "online",
            "partitions": [
                {"partition": "t-0", "size": sizes["a"], "offsetLag": 0, "isFuture": False}
            ],
        },
        {
            "logDir": f"{cluster.root}/b",
            "error": None,
            "number": 1,
            "id": ids[1],
            "state": "online",
            "partitions": [{"partition": "t-1", "size": 0, "offsetLag": 0, "isFuture": False}],
        },
    ]
    [other] = found[1]
    assert other["partitions"] == [
        {"partition": "t-0", "size": sizes["broker-1"], "offsetLag": 1, "isFuture": False},
        {"partition": "t-1", "size": 0, "offsetLag": 0, "isFuture": False},
    ]


def test_is_limited_to_brokers_and_topics(cluster: LocalCluster) -> None:
    found = describe(cluster, "--broker-list", "1", "--topic-list", "u")
    assert {broker: one[0]["partitions"] for broker, one in found.items()} == {1: []}
    root = cluster.root / "cluster"
    unknown = run("log-dirs", "--describe", "--broker-list", "7", cluster=root)
    assert unknown.exit_code == 2
    assert "there is no broker 7: name one of the registered brokers 0, 1" in unknown.stderr
    assert "give --describe" in run("log-dirs", cluster=root).refusal


def test_a_directory_that_has_failed_is_offline(cluster: LocalCluster) -> None:
    """It has an error and no partitions, and the exit code is 1."""
    (cluster.root / "a").rename(cluster.root / "away")
    for _ in range(2):
        cluster.clock.advance(2_000)
    cluster.tick_until_idle()
    failed, sound = describe(cluster, "--broker-list", "0", code=1)[0]
    assert (failed["state"], failed["partitions"]) == ("offline", [])
    assert failed["error"] == "KAFKA_STORAGE_ERROR: it has failed"
    assert (sound["state"], sound["error"]) == ("online", None)
    listed = json.loads(run("brokers", "list", "--json", cluster=cluster.root / "cluster").stdout)
    assert listed[0]["log_dirs"] == [f"0={cluster.root}/a (offline)", f"1={cluster.root}/b"]


def test_a_directory_that_cannot_be_read_has_an_error(cluster: LocalCluster) -> None:
    """Its broker does not run, so it has not announced the failure."""
    cluster.crash(0)
    (cluster.root / "b").rename(cluster.root / "away")
    cluster.reconnect()
    sound, lost = describe(cluster, "--broker-list", "0", code=1)[0]
    assert (sound["error"], lost["state"], lost["partitions"]) == (None, "online", [])
    assert lost["error"].startswith("KAFKA_STORAGE_ERROR: ")
