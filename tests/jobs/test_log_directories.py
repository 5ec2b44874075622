"""Log directories of real processes: one of several fails, the last one fails, one is emptied."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sparklog.cli.exit_codes import ExitCode
from tests.jobs.processes import Client, Cluster, Process, wait_for


def run(cluster: Cluster, broker_id: int, *log_dirs: str) -> Process:
    """Start one broker with these log directories."""
    config = cluster.configuration(broker_id, log_dirs=list(log_dirs))
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "jobs.broker",
        "--config",
        config,
        "--without-spark",
    ]
    return cluster.start(command)


def fail(folder: Path) -> None:
    """Put a file in the place of a folder; permissions would not stop root."""
    folder.rename(folder.with_name(f"{folder.name}-away"))
    folder.touch()


def mend(folder: Path) -> None:
    folder.unlink()
    folder.with_name(f"{folder.name}-away").rename(folder)


def test_directories_of_three_brokers_fail_and_come_back(cluster: Cluster) -> None:
    """No acknowledged record is lost, and only what was in a directory moves."""
    brokers = [run(cluster, 0, "broker-0", "second"), run(cluster, 1, "broker-1")]
    brokers.append(run(cluster, 2, "broker-2"))
    client = Client(cluster)
    client.create_topic(leader=0)
    client.produce(b"a")

    # One of two directories: its broker goes on.
    fail(cluster.folder / "broker-0")
    wait_for(lambda: client.leader() not in (0, None), "new leader", brokers[0])
    client.produce(b"b")
    assert client.isr() == [1, 2]
    brokers[0].wait_for_event("log directory failed")
    brokers[0].kill()
    brokers[0] = run(cluster, 0, "broker-0", "second")
    brokers[0].wait_for_event("log directory offline")
    brokers[0].wait_for_event("broker started")
    assert brokers[0].end() == ExitCode.DONE, brokers[0].stderr
    mend(cluster.folder / "broker-0")
    brokers[0] = run(cluster, 0, "broker-0", "second")
    wait_for(lambda: client.isr() == [0, 1, 2], "return to the in-sync replicas", brokers[0])

    # An empty root in the place of the only one: it is refilled.
    leader = client.leader()
    brokers[1].kill()
    shutil.rmtree(cluster.folder / "broker-1")
    brokers[1] = run(cluster, 1, "broker-1")
    brokers[1].wait_for_event("broker started")
    wait_for(lambda: len(cluster.log(1)) == 2, "refilled log", brokers[1])
    wait_for(lambda: client.isr() == [0, 1, 2], "return to the in-sync replicas", brokers[1])
    assert leader == 1 or client.leader() == leader
    client.produce(b"c")
    assert client.committed() == [b"a", b"b", b"c"]

    # The last directory of a process: it ends, and says why.
    fail(cluster.folder / "broker-2")
    assert brokers[2].exit_code() == ExitCode.FAILED, brokers[2].stderr
    folder = cluster.folder / "broker-2"
    *_, line = brokers[2].stderr.splitlines()
    assert line.startswith(f"sparklog: no log directory can be used: {folder} (")
    assert line.endswith("repair or replace it, and restart")
    refused = run(cluster, 2, "broker-2")
    assert refused.exit_code() == ExitCode.UNUSABLE
    assert f"{folder} is a file: name a folder" in refused.stderr
    client.produce(b"d")
    mend(folder)
    brokers[2] = run(cluster, 2, "broker-2")
    wait_for(lambda: client.isr() == [0, 1, 2], "return to the in-sync replicas", brokers[2])
    wait_for(lambda: cluster.log(0) == cluster.log(1) == cluster.log(2), "equal logs")
    assert [value for _, _, value in cluster.log(2)] == [b"a", b"b", b"c", b"d"]
