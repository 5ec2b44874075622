"""Broker roots: several of one broker, lost ones, restored ones, unreadable ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.broker.broker import Broker
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.config import Settings
from sparklog.model import BROKERS, PARTITION_STATE, new_batch_path
from sparklog.producer.produce_requests import PendingProduce, ProduceClient, RequestedBatch
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage.batch_files import BatchFileWriter, records_table
from sparklog.storage.execution import DriverExecution
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.testing import LocalCluster, ManualClock
from sparklog.testing.local_cluster import round_of_ticks
from tests.broker.states import check_at_rest, error, error_of_consume, log, rows, values

Start = Callable[..., LocalCluster]


def folder(cluster: LocalCluster, broker: int) -> Path:
    return Path(cluster.root) / f"broker-{broker}"


def restore_log(cluster: LocalCluster, broker: int) -> None:
    """Restore a broker's log from the copy of its root; the other tables stay unchanged."""
    shutil.rmtree(folder(cluster, broker) / "log")
    shutil.copytree(
        folder(cluster, broker).with_name("copy") / "log", folder(cluster, broker) / "log"
    )


class TestALostRoot:
    @pytest.fixture
    def cluster(self, start: Start) -> LocalCluster:
        """A cluster with a committed record; broker 1, next in line to lead, has lost its disk."""
        cluster = start(0, 1, 2)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        cluster.crash(1)
        shutil.rmtree(folder(cluster, 1))
        return cluster

    def test_leaves_the_in_sync_set_before_its_broker_counts_as_alive(
        self, cluster: LocalCluster
    ) -> None:
        """A lost root leaves the ISR before its broker counts as alive, because its new log is
        empty (7.2).
        """
        before = cluster.partition("t", 0)
        cluster.restart(1)
        after = cluster.partition("t", 0)
        assert after.isr == [0, 2]
        assert (after.leader, after.leader_epoch) == (0, before.leader_epoch)
        assert after.partition_epoch == before.partition_epoch + 1

    def test_is_not_elected(self, cluster: LocalCluster) -> None:
        """A replica with a lost root is not elected, although only broker 2 has the committed
        record.
        """
        cluster.restart(1)
        cluster.crash(0)
        cluster.fence(0)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 2
        cluster.restart(0)
        check_at_rest(cluster, "a")

    def test_is_filled_again_and_comes_back(self, cluster: LocalCluster) -> None:
        """A lost root is refilled and joins the ISR; its tables are not mistaken for those of the
        same names.
        """
        cluster.restart(1)
        pending = cluster.produce("t", 0, [b"b"])
        cluster.tick_until_idle()
        assert pending.response is not None
        assert pending.response.error == "NONE"
        check_at_rest(cluster, "a", "b")

    def test_is_noticed_although_the_first_start_ended_before_anything_came_of_it(
        self, cluster: LocalCluster, fail_once: Callable[[str, str], None]
    ) -> None:
        """A lost root is noticed although the first start after the loss failed."""
        fail_once("write", "cluster/partition_state")
        with pytest.raises(OSError, match="is away"):
            cluster.restart(1)
        [state] = [row["state"] for row in rows(cluster, None, BROKERS) if row["broker_id"] == 1]
        assert state == "fenced"
        cluster.restart(1)
        assert cluster.partition("t", 0).isr == [0, 2]

    def test_is_not_in_sync_by_what_its_broker_reported_before(
        self, start: Start, before_rule: Callable[[str, Callable[[], object]], None]
    ) -> None:
        """The leader has read that report, and is about to let it join (5.2, KIP-903)."""
        cluster = start(0, 1)
        cluster.crash(1)
        cluster.fence(1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        cluster.restart(1)
        cluster.follower_tick(1)
        assert cluster.replica(1, "t", 0).log_end_offset == 1

        def lose() -> None:
            cluster.crash(1)
            shutil.rmtree(folder(cluster, 1))
            cluster.restart(1)

        before_rule("isr_expand", lose)
        cluster.leader_tick(0)
        assert cluster.partition("t", 0).isr == [0]
        check_at_rest(cluster, "a")

    def test_of_the_first_leader_is_not_taken_for_a_new_topic(self, start: Start) -> None:
        """No row and leader epoch 0 is also the state of a new topic, whose log is empty
        legitimately.
        """
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        cluster.crash(0)
        shutil.rmtree(folder(cluster, 0))
        cluster.restart(0)
        assert cluster.partition("t", 0)[:2] == (0, 0)
        assert error_of_consume(cluster) == "OFFSET_NOT_AVAILABLE"
        cluster.tick_until_idle()
        assert values(cluster.consume("t", 0)) == ["a"]

    def test_is_not_in_sync_for_a_leader_that_reads_while_it_registers(self, start: Start) -> None:
        """The leader has loaded the topics: it reads the newer table next, and the brokers' states
        last.
        """
        cluster = start(0, 1)
        cluster.crash(1)
        shutil.copytree(folder(cluster, 1), folder(cluster, 1).with_name("copy"))
        cluster.fence(1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        cluster.restart(1)
        cluster.follower_tick(1)
        topics = cluster.brokers[0]._reader._cluster.topics
        refresh, waiting = topics.refresh, [1]

        def between() -> bool:
            if waiting and waiting.pop():
                cluster.crash(1)
                restore_log(cluster, 1)
                cluster.restart(1)
            return refresh()

        topics.refresh = between  # type: ignore[method-assign]
        cluster.leader_tick(0)
        assert waiting == []
        assert cluster.partition("t", 0).isr == [0]
        check_at_rest(cluster, "a")

    def test_of_what_came_after_the_registered_version_is_noticed_by_the_checkpoint(
        self, start: Start
    ) -> None:
        """The log returns at the version in `brokers`; the checkpoint beside it has a higher
        version.
        """
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        cluster.brokers[1].prepare_to_stop()
        shutil.copytree(folder(cluster, 1), folder(cluster, 1).with_name("copy"))
        pending = cluster.produce("t", 0, [b"b"])
        cluster.tick_until_idle()
        assert error(pending) == "NONE"
        cluster.crash(1)
        restore_log(cluster, 1)
        cluster.restart(1)
        assert cluster.partition("t", 0).isr == [0]
        check_at_rest(cluster, "a", "b")

    def test_of_a_parked_broker_is_no_resumption(self, start: Start) -> None:
        """A parked broker that has lost its root registers again and leaves the ISR."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        cluster.brokers[1].park()
        cluster.crash(1)
        shutil.rmtree(folder(cluster, 1))
        cluster.restart(1)
        assert cluster.brokers[1].broker_epoch == 3
        assert cluster.partition("t", 0).isr == [0]
        check_at_rest(cluster, "a")

    def test_of_the_last_in_sync_replica_is_led_only_by_an_unclean_election(
        self, start: Start
    ) -> None:
        """The lost root of the last in-sync replica leads again only after an unclean election."""
        cluster = start(0, 1)
        cluster.produce("t", 0, [b"a"])
        cluster.tick_until_idle()
        cluster.crash(1)
        cluster.fence(1)
        cluster.produce("t", 0, [b"b"])
        cluster.tick_until_idle()
        cluster.crash(0)
        shutil.rmtree(folder(cluster, 0))
        cluster.restart(0)
        cluster.restart(1)
        cluster.tick_until_idle()
        state = cluster.partition("t", 0)
        assert (state.leader, state.isr) == (None, [])
        cluster.elect_leaders("unclean", [("t", 0)])
        check_at_rest(cluster)

    def test_of_a_leader_whose_followers_know_the_old_tables(self, start: Start) -> None:
        """The new log soon has the old one's version numbers, and other batches."""
        cluster = start(0, 1, unclean_leader_election_enable=True)
        for text in (b"a", b"b", b"c"):
            cluster.produce("t", 0, [text])
            cluster.tick_until_idle()
        cluster.crash(1)
        cluster.fence(1)
        cluster.crash(0)
        shutil.rmtree(folder(cluster, 0))
        cluster.restart(0)
        cluster.tick_until_idle()
        assert cluster.partition("t", 0).leader == 0
        for text in (b"x", b"y", b"z", b"v"):
            cluster.reconnect()
            cluster.produce("t", 0, [text])
            cluster.tick_until_idle()
        cluster.restart(1)
        check_at_rest(cluster, "x", "y", "z", "v")


def test_an_older_copy_of_a_root_leaves_the_in_sync_set(start: Start) -> None:
    """A backup was restored: the same table, at a lower version (7.2)."""
    cluster = start(0, 1, 2)
    cluster.crash(1)
    shutil.copytree(folder(cluster, 1), cluster.root / "backup")
    cluster.restart(1)
    cluster.produce("t", 0, [b"a"])
    cluster.tick_until_idle()
    cluster.crash(1)
    cluster.restart(1)
    cluster.crash(1)
    shutil.rmtree(folder(cluster, 1))
    shutil.move(cluster.root / "backup", folder(cluster, 1))
    cluster.restart(1)
    assert cluster.partition("t", 0).isr == [0, 2]
    assert log(cluster, 1) == []
    check_at_rest(cluster, "a")


class TestTwoRootsOfOneBroker:
    """`log.dirs` with two folders: broker 0's partitions are in both, broker 1 follows them."""

    @pytest.fixture
    def brokers(self, tmp_path: Path) -> list[Broker]:
        settings = Settings.model_validate({"replica.lag.time.max.ms": 5000})
        clock = ManualClock()
        return [
            Broker(
                broker_id,
                Location.of(str(tmp_path / "cluster")),
                [Location.of(str(tmp_path / f"{broker_id}{name}")) for name in names],
                rules=DriverRules(),
                execution=DriverExecution(),
                clock=clock,
                settings=settings,
            )
            for broker_id, names in ((0, "ab"), (1, "c"))
        ]

    @pytest.fixture
    def connection(self, tmp_path: Path, brokers: list[Broker]) -> Connection:
        connection = Connection(str(tmp_path / "cluster"))
        Admin(connection).create_topic("t", assignment={0: [0, 1], 1: [0, 1], 2: [1, 0]})
        self.idle(brokers)
        return connection

    @staticmethod
    def idle(brokers: list[Broker]) -> None:
        while round_of_ticks(brokers).changed:
            pass

    @staticmethod
    def batch(connection: Connection, partition: int, value: bytes) -> RequestedBatch:
        state = connection.metadata().partition("t", partition)
        root = connection.leader_location(state)
        writer = BatchFileWriter(root.child("log"), new_batch_path())
        writer.write(records_table([value], None, 1))
        return RequestedBatch(state, writer.close())

    def produce(self, connection: Connection, partition: int, value: bytes) -> PendingProduce:
        batch = self.batch(connection, partition, value)
        return ProduceClient(connection).send([batch], "all")

    def logs(self, tmp_path: Path) -> dict[str, set[tuple[int, int]]]:
        found = {}
        for name in ("0a", "0b", "1c"):
            log = RecordLog(Location.of(str(tmp_path / name)))
            found[name] = {(key.partition, log.log_end_offset(key)) for key in log.partitions()}
        return found

    def test_share_its_replicas(
        self, connection: Connection, brokers: list[Broker], tmp_path: Path
    ) -> None:
        """The two roots of a broker store disjoint sets of its replicas."""
        for partition in range(3):
            self.produce(connection, partition, b"v")
        self.idle(brokers)
        assert self.logs(tmp_path) == {
            "0a": {(0, 1), (2, 1)},
            "0b": {(1, 1)},
            "1c": {(0, 1), (1, 1), (2, 1)},
        }
        states = connection.metadata().partitions.values()
        assert [one.high_watermark for one in connection.visible(states)] == [1, 1, 1]

    def test_answer_for_themselves_only(
        self, connection: Connection, brokers: list[Broker]
    ) -> None:
        """A request in the wrong inbox of a broker finds no leader there."""
        state = connection.metadata().partition("t", 0)
        misled = state._replace(
            replicas=tuple(one._replace(root=1 - one.root) for one in state.replicas[:1])
        )
        root = connection.leader_location(misled)
        writer = BatchFileWriter(root.child("log"), new_batch_path())
        writer.write(records_table([b"x"], None, 1))
        pending = ProduceClient(connection).send([RequestedBatch(misled, writer.close())], 1)
        self.idle(brokers)
        assert pending.response is not None
        assert pending.response.error == "NOT_LEADER_OR_FOLLOWER"

    def test_append_once_what_is_sent_again_since_one_of_them_could_not_take_it(
        self,
        connection: Connection,
        brokers: list[Broker],
        tmp_path: Path,
        fail_once: Callable[[str, str], None],
    ) -> None:
        """The other root got the request, and recognises the batch when it is sent again (3.7)."""
        fail_once("write", "0b/produce_requests")
        batches = [self.batch(connection, partition, b"v") for partition in (0, 1)]
        with pytest.raises(OSError, match="is away"):
            ProduceClient(connection).send(batches, "all")
        self.idle(brokers)
        assert sum(end for _, end in self.logs(tmp_path)["1c"]) == 1
        ProduceClient(connection).send(batches, "all")
        self.idle(brokers)
        assert self.logs(tmp_path)["1c"] == {(0, 1), (1, 1)}

    def test_go_on_when_the_other_fails(
        self,
        connection: Connection,
        brokers: list[Broker],
        tmp_path: Path,
        fail_once: Callable[[str, str], None],
    ) -> None:
        """A root that fails affects only its own replicas (1.5)."""
        self.produce(connection, 0, b"v")
        other = self.produce(connection, 1, b"v")
        fail_once("write", "0a/log")
        with pytest.raises(OSError, match="is away"):
            brokers[0].leader_tick()
        brokers[1].follower_tick()
        assert self.logs(tmp_path)["1c"] >= {(1, 1)}
        brokers[0].leader_tick()
        assert other.response is not None

    def test_lost_one_of_them_leaves_the_in_sync_sets_of_what_was_there(
        self, connection: Connection, brokers: list[Broker], tmp_path: Path
    ) -> None:
        """A root that was lost leaves the ISR of its own partitions only."""
        self.idle(brokers)
        shutil.rmtree(tmp_path / "0b")
        Broker(
            0,
            Location.of(str(tmp_path / "cluster")),
            [Location.of(str(tmp_path / name)) for name in ("0a", "0b")],
            rules=DriverRules(),
            execution=DriverExecution(),
            clock=ManualClock(),
            settings=Settings(),
        )
        states = connection.metadata().partitions.values()
        assert {state.partition: state.isr for state in states} == {0: [0, 1], 1: [1], 2: [0, 1]}


def test_a_broker_that_came_back_with_fewer_roots_does_not_stop_the_others(
    tmp_path: Path,
) -> None:
    """The partitions of the missing root are not readable; all others are."""

    def start(broker_id: int, names: str) -> Broker:
        return Broker(
            broker_id,
            Location.of(str(tmp_path / "cluster")),
            [Location.of(str(tmp_path / f"{broker_id}{name}")) for name in names],
            rules=DriverRules(),
            execution=DriverExecution(),
            clock=ManualClock(),
            settings=Settings(),
        )

    brokers = [start(0, "a"), start(1, "ab")]
    connection = Connection(str(tmp_path / "cluster"))
    Admin(connection).create_topic("t", assignment={0: [0, 1], 1: [0, 1]})
    TestTwoRootsOfOneBroker.idle(brokers)
    brokers[1] = start(1, "a")
    TestTwoRootsOfOneBroker.idle(brokers)
    assert {row["partition"] for row in rows_of(connection) if row["in_isr"]} == {0, 1}


def rows_of(connection: Connection) -> list[dict[str, object]]:
    connection.metadata()
    found: list[dict[str, object]] = connection.root.partition_state.rows().to_pylist()
    assert PARTITION_STATE.columns.names == list(found[0])
    return found
