"""`sparklog configs`: output in the form of kafka-configs.sh."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparklog.testing import LocalCluster
from tests.cli.command_line import run

OF_TOPIC = ("--entity-type", "topics", "--entity-name", "t")


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """A cluster with a topic `t`."""
    made = LocalCluster(tmp_path, [0, 1])
    made.create_topic("t", configs={"min.insync.replicas": 2})
    made.tick_until_idle()
    return made


def test_settings_are_changed_and_described_as_by_kafkas_tool(cluster: LocalCluster) -> None:
    """The topic's own; with --all also the others."""
    root = cluster.root / "cluster"
    described = run("configs", "describe", *OF_TOPIC, cluster=root).printed
    assert described == (
        "Dynamic configs for topic t are:\n"
        "  min.insync.replicas=2 sensitive=false "
        "synonyms={DYNAMIC_TOPIC_CONFIG:min.insync.replicas=2, DEFAULT_CONFIG:min.insync.replicas"
        "=1}\n"
    )
    changed = run(
        *("configs", "alter", *OF_TOPIC),
        *("--add-config", "max.message.bytes=1000,unclean.leader.election.enable=[true]"),
        *("--delete-config", "min.insync.replicas"),
        cluster=root,
    )
    assert changed.printed == "Completed updating config for topic t.\n"
    cluster.tick_until_idle()
    described = run("configs", "describe", "--all", cluster=root).printed
    lines = [line for line in described.splitlines() if "min.insync" in line or "max.mess" in line]
    assert described.startswith("All configs for topic t are:\n")
    assert lines == [
        "  min.insync.replicas=1 sensitive=false synonyms={DEFAULT_CONFIG:min.insync.replicas=1}",
        (
            "  max.message.bytes=1000 sensitive=false "
            "synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=1000, "
            "DEFAULT_CONFIG:message.max.bytes=1073741824}"
        ),
    ]
    [topic] = json.loads(run("configs", "describe", "--json", cluster=root).printed)
    assert topic["configs"] == [
        {"name": "max.message.bytes", "value": "1000", "source": "topic"},
        {"name": "unclean.leader.election.enable", "value": "true", "source": "topic"},
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--add-config", "a"), "--add-config 'a' is not key=value"),
        (("--add-config", "max.message.bytes=1,max.message.bytes=2"), "is given twice"),
        (("--add-config", "nonsense=1"), "unknown configuration key nonsense in topic t"),
        (("--delete-config", "nonsense"), "unknown configuration key nonsense in topic t"),
        (("--delete-config", "max.message.bytes"), "does not set max.message.bytes"),
        (("--add-config", "min.insync.replicas=3"), "above its replication factor 2"),
        ((), "nothing is to be changed"),
        (("--entity-type", "users"), "clients do not authenticate here"),
        (("--entity-type", "brokers", "--add-config", "a=1"), "t is not the id of a broker"),
        (("--entity-default", "--add-config", "a=1"), "without --entity-name"),
        (("--topic", "t", "--add-config", "a=1"), "several entities are given"),
        (("--add-config", "a=1", "--add-config-file", "f"), "give one of them"),
        (("--add-config-file", "absent"), "absent cannot be read: No such file"),
    ],
)
def test_what_is_refused(cluster: LocalCluster, options: tuple[str, ...], expected: str) -> None:
    """In one sentence, and nothing is changed."""
    root = cluster.root / "cluster"
    refused = run("configs", "alter", *OF_TOPIC, *options, cluster=root).refusal
    assert expected in refused
    [topic] = json.loads(run("configs", "describe", "--json", cluster=root).printed)
    assert topic["configs"] == [{"name": "min.insync.replicas", "value": "2", "source": "topic"}]


BROKER = ("--entity-type", "brokers")
BACKOFF, RETENTION = "log.cleaner.backoff.ms", "log.retention.ms"


def test_settings_of_brokers_are_changed_and_described_as_by_kafkas_tool(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """A broker's own value, the default of all brokers, the file's value, Kafka's default."""
    root = cluster.root / "cluster"
    file = tmp_path / "cluster.yaml"
    file.write_text(
        f"cluster.root: {root}\nbrokers:\n- {{broker.id: 0, log.dirs: {cluster.root}/broker-0}}\n"
        f"{BACKOFF}: 4000\n"
    )
    of_0, default = (*BROKER, "--entity-name", "0"), (*BROKER, "--entity-default")
    added = ("--add-config", f"{BACKOFF}=5000,{RETENTION}=-1")
    printed = run("configs", "alter", *default, *added, cluster=file).printed
    assert printed == "Completed updating default config for brokers in the cluster.\n"
    printed = run(
        "configs", "alter", *of_0, "--add-config", f"{BACKOFF}=6000", cluster=file
    ).printed
    assert printed == "Completed updating config for broker 0.\n"
    below = (
        f"DYNAMIC_DEFAULT_BROKER_CONFIG:{BACKOFF}=5000, STATIC_BROKER_CONFIG:{BACKOFF}=4000, "
        f"DEFAULT_CONFIG:{BACKOFF}=15000}}"
    )
    assert run("configs", "describe", *of_0, cluster=file).printed == (
        "Dynamic configs for broker 0 are:\n"
        f"  {BACKOFF}=6000 sensitive=false "
        f"synonyms={{DYNAMIC_BROKER_CONFIG:{BACKOFF}=6000, {below}\n"
    )
    assert run("configs", "describe", *default, cluster=file).printed == (
        "Default configs for brokers in the cluster are:\n"
        f"  log.retention.ms=-1 sensitive=false "
        f"synonyms={{DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=-1}}\n"
        f"  {BACKOFF}=5000 sensitive=false synonyms={{{below}\n"
    )
    described = run("configs", "describe", *BROKER, "--all", cluster=root).printed
    assert described.count("All configs for broker") == 2
    assert "  broker.session.timeout.ms=9000 sensitive=false" in described
    [of_topic] = json.loads(run("configs", "describe", "--json", "--all", cluster=root).printed)
    found = {one["name"]: (one["value"], one["source"]) for one in of_topic["configs"]}
    assert found["retention.ms"] == ("-1", "dynamic default")
    removed = ("--delete-config", f"{BACKOFF},{RETENTION}")
    run("configs", "alter", *default, *removed, cluster=file)
    [left] = json.loads(run("configs", "describe", *default, "--json", cluster=root).printed)
    assert left == {"broker": None, "configs": []}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--entity-name", "0"), "nothing is to be changed"),
        (("--add-config", f"{BACKOFF}=1"), "give --entity-name or --entity-default"),
        (
            ("--entity-name", "0", "--add-config", "log.dirs=/x,num.partitions=1"),
            "INVALID_CONFIG: Cannot update these configs dynamically: log.dirs, num.partitions;",
        ),
        (
            ("--entity-default", "--delete-config", "num.partitions"),
            "Cannot update these configs dynamically: num.partitions",
        ),
        (("--entity-default", "--add-config", "log.retention=1"), "did you mean log.retention.ms?"),
        (
            ("--entity-default", "--add-config", f"{BACKOFF}=0"),
            f"{BACKOFF} in the cluster's brokers has the value '0'",
        ),
        (("--entity-default", "--add-config", f"{RETENTION}=0"), "must be -1 (forever)"),
        (
            ("--entity-name", "0", "--add-config", "min.insync.replicas=2"),
            "min.insync.replicas cannot be set for one broker",
        ),
        (("--entity-name", "9", "--add-config", f"{BACKOFF}=1"), "BROKER_ID_NOT_REGISTERED"),
        (("--entity-name", "0", "--delete-config", BACKOFF), f"broker 0 does not set {BACKOFF}"),
    ],
)
def test_settings_of_brokers_that_are_refused(
    cluster: LocalCluster, options: tuple[str, ...], expected: str
) -> None:
    """Everything is checked before anything is stored."""
    root = cluster.root / "cluster"
    assert expected in run("configs", "alter", *BROKER, *options, cluster=root).refusal
    assert cluster.connection.root.configs.rows().num_rows == 0


def test_quotas_of_clients_are_changed_and_described_as_by_kafkas_tool(
    cluster: LocalCluster,
) -> None:
    """The quotas of a client id, and those of all other client ids."""
    root = cluster.root / "cluster"
    of_app, default = ("--entity-name", "app"), ("--entity-default",)
    clients = ("--entity-type", "clients")
    rates = "producer_byte_rate=1024,consumer_byte_rate=2048"
    printed = run(
        "configs", "alter", *clients, *of_app, "--add-config", rates, cluster=root
    ).printed
    assert printed == "Completed updating config for client app.\n"
    printed = run(
        *("configs", "alter", *clients, *default, "--add-config", "producer_byte_rate=1"),
        cluster=root,
    ).printed
    assert printed == "Completed updating default config for clients in the cluster.\n"
    printed = run("configs", "describe", *clients, cluster=root).printed
    assert printed == (
        "Quota configs for the default client-id are producer_byte_rate=1.0\n"
        "Quota configs for client-id 'app' are "
        "consumer_byte_rate=2048.0, producer_byte_rate=1024.0\n"
    )
    run(
        "configs",
        "alter",
        *clients,
        *default,
        "--delete-config",
        "producer_byte_rate",
        cluster=root,
    )
    printed = run("configs", "describe", *clients, "--json", cluster=root).printed
    assert json.loads(printed) == [
        {
            "client_id": "app",
            "quotas": {"consumer_byte_rate": 2048, "producer_byte_rate": 1024},
        }
    ]
    refused = run(
        *("configs", "alter", *clients, *of_app, "--add-config", "producer_byte_rate=0"),
        cluster=root,
    ).refusal
    assert "producer_byte_rate in client app has the value '0'" in refused


def test_entities_are_named_by_options_of_their_own(cluster: LocalCluster, tmp_path: Path) -> None:
    """--topic, --broker, --client and the defaults stand for --entity-type and --entity-name."""
    root = cluster.root / "cluster"
    for short, long in (
        (("--topic", "t"), OF_TOPIC),
        (("--broker", "0"), (*BROKER, "--entity-name", "0")),
        (("--broker-defaults",), (*BROKER, "--entity-default")),
        (("--client", "c"), ("--entity-type", "clients", "--entity-name", "c")),
        (("--client-defaults",), ("--entity-type", "clients", "--entity-default")),
    ):
        key = "producer_byte_rate" if "--client" in short[0] else RETENTION
        key = "retention.ms" if short[0] == "--topic" else key
        run("configs", "alter", *short, "--add-config", f"{key}=7000", cluster=root)
        described = run("configs", "describe", *short, cluster=root).printed
        assert "7000" in described
        assert run("configs", "describe", *long, cluster=root).printed == described
    refused = run("configs", "describe", "--broker", "0", "--topic", "t", cluster=root).refusal
    assert refused.startswith("several entities are given: give one of --entity-name, ")


def test_settings_are_added_from_a_properties_file(cluster: LocalCluster, tmp_path: Path) -> None:
    """Comments, spaces and continued lines are those of Java's properties files."""
    root = cluster.root / "cluster"
    file = tmp_path / "topic.properties"
    file.write_text(
        "# a comment\n! another\n\n  retention.ms = 7000\ncleanup.policy: \\\n   compact,delete\n"
    )
    run("configs", "alter", "--topic", "t", "--add-config-file", str(file), cluster=root)
    [topic] = json.loads(run("configs", "describe", "--json", cluster=root).printed)
    assert {one["name"]: one["value"] for one in topic["configs"]} == {
        "min.insync.replicas": "2",
        "retention.ms": "7000",
        "cleanup.policy": "compact,delete",
    }
    for text, said in (("retention.ms", "has the line 'retention.ms'"), ("a=1\na=2", "a twice")):
        file.write_text(text)
        refused = run("configs", "alter", "--topic=t", f"--add-config-file={file}", cluster=root)
        assert said in refused.refusal
