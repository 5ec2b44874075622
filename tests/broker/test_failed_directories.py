"""Log directories that fail while their broker runs, are missing at its start, and come back."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.s3_store import running_store
from sparklog import Admin, Producer
from sparklog.broker.application import Application
from sparklog.clock import wait_until
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.errors import StorageError
from sparklog.maintenance.audit import audit
from sparklog.model import BROKERS, PARTITION_STATE
from sparklog.storage.delta_log_files import newest_version
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.broker.failing_disk import FailingDisk
from tests.broker.states import error, rows, values


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Broker 0 leads partition 0 in directory `a` and partition 1 in `b`; broker 1 follows both."""
    cluster = LocalCluster(
        tmp_path / "cluster",
        brokers=[0, 1],
        log_dirs={0: ("a", "b"), 1: ("other",)},
        storage_options={str(tmp_path): {"sync": "false"}},
    )
    cluster.create_topic("t", assignment={0: [0, 1], 1: [0, 1]})
    cluster.tick_until_idle()
    for partition in (0, 1):
        write(cluster, partition, f"p{partition}")
    yield cluster
    cluster.close()


def write(cluster: LocalCluster, partition: int, value: str) -> None:
    """Write a record with acks=all; it is acknowledged."""
    pending = cluster.produce("t", partition, [value.encode()])
    cluster.tick_until_idle()
    assert error(pending) == "NONE"


def pass_time(cluster: LocalCluster) -> None:
    """Let two heartbeats pass, which go to the two directories in turn, and tick."""
    for _ in range(2):
        cluster.clock.advance(2_000)
    cluster.tick_until_idle()


def isr(cluster: LocalCluster) -> dict[int, list[int]]:
    return {partition: cluster.partition("t", partition).isr for partition in (0, 1)}


def leaders(cluster: LocalCluster) -> dict[int, int | None]:
    return {partition: cluster.partition("t", partition).leader for partition in (0, 1)}


def offline(cluster: LocalCluster, broker_id: int = 0) -> list[str]:
    """Return the names of the directories that a broker's row lists as failed."""
    [row] = [row for row in rows(cluster, None, BROKERS) if row["broker_id"] == broker_id]
    failed = json.loads(row["offline_log_dirs"] or "[]")
    ids = json.loads(row["log_table_id"])
    return [Path(json.loads(row["roots"])[ids.index(one)]).name for one in failed]


def check_whole(cluster: LocalCluster, *expected: list[str]) -> None:
    """Check that all replicas are in sync, with the expected committed records."""
    cluster.tick_until_idle()
    assert isr(cluster) == {0: [0, 1], 1: [0, 1]}
    assert offline(cluster) == []
    for partition, of_partition in enumerate(expected):
        assert values(cluster.consume("t", partition)) == of_partition
    cluster.reconnect()
    assert audit(cluster.connection) == []


def replace_by_file(folder: Path) -> None:
    folder.rename(folder.with_name("away"))
    folder.touch()


def bring_back(folder: Path) -> None:
    folder.unlink(missing_ok=True)
    folder.with_name("away").rename(folder)


FAULTS: dict[str, Callable[[FailingDisk, Path], object]] = {
    "I/O error": lambda disk, folder: disk.fail(folder),
    "read-only": lambda disk, folder: disk.fail(folder, errno.EROFS),
    "gone": lambda _, folder: folder.rename(folder.with_name("away")),
    "a file": lambda _, folder: replace_by_file(folder),
}


class TestWhileTheBrokerRuns:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_others_take_over_its_replicas_only(
        self, cluster: LocalCluster, disk: FailingDisk, fault: str
    ) -> None:
        """The other directory goes on in the same process, and no tick fails."""
        broker = cluster.brokers[0]
        FAULTS[fault](disk, cluster.root / "a")
        pass_time(cluster)
        assert offline(cluster) == ["a"]
        assert leaders(cluster) == {0: 1, 1: 0}
        assert isr(cluster) == {0: [1], 1: [0, 1]}
        write(cluster, 0, "after")
        write(cluster, 1, "after")
        assert values(cluster.consume("t", 0)) == ["p0", "after"]
        assert cluster.brokers[0] is broker

    def test_is_found_by_a_write(self, cluster: LocalCluster, disk: FailingDisk) -> None:
        """The leader cannot commit the request; its client sends it again to the next leader."""
        pending = cluster.produce("t", 0, [b"b"])
        disk.fail(cluster.root / "a")
        cluster.tick_until_idle()
        assert offline(cluster) == ["a"]
        assert error(pending) is None
        again = cluster.retry(pending)
        cluster.tick_until_idle()
        assert error(again) == "NONE"
        assert values(cluster.consume("t", 0)) == ["p0", "b"]

    def test_of_a_follower_leaves_the_isr_and_does_not_return_by_its_old_report(
        self, cluster: LocalCluster, disk: FailingDisk
    ) -> None:
        """Its last report is as far as the log end; the leader does not read it any more."""
        cluster.crash(0)
        cluster.fence(0)
        cluster.tick_until_idle()
        cluster.restart(0)
        cluster.tick_until_idle()
        assert (leaders(cluster), isr(cluster)) == ({0: 1, 1: 1}, {0: [0, 1], 1: [0, 1]})
        disk.fail(cluster.root / "b")
        pass_time(cluster)
        assert isr(cluster) == {0: [0, 1], 1: [1]}
        pass_time(cluster)
        assert isr(cluster) == {0: [0, 1], 1: [1]}
        write(cluster, 1, "b")

    def test_of_the_last_in_sync_replica_makes_its_partition_offline(
        self, cluster: LocalCluster, disk: FailingDisk
    ) -> None:
        """As in Kafka: the member stays in the ISR, and leads again when it is back."""
        cluster.crash(1)
        cluster.fence(1)
        write(cluster, 0, "alone")
        disk.fail(cluster.root / "a")
        cluster.restart(1)
        pass_time(cluster)
        assert (leaders(cluster)[0], isr(cluster)[0]) == (None, [0])
        disk.mend()
        cluster.crash(0)
        cluster.restart(0)
        check_whole(cluster, ["p0", "alone"], ["p1"])

    def test_comes_back_with_the_next_start(self, cluster: LocalCluster, disk: FailingDisk) -> None:
        """It stays offline while the process runs; its replicas then catch up and rejoin."""
        disk.fail(cluster.root / "a")
        pass_time(cluster)
        disk.mend()
        write(cluster, 0, "b")
        assert offline(cluster) == ["a"]
        cluster.crash(0)
        cluster.restart(0)
        check_whole(cluster, ["p0", "b"], ["p1"])

    @pytest.mark.parametrize("ends", ["crash", "stop"])
    def test_comes_back_empty(self, cluster: LocalCluster, disk: FailingDisk, ends: str) -> None:
        """A replaced disk: its replicas leave ISR and ELR, and are refilled; none is elected."""
        disk.fail(cluster.root / "a")
        pass_time(cluster)
        if ends == "stop":
            cluster.brokers[0].stop()
        cluster.crash(0)
        disk.mend()
        shutil.rmtree(cluster.root / "a")
        cluster.restart(0)
        assert isr(cluster)[0] == [1]
        cluster.crash(1)
        cluster.fence(1)
        assert leaders(cluster)[0] is None
        cluster.restart(1)
        check_whole(cluster, ["p0"], ["p1"])

    def test_an_older_copy_that_comes_back_is_treated_as_lost(
        self, cluster: LocalCluster, disk: FailingDisk, tmp_path: Path
    ) -> None:
        """Even as the last member: the records that it had acknowledged are missing."""
        shutil.copytree(cluster.root / "a", tmp_path / "copy")
        cluster.crash(1)
        cluster.fence(1)
        write(cluster, 0, "alone")
        write(cluster, 0, "alone, too")
        disk.fail(cluster.root / "a")
        pass_time(cluster)
        assert offline(cluster) == ["a"]
        cluster.brokers[0].stop()
        cluster.crash(0)
        disk.mend()
        shutil.rmtree(cluster.root / "a")
        shutil.copytree(tmp_path / "copy", cluster.root / "a")
        cluster.restart(0)
        assert isr(cluster)[0] == []

    @pytest.mark.parametrize("role", ["leader_tick", "follower_tick"])
    def test_its_broker_dies_after_the_announcement(
        self, cluster: LocalCluster, disk: FailingDisk, role: str
    ) -> None:
        """The next process finds the directory sound, or finds its failure again."""
        if role == "leader_tick":
            cluster.produce("t", 0, [b"unanswered"], acks=1)
        else:
            # Led by the other broker, so that a report is due in `a`.
            cluster.crash(0)
            cluster.fence(0)
            cluster.restart(0)
            cluster.tick_until_idle()
            cluster.brokers[0].poll()
        disk.fail(cluster.root / "a")
        if role == "follower_tick":
            # Its next report is due after a third of replica.lag.time.max.ms.
            for _ in range(6):
                cluster.clock.advance(2_000)
        getattr(cluster, role)(0, stop_after="log_dir_offline")
        assert 0 not in cluster.brokers
        assert offline(cluster) == ["a"]
        cluster.restart(0)
        cluster.tick_until_idle()
        assert offline(cluster) == ["a"]
        assert leaders(cluster)[0] == 1
        disk.mend()
        cluster.crash(0)
        cluster.restart(0)
        cluster.tick_until_idle()
        assert isr(cluster) == {0: [0, 1], 1: [0, 1]}
        assert values(cluster.consume("t", 0))[:1] == ["p0"]

    def test_an_announcement_that_fails_is_repeated(
        self, cluster: LocalCluster, disk: FailingDisk, fail_once: Callable[[str, str], None]
    ) -> None:
        """Until it is made, ticks fail, so that a broker that cannot announce falls silent."""
        cluster.produce("t", 0, [b"unanswered"], acks=1)
        disk.fail(cluster.root / "a")
        fail_once("write", "cluster/brokers")
        with pytest.raises(OSError, match="is away"):
            cluster.leader_tick(0)
        assert offline(cluster) == []
        cluster.tick_until_idle()
        assert offline(cluster) == ["a"]
        assert leaders(cluster) == {0: 1, 1: 0}

    def test_a_full_disk_fails_after_a_session_only(
        self, cluster: LocalCluster, disk: FailingDisk
    ) -> None:
        """Space may be made within broker.session.timeout.ms: until then attempts are repeated."""
        first = cluster.produce("t", 0, [b"b"])
        disk.fail(cluster.root / "a", errno.ENOSPC)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                cluster.tick_until_idle()
        assert offline(cluster) == []
        disk.mend()
        cluster.tick_until_idle()
        assert error(first) == "NONE"
        pending = cluster.produce("t", 0, [b"c"])
        disk.fail(cluster.root / "a", errno.ENOSPC)
        with pytest.raises(OSError, match="No space left"):
            cluster.tick_until_idle()
        cluster.clock.advance(cluster.settings.broker_session_timeout_ms + 1)
        cluster.tick_until_idle()
        assert (offline(cluster), leaders(cluster)[0], error(pending)) == (["a"], 1, None)

    def test_the_last_directory_is_not_taken_offline(
        self, cluster: LocalCluster, disk: FailingDisk
    ) -> None:
        """The broker's ticks fail, and its session ends, as with a single directory."""
        cluster.produce("t", 0, [b"x"], acks=1)
        cluster.produce("t", 1, [b"x"], acks=1)
        for name in ("a", "b"):
            disk.fail(cluster.root / name)
        with pytest.raises(OSError, match="Input/output error"):
            cluster.leader_tick(0)
        [failed] = offline(cluster)
        reason = cluster.brokers[0].failure_of_last_directory()
        assert reason is not None
        assert ({"a", "b"} - {failed}).pop() in reason

    def test_nothing_is_written_for_it_at_rest(self, cluster: LocalCluster) -> None:
        """The row does not change, and two directories have no more heartbeats than one."""
        before = cluster.connection.root.brokers.version
        logs = [cluster.root / name / "log" for name in ("a", "b")]
        versions = [newest_version(Location.of(str(log))) for log in logs]
        for _ in range(6):
            cluster.clock.advance(2_000)
            cluster.tick_until_idle()
        cluster.connection.root.brokers.refresh()
        assert cluster.connection.root.brokers.version == before
        after = [newest_version(Location.of(str(log))) for log in logs]
        # The controller's broker is 0: each heartbeat renews its lease.
        assert [new - old for new, old in zip(after, versions, strict=True)] == [3, 3]


class TestAtTheStart:
    @pytest.mark.parametrize("fault", ["I/O error", "a file"])
    def test_a_broker_starts_without_one_that_has_failed(
        self, cluster: LocalCluster, disk: FailingDisk, fault: str
    ) -> None:
        """Its number stays reserved, and new replicas are placed in the others."""
        cluster.crash(0)
        FAULTS[fault](disk, cluster.root / "a")
        cluster.restart(0)
        cluster.tick_until_idle()
        assert offline(cluster) == ["a"]
        assert isr(cluster) == {0: [1], 1: [0, 1]}
        write(cluster, 0, "b")
        cluster.create_topic("u", partitions=2)
        cluster.tick_until_idle()
        roots = {
            row["root"]
            for row in rows(cluster, None, PARTITION_STATE)
            if (row["topic"], row["broker_id"]) == ("u", 0)
        }
        assert roots == {1}
        cluster.crash(0)
        disk.mend()
        if fault == "a file":
            bring_back(cluster.root / "a")
        cluster.restart(0)
        check_whole(cluster, ["p0", "b"], ["p1"])

    def test_a_first_start_needs_all_directories(self, tmp_path: Path) -> None:
        """A directory that was never used cannot be distinguished from a typo."""
        (tmp_path / "cluster").mkdir()
        (tmp_path / "cluster" / "b").touch()
        with pytest.raises(StorageError, match="b is a file: name a folder"):
            LocalCluster(tmp_path / "cluster", brokers=[0], log_dirs={0: ("a", "b")})

    def test_nothing_is_written_to_another_brokers_directory(self, cluster: LocalCluster) -> None:
        """Neither the start nor the probe before it."""
        cluster.crash(0)
        cluster.log_dirs[0] = ("a", "other")
        before = {one: one.stat().st_mtime_ns for one in (cluster.root / "other").rglob("*")}
        with pytest.raises(StorageError, match="other belongs to broker 1 of cluster"):
            cluster.restart(0)
        after = {one: one.stat().st_mtime_ns for one in (cluster.root / "other").rglob("*")}
        assert after == before

    def test_a_start_needs_one_directory(self, cluster: LocalCluster) -> None:
        cluster.crash(0)
        for name in ("a", "b"):
            shutil.rmtree(cluster.root / name)
            (cluster.root / name).touch()
        with pytest.raises(StorageError, match="a is a file: name a folder"):
            cluster.restart(0)

    def test_a_directory_that_is_left_out_keeps_the_last_place_in_the_isr(
        self, cluster: LocalCluster
    ) -> None:
        """Its partition is offline and no record is lost; listed again, it leads as before."""
        cluster.crash(1)
        cluster.fence(1)
        write(cluster, 0, "alone")
        cluster.brokers[0].stop()
        cluster.crash(0)
        cluster.log_dirs[0] = ("b",)
        cluster.restart(0)
        cluster.restart(1)
        cluster.tick_until_idle()
        assert (leaders(cluster)[0], isr(cluster)[0]) == (None, [0])
        cluster.brokers[0].stop()
        cluster.crash(0)
        cluster.log_dirs[0] = ("b", "a")
        cluster.restart(0)
        check_whole(cluster, ["p0", "alone"], ["p1"])


def test_a_bucket_is_removed(tmp_path: Path) -> None:
    """A broker's directories are in two buckets of a store, and one is removed while it runs."""
    with running_store(tmp_path / "store.log") as store:
        first, second = store.bucket("first"), store.bucket("second")
        values = {
            "cluster.root": f"{first}/cluster",
            "brokers": [
                {"broker.id": 0, "log.dirs": [f"{first}/a", f"{second}/b"]},
                {"broker.id": 1, "log.dirs": [f"{first}/other"]},
            ],
            "storage.options": store.options(),
            "broker.heartbeat.interval.ms": 100,
            "tick.interval.ms": 50,
        }
        config = parse(ClusterConfig, values, "the test")
        application = Application(config)
        application.start()
        connection = Connection(config.cluster_root, storage_options=config.storage_options)
        Admin(connection).create_topic("t", assignment={0: [0, 1], 1: [0, 1]})
        with Producer(connection, delivery_timeout_ms=120_000) as producer:

            def send() -> None:
                sent = [producer.send("t", b"v", partition=one) for one in (0, 1)]
                while not all(one.done() for one in sent):
                    application.round()
                assert [one.result(0).partition for one in sent] == [0, 1]

            send()
            application.round(to_end=True)
            store.remove_bucket("second")

            def is_led_elsewhere() -> bool:
                application.round()
                return connection.metadata().partition("t", 1).leader == 1

            assert wait_until(is_led_elsewhere, 60_000, pause_ms=20)
            send()
        metadata = connection.metadata()
        assert metadata.brokers[0].online_roots == {0: f"{first}/a"}
        assert metadata.partition("t", 0).leader == 0
        application.stop()
        application.run_until_idle()
