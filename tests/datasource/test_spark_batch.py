"""`spark.read.format("sparklog")` and `sparklog.read`, in Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import sparklog
from sparklog.consumer import spark as spark_consumer
from sparklog.errors import ConfigError, ProtocolError, SparklogError
from sparklog.maintenance.scrub import scrub
from sparklog.spark_jobs import jobs_started
from sparklog.storage.execution import spark_execution
from sparklog.testing import LocalCluster
from tests.broker.damaging import batch_file
from tests.datasource.conftest import Readable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

KAFKA_COLUMNS = [
    ("key", "binary", True),
    ("value", "binary", True),
    ("topic", "string", True),
    ("partition", "int", True),
    ("offset", "bigint", True),
    ("timestamp", "timestamp", True),
    ("timestampType", "int", True),
]
"""As declared by Spark's `KafkaRecordToRowConverter`."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Readable:
    """Topic t: 200 records in 20 batches in partition 0, 2 in partition 1, one of them
    uncommitted.
    """
    readable = Readable(tmp_path_factory.mktemp("filled"))
    readable.create_topic("t", partitions=2)
    readable.create_topic("empty")
    for batch in range(20):
        values = [f"{batch}.{one}".encode() for one in range(10)]
        readable.cluster.produce("t", 0, values, keys=[b"k", *[None] * 9])
    readable.produce("t", b"b0", b"b1", partition=1)
    readable.cluster.produce("t", 0, [b"not committed"])
    readable.cluster.leader_tick(0)
    return readable


def load(spark: SparkSession, readable: Readable, **options: str) -> DataFrame:
    reader = spark.read.format("sparklog").option("cluster", readable.root)
    return reader.options(**options).load()


def in_order(frame: DataFrame) -> list[Row]:
    return frame.orderBy("topic", "partition", "offset").collect()


def columns(frame: DataFrame) -> list[tuple[str, str, bool]]:
    return [(one.name, one.dataType.simpleString(), one.nullable) for one in frame.schema]


def test_rows_and_columns_are_those_of_sparks_kafka_source(
    spark: SparkSession, filled: Readable
) -> None:
    """Rows and columns equal those of Spark's Kafka source, without uncommitted records."""
    frame = load(spark, filled, subscribe="t")
    assert columns(frame) == KAFKA_COLUMNS
    rows = in_order(frame)
    stored = [one for one in filled.cluster.log(0, "t", 0) if one.value != b"not committed"]
    assert len(stored) == 200
    assert [(row.key, row.value, row.offset) for row in rows[:200]] == [
        (one.key, one.value, one.offset) for one in stored
    ]
    assert {(row.topic, row.partition, row.timestampType) for row in rows} == {
        ("t", 0, 0),
        ("t", 1, 0),
    }
    assert [round(row.timestamp.timestamp() * 1000) for row in rows[:200]] == [
        one.timestamp for one in stored
    ]
    assert [row.value for row in rows[200:]] == [b"b0", b"b1"]


def test_headers_are_there_where_they_are_asked_for(spark: SparkSession, filled: Readable) -> None:
    """The column `headers` exists only with includeHeaders=true."""
    from sparklog.producer.spark import SparkProducer

    filled.create_topic("headers")
    rows = spark.sql(
        "select cast('v' as binary) value, "
        "array(named_struct('key', 'h', 'value', cast('x' as binary))) headers"
    )
    SparkProducer(sparklog.Connection(filled.root), spark).send(rows, "headers")
    filled.cluster.tick_until_idle()
    filled.produce("headers", b"none")
    for frame in (
        load(spark, filled, subscribe="headers", includeHeaders="true"),
        sparklog.read(spark, cluster=filled.root, subscribe="headers", includeHeaders=True),
    ):
        assert columns(frame) == [
            *KAFKA_COLUMNS,
            ("headers", "array<struct<key:string,value:binary>>", True),
        ]
        [with_one, without] = in_order(frame)
        assert with_one.headers == [("h", b"x")]
        assert without.headers is None


def test_a_query_begins_and_ends_where_its_options_say(
    spark: SparkSession, filled: Readable
) -> None:
    """A query reads the range of its starting and ending offsets."""
    given = {
        "assign": '{"t":[0]}',
        "startingOffsets": '{"t":{"0":95}}',
        "endingOffsets": '{"t":{"0":105}}',
    }
    for frame in (
        load(spark, filled, **given, minPartitions="3"),
        sparklog.read(spark, cluster=filled.root, **given),
    ):
        assert [row.offset for row in in_order(frame)] == list(range(95, 105))


def test_a_native_read_touches_the_files_it_needs_and_has_filters_pushed_down(
    spark: SparkSession, filled: Readable
) -> None:
    """A native read reads only the files in its range, and Spark pushes filters down."""
    narrow = sparklog.read(
        spark,
        cluster=filled.root,
        subscribe="t",
        startingOffsets={"t": {"0": 101, "1": -2}},
        endingOffsets={"t": {"0": 106, "1": 0}},
    )
    assert [row.offset for row in in_order(narrow)] == [101, 102, 103, 104, 105]
    assert len(narrow.inputFiles()) == 1
    everything = sparklog.read(spark, cluster=filled.root, subscribe="t")
    assert len(everything.inputFiles()) >= 21
    assert files_read(everything.where("partition = 1")) == 1


def files_read(frame: DataFrame) -> int:
    """Return the number of files that the scan of a query has read."""
    query: Any = frame
    query._jdf.collectToPython()
    plan = query._jdf.queryExecution().executedPlan()
    while not plan.metrics().contains("numFiles"):
        plan = plan.children().head()
    return int(plan.metrics().apply("numFiles").value())


def test_reading_nothing_gives_no_rows(spark: SparkSession, filled: Readable) -> None:
    """A read of an empty topic has no rows."""
    assert load(spark, filled, subscribe="empty").count() == 0
    nothing = sparklog.read(spark, cluster=filled.root, subscribe="empty")
    assert columns(nothing) == KAFKA_COLUMNS
    assert nothing.count() == 0


@pytest.mark.parametrize("few_files", [spark_consumer._FEW_FILES, 0], ids=["files", "delta"])
@pytest.mark.parametrize(
    "given",
    [
        {"subscribe": "t"},
        {"subscribe": "t", "replica": "1"},
        {"subscribe": "t", "includeHeaders": "true"},
        {"subscribe": "t", "startingOffsets": '{"t": {"0": 101, "1": -2}}'},
        {"subscribe": "t", "endingOffsets": '{"t": {"0": 99, "1": -1}}'},
    ],
    ids=["all", "a follower", "headers", "from within a batch", "to within a batch"],
)
def test_all_ways_of_reading_give_the_same(
    spark: SparkSession,
    filled: Readable,
    given: dict[str, str],
    few_files: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ways are the format, the files themselves, and Delta's own scan."""
    monkeypatch.setattr(spark_consumer, "_FEW_FILES", few_files)
    frame = load(spark, filled, **given)
    native = sparklog.read(spark, cluster=filled.root, **given)
    assert columns(native) == columns(frame)
    assert in_order(native) == in_order(frame)


def test_a_native_read_of_a_root_whose_name_is_a_pattern_reads_that_root(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A root whose path contains a pattern is read literally.

    Otherwise Spark's file sources would read all roots that match, such as ab or ac.
    """
    cluster = LocalCluster(tmp_path / "a{b,c}*")
    cluster.create_topic("t")
    cluster.tick_until_idle()
    cluster.produce("t", 0, [b"v"])
    cluster.tick_until_idle()
    native = sparklog.read(spark, cluster=str(tmp_path / "a{b,c}*" / "cluster"), subscribe="t")
    assert [bytes(row.value) for row in native.collect()] == [b"v"]
    cluster.close()


def test_a_query_without_a_filter_sees_all_though_one_with_a_filter_came_first(
    spark: SparkSession, filled: Readable
) -> None:
    """Spark 4.2 would otherwise keep the first query's filter."""
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = load(session, filled, subscribe="t")
    assert frame.where("partition = 1 and offset = 1").count() == 1
    assert frame.count() == load(session, filled, subscribe="t").count() >= 202


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "t", "kafka.bootstrap.servers": "h:9092"}, "in option cluster"),
        ({"subscribe": "t", "startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"subscribe": "t", "startingOffsets": "latest"}, "can't be latest in a batch query"),
        ({"subscribe": "nowhere"}, "there is no topic 'nowhere'; the topics are: empty"),
        ({"subscribe": "t", "endingOffsets": '{"t":{"0":900,"1":1}}'}, "high watermark is 20"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    spark: SparkSession, filled: Readable, given: dict[str, str], said: str
) -> None:
    """An invalid option is reported in one sentence."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=said):
        load(spark, filled, **given).collect()
    with pytest.raises(SparklogError, match=said):
        sparklog.read(spark, cluster=filled.root, **given)


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, filled: Readable) -> None:
    """A user-specified schema is refused."""
    from pyspark.errors import PySparkException

    reader = spark.read.format("sparklog").option("cluster", filled.root)
    with pytest.raises(PySparkException, match="has a fixed schema"):
        reader.option("subscribe", "t").schema("value string").load().collect()


def test_a_native_read_refuses_what_only_the_format_has(
    spark: SparkSession, filled: Readable
) -> None:
    """A native read refuses the options that only the format has."""
    with pytest.raises(
        ConfigError, match="minPartitions and maxRecordsPerPartition have no meaning"
    ):
        sparklog.read(spark, cluster=filled.root, subscribe="t", minPartitions=4)


def test_a_native_read_gives_no_record_of_a_file_without_its_checksum(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A flipped value that Parquet can decode is read from another in-sync replica."""
    readable = Readable(tmp_path)
    readable.create_topic("t")
    for value in (b"a", b"b"):
        readable.produce("t", value)
    for damaged in range(3):
        values = [
            [bytes(row.value) for row in in_order(frame)]
            for frame in (
                sparklog.read(spark, cluster=readable.root, subscribe="t"),
                sparklog.SparkConsumer(readable.root, spark).read("t"),
            )
        ]
        assert values == [[b"a", b"b"]] * 2
        file = batch_file(readable.cluster, damaged, 1)
        table = pq.read_table(file, partitioning=None)
        changed = table.set_column(3, "value", [[b"X"]])
        pq.write_table(changed.cast(table.schema), file)
    with pytest.raises(ProtocolError, match="CORRUPT_MESSAGE"):
        sparklog.read(spark, cluster=readable.root, subscribe="t")


def test_a_scrub_reads_batch_files_in_tasks(spark: SparkSession, filled: Readable) -> None:
    """With `--spark` the files of a slice are read by one job."""
    execution = spark_execution(spark, is_always=True, min_bytes=0, bytes_per_task=1 << 20)
    before = jobs_started()
    done = scrub(sparklog.Connection(filled.root), execution=execution)
    assert (done.is_complete, done.findings) == (True, [])
    assert jobs_started() - before == 1
