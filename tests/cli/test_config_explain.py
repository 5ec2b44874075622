"""`sparklog config explain`: the meaning of a key, its default and places, and Kafka's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from sparklog.cli.explain import all_explanations, explanations, text_of
from sparklog.cli.kafka_keys import PRODUCER_DEFAULTS
from sparklog.config import ProducerConfig
from sparklog.testing import LocalCluster
from tests.cli.command_line import run

BACKOFF = "log.cleaner.backoff.ms"


def test_a_key_is_explained_in_all_of_its_places() -> None:
    """`config` and `configs` are the same command, which needs no cluster."""
    assert (
        run("config", "explain", "message.max.bytes").printed
        == """\
message.max.bytes
  The largest batch file, in bytes, unless the topic overrides it.
  Default: 1073741824
  Values: whole number, more than 0
  Valid in: the file of `sparklog cluster`
  Valid in: a broker or all brokers, while they run: configs alter --entity-type
            brokers
  Valid in: the file of `sparklog broker`
  Kafka: the same key and meaning; its default is 1048588. It differs here on
         purpose: a batch is a file of a whole DataFrame's partition, not a few
         KiB.
"""
    )
    assert (
        run("configs", "explain", "cleanup.policy").printed
        == """\
cleanup.policy
  delete, compact, or both.
  Default: the brokers' setting
  Values: delete, compact
  Valid in: a topic: topics create --config, configs alter
  Kafka: the same key and meaning.
"""
    )
    of_topic, of_client = explanations("producer_byte_rate")
    assert of_topic.valid_in != of_client.valid_in


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration file of a cluster with topics `t`, which sets a key, and `u`."""
    made = LocalCluster(tmp_path_factory.mktemp("explain"), [0, 1])
    made.create_topic("t", configs={"min.insync.replicas": 2})
    made.create_topic("u")
    of_1 = ("--entity-type", "brokers", "--entity-name", "1")
    run("configs", "alter", *of_1, "--add-config", f"{BACKOFF}=5000", cluster=made.root / "cluster")
    file = made.root / "cluster.yaml"
    file.write_text(
        f"cluster.root: {made.root}/cluster\n{BACKOFF}: 4000\nmin.insync.replicas: 1\n"
        f"brokers:\n- {{broker.id: 0, log.dirs: {made.root}/broker-0}}\n"
    )
    return file


def test_with_a_cluster_the_values_in_force_are_shown_with_their_sources(cluster: Path) -> None:
    """For all, and for each topic or broker that sets the key itself; as describe has them."""
    of_brokers, of_topics = run(
        "configs", "explain", "min.insync.replicas", cluster=cluster
    ).printed.split("\n\n")
    assert of_brokers.endswith(
        """
  In force: 1 for all brokers (STATIC_BROKER_CONFIG); without it 1
            (DEFAULT_CONFIG:min.insync.replicas)
  Changed: never, in the history
  History: sparklog query "from config_history where key = 'min.insync.replicas'\""""
    )
    of_topics, _, last = of_topics.partition("  Changed: ")
    assert re.fullmatch(r"\S+ \S+, topic t: not set -> 2", last.splitlines()[0])
    assert of_topics.endswith(
        """
  In force: 1 for all topics (STATIC_BROKER_CONFIG); without it 1
            (DEFAULT_CONFIG:min.insync.replicas)
  In force: 2 for topic t (DYNAMIC_TOPIC_CONFIG); without it 1
            (STATIC_BROKER_CONFIG:min.insync.replicas), then 1
            (DEFAULT_CONFIG:min.insync.replicas)
"""
    )
    [one] = json.loads(run("configs", "explain", BACKOFF, "--json", cluster=cluster).printed)
    static = {"source": "STATIC_BROKER_CONFIG", "name": BACKOFF, "value": "4000"}
    default = {"source": "DEFAULT_CONFIG", "name": BACKOFF, "value": "15000"}
    own = {"source": "DYNAMIC_BROKER_CONFIG", "name": BACKOFF, "value": "5000"}
    assert [(of["entity_name"], of["value"], of["synonyms"]) for of in one["in_force"]] == [
        (None, "4000", [static, default]),
        ("1", "5000", [own, static, default]),
    ]
    assert "in_force" not in json.loads(run("configs", "explain", BACKOFF, "--json").printed)[0]


def test_the_value_of_one_topic_or_broker_is_shown_alone(cluster: Path) -> None:
    """A root does not know the brokers' file, which the last line says."""
    root = cluster.parent / "cluster"
    of_topic = run("config", "explain", "max.message.bytes", "--entity-name", "t", cluster=root)
    assert of_topic.printed.endswith(
        """
  In force: 1073741824 for topic t (DEFAULT_CONFIG)
  Changed: never, in the history
  History: sparklog query "from config_history where key = 'max.message.bytes'"

Values of the brokers' configuration file are shown if --cluster names it.
"""
    )
    of_broker = ("--entity-type", "brokers", "--entity-name")
    told = run("config", "explain", BACKOFF, *of_broker, "0", cluster=root).printed
    assert "  In force: 15000 for broker 0 (DEFAULT_CONFIG)" in told
    assert told.count("In force") == 1


def test_the_last_change_is_shown_with_the_values_before_and_after(tmp_path: Path) -> None:
    """It did not point to `config_history`, which has who was changed when."""
    made = LocalCluster(tmp_path, [0, 1])
    for name in ("t", "u"):
        made.create_topic(name)
    root = made.root / "cluster"

    def alter(*options: str) -> None:
        run("configs", "alter", *options, cluster=root)

    def changed(*options: str) -> dict[str, object]:
        explained = run("config", "explain", *options, "--json", cluster=root).printed
        [last] = [one["last_change"] for one in json.loads(explained) if one["last_change"]]
        assert isinstance(last, dict)
        return last

    of_t = ("--entity-type", "topics", "--entity-name", "t")
    alter(*of_t, "--add-config", "retention.ms=60000")
    alter(*of_t, "--add-config", "retention.ms=70000")
    alter("--topic", "u", "--add-config", "retention.ms=1")
    of_brokers = ("--entity-type", "brokers")
    alter(*of_brokers, "--entity-default", "--add-config", f"{BACKOFF}=1000")
    alter(*of_brokers, "--entity-default", "--delete-config", BACKOFF)

    newest = changed("retention.ms")
    assert (newest["entity_name"], newest["value_before"], newest["value"]) == ("u", None, "1")
    of_topic = changed("retention.ms", *of_t)
    assert (of_topic["value_before"], of_topic["value"]) == ("60000", "70000")
    assert (of_topic["entity_type"], of_topic["operation"]) == ("topics", "ALTER CONFIGS")
    of_broker = changed(BACKOFF, *of_brokers, "--entity-name", "1")
    assert (of_broker["entity_name"], of_broker["value_before"]) == (None, "1000")
    told = run("config", "explain", BACKOFF, cluster=root).printed
    assert re.search(r"^  Changed: \S+ \S+, all brokers: 1000 -> not set$", told, re.MULTILINE)
    [command] = re.findall(r'^  History: sparklog query "(.*)"$', told, re.MULTILINE)
    assert "(2 rows)" in run("query", command, cluster=root).stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("cleanup.policy", "--entity-type", "brokers", "--entity-name", "0"), "of brokers: `spar"),
        (("num.partitions", "--entity-name", "t"), "num.partitions is not a setting of topics: "),
        ((BACKOFF, "--entity-type", "brokers", "--entity-name", "7"), "there is no broker 7"),
        ((BACKOFF, "--entity-type", "clients"), "`sparklog configs describe --entity-type clients"),
        (("--entity-name", "t"), "give KEY and --cluster"),
    ],
)
def test_values_that_there_are_not_are_refused(
    cluster: Path, options: tuple[str, ...], expected: str
) -> None:
    assert expected in run("config", "explain", *options, cluster=cluster).refusal


def test_every_key_is_described_within_80_columns() -> None:
    for one in all_explanations():
        assert len(one.description) > 5, one.key
        assert all(cell_len(line) <= 80 for line in text_of(one).splitlines()), one.key
    listed = json.loads(run("config", "explain", "--json").printed)
    assert [one["key"] for one in listed] == [one.key for one in all_explanations()]
    assert "min.insync.replicas" in run("config", "explain").printed


def test_an_unknown_key_is_answered_with_the_one_that_was_meant() -> None:
    refusal = run("config", "explain", "min.insync.replica").refusal
    assert refusal == (
        "there is no configuration key min.insync.replica: did you mean min.insync.replicas?"
    )
    assert "`configs explain` lists all keys" in run("config", "explain", "colour").refusal


def test_kafkas_defaults_are_known_for_every_key_of_producers() -> None:
    assert PRODUCER_DEFAULTS.keys() == {
        field.alias or name for name, field in ProducerConfig.model_fields.items()
    }
