"""`LocalCluster` is deterministic: tests control time and ticks, and wrong use is refused."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.s3_store import running_store
from sparklog.cli.cluster import Cluster
from sparklog.cli.sql import query
from sparklog.clock import SystemClock
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


def test_a_cluster_may_be_on_an_object_store(tmp_path: Path) -> None:
    with running_store(tmp_path / "log") as store:
        root, options = f"{store.bucket('tests')}/one", store.options()
        cluster = LocalCluster(root, brokers=[0, 1], storage_options=options)
        cluster.create_topic("t", assignment={0: [0, 1]})
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        assert cluster.location(1).uri == "s3://tests/one/broker-1"
        assert [record.value for record in cluster.log(1, "t", 0)] == [b"a"]
        assert [record.value for record in cluster.consume("t", 0)] == [b"a"]


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
    """Its log end offset is the high watermark, but only a report after its removal counts."""
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


def test_two_clusters_over_one_history_agree(tmp_path: Path) -> None:
    """Only ids depend on chance or on the wall clock."""

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
    """A paused broker is silent; in a tick of its own it acts on its earlier reads."""

    @pytest.fixture
    def three(self, tmp_path: Path) -> LocalCluster:
        """Broker 0 leads, and all brokers have one record."""
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
        """Records that a paused leader appends stay on it alone, until it truncates them."""
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
        """A paused leader acknowledges no record with acks=all."""
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
        """A paused follower copies no batch of an epoch that it has not read."""
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
        """A paused broker neither copies nor reports."""
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
        """A paused broker sends no heartbeats, so the controller fences it."""
        three.pause(0)
        three.clock.advance(three.settings.broker_session_timeout_ms)
        three.controller_tick()
        assert three.partition("t", 0).leader == 0
        three.clock.advance(1)
        three.controller_tick()
        assert three.partition("t", 0)[:2] == (1, 1)
        assert three.partition("t", 0).isr == [1, 2]

    def test_who_is_awake_is_not_fenced_with_it(self, three: LocalCluster) -> None:
        """Fencing a paused broker fences no other broker."""
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


class TestWhatTestsNeed:
    def test_a_retry_is_recognised_by_its_batch_id(self, cluster: LocalCluster) -> None:
        first = cluster.produce("t", 0, [b"a"], acks=1)
        cluster.leader_tick(0)
        again = cluster.retry(first)
        cluster.leader_tick(0)
        assert first.response == again.response == ("NONE", 0, 0)
        assert [record.value for record in cluster.log(0, "t", 0)] == [b"a"]

    def test_a_retry_with_a_new_batch_id_is_another_batch(self, cluster: LocalCluster) -> None:
        """Without a producer's sequence number nothing shows that the records are the same."""
        first = cluster.produce("t", 0, [b"a"], acks=1)
        again = cluster.retry(first, new_batch_id=True)
        cluster.leader_tick(0)
        assert (first.response, again.response) == (("NONE", 0, 0), ("NONE", 1, 1))

    def test_a_retry_of_a_damaged_file_is_refused(self, cluster: LocalCluster) -> None:
        pending = cluster.produce("t", 0, [b"a"])
        [batch] = pending.batches
        (cluster.root / "broker-0" / "log" / batch.file.path).write_bytes(b"")
        with pytest.raises(SparklogError, match="the batch cannot be sent again"):
            cluster.retry(pending)

    def test_clients_that_reconnect_have_loaded_nothing(self, cluster: LocalCluster) -> None:
        """An answer to an earlier request can be read after it."""
        before = cluster.connection
        pending = cluster.produce("t", 0, [b"a"])
        cluster.reconnect()
        assert cluster.connection is not before
        cluster.tick_until_idle()
        assert pending.response == ("NONE", 0, 0)
        assert [record.value for record in cluster.consume("t", 0)] == [b"a"]

    def test_brokers_that_crashed_keep_their_ids_and_roots(self, cluster: LocalCluster) -> None:
        cluster.crash(1)
        assert (sorted(cluster.brokers), cluster.broker_ids) == ([0], (0, 1))
        assert Path(cluster.location(1).uri) == cluster.root / "broker-1"
        assert Path(cluster.location().uri) == cluster.root / "cluster"


CHECKOUT = Path(__file__).parents[1]


def private_uses(text: str) -> list[str]:
    """Return the private attributes that a text reads of objects named cluster or _cluster."""
    uses = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            of = ast.unparse(node.value).split(".")[-1]
            if of in ("cluster", "_cluster") and not node.attr.startswith("__"):
                uses.append(f"{node.lineno}: {of}.{node.attr}")
    return uses


def test_no_test_uses_private_fields_of_a_cluster() -> None:
    """Tests use the documented methods, as a user's tests do."""
    files = [file for name in ("tests", "benchmarks") for file in (CHECKOUT / name).rglob("*.py")]
    found = {str(file): uses for file in files if (uses := private_uses(file.read_text("utf-8")))}
    assert len(files) > 100
    assert not found


def test_a_private_use_is_found() -> None:
    assert private_uses("self.topic.cluster._tick()\ncluster.tick()") == ["1: cluster._tick"]
    assert private_uses("self._cluster._tick") == ["1: _cluster._tick"]


def test_times_in_views_of_the_past_are_those_of_the_system_clock(tmp_path: Path) -> None:
    """Commits have the time of the system; records and brokers that of the manual clock."""
    since_ms = SystemClock().now_ms()
    cluster = LocalCluster(tmp_path, [0, 1])
    cluster.create_topic("t", assignment={0: [0, 1]})
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(0)
    cluster.fence(0)
    cluster.clock.advance(86_400_000)

    def times(text: str) -> list[int]:
        found = query(text, Cluster.of(str(cluster.root / "cluster"))).rows
        return [int(one) for one in found[0].to_pylist()]

    until_ms = SystemClock().now_ms()
    for view, column in {"elections": "at_ms", "leadership_history": "since_ms"}.items():
        at_ms = times(f"select {column} from {view}")
        assert len(at_ms) == 2
        assert since_ms <= min(at_ms) <= max(at_ms) <= until_ms
    assert cluster.log(1, "t", 0)[0].timestamp == 1_000_000
    documented = inspect.getdoc(LocalCluster) or ""
    assert "`at_ms` and `since_ms` in views of the past do not follow `clock`" in documented
