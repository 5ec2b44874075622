"""Settings of topics, changed while the cluster runs: used from the next tick on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.cluster.topic_admin import ConfigSynonym
from sparklog.config import Settings, TopicConfig, parse
from sparklog.errors import ConfigError, ProtocolError
from sparklog.testing import LocalCluster

Start = Callable[..., LocalCluster]
MIN_ISR = "min.insync.replicas"


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    made = LocalCluster(tmp_path, [0, 1, 2])
    made.create_topic("t", assignment={0: [0, 1, 2]}, configs={MIN_ISR: 2})
    made.tick_until_idle()
    return made


def own(cluster: LocalCluster) -> dict[str, object]:
    config = cluster.connection.metadata().topic("t").config
    return config.model_dump(by_alias=True, exclude_none=True)


def elr(cluster: LocalCluster) -> list[int]:
    state = cluster.connection.metadata().partition("t", 0)
    return [one.broker_id for one in state.replicas if one.in_elr]


def test_keys_are_set_and_deleted_one_by_one(cluster: LocalCluster) -> None:
    """The other keys stay; a change to what is there already commits nothing."""
    cluster.alter_configs("t", {"max.message.bytes": "1000", "producer_byte_rate": 5})
    assert own(cluster) == {MIN_ISR: 2, "max.message.bytes": 1000, "producer_byte_rate": 5}
    cluster.alter_configs("t", {"max.message.bytes": 2000}, delete=["producer_byte_rate"])
    assert own(cluster) == {MIN_ISR: 2, "max.message.bytes": 2000}
    version = cluster.connection.root.topics.version
    cluster.alter_configs("t", {"max.message.bytes": 2000}, delete=["producer_byte_rate"])
    cluster.connection.metadata()
    assert cluster.connection.root.topics.version == version


@pytest.mark.parametrize(
    ("configs", "delete", "expected"),
    [
        ({"max.mesage.bytes": 1}, [], "unknown configuration key max.mesage.bytes in topic t: did"),
        ({}, ["nonsense"], "unknown configuration key nonsense in topic t"),
        ({MIN_ISR: 0}, [], f"configuration key {MIN_ISR} in topic t has the value 0"),
        ({MIN_ISR: 1}, [MIN_ISR], f"configuration key {MIN_ISR} of topic t is both set and"),
        (["x"], [], "configs of topic t must be a dict"),
    ],
)
def test_unusable_changes_are_refused_in_one_sentence(
    cluster: LocalCluster, configs: dict[str, object], delete: list[str], expected: str
) -> None:
    """Nothing is changed then."""
    with pytest.raises(ConfigError, match=expected):
        cluster.alter_configs("t", configs, delete)
    assert own(cluster) == {MIN_ISR: 2}


def test_a_value_above_the_replication_factor_is_refused(cluster: LocalCluster) -> None:
    """As at the creation of a topic."""
    with pytest.raises(ProtocolError, match=r"INVALID_CONFIG.*above its replication factor 3"):
        cluster.alter_configs("t", {MIN_ISR: 4})
    with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        cluster.alter_configs("gone", {MIN_ISR: 1})


def test_every_topic_key_takes_effect_in_the_next_tick(cluster: LocalCluster) -> None:
    """A leader that has begun uses max.message.bytes as it is now."""
    cluster.alter_configs("t", {"max.message.bytes": 1})
    refused = cluster.produce("t", 0, [b"too large"], acks=1)
    cluster.leader_tick(0)
    cluster.alter_configs("t", delete=["max.message.bytes"])
    taken = cluster.produce("t", 0, [b"too large"], acks=1)
    cluster.leader_tick(0)
    found = [one.response.error for one in (refused, taken) if one.response]
    assert found == ["MESSAGE_TOO_LARGE", "NONE"]


def test_unclean_election_may_be_allowed_for_a_partition_that_is_offline(
    cluster: LocalCluster,
) -> None:
    """The controller elects in its next tick."""
    cluster.alter_configs("t", {MIN_ISR: 1})
    cluster.tick_until_idle()
    for broker in (2, 1):
        cluster.crash(broker)
        cluster.fence(broker)
    cluster.produce("t", 0, [b"lost"])
    cluster.leader_tick(0)
    cluster.crash(0)
    cluster.restart(1)
    cluster.fence(0)
    assert cluster.partition("t", 0).leader is None
    cluster.alter_configs("t", {"unclean.leader.election.enable": True})
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).leader == 1


def test_min_isr_follows_and_a_waiting_request_is_answered_by_it(cluster: LocalCluster) -> None:
    """The controller publishes it; the leader acts on the published value (2.3, KIP-966).

    Raised, and then lowered, while a request waits for its followers.
    """
    cluster.alter_configs("t", {MIN_ISR: 3})
    cluster.controller_tick()
    assert cluster.connection.metadata().partition("t", 0).min_isr == 3
    for broker in (1, 2):
        cluster.crash(broker)
        cluster.fence(broker)
    assert cluster.partition("t", 0).isr == [0]
    refused = cluster.produce("t", 0, [b"refused"])
    written = cluster.produce("t", 0, [b"written"], acks=1)
    cluster.leader_tick(0)
    assert refused.response is not None
    assert refused.response.error == "NOT_ENOUGH_REPLICAS"
    assert written.response is not None
    assert cluster.replica(0, "t", 0).high_watermark == 0
    cluster.alter_configs("t", {MIN_ISR: 1})
    cluster.controller_tick()
    cluster.leader_tick(0)
    assert cluster.replica(0, "t", 0).high_watermark == 1
    taken = cluster.produce("t", 0, [b"taken"])
    cluster.leader_tick(0)
    assert taken.response is not None
    assert taken.response.error == "NONE"


def test_eligible_leaders_end_when_the_lowered_value_is_reached(cluster: LocalCluster) -> None:
    """KIP-966: raising the value makes nobody eligible; lowering it to the ISR clears the ELR."""
    cluster.alter_configs("t", {MIN_ISR: 3})
    cluster.tick_until_idle()
    cluster.crash(2)
    cluster.fence(2)
    assert elr(cluster) == [2]
    cluster.alter_configs("t", {MIN_ISR: 2})
    cluster.controller_tick()
    assert elr(cluster) == []
    cluster.alter_configs("t", {MIN_ISR: 3})
    cluster.controller_tick()
    assert (elr(cluster), cluster.partition("t", 0).isr) == ([], [0, 1])


def test_each_value_names_its_source(cluster: LocalCluster) -> None:
    """The topic's own, the brokers' configuration, or the default, with those it hides."""
    settings = parse(Settings, {"message.max.bytes": 7, MIN_ISR: 1}, "the test")
    found = Admin(cluster.connection, settings=settings).describe_configs("t")
    assert found.keys() == {str(one.alias) for one in TopicConfig.model_fields.values()}
    assert found[MIN_ISR][1:] == (
        "2",
        "topic",
        (
            ConfigSynonym("topic", MIN_ISR, "2"),
            ConfigSynonym("broker", MIN_ISR, "1"),
            ConfigSynonym("default", MIN_ISR, "1"),
        ),
    )
    assert found["max.message.bytes"].synonyms[0] == ("broker", "message.max.bytes", "7")
    assert found["unclean.leader.election.enable"][1:3] == ("false", "default")
    assert found["producer_byte_rate"][1:] == (None, "default", ())


def test_without_the_configuration_the_published_value_is_described(tmp_path: Path) -> None:
    """The controller has published the brokers' min.insync.replicas."""
    cluster = LocalCluster(tmp_path, [0, 1], config={MIN_ISR: 2})
    cluster.create_topic("t")
    cluster.tick_until_idle()
    admin = Admin(Connection(str(tmp_path / "cluster")))
    assert admin.describe_configs("t")[MIN_ISR][1:3] == ("2", "broker")
    with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        admin.describe_configs("gone")
