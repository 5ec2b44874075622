"""Clients of a cluster root that lost commits, is missing for a while, or is another cluster's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sparklog.cluster.admin import Admin
from sparklog.cluster.connection import Connection
from sparklog.cluster.roots import ClusterRoot
from sparklog.consumer.consumer import Consumer
from sparklog.errors import ProtocolError, StorageError
from sparklog.model import TopicPartition
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cluster's root with a topic `t`; the cluster's brokers have ended."""
    cluster = LocalCluster(tmp_path, brokers=[0])
    cluster.create_topic("t")
    cluster.tick_until_idle()
    cluster.close()
    return tmp_path / "cluster"


@pytest.fixture
def client(folder: Path) -> Connection:
    """A client that has loaded the metadata."""
    connection = Connection(str(folder))
    connection.metadata()
    return connection


def lose_newest_commit(folder: Path, *tables: str) -> None:
    """Delete the newest commit of these tables, as a power loss may do with unsynced files."""
    for table in tables:
        *_, newest = sorted((folder / table / "_delta_log").glob("*.json"))
        newest.unlink()
        # A copy is written once its commit is synced.
        (folder / table / "_second_copies" / newest.name).unlink(missing_ok=True)


def committed(consumer: Consumer) -> int | None:
    """Return the group's committed offset of the only partition."""
    found = consumer.committed(("t", 0))
    return found.offset if found is not None else None


def test_a_client_goes_on_after_a_commit_that_it_saw_was_lost(
    folder: Path, client: Connection
) -> None:
    """A client goes on after a commit that it had read was lost."""
    admin = Admin(client)
    admin.create_topic("lost")
    assert admin.list_topics() == ["lost", "t"]
    lose_newest_commit(folder, "topics", "partition_state")
    assert admin.list_topics() == ["t"]
    admin.create_topic("u")
    assert Admin(Connection(str(folder))).list_topics() == admin.list_topics() == ["t", "u"]
    assert admin.describe_topic("u").partitions[0].leader == 0


def test_a_client_sees_the_commit_that_took_the_place_of_a_lost_one(
    folder: Path, client: Connection
) -> None:
    """The version is the same, so the version number does not show the difference."""
    admin = Admin(client)
    admin.create_topic("lost")
    lose_newest_commit(folder, "topics", "partition_state")
    Admin(Connection(str(folder))).create_topic("u")
    assert admin.list_topics() == ["t", "u"]


def test_rows_of_a_lost_commit_are_not_mixed_with_those_that_followed(
    folder: Path, client: Connection
) -> None:
    """The next commit removes a file that the client has never read."""
    admin = Admin(client)
    admin.create_topic("lost")
    lose_newest_commit(folder, "topics", "partition_state")
    other = Admin(Connection(str(folder)))
    for name in "uvw":
        other.create_topic(name)
    assert admin.list_topics() == ["t", "u", "v", "w"]
    admin.create_topic("x")
    assert other.list_topics() == ["t", "u", "v", "w", "x"]
    with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        other.describe_topic("lost")


def test_a_consumer_commits_its_offsets_again(folder: Path) -> None:
    """A consumer can commit again after its newest commit was lost."""
    partition = TopicPartition("t", 0)
    with Consumer(str(folder), group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        for offset in (1, 2):
            consumer.commit({partition: offset})
        lose_newest_commit(folder, "consumer_offsets")
        assert committed(consumer) == 1
        consumer.commit({partition: 3})
        assert committed(consumer) == 3


def test_a_client_says_that_the_root_is_another_clusters(folder: Path, client: Connection) -> None:
    """A client reports that the root has the id of another cluster."""
    old = client.root.cluster_id
    shutil.rmtree(folder)
    new = ClusterRoot.create(Location.of(str(folder))).cluster_id
    for _ in range(2):
        with pytest.raises(StorageError) as refusal:
            client.metadata()
        assert str(refusal.value) == (
            f"{folder} holds cluster {new} now, and this process was connected to cluster {old}: "
            "restore that one, or connect again"
        )


def test_a_client_goes_on_when_a_root_that_was_gone_is_back(
    folder: Path, client: Connection
) -> None:
    """A client goes on once a missing root is back."""
    away = folder.with_name("away")
    shutil.move(folder, away)
    with pytest.raises(StorageError, match=f"there is no cluster root at {folder} any more"):
        client.metadata()
    shutil.move(away, folder)
    assert Admin(client).list_topics() == ["t"]
    shutil.copytree(folder, away)
    shutil.rmtree(folder)
    shutil.move(away, folder)
    assert Admin(client).list_topics() == ["t"]
