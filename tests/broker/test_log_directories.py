"""A broker's log directories: identified by their ids, in any order, each folder at most once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sparklog.broker.application import Application
from sparklog.broker.broker import Broker
from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, Settings, parse
from sparklog.errors import SparklogError, StorageError
from sparklog.model import new_batch_path
from sparklog.producer.produce_requests import ProduceClient, RequestedBatch
from sparklog.protocol.driver_rules import DriverRules
from sparklog.storage.batch_files import BatchFileWriter, read_records, records_table
from sparklog.storage.execution import DriverExecution
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.testing import ManualClock
from sparklog.testing.local_cluster import round_of_ticks


class Brokers:
    """Broker 0 with the log directories that it is started with, and broker 1 with one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.running = [self.start(0, "a", "b"), self.start(1, "other")]
        self.connection = Connection(str(folder / "cluster"))

    def start(self, broker_id: int, *names: str) -> Broker:
        return Broker(
            broker_id,
            Location.of(str(self.folder / "cluster")),
            [Location.of(str(self.folder / name)) for name in names],
            rules=DriverRules(),
            execution=DriverExecution(),
            clock=self.clock,
            settings=Settings(),
        )

    def restart(self, *names: str) -> None:
        """Restart broker 0 with these log directories."""
        self.running[0].stop()
        self.running[0] = self.start(0, *names)
        self.idle()

    def idle(self) -> None:
        while round_of_ticks(self.running).changed:
            pass

    def produce(self, topic: str, partition: int, value: bytes) -> str:
        """Produce a record and return the error of its response."""
        state = self.connection.metadata().partition(topic, partition)
        writer = BatchFileWriter(
            self.connection.leader_location(state).child("log"), new_batch_path()
        )
        writer.write(records_table([value], None, 1))
        client = ProduceClient(self.connection, clock=self.clock)
        pending = client.send([RequestedBatch(state, writer.close())], "all")
        self.idle()
        assert pending.response is not None
        return pending.response.error

    def values(self, name: str, topic: str) -> dict[int, list[bytes | None]]:
        """Return the values in one log directory, by partition."""
        log = RecordLog(Location.of(str(self.folder / name)))
        topic_id = self.connection.metadata().topic(topic).topic_id
        return {
            key.partition: [
                record.value
                for record in read_records(
                    log.location, log.batches(key), 0, log.log_end_offset(key)
                )
            ]
            for key in log.partitions()
            if key.topic_id == topic_id
        }

    def isr(self, topic: str) -> dict[int, list[int]]:
        states = self.connection.metadata().partitions.values()
        return {state.partition: state.isr for state in states if state.topic == topic}


@pytest.fixture
def brokers(tmp_path: Path) -> Brokers:
    """Broker 0 stores partition 0 of `t` in log directory a, and partition 1 in b."""
    brokers = Brokers(tmp_path)
    Admin(brokers.connection).create_topic("t", assignment={0: [0, 1], 1: [0, 1]})
    brokers.idle()
    for partition, value in enumerate((b"in a", b"in b")):
        assert brokers.produce("t", partition, value) == "NONE"
    assert (brokers.values("a", "t"), brokers.values("b", "t")) == ({0: [b"in a"]}, {1: [b"in b"]})
    return brokers


def check_whole(brokers: Brokers) -> None:
    """Check that every replica is in sync, is in its previous directory, and accepts records."""
    assert brokers.isr("t") == {0: [0, 1], 1: [0, 1]}
    assert brokers.produce("t", 0, b"more") == brokers.produce("t", 1, b"more") == "NONE"
    assert brokers.values("a", "t").keys() == {0}
    assert brokers.values("b", "t").keys() == {1}
    both = {**brokers.values("a", "t"), **brokers.values("b", "t")}
    assert brokers.values("other", "t") == both
    assert [values[0] for values in both.values()] == [b"in a", b"in b"]


def test_log_directories_may_be_listed_in_another_order(brokers: Brokers) -> None:
    """A restarted broker finds its replicas if its log directories are listed in another order."""
    for names in (("b", "a"), ("a", "b"), ("b", "a")):
        brokers.restart(*names)
        check_whole(brokers)


def test_a_log_directory_may_be_moved_to_another_path(brokers: Brokers, tmp_path: Path) -> None:
    """A restarted broker finds its replicas if a log directory was moved to another path."""
    brokers.running[0].stop()
    shutil.move(tmp_path / "b", tmp_path / "moved")
    brokers.running[0] = brokers.start(0, "moved", "a")
    brokers.idle()
    assert brokers.isr("t") == {0: [0, 1], 1: [0, 1]}
    assert brokers.values("moved", "t") == {1: [b"in b"]}


@pytest.mark.parametrize("names", [("a", "b", "new"), ("new", "b", "a")])
def test_a_log_directory_may_be_added(brokers: Brokers, names: tuple[str, ...]) -> None:
    """A restarted broker assigns new replicas to an added log directory and keeps the others."""
    brokers.restart(*names)
    check_whole(brokers)
    Admin(brokers.connection).create_topic("u", assignment={0: [0], 1: [0], 2: [0]})
    brokers.idle()
    for partition in range(3):
        assert brokers.produce("u", partition, b"v") == "NONE"
    assert [len(brokers.values(name, "u")) for name in ("a", "b", "new")] == [1, 1, 1]


def test_a_log_directory_that_is_left_out_costs_its_own_replicas(brokers: Brokers) -> None:
    """The replicas are offline on this broker, and in sync again once the directory is listed
    again.
    """
    for names, isr in ((("b",), [1]), (("b", "a"), [0, 1]), (("b",), [1])):
        brokers.restart(*names)
        assert brokers.isr("t") == {0: isr, 1: [0, 1]}
        assert brokers.produce("t", 0, b"while it is away") == "NONE"
    Admin(brokers.connection).create_topic("u", assignment={0: [0], 1: [0]})
    assert [brokers.produce("u", partition, b"v") for partition in (0, 1)] == ["NONE", "NONE"]
    assert len(brokers.values("b", "u")) == 2
    brokers.restart("a", "b")
    assert brokers.isr("t") == {0: [0, 1], 1: [0, 1]}
    assert brokers.values("a", "t") == {0: brokers.values("other", "t")[0]}


def test_a_new_log_directory_takes_the_replicas_of_one_that_was_lost(
    brokers: Brokers, tmp_path: Path
) -> None:
    """The lost directory's number is free; its replicas are copied again."""
    brokers.running[0].stop()
    shutil.rmtree(tmp_path / "a")
    brokers.running[0] = brokers.start(0, "new", "b")
    brokers.idle()
    assert brokers.isr("t") == {0: [0, 1], 1: [0, 1]}
    assert brokers.values("new", "t") == {0: [b"in a"]}
    assert brokers.values("b", "t") == {1: [b"in b"]}


class TestOneFolderTwice:
    """The start is refused in one sentence before anything is created, also if the folder is
    missing.
    """

    @pytest.mark.parametrize("exists", [True, False])
    @pytest.mark.parametrize("second", ["link", "below/link/../a", "a/", "{cwd}a", "x/../a"])
    def test_by_another_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str, exists: bool
    ) -> None:
        """One folder under two names in log.dirs is refused."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "below" / "link").mkdir(parents=True)
        (tmp_path / "below" / "a").symlink_to(tmp_path / "a")
        (tmp_path / "link").symlink_to(tmp_path / "a")
        if exists:
            (tmp_path / "a").mkdir()
        before = sorted(tmp_path.rglob("*"))
        other = second.removeprefix("{cwd}") if "{cwd}" in second else f"{tmp_path}/{second}"
        values = {
            "cluster.root": str(tmp_path / "cluster"),
            "brokers": [{"broker.id": 0, "log.dirs": [str(tmp_path / "a"), other]}],
        }
        with pytest.raises(SparklogError, match=r"(are one folder: name each|is given twice)"):
            Application(parse(ClusterConfig, values, "the test")).start()
        assert sorted(tmp_path.rglob("*")) == before

    def test_as_cluster_root_or_of_two_brokers(self, tmp_path: Path) -> None:
        """A log directory that is the cluster root or belongs to two brokers is refused."""
        (tmp_path / "link").symlink_to(tmp_path / "cluster")
        for cluster_root, log_dirs in (("cluster", ["a", "link"]), ("c", ["link", "cluster"])):
            values = {
                "cluster.root": str(tmp_path / cluster_root),
                "brokers": [
                    {"broker.id": number, "log.dirs": str(tmp_path / name)}
                    for number, name in enumerate(log_dirs)
                ],
            }
            with pytest.raises(StorageError, match="are one folder: name each folder once"):
                Application(parse(ClusterConfig, values, "the test")).start()
        assert [path.name for path in tmp_path.iterdir()] == ["link"]

    def test_as_a_copy(self, brokers: Brokers, tmp_path: Path) -> None:
        """A copy has the id of the original directory."""
        brokers.running[0].stop()
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        with pytest.raises(
            StorageError, match=r"a and .*copy hold the same log directory .*: name one of them"
        ):
            brokers.start(0, "a", "b", "copy")
        brokers.restart("a", "b")
        check_whole(brokers)
