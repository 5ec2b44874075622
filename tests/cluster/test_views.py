"""The Spark views over a cluster's state."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from sparklog.cluster.connection import Connection
from sparklog.cluster.past import BROKER_PAST, CLUSTER_PAST
from sparklog.cluster.roots import ClusterRoot
from sparklog.cluster.views import COMMITTED_RECORDS, RECORDS, SQL_VIEWS, create_views
from sparklog.model import BROKER_TABLES, CLUSTER_TABLES, LOG
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog
from sparklog.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKERS = (0, 1, 2)
PARTITIONS = (0, 1)


class Viewed(NamedTuple):
    """A cluster, and a session with its views, whose names are `names`."""

    folder: Path
    cluster: LocalCluster
    session: SparkSession
    names: list[str]


@pytest.fixture(scope="module")
def viewed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Viewed:
    """A cluster with committed records and an uncommitted one, and its views in their own
    session.
    """
    folder = tmp_path_factory.mktemp("a folder")
    cluster = LocalCluster(folder, BROKERS)
    cluster.create_topic("t", assignment={0: [0, 1, 2], 1: [1, 2, 0]})
    cluster.produce("t", 0, [b"a", None], keys=[b"k", None])
    cluster.produce("t", 1, [b"b"])
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"c"])
    cluster.leader_tick(0)
    session = spark.newSession()
    return Viewed(folder, cluster, session, create_views(session, connect(folder)))


def connect(folder: Path) -> Connection:
    return Connection(str(folder / "cluster"))


def test_there_is_a_view_of_every_table_and_brokers_tables_begin_with_broker_id(
    viewed: Viewed,
) -> None:
    """Every table has a view, and the views of brokers' tables begin with `broker_id`."""
    of_brokers = {schema.name for schema in BROKER_TABLES} - {LOG.name} | {"batches", "records"}
    of_brokers |= BROKER_PAST.keys()
    assert viewed.names == sorted(
        {schema.name for schema in CLUSTER_TABLES}
        | of_brokers
        | SQL_VIEWS.keys()
        | CLUSTER_PAST.keys()
    )
    first_columns = {name: viewed.session.table(name).columns[0] for name in of_brokers}
    assert first_columns == dict.fromkeys(of_brokers, "broker_id")
    topics = viewed.session.table("topics").toArrow().to_pylist()
    assert topics == connect(viewed.folder).root.topics.rows().to_pylist()


def test_a_brokers_table_is_the_union_over_all_brokers(viewed: Viewed) -> None:
    """The view of a broker's table is the union over all brokers."""
    rows = viewed.session.sql(
        "select broker_id, partition, role, log_end_offset, high_watermark "
        "from high_watermark_checkpoint"
    ).collect()
    expected = []
    for broker_id in BROKERS:
        for partition in PARTITIONS:
            one = viewed.cluster.replica(broker_id, "t", partition)
            ends = (one.log_end_offset, one.high_watermark)
            expected.append((broker_id, partition, one.role, *ends))
    assert sorted(map(tuple, rows)) == sorted(expected)


def test_batches_are_those_that_the_logs_index_names(viewed: Viewed) -> None:
    """The view `batches` has the batches of all logs."""
    expected = []
    for broker_id in BROKERS:
        log = RecordLog(Location.of(str(viewed.folder / f"broker-{broker_id}")))
        for key in log.partitions():
            expected += [(broker_id, *one, one.next_offset) for one in log.batches(key)]
    assert len(expected) >= 7
    assert sorted(map(tuple, viewed.session.table("batches").collect())) == sorted(expected)


def test_records_are_those_of_every_replica_committed_or_not(viewed: Viewed) -> None:
    """The view `records` has all records of every replica, including uncommitted ones."""
    assert viewed.session.table("records").columns == RECORDS.names
    found = [
        (
            *(row["broker_id"], row["partition"], row["offset"], row["leader_epoch"]),
            *(row["key"], row["value"], round(row["timestamp"].timestamp() * 1000)),
        )
        for row in viewed.session.table("records").toArrow().to_pylist()
    ]
    expected = [
        (broker_id, partition, one.offset, one.leader_epoch, one.key, one.value, one.timestamp)
        for broker_id in BROKERS
        for partition in PARTITIONS
        for one in viewed.cluster.log(broker_id, "t", partition)
    ]
    assert len(found) == len(expected)
    assert set(found) == set(expected)


def test_committed_records_are_what_consumers_see_also_of_what_came_after_the_views(
    viewed: Viewed,
) -> None:
    """`committed_records` equals what consumers read, also for later records."""
    viewed.cluster.produce("t", 1, [b"d", b"e"])
    viewed.cluster.tick_until_idle()
    viewed.cluster.produce("t", 1, [b"not committed"])
    viewed.cluster.leader_tick(1)

    rows = viewed.session.sql(COMMITTED_RECORDS).select("topic", "partition", "offset", "value")
    consumed = [
        ("t", partition, one.offset, one.value)
        for partition in PARTITIONS
        for one in viewed.cluster.consume("t", partition)
    ]
    assert ("t", 1, 2, b"e") in consumed
    assert sorted(map(tuple, rows.collect())) == sorted(consumed)


def test_committed_records_are_never_fewer_over_a_failover_but_an_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Rule 10.2: a query that ends at the latest offset returns all records or fails (KIP-207)."""
    cluster = LocalCluster(tmp_path, BROKERS)
    cluster.create_topic("t", assignment={0: [0, 1, 2]}, configs={"min.insync.replicas": 2})
    cluster.create_topic("other", assignment={0: [1, 2]})
    session = spark.newSession()
    create_views(session, connect(tmp_path))
    cluster.produce("t", 0, [b"%d" % number for number in range(5)])
    cluster.produce("other", 0, [b"x", b"y"])
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"5", b"6", b"7"])
    cluster.leader_tick(0)
    cluster.follower_tick(1)
    cluster.follower_tick(2)
    cluster.leader_tick(0)

    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    def shown(query: str = f"select * from ({COMMITTED_RECORDS}) where topic = 't'") -> int | str:
        try:
            return len(session.sql(query).collect())
        except (PySparkException, Py4JJavaError) as error:
            [name] = [one for one in ("OFFSET_NOT", "LEADER_NOT") if one in str(error)]
            return f"{name}_AVAILABLE"

    assert shown() == 8
    shutil.move(tmp_path / "broker-0", tmp_path / "away")
    with pytest.warns(UserWarning, match="broker 0 is left out"):
        create_views(session, connect(tmp_path))
    assert shown() == "OFFSET_NOT_AVAILABLE", "the leader's records are not there"
    shutil.move(tmp_path / "away", tmp_path / "broker-0")
    create_views(session, connect(tmp_path))
    cluster.crash(0)
    cluster.fence(0)
    not_elected = shown()
    cluster.leader_tick(1)
    assert (not_elected, shown()) == ("OFFSET_NOT_AVAILABLE", "OFFSET_NOT_AVAILABLE")
    for query in (
        f"select topic from ({COMMITTED_RECORDS}) where offset >= 6 and value > binary('')",
        f"select count(*) from ({COMMITTED_RECORDS}) where broker_id = 1",
    ):
        assert shown(query) == "OFFSET_NOT_AVAILABLE", query
    assert shown(f"select * from ({COMMITTED_RECORDS}) where topic = 'other'") == 2
    cluster.tick_until_idle()
    assert shown() == 8
    for broker_id in (1, 2):
        cluster.crash(broker_id)
    cluster.restart(0)
    cluster.fence(1)
    cluster.fence(2)
    assert cluster.partition("t", 0).leader is None
    assert shown() == "LEADER_NOT_AVAILABLE"


def test_a_broker_root_that_cannot_be_read_is_left_out_with_a_warning(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An unreadable broker root is omitted with a warning."""
    cluster = LocalCluster(tmp_path, [0, 1])
    cluster.create_topic("t")
    cluster.tick_until_idle()
    shutil.rmtree(tmp_path / "broker-1" / "log")
    session = spark.newSession()

    with pytest.warns(UserWarning, match="broker 1 is left out") as warned:
        create_views(session, connect(tmp_path))

    [warning] = warned
    assert str(tmp_path / "broker-1") in str(warning.message)
    assert warning.filename == __file__
    rows = session.sql("select broker_id from high_watermark_checkpoint").collect()
    assert rows == [(0,)]


def test_before_any_broker_registers_the_views_are_there_and_empty(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without registered brokers the views exist and are empty."""
    ClusterRoot.create(Location.of(str(tmp_path / "cluster")))
    session = spark.newSession()
    create_views(session, connect(tmp_path))
    assert session.table("records").columns == RECORDS.names
    assert session.table("batches").isEmpty()
