"""Metadata: the content of the cluster root's tables, reloaded only where they changed."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sparklog.cluster import metadata
from sparklog.cluster.metadata import MetadataReader
from sparklog.cluster.roots import ClusterRoot
from sparklog.errors import ProtocolError, StorageError
from sparklog.model import BROKERS, PARTITION_STATE, TOPICS, TopicIdPartition
from sparklog.storage.location import Location
from sparklog.storage.shard_rewrites import RowChanges


@pytest.fixture
def cluster(root: Location) -> ClusterRoot:
    made = ClusterRoot.create(root)
    made.brokers.compare_and_set(
        BROKERS.rows([broker(2, state="fenced"), broker(1, ["/b", "s3://lake/b"])])
    )
    return made


def broker(broker_id: int, roots: Any = ("/a",), state: str = "alive") -> dict[str, Any]:
    return {
        "broker_id": broker_id,
        "broker_epoch": broker_id * 10,
        "roots": json.dumps(list(roots)),
        "state": state,
    }


def replica(topic_id: str, broker_id: int, index: int, **columns: Any) -> dict[str, Any]:
    return {
        "topic_id": topic_id,
        "topic": "t",
        "partition": 0,
        "broker_id": broker_id,
        "root": 0,
        "replica_index": index,
        "in_isr": True,
        "in_elr": False,
        "adding": False,
        "removing": False,
        "leader": 2,
        "leader_broker_epoch": 20,
        "leader_epoch": 5,
        "partition_epoch": 6,
        "controller_epoch": 7,
        **columns,
    }


def add_topic(cluster: ClusterRoot, topic_id: str = "id", state: str = "live") -> None:
    """Add a topic with a partition on the brokers 2 and 1, as the admin does."""
    replicas = [replica(topic_id, 1, 1), replica(topic_id, 2, 0, in_isr=topic_id == "id")]
    row = {"topic_id": topic_id, "topic": "t", "partitions": 1, "replication_factor": 2}
    row |= {"configs": '{"min.insync.replicas": 2}', "state": state}
    cluster.partition_state.update(
        lambda rows: (pa.concat_tables([rows, PARTITION_STATE.rows(replicas)]), None)
    )
    cluster.topics.update(lambda rows: (pa.concat_tables([rows, TOPICS.rows([row])]), None))


def test_everything_is_found_by_name_and_id(cluster: ClusterRoot) -> None:
    """Brokers, topics, partitions and replicas are found by name and id."""
    add_topic(cluster)
    metadata = MetadataReader(cluster, {}).load()
    assert {one.broker_id: one.is_alive for one in metadata.brokers.values()} == {1: True, 2: False}
    topic = metadata.topic("t")
    assert (topic.topic_id, topic.partitions, topic.config.min_insync_replicas) == ("id", 1, 2)
    state = metadata.partition("t", 0)
    assert state is metadata.partitions[TopicIdPartition("id", 0)]
    assert [one.broker_id for one in state.replicas] == [2, 1]
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (2, 5, 6)
    assert (state.controller_epoch, state.isr) == (7, [1, 2])
    assert (state.replica(1), state.replica(3)) == (state.replicas[1], None)


def test_what_is_not_there_is_refused_with_what_is(cluster: ClusterRoot) -> None:
    """The error for an unknown topic or partition lists the existing ones."""
    reader = MetadataReader(cluster, {})
    with pytest.raises(ProtocolError, match="there is no topic 't'; the topics are: none yet"):
        reader.load().topic("t")
    add_topic(cluster)
    with pytest.raises(ProtocolError, match=r"UNKNOWN_TOPIC_OR_PARTITION: .*the topics are: t"):
        reader.load().topic("u")
    with pytest.raises(ProtocolError, match="topic 't' has the partitions 0 to 0, not 1"):
        reader.load().partition("t", 1)


def test_a_topic_that_is_being_deleted_or_created_is_not_there(cluster: ClusterRoot) -> None:
    """A new topic of the same name shares nothing with the old one (rule 1.4)."""
    add_topic(cluster, "old", state="deleting")
    rows = PARTITION_STATE.rows([replica("unfinished", 1, 0)])
    cluster.partition_state.update(lambda old: (pa.concat_tables([old, rows]), None))
    metadata = MetadataReader(cluster, {}).load()
    assert (metadata.topics, metadata.partitions) == ({}, {})
    add_topic(cluster)
    assert MetadataReader(cluster, {}).load().partition("t", 0).topic_id == "id"


def test_a_topic_is_always_seen_with_all_its_partitions(
    cluster: ClusterRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is written last and read first, so a creation during the read shows no part of the
    topic.
    """
    refresh = cluster.topics.refresh

    def then_create() -> bool:
        found = refresh()
        monkeypatch.undo()
        add_topic(ClusterRoot(cluster.location))
        return found

    monkeypatch.setattr(cluster.topics, "refresh", then_create)
    reader = MetadataReader(cluster, {})
    assert reader.load().topics == {}
    assert reader.load().partition("t", 0).leader == 2


def test_nothing_is_read_again_while_nothing_changes(cluster: ClusterRoot) -> None:
    """If no table has changed, `load` returns the same object."""
    assert MetadataReader(cluster, {}).versions is None
    reader = MetadataReader(cluster, {})
    first = reader.load()
    assert reader.load() is first
    assert reader.versions == ((0, 1), (0, 0), (0, 0))
    add_topic(cluster)
    assert reader.load() is not first
    assert reader.versions == ((0, 1), (0, 1), (0, 1))


def test_a_change_of_a_brokers_row_leaves_the_partitions(cluster: ClusterRoot) -> None:
    """Its counter shows that a broker was fenced and has returned; partitions are kept."""
    reader = MetadataReader(cluster, {})
    before, versions = reader.load(), reader.versions
    cluster.brokers.update(lambda rows: (rows.set_column(*_column(rows, "heartbeat", 7)), None))
    after = reader.load()
    assert reader.versions != versions
    assert after.partitions is before.partitions
    versions = reader.versions
    assert {one.heartbeat for one in after.brokers.values()} == {7}
    cluster.brokers.update(lambda rows: (rows.set_column(*_column(rows, "state", "fenced")), None))
    assert not any(one.is_alive for one in reader.load().brokers.values())
    assert reader.versions != versions


def _column(rows: pa.Table, name: str, value: object) -> tuple[int, str, pa.Array[Any]]:
    index = rows.column_names.index(name)
    return index, name, pa.array([value] * rows.num_rows, rows.schema.field(index).type)


@pytest.mark.parametrize(
    ("broker_id", "number", "found"),
    [(2, 0, "/a"), (1, 0, "/b"), (1, 1, "s3://lake/b")],
)
def test_a_log_directory_is_found_with_the_options_of_its_store(
    cluster: ClusterRoot, broker_id: int, number: int, found: str
) -> None:
    """A log directory's location has the options of its store."""
    reader = MetadataReader(cluster, {"s3://lake": {"key": "value"}})
    reader.load()
    location = reader.location(broker_id, number)
    assert location.uri == found
    assert bool(location.options) == found.startswith("s3")


@pytest.mark.parametrize(("broker_id", "number"), [(3, 0), (2, 1)])
def test_a_log_directory_that_is_not_registered_is_named(
    cluster: ClusterRoot, broker_id: int, number: int
) -> None:
    """A broker may return with fewer log directories; only the missing ones cannot be read then."""
    reader = MetadataReader(cluster, {})
    reader.load()
    said = f"broker {broker_id} is not registered with log directory number {number}: start it"
    with pytest.raises(StorageError, match=said):
        reader.location(broker_id, number)


def test_only_the_partitions_that_changed_are_built_again(cluster: ClusterRoot) -> None:
    """After a change of one partition the cost of loading does not depend on the number of
    partitions.
    """
    for number in range(3):
        add_topic(cluster, f"id-{number}")
    reader = MetadataReader(cluster, {})
    before = reader.load().partitions
    changed = TopicIdPartition("id-1", 0)

    def shrink(rows: pa.Table) -> tuple[pa.Table, None]:
        found = rows.to_pylist()
        for row in found:
            if (row["topic_id"], row["partition"]) == changed:
                row |= {"leader": None, "in_isr": row["broker_id"] == 1, "partition_epoch": 7}
        return PARTITION_STATE.rows(found), None

    cluster.partition_state.update(shrink)
    after = reader.load().partitions
    assert [key for key in after if after[key] is not before[key]] == [changed]
    assert after[changed] == MetadataReader(cluster, {}).load().partitions[changed]
    assert (after[changed].leader, after[changed].isr, after[changed].partition_epoch) == (
        None,
        [1],
        7,
    )


def test_partitions_that_come_and_go_are_seen(cluster: ClusterRoot) -> None:
    """Added and removed partitions are found."""
    add_topic(cluster, "id-0")
    reader = MetadataReader(cluster, {})
    assert [key.topic_id for key in reader.load().partitions] == ["id-0"]
    add_topic(cluster, "id-1")
    assert [key.topic_id for key in reader.load().partitions] == ["id-0", "id-1"]
    cluster.partition_state.update(
        lambda rows: (rows.filter(pc.not_equal(rows["topic_id"], "id-0")), None)
    )
    assert [key.topic_id for key in reader.load().partitions] == ["id-1"]


def test_a_change_of_one_partition_converts_its_rows_alone(
    cluster: ClusterRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost does not depend on the number of partitions in its file and in other files."""
    replicas = [replica("id", n, n) | {"partition": p} for p in range(1000) for n in (1, 2)]
    cluster.partition_state.compare_and_set(PARTITION_STATE.rows(replicas))
    assert len(cluster.partition_state.sharded_rows().shards) > 2
    reader = MetadataReader(cluster, {})
    reader.load()
    converted: list[int] = []

    def noted(rows: list[dict[str, Any]]) -> Any:
        converted.append(len(rows))
        return partitions_of(rows)

    partitions_of = metadata._partitions
    monkeypatch.setattr(metadata, "_partitions", noted)
    change = PARTITION_STATE.rows([replica("id", 1, 1) | {"partition": 500, "in_isr": False}])
    cluster.partition_state.change_rows(lambda _: RowChanges(change), [("id", 500)])
    reader.load()
    assert converted == [2]
