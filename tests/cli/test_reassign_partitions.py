"""`sparklog reassign-partitions`: the files and the output of kafka-reassign-partitions.sh."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sparklog.testing import LocalCluster
from tests.cli.command_line import Finished, files_in, run

COMMAND = "reassign-partitions"


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Four brokers; `t` has two partitions with records, on brokers 0 and 1."""
    cluster = LocalCluster(tmp_path / "roots", [0, 1, 2, 3])
    cluster.create_topic("t", assignment={0: [0, 1], 1: [1, 0]})
    for partition in range(2):
        cluster.produce("t", partition, [b"a", b"b"])
    cluster.tick_until_idle()
    return cluster


def entry(partition: int, replicas: Sequence[Any], **members: Any) -> dict[str, Any]:
    return {"topic": "t", "partition": partition, "replicas": replicas, **members}


def file_of(cluster: LocalCluster, *entries: Any) -> Path:
    file = cluster.root.parent / "reassignment.json"
    file.write_text(json.dumps({"version": 1, "partitions": entries}))
    return file


def call(cluster: LocalCluster, *arguments: str | Path) -> Finished:
    return run(COMMAND, *arguments, cluster=cluster.root / "cluster")


def with_file(cluster: LocalCluster, action: str, *entries: Any) -> Finished:
    return call(cluster, action, "--reassignment-json-file", file_of(cluster, *entries))


CURRENT = (
    '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[0,1],'
    '"log_dirs":["any","any"]}]}'
)


def test_from_execute_to_verify(cluster: LocalCluster) -> None:
    """As Kafka prints it, with the progress of each new replica."""
    target = entry(0, [2, 1])
    file = file_of(cluster, target)
    executed = call(
        cluster, "--execute", "--reassignment-json-file", file, "--throttle", "5000000"
    ).printed
    assert executed == (
        f"Current partition replica assignment\n\n{CURRENT}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback\n"
        "Warning: You must run --verify periodically, until the reassignment completes, to ensure "
        "the throttle is removed.\n"
        "The inter-broker throttle limit was set to 5000000 B/s\n"
        "Successfully started partition reassignment for t-0\n"
    )
    listed = call(cluster, "--list").printed
    line = "\treplica on broker 2: offset 0 of 2, "
    head = "Current partition reassignments:\nt-0: replicas: 2,1,0. adding: 2. removing: 0.\n"
    assert listed.startswith(head + line)
    assert listed.endswith(" bytes left to copy\n")
    verified = with_file(cluster, "--verify", target).printed
    head = (
        "Status of partition reassignment:\nReassignment of partition t-0 is still in progress.\n"
    )
    assert verified.startswith(head + line)
    refusal = with_file(cluster, "--execute", entry(1, [2, 0])).refusal
    assert refusal.startswith("Cannot execute because there is an existing partition assignment. ")
    added = call(
        cluster,
        *("--execute", "--additional", "--throttle", "7"),
        *("--reassignment-json-file", file_of(cluster, entry(1, [3, 0]))),
    ).printed
    assert added.endswith("Successfully started partition reassignment for t-1\n")
    states = cluster.connection.metadata().partitions.values()
    assert {one.replication_throttled_rate for one in states} == {7}
    for _ in range(2):
        cluster.tick_until_idle()
        cluster.clock.advance(1_000_000)
    cluster.tick_until_idle()
    verified = with_file(cluster, "--verify", target, entry(1, [3, 0]), entry(7, [0])).printed
    assert verified == (
        "Status of partition reassignment:\n"
        "Reassignment of partition t-0 is completed.\n"
        "Reassignment of partition t-1 is completed.\n"
        "There is no active reassignment of partition t-7, but replica set is  rather than 0.\n"
        "\n"
        "Clearing broker-level throttles on brokers 0,1,2,3\n"
        "Clearing topic-level throttles on topic t\n"
    )
    states = cluster.connection.metadata().partitions.values()
    assert {one.replication_throttled_rate for one in states} == {None}
    assert call(cluster, "--list").printed == "No partition reassignments found.\n"


def test_cancel(cluster: LocalCluster) -> None:
    """Only what is in progress is cancelled."""
    assert with_file(cluster, "--execute", entry(0, [2, 3])).exit_code == 0
    named = entry(0, [2, 3]), entry(1, [1, 0])
    cancelled = with_file(cluster, "--cancel", *named).printed
    tail = (
        "None of the specified partition moves are active.\n"
        "Clearing broker-level throttles on brokers 0,1,2,3\n"
        "Clearing topic-level throttles on topic t\n"
    )
    assert cancelled == "Successfully cancelled partition reassignment for: t-0\n" + tail
    assert cluster.partition("t", 0).replicas == [0, 1]
    again = with_file(cluster, "--cancel", *named).printed
    assert again == "None of the specified partition reassignments are active.\n" + tail
    verified = with_file(cluster, "--verify", entry(0, [2, 3])).printed
    assert verified.splitlines()[1] == (
        "There is no active reassignment of partition t-0, but replica set is 0,1 rather than 2,3."
    )


def test_what_generate_proposes_can_be_executed(cluster: LocalCluster) -> None:
    """New brokers get partitions only so."""
    file = cluster.root.parent / "topics.json"
    file.write_text('{"topics": [{"topic": "t"}], "version": 1}')
    before = files_in(cluster.root)
    arguments = ("--generate", "--topics-to-move-json-file", file, "--broker-list", "2,3")
    lines = call(cluster, *arguments).printed.splitlines()
    assert files_in(cluster.root) == before
    assert [lines[0], lines[2], lines[3]] == [
        "Current partition replica assignment",
        "",
        "Proposed partition reassignment configuration",
    ]
    current, proposed = json.loads(lines[1]), json.loads(lines[4])
    assert [one["replicas"] for one in current["partitions"]] == [[0, 1], [1, 0]]
    assert [sorted(one["replicas"]) for one in proposed["partitions"]] == [[2, 3]] * 2
    assert proposed["partitions"][0]["replicas"] != proposed["partitions"][1]["replicas"]
    assert with_file(cluster, "--execute", *proposed["partitions"]).printed.endswith(
        "Successfully started partition reassignments for t-0,t-1\n"
    )
    few = call(cluster, *arguments[:3], "--broker-list", "2").refusal
    assert few.startswith("INVALID_REPLICATION_FACTOR: replication factor 2 needs as many live")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Command must include exactly one action: --generate, --execute, --verify, --cancel"),
        (("--list", "--verify"), "Command must include exactly one action"),
        (("--execute",), 'Missing required argument "[reassignment-json-file]"'),
        (("--generate", "--broker-list", "1"), '"[topics-to-move-json-file]"'),
        (("--list", "--broker-list", "1"), "Option --broker-list can't be used with action --list"),
    ],
)
def test_actions_that_are_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in run(COMMAND, *arguments, cluster=tmp_path).refusal


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], "Partition reassignment list cannot be empty"),
        ([entry(0, [])], "Partition replica list cannot be empty"),
        ([entry(0, [1])] * 2, "Partition reassignment contains duplicate topic partitions: t-0"),
        ([entry(0, [1, 1])], "t-0 contains multiple entries for 1"),
        ([entry(0, ["1"])], "it needs a topic (text), a partition (whole number), and replicas"),
        ([entry(0, [1, 2], log_dirs=["any"])], "is different from size of log dirs list ['any']"),
        ([entry(0, [1], log_dirs=["/d"])], "names log_dirs of t-0: brokers choose"),
        # Found by hostile input: a value that has no hash was a TypeError.
        ([entry(0, [1], log_dirs=[{}])], "names log_dirs of t-0: brokers choose"),
        ([entry(0, [9])], "INVALID_REPLICA_ASSIGNMENT: Unknown broker id 9"),
        ([entry(9, [1])], "UNKNOWN_TOPIC_OR_PARTITION: Unable to find partition: t-9"),
    ],
)
def test_assignments_that_are_refused(cluster: LocalCluster, entries: Any, said: str) -> None:
    before = files_in(cluster.root)
    assert said in with_file(cluster, "--execute", *entries).refusal
    assert files_in(cluster.root) == before


def test_another_replication_factor_is_refused_if_that_is_asked_for(cluster: LocalCluster) -> None:
    """With --disallow-replication-factor-change nothing is moved, not even other partitions."""
    option, before = "--disallow-replication-factor-change", files_in(cluster.root)
    file = file_of(cluster, entry(0, [2, 3]), entry(1, [2]))
    execute = ("--execute", "--reassignment-json-file", file)
    assert call(cluster, *execute, option).refusal == (
        "INVALID_REPLICATION_FACTOR: partition t-1 has 2 replicas and would get 1: leave out "
        "--disallow-replication-factor-change to change that"
    )
    assert files_in(cluster.root) == before
    assert call(cluster, *execute).exit_code == 0


def test_a_cancellation_that_is_refused(cluster: LocalCluster) -> None:
    """Only a new replica is in sync."""
    assert with_file(cluster, "--execute", entry(0, [2, 3])).exit_code == 0
    for _ in range(2):
        cluster.follower_tick(2)
        cluster.leader_tick(0)
    for broker in (0, 1):
        cluster.crash(broker)
        cluster.fence(broker)
    cancelled = with_file(cluster, "--cancel", entry(0, [2, 3]))
    assert cancelled == (
        1,
        (
            "Error cancelling partition reassignment for:\n"
            "t-0: INVALID_REPLICA_ASSIGNMENT: Unable to revert partition assignment for t:0 "
            "because it would require an unclean leader election.\n"
        ),
        "",
    )
