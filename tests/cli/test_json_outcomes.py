"""`--json` of commands that act: the outcome as JSON on standard output, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.main import get_command

from sparklog.cli import app
from sparklog.testing import LocalCluster
from tests.cli.command_line import run


def outcome(root: Path, *arguments: str | Path) -> Any:
    return json.loads(run(*arguments, "--json", cluster=root).printed)


def test_topics_and_settings(tmp_path: Path) -> None:
    LocalCluster(tmp_path, [0, 1])
    root = tmp_path / "cluster"
    created = outcome(root, "topics", "create", "t", "--replica-assignment", "0:1")
    assert (created["topic"], created["partitions"][0]["replicas"]) == ("t", [0, 1])
    grown = outcome(root, "topics", "alter", "t", "--partitions", "2")
    assert len(grown["partitions"]) == 2
    alter = ("configs", "alter", "--entity-name", "t", "--add-config", "retention.ms=5")
    assert outcome(root, *alter) == {"topic": "t", "set": {"retention.ms": "5"}, "removed": []}
    assert outcome(root, "topics", "list") == [{"topic": "t", "marked_for_deletion": False}]
    deleted = outcome(root, "topics", "delete", "t")
    assert deleted == {"topic": "t", "marked_for_deletion": True}
    assert outcome(root, "topics", "list") == [deleted]


def test_a_reassignment_from_its_proposal_to_its_end(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, [0, 1, 2])
    cluster.create_topic("t", assignment={0: [0, 1]})
    cluster.produce("t", 0, [b"a", b"b"])
    cluster.tick_until_idle()
    root = tmp_path / "cluster"
    topics, file = tmp_path / "topics.json", tmp_path / "moves.json"
    topics.write_text('{"version": 1, "topics": [{"topic": "t"}]}')
    generate = ("--generate", "--topics-to-move-json-file", topics, "--broker-list", "0,1,2")
    proposed = outcome(root, "reassign-partitions", *generate)
    current = {"topic": "t", "partition": 0, "replicas": [0, 1], "log_dirs": ["any", "any"]}
    assert proposed["current"] == {"version": 1, "partitions": [current]}
    assert len(proposed["proposed"]["partitions"][0]["replicas"]) == 2

    moved = {"topic": "t", "partition": 0, "replicas": [2, 1]}
    file.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    of_file = ("--reassignment-json-file", file)
    executed = outcome(root, "reassign-partitions", "--execute", *of_file, "--throttle", "9000")
    assert executed["throttle"] == 9000
    of_t = {"topic": "t", "partition": 0}
    assert executed["partitions"] == [of_t | {"error": "NONE", "detail": ""}]
    [moving] = outcome(root, "reassign-partitions", "--verify", *of_file)
    assert (moving["state"], moving["target"]) == ("in progress", [2, 1])
    assert moving["progress"][0]["broker_id"] == 2
    assert outcome(root, "reassign-partitions", "--list")[0]["adding_replicas"] == [2]
    [described] = outcome(root, "topics", "describe")
    assert described["partitions"][0]["adding_replicas"] == [2]
    assert described["partitions"][0]["removing_replicas"] == [0]
    cancelled = outcome(root, "reassign-partitions", "--cancel", *of_file)
    assert cancelled == [of_t | {"error": "NONE", "detail": ""}]
    [none] = outcome(root, "reassign-partitions", "--verify", *of_file)
    assert (none["state"], none["replicas"]) == ("none", [1, 0])

    drained = outcome(root, "brokers", "drain", "0")
    assert drained["started"] == [of_t]
    assert drained["moving"][0]["removing_replicas"] == [0]
    cluster.tick_until_idle()
    assert outcome(root, "brokers", "drain", "0") == {
        "broker_id": 0,
        "started": [],
        "moving": [],
    }


def test_elections_deletions_and_brokers(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, [0, 1])
    cluster.create_topic("t", assignment={0: [0, 1]})
    cluster.produce("t", 0, [b"a", b"b"])
    cluster.tick_until_idle()
    root = tmp_path / "cluster"
    of_t = {"topic": "t", "partition": 0}
    elect = ("elect-leaders", "--election-type", "preferred", "--all-topic-partitions")
    assert outcome(root, *elect) == [of_t | {"error": "ELECTION_NOT_NEEDED"}]
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"partitions": [of_t | {"offset": 0}], "version": 1}))
    deleted = outcome(root, "delete-records", "--offset-json-file", file)
    assert deleted == [of_t | {"low_watermark": 0, "error": "NONE", "detail": ""}]
    exported = outcome(root, "checkpoints", "export", "--broker", "0", "--folder", tmp_path / "e")
    assert exported == {"broker_id": 0, "replicas": 1, "folder": str(tmp_path / "e")}
    cluster.brokers[1].stop()
    fenced = outcome(root, "brokers", "fence", "1")
    assert fenced == {"broker_id": 1, "state": "fenced"}
    gone = outcome(root, "brokers", "unregister", "1", "--force")
    assert gone == {"broker_id": 1, "state": "unregistered", "replicas": 1}


def test_every_command_that_prints_an_answer_has_it() -> None:
    """`produce` reports on standard error; `broker` and `cluster` log JSON there; `policy` prints
    a policy, which is JSON for S3.
    """
    pending = [("", get_command(app))]
    without = []
    while pending:
        path, command = pending.pop()
        if hasattr(command, "commands"):
            pending += [(f"{path} {name}", one) for name, one in command.commands.items()]
        elif "--json" not in {option for one in command.params for option in one.opts}:
            without.append(path.strip())
    assert sorted(without) == ["broker", "cluster", "policy", "produce"]
