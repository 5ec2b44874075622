"""`LocalCluster` is deterministic: time and ticks are the test's, and wrong use is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog.errors import ConfigError, ProtocolError, SparklogError
from sparklog.testing import LocalCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster", brokers=[0, 1])
    cluster.create_topic("t", assignment={0: [0, 1]})
    yield cluster
    cluster.close()


def test_coming_to_rest_never_moves_the_clock(cluster: LocalCluster) -> None:
    cluster.produce("t", 0, [b"a"])
    before = cluster.clock.now_ms()
    cluster.tick_until_idle()
    assert cluster.clock.now_ms() == before


def test_time_does_not_go_back(cluster: LocalCluster) -> None:
    with pytest.raises(ValueError, match="time does not go back"):
        cluster.clock.advance(-1)


def test_ticking_a_crashed_broker_is_refused(cluster: LocalCluster) -> None:
    cluster.crash(1)
    for act in (cluster.leader_tick, cluster.follower_tick, cluster.crash):
        with pytest.raises(SparklogError, match="broker 1 has crashed"):
            act(1)


def test_a_running_broker_is_neither_restarted_nor_fenced(cluster: LocalCluster) -> None:
    for act in (cluster.restart, cluster.fence):
        with pytest.raises(SparklogError, match="broker 1 runs"):
            act(1)


def test_a_restart_registers_and_runs_no_tick(cluster: LocalCluster) -> None:
    cluster.tick_until_idle()
    cluster.crash(0)
    before = cluster.partition("t", 0)
    cluster.restart(0)
    assert cluster.partition("t", 0) == before
    assert cluster.replica(0, "t", 0).leader_epoch == 0


def test_a_follower_that_does_not_fetch_leaves_the_in_sync_set_once(tmp_path: Path) -> None:
    """Its log end offset is the high watermark, but only a report made since it left counts."""
    cluster = LocalCluster(tmp_path / "cluster", brokers=[0, 1])
    cluster.create_topic("t", assignment={0: [0, 1]}, configs={"min.insync.replicas": "2"})
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"a"], acks=1)
    cluster.leader_tick(0)
    cluster.clock.advance(cluster.settings.replica_lag_time_max_ms + 1)
    cluster.leader_tick(0)
    assert cluster.partition("t", 0).isr == [0]
    partition_epoch = cluster.partition("t", 0).partition_epoch
    for _ in range(3):
        cluster.leader_tick(0)
    assert cluster.partition("t", 0).partition_epoch == partition_epoch
    cluster.tick_until_idle()
    cluster.close()


def test_fencing_runs_no_leader_and_no_follower(cluster: LocalCluster) -> None:
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"a"], acks=1)
    cluster.crash(1)
    before = cluster.replica(0, "t", 0), cluster.clock.now_ms()
    cluster.fence(1)
    assert cluster.replica(0, "t", 0) == before[0]
    assert cluster.clock.now_ms() == before[1] + 9001
    assert cluster.partition("t", 0).isr == [0]


def test_a_crashed_brokers_tables_stay_readable(cluster: LocalCluster) -> None:
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(1)
    assert [record.value for record in cluster.log(1, "t", 0)] == [b"a"]
    assert cluster.replica(1, "t", 0).high_watermark == 1
    assert cluster.leader_epochs(1, "t", 0) == [(0, 0)]


def test_a_new_topic_has_nothing_to_show_yet(cluster: LocalCluster) -> None:
    assert cluster.consume("t", 0) == []
    assert cluster.replica(0, "t", 0) == (0, 0, 0, -1, "follower")
    assert cluster.partition("t", 0) == (0, 0, 0, [0, 1], [0, 1])
    cluster.leader_tick(0)
    assert cluster.replica(0, "t", 0) == (0, 0, 0, 0, "leader")


def test_what_the_cluster_does_not_have_is_named(cluster: LocalCluster) -> None:
    with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'u'"):
        cluster.log(0, "u", 0)
    with pytest.raises(SparklogError, match="broker 7 has no replica of t-0"):
        cluster.log(7, "t", 0)
    with pytest.raises(ProtocolError, match="INVALID_REQUIRED_ACKS"):
        cluster.produce("t", 0, [b"a"], acks=2)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="TOPIC_ALREADY_EXISTS"):
        cluster.create_topic("t")


def test_a_wrong_configuration_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"replica\.lag\.time"):
        LocalCluster(tmp_path / "cluster", config={"replica.lag.time.max.msec": 1})
    assert not (tmp_path / "cluster").exists()


def test_a_topic_is_on_all_brokers_unless_it_is_said(cluster: LocalCluster) -> None:
    cluster.create_topic("wide", partitions=3)
    assert {len(cluster.partition("wide", n).replicas) for n in range(3)} == {2}
    cluster.create_topic("narrow", replication_factor=1)
    assert len(cluster.partition("narrow", 0).replicas) == 1


def test_two_clusters_over_one_history_tell_the_same(tmp_path: Path) -> None:
    """Nothing depends on chance or on the wall clock but ids."""

    def story(root: Path) -> list[object]:
        cluster = LocalCluster(root, brokers=[0, 1])
        cluster.create_topic("t", assignment={0: [0, 1]})
        seen: list[object] = []
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        cluster.crash(0)
        cluster.fence(0)
        cluster.produce("t", 0, [b"b"], acks=1)
        cluster.tick_until_idle()
        cluster.restart(0)
        cluster.tick_until_idle()
        for broker in (0, 1):
            seen += [cluster.log(broker, "t", 0), cluster.replica(broker, "t", 0)]
            seen += [cluster.leader_epochs(broker, "t", 0)]
        return [*seen, cluster.partition("t", 0), cluster.clock.now_ms()]

    assert story(tmp_path / "one") == story(tmp_path / "two")


class TestPause:
    """A paused broker is silent; woken for a tick, it acts on what it had read before."""

    @pytest.fixture
    def three(self, tmp_path: Path) -> LocalCluster:
        """Broker 0 leads, everybody has one record."""
        cluster = LocalCluster(tmp_path / "three", brokers=[0, 1, 2])
        cluster.create_topic("t", assignment={0: [0, 1, 2]}, configs={"min.insync.replicas": "2"})
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        return cluster

    @staticmethod
    def log(cluster: LocalCluster, broker: int) -> list[bytes | None]:
        return [record.value for record in cluster.log(broker, "t", 0)]

    def test_what_a_paused_leader_appends_is_its_own_until_it_truncates_it(
        self, three: LocalCluster
    ) -> None:
        three.pause(0)
        only_here = three.produce("t", 0, [b"lost"], acks=1)
        three.fence(0)
        assert three.partition("t", 0).leader == 1
        three.leader_tick(0)
        assert only_here.response == ("NONE", 1, 1)
        assert self.log(three, 0) == [b"a", b"lost"]
        committed = three.produce("t", 0, [b"b"])
        three.tick_until_idle()
        assert committed.response == ("NONE", 1, 1)
        assert self.log(three, 1) == self.log(three, 2) == [b"a", b"b"]
        assert self.log(three, 0) == [b"a", b"lost"]
        assert three.replica(0, "t", 0).high_watermark == 1

        three.resume(0)
        three.tick_until_idle()
        assert self.log(three, 0) == [b"a", b"b"]
        assert three.partition("t", 0)[:2] == (1, 1)
        assert three.partition("t", 0).isr == [0, 1, 2]

    def test_a_paused_leader_never_says_that_all_have_it(self, three: LocalCluster) -> None:
        three.pause(0)
        producer = three.idempotent_producer()
        pending = three.produce("t", 0, [b"b"], acks="all", producer=producer)
        three.fence(0)
        three.tick_until_idle()
        answers = []
        for _ in range(3):
            three.leader_tick(0)
            three.tick_until_idle()
            answers.append(pending.response)
        assert self.log(three, 0) == [b"a", b"b"]
        three.resume(0)
        three.tick_until_idle()
        answers.append(pending.response)
        assert answers == [None, None, None, ("NOT_LEADER_OR_FOLLOWER", 1, 1)]
        assert self.log(three, 0) == [b"a"]

        again = producer.retry(pending)
        three.tick_until_idle()
        assert again.response == ("NONE", 1, 1)
        assert [self.log(three, broker) for broker in range(3)] == [[b"a", b"b"]] * 3

    def test_a_paused_follower_copies_nothing_of_an_epoch_that_it_does_not_know(
        self, three: LocalCluster
    ) -> None:
        three.pause(2)
        three.crash(0)
        three.fence(0)
        three.produce("t", 0, [b"b"], acks=1)
        three.leader_tick(1)
        three.follower_tick(2)
        assert self.log(three, 1) == [b"a", b"b"]
        assert self.log(three, 2) == [b"a"]
        assert three.replica(2, "t", 0).leader_epoch == 0

    def test_a_paused_broker_takes_no_part(self, three: LocalCluster) -> None:
        three.pause(2)
        waits = three.produce("t", 0, [b"b"])
        three.tick_until_idle()
        three.controller_tick()
        assert self.log(three, 2) == [b"a"]
        assert waits.response is None
        three.resume(2)
        three.tick_until_idle()
        assert waits.response == ("NONE", 1, 1)

    def test_its_heartbeats_stop_so_that_the_controller_fences_it(
        self, three: LocalCluster
    ) -> None:
        three.pause(0)
        three.clock.advance(three.settings.broker_session_timeout_ms)
        three.controller_tick()
        assert three.partition("t", 0).leader == 0
        three.clock.advance(1)
        three.controller_tick()
        assert three.partition("t", 0)[:2] == (1, 1)
        assert three.partition("t", 0).isr == [1, 2]

    def test_who_is_awake_is_not_fenced_with_it(self, three: LocalCluster) -> None:
        three.pause(2)
        three.fence(2)
        assert three.partition("t", 0)[:2] == (0, 0)
        assert three.partition("t", 0).isr == [0, 1]
        three.resume(2)
        three.tick_until_idle()
        assert three.partition("t", 0).isr == [0, 1, 2]

    def test_a_broker_that_is_not_paused_is_not_resumed(self, three: LocalCluster) -> None:
        with pytest.raises(SparklogError, match="broker 1 is not paused"):
            three.resume(1)
        three.pause(1)
        three.resume(1)
        with pytest.raises(SparklogError, match="broker 1 is not paused"):
            three.resume(1)

    def test_a_crashed_broker_is_neither_paused_nor_resumed(self, three: LocalCluster) -> None:
        three.pause(1)
        three.crash(1)
        for act in (three.pause, three.resume):
            with pytest.raises(SparklogError, match="broker 1 has crashed"):
                act(1)
        three.restart(1)
        with pytest.raises(SparklogError, match="broker 1 is not paused"):
            three.resume(1)
