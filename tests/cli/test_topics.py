"""`sparklog topics`: output in the form of Kafka's own tool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparklog.testing import LocalCluster
from tests.cli.command_line import files_in, run

CREATED_BY_KAFKA = """\
Topic: orders\tTopicId: <id>\tPartitionCount: 4\tReplicationFactor: 3\tConfigs: \
min.insync.replicas=2,unclean.leader.election.enable=false
\tTopic: orders\tPartition: 0\tLeader: 1\tReplicas: 1,2,3\tIsr: 1,2,3\tElr: \tLastKnownElr: \n\
\tTopic: orders\tPartition: 1\tLeader: 2\tReplicas: 2,3,1\tIsr: 2,3,1\tElr: \tLastKnownElr: \n\
\tTopic: orders\tPartition: 2\tLeader: 3\tReplicas: 3,1,2\tIsr: 3,1,2\tElr: \tLastKnownElr: \n\
\tTopic: orders\tPartition: 3\tLeader: 2\tReplicas: 2,3,1\tIsr: 2,3,1\tElr: \tLastKnownElr: \n\
"""
"""The output of Kafka 4's tool for a topic on three brokers; only the topic's id is masked."""

BROKER_1_DOWN_BY_KAFKA = """\
Topic: orders\tTopicId: <id>\tPartitionCount: 4\tReplicationFactor: 3\tConfigs: \
min.insync.replicas=2,unclean.leader.election.enable=false
\tTopic: orders\tPartition: 0\tLeader: 2\tReplicas: 1,2,3\tIsr: 2,3\tElr: \tLastKnownElr: \n\
\tTopic: orders\tPartition: 1\tLeader: 2\tReplicas: 2,3,1\tIsr: 2,3\tElr: \tLastKnownElr: \n\
\tTopic: orders\tPartition: 2\tLeader: 3\tReplicas: 3,1,2\tIsr: 3,2\tElr: \tLastKnownElr: \n\
\tTopic: orders\tPartition: 3\tLeader: 2\tReplicas: 2,3,1\tIsr: 2,3\tElr: \tLastKnownElr: \n\
"""
"""The output after a broker was killed."""


def test_a_topic_is_described_as_kafka_described_its_own(tmp_path: Path) -> None:
    """`describe` prints what Kafka's tool prints."""
    cluster = LocalCluster(tmp_path, [1, 2, 3])
    root = tmp_path / "cluster"
    created = run(
        *("topics", "create", "orders", "--replica-assignment", "1:2:3,2:3:1,3:1:2,2:3:1"),
        *("--config", "min.insync.replicas=2"),
        *("--config", "unclean.leader.election.enable=false"),
        cluster=root,
    )
    assert created.printed == "Created topic orders.\n"
    assert run("topics", "describe", "orders", cluster=root).printed == CREATED_BY_KAFKA

    cluster.crash(1)
    cluster.fence(1)
    assert run("topics", "describe", "orders", cluster=root).printed == BROKER_1_DOWN_BY_KAFKA


def test_an_offline_partition_has_no_leader(tmp_path: Path) -> None:
    """An offline partition is printed without a leader."""
    cluster = LocalCluster(tmp_path, [0, 1])
    cluster.create_topic("t", assignment={0: [0]})
    cluster.crash(0)
    cluster.fence(0)

    described = run("topics", "describe", "t", cluster=tmp_path / "cluster").printed
    assert described == (
        "Topic: t\tTopicId: <id>\tPartitionCount: 1\tReplicationFactor: 1\tConfigs: \n"
        "\tTopic: t\tPartition: 0\tLeader: none\tReplicas: 0\tIsr: 0\tElr: \tLastKnownElr: \n"
    )
    as_json = run("topics", "describe", "t", "--json", cluster=tmp_path / "cluster").stdout
    assert json.loads(as_json)[0]["partitions"][0]["leader"] is None


def test_all_topics_are_listed_and_described_by_name(tmp_path: Path) -> None:
    """All topics are listed and described, sorted by name."""
    cluster = LocalCluster(tmp_path, [0, 1, 2])
    root = tmp_path / "cluster"
    assert run("topics", "list", cluster=root).printed == ""
    assert run("topics", "describe", cluster=root).printed == ""
    assert json.loads(run("topics", "describe", "--json", cluster=root).printed) == []
    cluster.create_topic("b", assignment={0: [2, 1]})
    cluster.create_topic("a", assignment={0: [0, 2], 1: [1, 0]}, configs={"min.insync.replicas": 2})

    assert run("topics", "list", cluster=root).printed == "a\nb\n"
    alone = [run("topics", "describe", name, cluster=root).printed for name in "ab"]
    assert run("topics", "describe", cluster=root).printed == "".join(alone)
    [first, second] = json.loads(run("topics", "describe", "--json", cluster=root).printed)
    assert second["topic"] == "b"
    assert first == {
        "topic": "a",
        "topic_id": "<id>",
        "replication_factor": 2,
        "configs": {"min.insync.replicas": 2},
        "partitions": [
            {
                "partition": partition,
                "leader": replicas[0],
                "leader_epoch": 0,
                "partition_epoch": 0,
                "replicas": replicas,
                "isr": replicas,
                "elr": [],
                "adding_replicas": [],
                "removing_replicas": [],
            }
            for partition, replicas in enumerate([[0, 2], [1, 0]])
        ],
    }


def test_what_is_not_asked_for_comes_from_the_configuration_file(tmp_path: Path) -> None:
    """Missing arguments of `create` are taken from the configuration file."""
    LocalCluster(tmp_path, [0, 1, 2])
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "cluster.root: cluster\n"
        "brokers: [{broker.id: 0, log.dirs: broker-0}]\n"
        "num.partitions: 3\n"
        "default.replication.factor: 2\n"
    )
    run("topics", "create", "by-file", "--cluster", file)
    run("topics", "create", "by-hand", "--cluster", file, "--partitions", "2")
    run("topics", "create", "plain", "--cluster", tmp_path / "cluster")

    lines = run("topics", "describe", "--cluster", file).printed.splitlines()
    counts = [line.split("\t")[2:4] for line in lines if line.startswith("Topic:")]
    assert counts == [
        ["PartitionCount: 3", "ReplicationFactor: 2"],
        ["PartitionCount: 2", "ReplicationFactor: 2"],
        ["PartitionCount: 1", "ReplicationFactor: 1"],
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster of three brokers with one topic, which no test changes."""
    folder = tmp_path_factory.mktemp("cluster")
    LocalCluster(folder, [0, 1, 2]).create_topic("taken")
    return folder


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bad name"], "INVALID_TOPIC_EXCEPTION: topic name 'bad name' is not valid"),
        ([""], "INVALID_TOPIC_EXCEPTION: topic name '' is not valid"),
        (["taken"], "TOPIC_ALREADY_EXISTS: topic 'taken' exists already"),
        (["t", "--partitions", "0"], "INVALID_PARTITIONS: a topic needs 1 partition or more"),
        (["t", "--replication-factor", "4"], "factor 4 needs as many live brokers, there are 3"),
        (["t", "--replication-factor", "0"], "INVALID_REPLICATION_FACTOR"),
        (["t", "--config", "min.insync.replica=2"], "did you mean min.insync.replicas?"),
        (["t", "--config", "min.insync.replicas=two"], "has the value 'two'"),
        (["t", "--config", "min.insync.replicas"], "'min.insync.replicas' is not key=value"),
        (["t", "--config", "=2"], "'=2' is not key=value"),
        (
            ["t", "--config", "min.insync.replicas=1", "--config", "min.insync.replicas=2"],
            "--config min.insync.replicas is given twice",
        ),
        (["t", "--replica-assignment", ""], "INVALID_REPLICA_ASSIGNMENT: '' does not name brokers"),
        (["t", "--replica-assignment", "0:1;1:0"], "'0:1;1:0' does not name brokers"),
        (["t", "--replica-assignment", "0:1,"], "'0:1,' does not name brokers"),
        (["t", "--replica-assignment", "0:9"], "names broker 9, which is not registered"),
        (["t", "--replica-assignment", "0:0"], "names a broker twice for partition 0: [0, 0]"),
        (["t", "--replica-assignment", "0:1,2"], "every partition the same number of replicas"),
        (
            ["t", "--replica-assignment", "0:1,1:2", "--partitions", "3"],
            "has 2 partitions, but 3 were asked for",
        ),
        (
            ["t", "--replica-assignment", "0:1", "--replication-factor", "3"],
            "has 2 replicas, but 3 were asked for",
        ),
    ],
)
def test_a_topic_that_cannot_be_is_one_line_and_nothing_is_created(
    folder: Path, arguments: list[str], said: str
) -> None:
    """An invalid topic is refused in one line, and nothing is created."""
    before = files_in(folder)
    assert said in run("topics", "create", *arguments, cluster=folder / "cluster").refusal
    assert files_in(folder) == before


def test_an_unknown_topic_is_answered_with_those_that_there_are(folder: Path) -> None:
    """The error for an unknown topic lists the existing topics."""
    assert run("topics", "describe", "orders", cluster=folder / "cluster").refusal == (
        "UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'orders'; the topics are: taken"
    )


def test_a_lost_file_of_the_cluster_is_one_line(tmp_path: Path) -> None:
    """A lost file of the cluster root is reported in one line."""
    LocalCluster(tmp_path, [0]).create_topic("t")
    for file in (tmp_path / "cluster" / "topics").glob("*.parquet"):
        file.unlink()
    for command in (["list"], ["describe"], ["create", "u"]):
        refusal = run("topics", *command, cluster=tmp_path / "cluster").refusal
        assert refusal.startswith(f"{tmp_path / 'cluster' / 'topics'}/part-")
        assert " is damaged: it is missing; run sparklog repair" in refusal


def test_a_broker_root_is_no_cluster(folder: Path) -> None:
    """A broker root is refused as a cluster root."""
    refusal = run("topics", "create", "t", cluster=folder / "broker-0").refusal
    assert refusal == f"{folder / 'broker-0'} is a broker root: name the cluster root"


def test_a_topic_grows_as_by_kafkas_tool(tmp_path: Path) -> None:
    """`alter` prints nothing, and ignores the assignment of existing partitions."""
    LocalCluster(tmp_path, [1, 2, 3]).create_topic("t", assignment={0: [1, 2]})
    root = tmp_path / "cluster"
    grown = run(
        *("topics", "alter", "t", "--partitions", "3"),
        *("--replica-assignment", "9:9,3:1,2:3"),
        cluster=root,
    )
    assert grown.printed == ""
    run("topics", "alter", "t", "--partitions", "4", cluster=root)
    described = run("topics", "describe", "t", "--json", cluster=root).printed
    [topic] = json.loads(described)
    assert [one["replicas"] for one in topic["partitions"]][:3] == [[1, 2], [3, 1], [2, 3]]
    assert len(topic["partitions"]) == 4
    refused = run("topics", "alter", "t", "--partitions", "4", cluster=root).refusal
    assert refused == (
        "INVALID_PARTITIONS: topic 't' has 4 partitions already, and their number can only be "
        "raised: give more than 4, not 4"
    )


def test_partitions_are_found_by_their_health_as_with_kafkas_options(tmp_path: Path) -> None:
    """The filters of `describe` leave lines of partitions, those of `list` topics."""
    cluster = LocalCluster(tmp_path, [0, 1, 2])
    root = tmp_path / "cluster"
    cluster.create_topic("a", assignment={0: [0, 1], 1: [1, 2]}, configs={"min.insync.replicas": 2})
    cluster.create_topic("b", assignment={0: [0, 1, 2]}, configs={"min.insync.replicas": 2})
    cluster.create_topic("c", assignment={0: [0]})
    found = {
        "--under-replicated-partitions": [],
        "--under-min-isr-partitions": [],
        "--at-min-isr-partitions": [("a", 0), ("a", 1), ("c", 0)],
        "--unavailable-partitions": [],
    }

    def partitions(option: str) -> list[tuple[str, int]]:
        printed = run("topics", "describe", option, "--json", cluster=root).printed
        return [
            (topic["topic"], one["partition"])
            for topic in json.loads(printed)
            for one in topic["partitions"]
        ]

    assert {option: partitions(option) for option in found} == found
    cluster.crash(0)
    cluster.fence(0)
    assert {option: partitions(option) for option in found} == {
        "--under-replicated-partitions": [("a", 0), ("b", 0)],
        "--under-min-isr-partitions": [("a", 0), ("c", 0)],
        "--at-min-isr-partitions": [("a", 1), ("b", 0)],
        "--unavailable-partitions": [("c", 0)],
    }
    option = "--under-min-isr-partitions"
    assert run("topics", "describe", option, cluster=root).printed == (
        "\tTopic: a\tPartition: 0\tLeader: 1\tReplicas: 0,1\tIsr: 1\tElr: 0\tLastKnownElr: \n"
        "\tTopic: c\tPartition: 0\tLeader: none\tReplicas: 0\tIsr: 0\tElr: \tLastKnownElr: \n"
    )
    assert run("topics", "list", option, cluster=root).printed == "a\nc\n"
    listed = run("topics", "list", option, "--json", cluster=root).printed
    assert [one["topic"] for one in json.loads(listed)] == ["a", "c"]
    both = run("topics", "list", option, "--unavailable-partitions", cluster=root).refusal
    assert both == (
        "--under-min-isr-partitions and --unavailable-partitions are given: give one of them"
    )


def test_a_deleted_topic_is_marked_until_the_controller_has_removed_its_rows(
    tmp_path: Path,
) -> None:
    """As Kafka's tool shows it, also beside a new topic of the name."""
    cluster = LocalCluster(tmp_path, [0])
    for name in ("s", "t"):
        cluster.create_topic(name)
    root = tmp_path / "cluster"
    assert run("topics", "delete", "t", cluster=root).printed == ""
    assert run("topics", "list", cluster=root).printed == "s\nt - marked for deletion\n"
    marked = (
        "Topic: t\tTopicId: <id>\tPartitionCount: 1\tReplicationFactor: 1\tConfigs: \t"
        "MarkedForDeletion: true\n"
    )
    assert run("topics", "describe", "t", cluster=root).printed.endswith(marked)
    run("topics", "create", "t", cluster=root)
    assert run("topics", "list", cluster=root).printed == "s\nt\nt - marked for deletion\n"
    cluster.tick_until_idle()
    assert run("topics", "list", cluster=root).printed == "s\nt\n"
    gone = run("topics", "delete", "u", cluster=root).refusal
    assert "UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'u'; the topics are: s, t" in gone


def test_topics_are_chosen_by_a_regular_expression(tmp_path: Path) -> None:
    """A pattern has to match the whole name; a name with a dot is no pattern."""
    cluster = LocalCluster(tmp_path, [0])
    root = tmp_path / "cluster"
    for name in ("a.b", "acb", "orders-1", "orders-2"):
        cluster.create_topic(name)

    def listed(pattern: str) -> list[str]:
        return run("topics", "list", pattern, cluster=root).printed.split()

    assert listed("orders-.*") == ["orders-1", "orders-2"]
    assert listed("rders-.*") == []
    assert listed("a.b") == ["a.b"]
    assert listed("a[.c]b, orders-1") == ["a.b", "acb", "orders-1"]
    described = run("topics", "describe", "a[.c]b", "--json", cluster=root).printed
    assert [one["topic"] for one in json.loads(described)] == ["a.b", "acb"]

    grown = run("topics", "alter", "orders-.*", "--partitions", "2", "--json", cluster=root)
    assert [len(one["partitions"]) for one in json.loads(grown.printed)] == [2, 2]
    deleted = run("topics", "delete", "orders-.*", "--json", cluster=root).printed
    assert [one["topic"] for one in json.loads(deleted)] == ["orders-1", "orders-2"]
    cluster.tick_until_idle()
    assert listed(".*") == ["a.b", "acb"]

    for command in (["describe", "x.*"], ["delete", "x.*"], ["alter", "x.*", "--partitions", "2"]):
        refusal = run("topics", *command, cluster=root).refusal
        assert refusal.startswith("UNKNOWN_TOPIC_OR_PARTITION: no topic matches 'x.*'")
    refusal = run("topics", "list", "x(", cluster=root).refusal
    assert refusal.startswith("'x(' is not a regular expression: ")


def test_a_topic_may_or_may_not_exist(folder: Path) -> None:
    """With --if-exists or --if-not-exists nothing is done, and the exit code is 0."""
    before = files_in(folder)
    root = folder / "cluster"
    for command in (
        ["describe", "u", "--if-exists"],
        ["describe", "u.*", "--if-exists"],
        ["describe", "--topic-id", "u", "--if-exists"],
        ["delete", "u", "--if-exists"],
        ["alter", "u", "--partitions", "9", "--if-exists"],
        ["create", "taken", "--partitions", "9", "--if-not-exists"],
    ):
        assert run("topics", *command, cluster=root).printed == ""
    created = run("topics", "create", "taken", "--if-not-exists", "--json", cluster=root).printed
    assert json.loads(created)["topic"] == "taken"
    assert run("topics", "delete", "u", "--if-exists", "--json", cluster=root).printed == "[]\n"
    assert files_in(folder) == before
    refusal = run("topics", "create", "", "--if-not-exists", cluster=root).refusal
    assert refusal.startswith("INVALID_TOPIC_EXCEPTION")


def test_topics_are_described_by_id_and_by_overrides(tmp_path: Path) -> None:
    """--topics-with-overrides prints the lines of the topics alone, as Kafka's tool does."""
    cluster = LocalCluster(tmp_path, [0])
    root = tmp_path / "cluster"
    cluster.create_topic("a", configs={"retention.ms": 1})
    cluster.create_topic("b")
    assert run("topics", "describe", "--topics-with-overrides", cluster=root).printed == (
        "Topic: a\tTopicId: <id>\tPartitionCount: 1\tReplicationFactor: 1\t"
        "Configs: retention.ms=1\n"
    )
    raw = run("topics", "describe", "b", "--json", cluster=root).stdout
    topic_id = json.loads(raw)[0]["topic_id"]
    by_id = run("topics", "describe", "--topic-id", topic_id, cluster=root).printed
    assert by_id == run("topics", "describe", "b", cluster=root).printed
    for command, said in (
        (["--topic-id", "u"], "UNKNOWN_TOPIC_OR_PARTITION: there is no topic with id 'u'"),
        (["b", "--topic-id", topic_id], "--topic-id and a topic are given"),
        (["--topics-with-overrides", "--at-min-isr-partitions"], "give one of them"),
    ):
        assert said in run("topics", "describe", *command, cluster=root).refusal
