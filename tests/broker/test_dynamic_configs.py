"""Dynamic settings of brokers: taken without a restart, and without a request when idle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparklog.cluster.admin import Admin
from sparklog.cluster.dynamic_configs import DEFAULT_ENTITY
from sparklog.model import CONFIGS
from sparklog.storage.control_table import ControlTable
from sparklog.testing import LocalCluster

BACKOFF, MIN_ISR = "log.cleaner.backoff.ms", "min.insync.replicas"


def admin(cluster: LocalCluster) -> Admin:
    return Admin(cluster.connection, clock=cluster.clock)


def backoffs(cluster: LocalCluster) -> list[int]:
    return [cluster.brokers[of].settings.log_cleaner_backoff_ms for of in sorted(cluster.brokers)]


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    made = LocalCluster(tmp_path, [0, 1], config={BACKOFF: 4_000})
    made.create_topic("t", assignment={0: [0, 1]})
    made.tick_until_idle()
    return made


def test_the_value_of_the_nearest_source_is_valid(cluster: LocalCluster) -> None:
    """The broker's own value, then the default of all brokers, then the file's value."""
    assert backoffs(cluster) == [4_000, 4_000]
    admin(cluster).alter_broker_configs(None, {BACKOFF: 5_000})
    cluster.tick_until_idle()
    assert backoffs(cluster) == [5_000, 5_000]
    admin(cluster).alter_broker_configs(1, {BACKOFF: 6_000})
    cluster.tick_until_idle()
    assert backoffs(cluster) == [5_000, 6_000]
    admin(cluster).alter_broker_configs(None, delete=[BACKOFF])
    cluster.tick_until_idle()
    assert backoffs(cluster) == [4_000, 6_000]
    admin(cluster).alter_broker_configs(1, delete=[BACKOFF])
    cluster.tick_until_idle()
    assert backoffs(cluster) == [4_000, 4_000]


def test_a_restarted_broker_has_the_values(cluster: LocalCluster) -> None:
    """A broker reads them before it acts."""
    admin(cluster).alter_broker_configs(0, {BACKOFF: 5_000})
    cluster.crash(0)
    cluster.restart(0)
    assert backoffs(cluster) == [5_000, 4_000]


def test_each_key_reaches_the_part_of_the_broker_that_acts_on_it(cluster: LocalCluster) -> None:
    """message.max.bytes is valid for the next request."""
    admin(cluster).alter_broker_configs(None, {"message.max.bytes": 1})
    cluster.tick_until_idle()
    pending = cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert pending.response is not None
    assert pending.response.error == "MESSAGE_TOO_LARGE"


def test_the_controller_publishes_a_new_min_isr(cluster: LocalCluster) -> None:
    """The controller decides again on all partitions, though none has changed."""
    admin(cluster).alter_broker_configs(None, {MIN_ISR: 2})
    cluster.tick_until_idle()
    assert cluster.connection.metadata().partition("t", 0).min_isr == 2
    cluster.crash(1)
    cluster.fence(1)
    cluster.tick_until_idle()
    pending = cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert pending.response is not None
    assert pending.response.error == "NOT_ENOUGH_REPLICAS"


def test_an_offline_partition_is_led_once_unclean_elections_are_enabled(
    cluster: LocalCluster,
) -> None:
    """unclean.leader.election.enable lets any live replica lead, without another event."""
    cluster.crash(1)
    cluster.fence(1)
    cluster.produce("t", 0, [b"a"], acks=1)
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.restart(1)
    cluster.fence(0)
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).leader is None
    admin(cluster).alter_broker_configs(None, {"unclean.leader.election.enable": True})
    cluster.tick_until_idle()
    assert cluster.partition("t", 0).leader == 1


def test_a_cluster_at_rest_has_no_commit_and_reads_nothing(cluster: LocalCluster) -> None:
    """Brokers open `configs` once a change is announced, and read it once for each change."""
    roots = [broker._cluster for broker in cluster.brokers.values()]
    assert not any("configs" in vars(root) for root in roots)
    admin(cluster).alter_broker_configs(0, {BACKOFF: 5_000})
    cluster.tick_until_idle()
    assert all("configs" in vars(root) for root in roots)
    versions = [root.configs.version for root in roots]
    admin(cluster).alter_broker_configs(0, {BACKOFF: 5_000})
    cluster.tick_until_idle()
    assert [root.configs.version for root in roots] == versions
    assert cluster.brokers[0].controller_tick().commits == 0


def test_a_stored_value_of_another_release_is_left_out(cluster: LocalCluster) -> None:
    """Of several values the others are taken."""
    admin(cluster).alter_broker_configs(0, {BACKOFF: 5_000})
    table = cluster.connection.root.configs
    [row] = table.rows().to_pylist()
    values = json.loads(row["configs"]) | {"log.retention.ms": "soon", "num.replica.fetchers": "2"}
    table.refresh()
    table.compare_and_set(CONFIGS.rows([row | {"configs": json.dumps(values)}]))
    cluster.tick_until_idle()
    assert backoffs(cluster) == [5_000, 4_000]
    assert cluster.brokers[0].settings.log_retention_ms is None


def test_a_change_that_fails_before_its_announcement_is_completed_by_repeating_it(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crash point: `configs` has the values, and running brokers do not know of them."""
    admin(cluster).alter_broker_configs(1, {BACKOFF: 4_500})
    cluster.tick_until_idle()

    def fail(of: ControlTable, *_: object) -> None:
        assert of is cluster.connection.root.brokers
        raise OSError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(ControlTable, "compare_and_set", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            admin(cluster).alter_broker_configs(0, {BACKOFF: 5_000})
    cluster.tick_until_idle()
    assert backoffs(cluster) == [4_000, 4_500]
    admin(cluster).alter_broker_configs(0, {BACKOFF: 5_000})
    cluster.tick_until_idle()
    assert backoffs(cluster) == [5_000, 4_500]


def test_brokers_go_on_while_configs_cannot_be_read(cluster: LocalCluster) -> None:
    """The broker keeps its settings, serves requests, and takes the change later."""
    admin(cluster).alter_broker_configs(0, {BACKOFF: 5_000})
    folder = cluster.root / "cluster" / "configs"
    hidden = folder.rename(folder.with_name("hidden"))
    pending = cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    assert pending.response is not None
    assert (pending.response.error, backoffs(cluster)) == ("NONE", [4_000, 4_000])
    hidden.rename(folder)
    cluster.tick_until_idle()
    assert backoffs(cluster) == [5_000, 4_000]


def test_names_of_entities_are_those_of_kafka(cluster: LocalCluster) -> None:
    """The default of all brokers has Kafka's name in the table."""
    admin(cluster).alter_broker_configs(None, {BACKOFF: 5_000})
    [row] = cluster.connection.root.configs.rows().to_pylist()
    assert (row["entity_type"], row["entity_name"]) == ("brokers", DEFAULT_ENTITY)
    assert json.loads(row["configs"]) == {BACKOFF: "5000"}
