"""Configuration: every mistake is reported in one sentence with its key, and defaults are
Kafka's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparklog.cli.kafka_keys import DELIBERATE, KAFKA_DEFAULTS
from sparklog.config import (
    BrokerConfig,
    ClusterConfig,
    ConsumerConfig,
    Settings,
    TopicConfig,
    load,
    parse,
)
from sparklog.errors import ConfigError

CONF = Path(__file__).parents[1] / "conf"

CLUSTER: dict[str, Any] = {
    "cluster.root": "/data/cluster",
    "brokers": [
        {"broker.id": 0, "log.dirs": "/data/broker-0"},
        {"broker.id": 1, "log.dirs": "/data/broker-1"},
    ],
}
BROKER: dict[str, Any] = {
    "cluster.root": "/data/cluster",
    "broker.id": 0,
    "log.dirs": "/data/broker-0",
}

NOT_KAFKAS = {
    "replica.lag.max.messages": "gone from Kafka since 0.9; kept, and off",
    "tick.interval.ms": "Kafka's brokers do not tick",
    "parked.session.timeout.ms": "Kafka's brokers are not parked",
    "controlled.shutdown.timeout.ms": "Kafka's controlled.shutdown.* are numbers of retries; its "
    "BrokerServer waits for a constant of 5 minutes",
    "tick.failure.timeout.ms": "Kafka's brokers do not tick; as log.dir.failure.timeout.ms",
    "auto.create.cluster.enable": "Kafka's clusters are created by kafka-storage format",
    "request.clock.skew.ms": "a request to Kafka does not outlive its connection",
    "log.scrub.bytes.per.second": "Kafka does not verify batches that nobody reads",
    "log.vacuum.enable": "Kafka deletes the files of a segment when it deletes the segment",
    "log.vacuum.interval.ms": "see log.vacuum.enable",
    "log.vacuum.unknown.file.retention.ms": "Kafka's producers store no files themselves",
    "file.delete.delay.ms": "an hour, not a minute: a version of a table that can still be read "
    "needs its files",
    "metadata.history.retention.ms": "Kafka's metadata.max.retention.ms is about its own log",
    "log.merger.enable": "Kafka's batches are no files, and are never merged",
    "log.merger.backoff.ms": "as log.cleaner.backoff.ms",
    "log.merger.min.lag.ms": "as log.cleaner.min.compaction.lag.ms",
    "log.merger.min.batches": "see log.merger.enable",
    "log.merger.max.batch.bytes": "see log.merger.enable",
    "metrics.http.port": "Kafka's metrics are JMX beans; an agent exports them",
    "metrics.http.host": "see metrics.http.port",
    "metrics.textfile": "see metrics.http.port",
    "tracing.enable": "Kafka's brokers do not trace",
    "rules.engine": "Kafka has no choice of engines",
    "execution": "Kafka has no Spark",
    "execution.spark.min.bytes": "Kafka has no Spark",
    "execution.spark.bytes.per.task": "Kafka has no Spark",
    "cluster.root": "takes the place of controller.quorum.*",
    "storage.options": "Kafka's logs lie on disks",
    "brokers": "a Kafka process is one broker",
    "broker.id": "required here: nobody assigns ids",
    "log.dirs": "required here: Kafka's default is a temporary folder",
}

CONSUMER_DEFAULTS = {
    "auto.offset.reset": "latest",
    "enable.auto.commit": True,
    "auto.commit.interval.ms": 5_000,
    "max.poll.records": 500,
    "max.poll.interval.ms": 300_000,
    "session.timeout.ms": 45_000,
    "heartbeat.interval.ms": 3_000,
    "fetch.min.bytes": 1,
    "fetch.max.wait.ms": 500,
    "fetch.max.bytes": 52_428_800,
    "max.partition.fetch.bytes": 1_048_576,
    "partition.assignment.strategy": ["range"],
    "group.instance.id": None,
    "isolation.level": "read_uncommitted",
    "default.api.timeout.ms": 60_000,
    "client.id": "",
    "client.rack": "",
}
"""Kafka 4's defaults, from its consumer configuration reference; of its two assignors the first."""


def refusal(model: Any, values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        parse(model, values, "here.yaml")
    message = str(raised.value)
    assert "here.yaml" in message
    assert "\n" not in message
    return message


def of_file(model: Any, folder: Path, text: str) -> str:
    file = folder / "bad.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        load(model, file)
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("replica.lag.time.max", "replica.lag.time.max.ms"),
        ("min.insync.replica", "min.insync.replicas"),
        ("min_insync_replicas", "min.insync.replicas"),
        ("log.dir", "log.dirs"),
        ("broker.session.timeout", "broker.session.timeout.ms"),
    ],
)
def test_an_unknown_key_is_refused_with_the_one_that_was_meant(wrong: str, meant: str) -> None:
    message = refusal(BrokerConfig, BROKER | {wrong: 1})
    assert message.startswith(f"unknown configuration key {wrong} ")
    assert message.endswith(f"did you mean {meant}?")


def test_an_unknown_key_like_no_other_is_answered_with_all_that_there_are() -> None:
    message = refusal(TopicConfig, {"colour": "red"})
    assert message.endswith(
        "known keys: min.insync.replicas, max.message.bytes, producer_byte_rate, "
        "unclean.leader.election.enable, retention.ms, retention.bytes, cleanup.policy, "
        "min.cleanable.dirty.ratio, min.compaction.lag.ms, max.compaction.lag.ms, "
        "delete.retention.ms"
    )


def test_a_misspelled_key_is_named_rather_than_the_missing_one_that_it_was_meant_for() -> None:
    values = {key: value for key, value in BROKER.items() if key != "cluster.root"}
    message = refusal(BrokerConfig, values | {"clutser.root": "/data/cluster"})
    assert message.startswith("unknown configuration key clutser.root ")
    assert message.endswith("did you mean cluster.root?")


def test_an_unknown_key_of_one_broker_names_the_broker_and_a_brokers_key() -> None:
    brokers = [CLUSTER["brokers"][0], CLUSTER["brokers"][1] | {"broker.rak": "a"}]
    message = refusal(ClusterConfig, CLUSTER | {"brokers": brokers})
    assert message.startswith("unknown configuration key brokers[1].broker.rak ")
    assert message.endswith("did you mean broker.rack?")


@pytest.mark.parametrize("key", ["cluster.root", "brokers"])
def test_a_missing_key_of_a_cluster_is_named(key: str) -> None:
    message = refusal(ClusterConfig, {one: CLUSTER[one] for one in CLUSTER if one != key})
    assert message == f"configuration key {key} is missing in here.yaml: add it"


@pytest.mark.parametrize("key", ["cluster.root", "broker.id", "log.dirs"])
def test_a_missing_key_of_a_broker_is_named(key: str) -> None:
    message = refusal(BrokerConfig, {one: BROKER[one] for one in BROKER if one != key})
    assert message == f"configuration key {key} is missing in here.yaml: add it"
    entry = {one: BROKER[one] for one in ("broker.id", "log.dirs") if one != key}
    if key in ("broker.id", "log.dirs"):
        message = refusal(ClusterConfig, CLUSTER | {"brokers": [entry]})
        assert message == f"configuration key brokers[0].{key} is missing in here.yaml: add it"


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("replica.lag.time.max.ms", "soon"),
        ("replica.lag.time.max.ms", 0),
        ("replica.lag.time.max.ms", -1),
        ("replica.lag.time.max.ms", 1.5),
        ("replica.lag.time.max.ms", None),
        ("replica.lag.time.max.ms", [1]),
        ("replica.lag.time.max.ms", True),
        ("replica.lag.max.messages", True),
        ("num.partitions", 0),
        ("tick.interval.ms", -1),
        ("unclean.leader.election.enable", "perhaps"),
        ("unclean.leader.election.enable", 2),
        ("rules.engine", "flink"),
        ("broker.id", -1),
        ("broker.id", "one"),
        ("broker.rack", 7),
        ("cluster.root", None),
        ("cluster.root", ""),
        ("cluster.root", 5),
        ("log.dirs", None),
        ("log.dirs", []),
        ("log.dirs", [7]),
        ("storage.options", "s3"),
    ],
)
def test_a_malformed_value_is_named_with_its_key(key: str, value: object) -> None:
    message = refusal(BrokerConfig, BROKER | {key: value})
    assert message.startswith(f"configuration key {key}")
    if key != "storage.options":
        shown = 7 if value == [7] else value
        assert f"has the value {shown!r}: " in message


@pytest.mark.parametrize("value", ["", " , ", "/a,,/b", "/a,"])
def test_an_empty_entry_of_a_comma_list_is_refused(value: str) -> None:
    assert "log.dirs" in refusal(BrokerConfig, BROKER | {"log.dirs": value})


@pytest.mark.parametrize("value", [3, "0", [3], [["broker.id"]], [], {}])
def test_brokers_that_are_no_list_of_mappings_are_refused(value: object) -> None:
    assert "key brokers" in refusal(ClusterConfig, CLUSTER | {"brokers": value})


def test_a_malformed_storage_option_is_named_without_its_value() -> None:
    options = {"s3://bucket": {"AWS_SECRET_ACCESS_KEY": ["hunter2"]}}
    message = refusal(BrokerConfig, BROKER | {"storage.options": options})
    assert "AWS_SECRET_ACCESS_KEY" in message
    assert "hunter2" not in message


def test_numbers_and_truth_values_among_storage_options_become_the_text_that_stores_take() -> None:
    options = {"s3://bucket": {"AWS_ALLOW_HTTP": True, "timeout": 30, "AWS_REGION": "eu-west-1"}}
    config = parse(BrokerConfig, BROKER | {"storage.options": options}, "here.yaml")
    assert config.storage_options["s3://bucket"] == {
        "AWS_ALLOW_HTTP": "true",
        "timeout": "30",
        "AWS_REGION": "eu-west-1",
    }


def test_values_may_be_written_as_text_as_in_kafkas_properties() -> None:
    config = parse(TopicConfig, {"min.insync.replicas": "2"}, "here.yaml")
    assert config.min_insync_replicas == 2
    unclean = parse(TopicConfig, {"unclean.leader.election.enable": "true"}, "here.yaml")
    assert unclean.unclean_leader_election_enable is True


@pytest.mark.parametrize("heartbeat", [9_000, 10_000])
def test_a_heartbeat_that_does_not_fit_into_a_session_is_refused(heartbeat: int) -> None:
    message = refusal(Settings, {"broker.heartbeat.interval.ms": heartbeat})
    assert message == (
        "here.yaml: broker.heartbeat.interval.ms must be below broker.session.timeout.ms"
    )


# --- brokers and folders ------------------------------------------------------------------------


def test_checkpoints_on_an_object_store_are_rarer_unless_their_interval_is_set() -> None:
    key = "replica.high.watermark.checkpoint.interval.ms"
    default, given = Settings(), Settings.model_validate({key: 5_000})
    assert default.checkpoint_interval_ms(is_local=True) == 5_000
    assert default.checkpoint_interval_ms(is_local=False) == 60_000
    assert given.checkpoint_interval_ms(is_local=False) == 5_000


def test_a_broker_id_given_twice_is_refused() -> None:
    brokers = [CLUSTER["brokers"][0], {"broker.id": 0, "log.dirs": "/data/other"}]
    message = refusal(ClusterConfig, CLUSTER | {"brokers": brokers})
    assert message == "here.yaml: broker.id 0 is given twice: each must be unique"


@pytest.mark.parametrize(
    "taken", ["/data/broker-0", "/data/broker-0/", "/data/cluster", "/new, /data/broker-0", "/n,/n"]
)
def test_a_folder_given_twice_is_refused(taken: str) -> None:
    brokers = [CLUSTER["brokers"][0], {"broker.id": 1, "log.dirs": taken}]
    assert "is given twice" in refusal(ClusterConfig, CLUSTER | {"brokers": brokers})


@pytest.mark.parametrize("taken", ["/data/cluster", "/n,/n"])
def test_a_folder_given_twice_is_refused_of_one_broker_too(taken: str) -> None:
    assert "is given twice" in refusal(BrokerConfig, BROKER | {"log.dirs": taken})


def test_a_single_broker_is_seen_as_a_cluster_lists_it() -> None:
    values = BROKER | {"log.dirs": "/a, /b", "broker.rack": "r"}
    [entry] = parse(BrokerConfig, values, "here.yaml").brokers
    assert (entry.broker_id, entry.log_dirs, entry.rack) == (0, ["/a", "/b"], "r")


def test_log_dirs_are_a_yaml_list_or_kafkas_comma_list() -> None:
    for written in ("/a, /b,s3://bucket/c", ["/a", "/b", "s3://bucket/c"]):
        config = parse(BrokerConfig, BROKER | {"log.dirs": written}, "here.yaml")
        assert config.log_dirs == ["/a", "/b", "s3://bucket/c"]


# --- files ----------------------------------------------------------------------------------------


def test_relative_paths_are_relative_to_the_file_and_uris_stay(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "cluster.yaml"
    file.write_text(
        "cluster.root: ../data/cluster\n"
        "brokers:\n"
        "  - {broker.id: 0, log.dirs: '../data/./b0, /elsewhere/b0, s3://bucket/b0'}\n"
        "  - {broker.id: 1, log.dirs: [../data/b1/, ~/b1]}\n"
    )
    config = load(ClusterConfig, file)
    assert config.cluster_root == f"{tmp_path}/data/cluster"
    assert config.brokers[0].log_dirs == [
        f"{tmp_path}/data/b0",
        "/elsewhere/b0",
        "s3://bucket/b0",
    ]
    assert config.brokers[1].log_dirs == [f"{tmp_path}/data/b1", f"{Path.home()}/b1"]


def test_one_folder_written_in_two_ways_is_given_twice(tmp_path: Path) -> None:
    message = of_file(
        BrokerConfig,
        tmp_path,
        "{cluster.root: data/cluster, broker.id: 0, log.dirs: x/../data/cluster/}",
    )
    assert f"folder {tmp_path}/data/cluster is given twice" in message


def test_a_file_reached_by_a_link_counts_where_the_link_is(tmp_path: Path) -> None:
    """As Kubernetes mounts configuration: the name stays the same, and the file behind it
    changes.
    """
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "broker.yaml").write_text(
        "{cluster.root: data/cluster, broker.id: 0, log.dirs: data/b0}"
    )
    link = tmp_path / "broker.yaml"
    link.symlink_to(tmp_path / "..data" / "broker.yaml")
    assert load(BrokerConfig, link).cluster_root == f"{tmp_path}/data/cluster"


@pytest.mark.parametrize("root", ["s3:/bucket/x", "file:/data/x", "abfss:/x"])
def test_a_uri_that_lacks_a_slash_is_not_taken_for_a_folder(root: str, tmp_path: Path) -> None:
    text = f"{{cluster.root: '{root}', broker.id: 0, log.dirs: b0}}"
    assert "write scheme://" in of_file(BrokerConfig, tmp_path, text)


@pytest.mark.parametrize("empty", ["''", "'a,,b'"])
def test_an_empty_path_is_not_taken_for_the_files_own_folder(empty: str, tmp_path: Path) -> None:
    text = f"{{cluster.root: c, broker.id: 0, log.dirs: {empty}}}"
    assert "log.dirs" in of_file(BrokerConfig, tmp_path, text)
    text = "{cluster.root: '', broker.id: 0, log.dirs: b}"
    assert "cluster.root" in of_file(BrokerConfig, tmp_path, text)


@pytest.mark.parametrize(
    "text", ["a: b: c", "\t- x", "{", "cluster.root: !!python/object:os.system x", "a: '\x00'"]
)
def test_what_is_not_yaml_is_refused_with_its_place(text: str, tmp_path: Path) -> None:
    message = of_file(BrokerConfig, tmp_path, text)
    assert "is not YAML" in message
    assert re.search(r"line 1|position", message)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "binary.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not YAML"):
        load(BrokerConfig, file)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: " + "9" * 5_000, id="a number of 5000 digits"),
        pytest.param("a: 2001-13-45", id="a malformed date"),
        pytest.param("a: !!bool x", id="a malformed truth value"),
        pytest.param("a: !!int ''", id="a number that is empty"),
        pytest.param("!!map x", id="a mapping that is text"),
        pytest.param("[" * 5_000, id="nesting"),
    ],
)
def test_values_that_yaml_cannot_convert_are_refused(text: str, tmp_path: Path) -> None:
    """Found by hostile input: PyYAML raises ValueError, KeyError, IndexError or RecursionError."""
    assert "is not YAML" in of_file(BrokerConfig, tmp_path, text)


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "just text", "3"])
def test_what_is_not_a_mapping_is_refused(text: str, tmp_path: Path) -> None:
    assert "must have 'key: value' lines" in of_file(BrokerConfig, tmp_path, text)


def test_a_key_given_twice_is_refused_since_one_of_them_would_be_lost(tmp_path: Path) -> None:
    text = "cluster.root: c\nbroker.id: 0\nlog.dirs: b\nbroker.id: 1\n"
    message = of_file(BrokerConfig, tmp_path, text)
    assert "the key broker.id is given twice" in message
    assert "line 4" in message


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match=re.escape(f"{path} cannot be read")):
            load(BrokerConfig, path)


# --- what is shipped ------------------------------------------------------------------------------


def test_the_shipped_cluster_configuration_loads() -> None:
    config = load(ClusterConfig, CONF / "cluster.yaml")
    assert [broker.broker_id for broker in config.brokers] == [0, 1, 2]
    data = CONF.parent / "sparklog-data"
    assert config.cluster_root == str(data / "cluster")
    assert [broker.log_dirs for broker in config.brokers] == [
        [str(data / f"broker-{number}")] for number in range(3)
    ]


def test_the_shipped_broker_configuration_is_that_of_a_broker_of_the_shipped_cluster() -> None:
    """Therefore a cluster's file and a broker's file can be used together without an
    explanation.
    """
    cluster = load(ClusterConfig, CONF / "cluster.yaml")
    broker = load(BrokerConfig, CONF / "broker.yaml")
    assert broker.cluster_root == cluster.cluster_root
    assert broker.brokers[0] == cluster.brokers[0]
    shared = Settings.model_fields
    assert {name: getattr(broker, name) for name in shared} == {
        name: getattr(cluster, name) for name in shared
    }


def test_what_the_shipped_files_show_as_comments_is_valid_too(tmp_path: Path) -> None:
    for name, model in (("cluster.yaml", ClusterConfig), ("broker.yaml", BrokerConfig)):
        text = (CONF / name).read_text(encoding="utf-8")
        uncommented = re.sub(r"(?m)^# (?=(  )*[\w.:/-]+:( |$))", "", text)
        assert len(yaml.safe_load(uncommented)) > len(yaml.safe_load(text))
        (tmp_path / name).write_text(uncommented, encoding="utf-8")
        load(model, tmp_path / name)


def test_every_default_is_kafkas_unless_the_difference_is_deliberate() -> None:
    defaults = {
        field.alias or name: field.get_default(call_default_factory=True)
        for model in (ClusterConfig, BrokerConfig)
        for name, field in model.model_fields.items()
    }
    assert defaults.keys() == KAFKA_DEFAULTS.keys() | NOT_KAFKAS.keys()
    different = {key for key, value in KAFKA_DEFAULTS.items() if defaults[key] != value}
    assert different == DELIBERATE.keys()


def test_every_default_of_a_consumer_is_kafkas() -> None:
    config = parse(ConsumerConfig, {}, "here.yaml")
    assert config.model_dump(by_alias=True) == CONSUMER_DEFAULTS


def test_a_topic_leaves_to_the_cluster_what_it_does_not_set() -> None:
    config = parse(TopicConfig, {}, "here.yaml")
    assert set(config.model_dump().values()) == {None}


def test_every_key_of_a_cluster_and_of_a_consumer_says_what_it_does() -> None:
    for model in (Settings, ConsumerConfig):
        for field in model.model_fields.values():
            assert field.description, field.alias


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": 1}, 3_600_000),
        ({"log.retention.hours": 1, "log.retention.minutes": 1}, 60_000),
        ({"log.retention.hours": 1, "log.retention.minutes": 1, "log.retention.ms": 1}, 1),
        ({"log.retention.hours": -1}, -1),
        ({"log.retention.minutes": -1}, -1),
        ({"log.retention.ms": -1, "log.retention.hours": 1}, -1),
    ],
)
def test_the_finest_unit_of_retention_counts(given: dict[str, int], retention_ms: int) -> None:
    assert parse(Settings, given, "here.yaml").retention_ms == retention_ms


@pytest.mark.parametrize("unit", ["ms", "minutes", "hours"])
def test_a_retention_of_nothing_is_refused(unit: str) -> None:
    """As in Kafka, -1 is for ever; a topic may have retention.ms=0."""
    for value in (0, -2):
        with pytest.raises(ConfigError, match=rf"log.retention.{unit}"):
            parse(Settings, {f"log.retention.{unit}": value}, "here.yaml")
    assert parse(TopicConfig, {"retention.ms": 0}, "here.yaml").retention_ms == 0
