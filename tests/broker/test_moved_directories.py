"""Log directories that are moved to another URI, and older copies of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.s3_store import running_store
from sparklog import Admin, Producer
from sparklog.broker.application import Application
from sparklog.cli.cluster import Cluster
from sparklog.cli.sql import query
from sparklog.cluster.connection import Connection
from sparklog.config import ClusterConfig, parse
from sparklog.errors import FencedError, StorageError
from sparklog.maintenance.audit import audit
from sparklog.model import BROKERS
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.broker.states import error, rows, values


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Broker 0 alone has `t`, in directory `a`; it has stopped. Broker 1 runs."""
    cluster = LocalCluster(
        tmp_path / "cluster",
        brokers=[0, 1],
        log_dirs={0: ("a",)},
        storage_options={str(tmp_path): {"sync": "false"}},
    )
    cluster.create_topic("t", assignment={0: [0]})
    cluster.tick_until_idle()
    write(cluster, "v0")
    cluster.brokers[0].stop()
    cluster.crash(0)
    yield cluster
    cluster.close()


def write(cluster: LocalCluster, value: str) -> None:
    """Write a record with acks=all; it is acknowledged."""
    pending = cluster.produce("t", 0, [value.encode()])
    cluster.tick_until_idle()
    assert error(pending) == "NONE"


def start(cluster: LocalCluster, directory: str) -> None:
    cluster.log_dirs[0] = (directory,)
    cluster.restart(0)
    cluster.tick_until_idle()


def stop(cluster: LocalCluster) -> None:
    cluster.brokers[0].stop()
    cluster.crash(0)


def copy(cluster: LocalCluster, of: str, to: str) -> None:
    shutil.copytree(cluster.root / of, cluster.root / to)


def registered(cluster: LocalCluster) -> list[str]:
    [row] = [row for row in rows(cluster, None, BROKERS) if row["broker_id"] == 0]
    return [Path(uri).name for uri in json.loads(row["roots"])]


@pytest.mark.parametrize("stays", [True, False], ids=["old one stays", "old one is removed"])
def test_a_copy_of_everything_is_a_move(cluster: LocalCluster, stays: bool) -> None:
    """Clients that were connected before find the directory at its new URI."""
    copy(cluster, "a", "moved")
    if not stays:
        shutil.rmtree(cluster.root / "a")
    start(cluster, "moved")
    assert registered(cluster) == ["moved"]
    assert cluster.partition("t", 0).isr == [0]
    write(cluster, "v1")
    assert values(cluster.consume("t", 0)) == ["v0", "v1"]
    assert audit(cluster.connection) == []


def test_the_directory_that_was_left_is_refused_while_the_newer_one_is_there(
    cluster: LocalCluster,
) -> None:
    """Otherwise the records since the move would be missing."""
    copy(cluster, "a", "moved")
    start(cluster, "moved")
    write(cluster, "v1")
    stop(cluster)
    before = rows(cluster, None, BROKERS)
    with pytest.raises(StorageError, match=r"a is a copy of .*moved, which broker 0 has used sinc"):
        start(cluster, "a")
    assert rows(cluster, None, BROKERS) == before
    start(cluster, "moved")
    assert values(cluster.consume("t", 0)) == ["v0", "v1"]


def test_the_directory_that_was_left_counts_as_restored_if_the_newer_one_is_gone(
    cluster: LocalCluster,
) -> None:
    """Even as the last member: the partition is offline rather than shorter."""
    copy(cluster, "a", "moved")
    start(cluster, "moved")
    write(cluster, "v1")
    stop(cluster)
    shutil.rmtree(cluster.root / "moved")
    start(cluster, "a")
    assert (cluster.partition("t", 0).leader, cluster.partition("t", 0).isr) == (None, [])


def test_a_copy_that_was_made_too_early_is_refused(cluster: LocalCluster) -> None:
    """The broker has gone on in the original, which is still there."""
    copy(cluster, "a", "early")
    start(cluster, "a")
    write(cluster, "v1")
    stop(cluster)
    with pytest.raises(StorageError, match=r"early is a copy of .*a, which broker 0 has used"):
        start(cluster, "early")
    start(cluster, "a")
    assert values(cluster.consume("t", 0)) == ["v0", "v1"]


def test_two_copies_that_both_went_on_are_distinguished(cluster: LocalCluster) -> None:
    """Versions alone do not show it: each has commits that the other has not."""
    copy(cluster, "a", "other")
    start(cluster, "a")
    write(cluster, "v1")
    stop(cluster)
    (cluster.root / "a").rename(cluster.root / "away")
    start(cluster, "other")
    for _ in range(10):
        cluster.clock.advance(2_000)
    stop(cluster)
    (cluster.root / "away").rename(cluster.root / "a")
    with pytest.raises(StorageError, match=r"a is a copy of .*other, which broker 0 has used"):
        start(cluster, "a")


def test_one_directory_under_two_names_is_no_copy(cluster: LocalCluster) -> None:
    """Here a symbolic link in the place of the old path; it may be another mount or endpoint."""
    (cluster.root / "a").rename(cluster.root / "moved")
    (cluster.root / "a").symlink_to(cluster.root / "moved")
    start(cluster, "moved")
    write(cluster, "v1")
    stop(cluster)
    start(cluster, "a")
    assert cluster.partition("t", 0).isr == [0]
    assert values(cluster.consume("t", 0)) == ["v0", "v1"]


def test_a_suspended_process_cannot_commit_to_the_directory_that_was_left(
    cluster: LocalCluster,
) -> None:
    """It would acknowledge a record that nobody finds: the newer broker epoch wins."""
    start(cluster, "a")
    zombie = cluster.brokers[0]
    zombie.is_paused = True
    pending = cluster.produce("t", 0, [b"late"], acks="all")
    cluster.crash(0)
    copy(cluster, "a", "moved")
    start(cluster, "moved")
    with pytest.raises(FencedError):
        zombie.leader_tick()
    assert error(pending) != "NONE"


def test_from_a_folder_to_a_bucket(tmp_path: Path) -> None:
    """Clients and SQL read the bucket afterwards; the folder is refused."""
    with running_store(tmp_path / "store.log") as store:
        bucket = store.bucket("moved")

        def application(log_dir: str) -> Application:
            values = {
                "cluster.root": str(tmp_path / "cluster"),
                "brokers": [{"broker.id": 0, "log.dirs": log_dir}],
                "storage.options": store.options(),
            }
            return Application(parse(ClusterConfig, values, "the test"))

        def send(running: Application, value: bytes) -> None:
            with Producer(connection) as producer:
                sent = producer.send("t", value)
                while not sent.done():
                    running.round()
                assert sent.result(0).partition == 0

        folder = tmp_path / "broker-0"
        first = application(str(folder))
        first.start()
        connection = Connection(str(tmp_path / "cluster"), storage_options=store.options())
        Admin(connection).create_topic("t")
        send(first, b"v0")
        first.run_until_idle()
        target = Location.of(f"{bucket}/broker-0", store.options())
        for file in folder.rglob("*"):
            if file.is_file():
                target.overwrite_object(str(file.relative_to(folder)), file.read_bytes())
        second = application(target.uri)
        second.start()
        send(second, b"v1")
        second.run_until_idle()
        [described] = Admin(connection).describe_log_dirs([0])[0]
        assert (described.path, described.error) == (target.uri, None)
        state = connection.metadata().partition("t", 0)
        assert state.isr == [0]
        [visible] = connection.visible([state])
        assert (visible.location.uri, visible.high_watermark) == (target.uri, 2)
        named = Cluster(str(tmp_path / "cluster"), store.options(), None)
        assert query("select * from batches", named).rows.num_rows == 2
        with pytest.raises(StorageError, match="broker-0 is a copy of s3://moved/broker-0, which"):
            application(str(folder)).start()
