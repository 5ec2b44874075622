"""A stream's progress, published as the committed offsets of a group, which show its lag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparklog.cluster.connection import Connection
from sparklog.consumer.consumer import Consumer
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata, lag
from tests.available_now import run_to_end
from tests.datasource.conftest import Readable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Offset = dict[str, Any]


@pytest.fixture
def connection(readable: Readable) -> Connection:
    readable.create_topic("t", partitions=2)
    readable.cluster.produce("t", 0, [b"a0", b"a1", b"a2", b"a3"])
    readable.produce("t", b"b0", partition=1)
    return Connection(readable.root)


def groups(connection: Connection) -> set[str]:
    """Return the groups that have committed any offset."""
    connection.root.consumer_offsets.refresh()
    return {row["group_id"] for row in connection.root.consumer_offsets.rows().to_pylist()}


def behind(connection: Connection, group_id: str) -> dict[tuple[str, int], int | None]:
    return {(one.topic, one.partition): one.lag for one in lag(connection, group_id)}


def process(readable: Readable, start: Offset | None = None, /, **options: str) -> Offset:
    """Let a query start and take one micro-batch; return its end offset as its checkpoint has
    it.
    """
    stream = readable.stream(subscribe="t", startingOffsets="earliest", **options)
    begun = stream.initial_offset() if start is None else start
    end = stream.latest_offset(begun, is_limited=True)
    stream.plan(begun, end)
    result: Offset = json.loads(json.dumps(end))
    stream.commit(result)
    return result


def test_nothing_is_published_unless_a_group_is_named(
    readable: Readable, connection: Connection
) -> None:
    """Without a group in the options nothing is published."""
    process(readable)
    assert groups(connection) == set()


def test_the_offsets_that_were_processed_are_the_groups(
    readable: Readable, connection: Connection
) -> None:
    """The processed offsets are committed for the group kafka.group.id."""
    options = {"kafka.group.id": "spark", "maxOffsetsPerTrigger": "3", "groupIdPrefix": "unused"}
    end = process(readable, **options)
    assert groups(connection) == {"spark"}
    assert (end["t"], behind(connection, "spark")) == (
        {"0": 2, "1": 1},
        {("t", 0): 2, ("t", 1): 0},
    )
    committed = CommittedOffsets(connection.root.consumer_offsets).fetch("spark")
    key = connection.metadata().partition("t", 0).key
    assert committed[key] == OffsetAndMetadata(2, leader_epoch=0)
    process(readable, end, **options)
    assert behind(connection, "spark") == {("t", 0): 0, ("t", 1): 0}


def test_a_plain_consumer_can_go_on_where_a_stream_was(
    readable: Readable, connection: Connection
) -> None:
    """A plain consumer of the group continues at the stream's position."""
    process(readable, **{"kafka.group.id": "both", "maxOffsetsPerTrigger": "3"})
    with Consumer(connection, "both") as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        [records] = consumer.poll(5_000).values()
        assert [record.value for record in records] == [b"a2", b"a3"]


def test_each_stream_with_a_prefix_has_a_group_of_its_own_that_its_checkpoint_keeps(
    readable: Readable, connection: Connection
) -> None:
    """With groupIdPrefix each stream has its own group, which its checkpoint keeps."""
    one = process(readable, groupIdPrefix="spark", maxOffsetsPerTrigger="3")
    [first] = groups(connection)
    assert first.startswith("spark-")
    assert sum(filter(None, behind(connection, first).values())) == 2
    process(readable, groupIdPrefix="spark")
    assert len(groups(connection)) == 2
    process(readable, one, groupIdPrefix="spark")
    assert len(groups(connection)) == 2
    assert sum(filter(None, behind(connection, first).values())) == 0


def test_a_prefix_may_be_given_later(readable: Readable, connection: Connection) -> None:
    """A groupIdPrefix may be added to an existing checkpoint."""
    one = process(readable, maxOffsetsPerTrigger="3")
    process(readable, one, groupIdPrefix="spark")
    [group_id] = groups(connection)
    assert set(behind(connection, group_id).values()) == {0}


def test_a_group_that_has_members_keeps_its_offsets_and_the_query_goes_on(
    readable: Readable, connection: Connection
) -> None:
    """A group with members keeps its offsets, and the query goes on with a warning."""
    with Consumer(connection, "busy", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        while not consumer.poll(1_000):
            pass
        with pytest.warns(UserWarning, match="not published as group busy: UNKNOWN_MEMBER_ID"):
            end = process(readable, **{"kafka.group.id": "busy"})
    assert end["t"] == {"0": 4, "1": 1}


def test_a_table_that_cannot_be_written_is_a_warning(
    readable: Readable, connection: Connection
) -> None:
    """A failed publication is a warning, and the next one succeeds."""
    stream = readable.stream(
        subscribe="t", startingOffsets="earliest", **{"kafka.group.id": "spark"}
    )
    end = stream.latest_offset(stream.initial_offset(), is_limited=True)
    log = Path(connection.root.consumer_offsets.location.uri) / "_delta_log"
    log.rename(log.with_name("away"))
    with pytest.warns(UserWarning, match="not published as group spark"):
        stream.commit(end)
    log.with_name("away").rename(log)
    stream.commit(end)
    assert behind(connection, "spark") == {("t", 0): 0, ("t", 1): 0}


def test_sparks_own_queries_publish_also_after_a_restart_from_the_checkpoint(
    spark: SparkSession, readable: Readable, connection: Connection, tmp_path: Path
) -> None:
    """Spark's queries publish their progress, under the same group after a restart."""

    def run() -> None:
        frame = (
            spark.readStream.format("sparklog")
            .option("cluster", readable.root)
            .option("subscribe", "t")
            .option("startingOffsets", "earliest")
            .option("groupIdPrefix", "spark")
            .option("maxOffsetsPerTrigger", 2)
            .load()
        )
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        run_to_end(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start)

    run()
    [group_id] = groups(connection)
    assert behind(connection, group_id) == {("t", 0): 0, ("t", 1): 0}
    readable.produce("t", b"a4", b"a5")
    assert behind(connection, group_id) == {("t", 0): 2, ("t", 1): 0}
    run()
    assert behind(connection, group_id) == {("t", 0): 0, ("t", 1): 0}
    assert groups(connection) == {group_id}
