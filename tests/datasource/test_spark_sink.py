"""`df.write.format("sparklog")` and `df.writeStream.format("sparklog")`, in Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from sparklog.producer.partitioner import keyed_partitions
from sparklog.producer.spark import SparkProducer
from tests.available_now import run_to_end
from tests.running_cluster import RunningCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    cluster = RunningCluster(tmp_path_factory.mktemp("running"))
    yield cluster
    cluster.stop()


def save(frame: DataFrame, cluster: RunningCluster, **options: str) -> None:
    writer = frame.write.format("sparklog").mode("append")
    writer.option("cluster", cluster.connection.cluster).options(**options).save()


def values(cluster: RunningCluster, topic: str) -> list[bytes]:
    return sorted(row["value"] for rows in cluster.committed(topic).values() for row in rows)


def assert_shown_in_one_line(error: Exception, sentence: str) -> None:
    """Spark itself adds the place of the failure, in front and in the following lines."""
    lines = str(error).splitlines()
    assert any(sentence in line and ".errors." in line for line in lines[:2])
    assert not any("Traceback" in line or line.startswith("  File") for line in lines)


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_secret_in_an_option_is_refused_and_not_shown(
    spark: SparkSession, running: RunningCluster, kind: str
) -> None:
    """An option is part of the plan, which Spark shows; a reference in it is accepted."""
    literal = '{"s3://logs": {"AWS_SECRET_ACCESS_KEY": "hush-hush"}}'
    reference = '{"s3://logs": {"AWS_SECRET_ACCESS_KEY": "${LOGS_SECRET}"}}'
    cluster = running.connection.cluster
    topic = f"secret-{kind}"
    running.create_topic(topic)

    def use(storage_options: str) -> None:
        options = {"cluster": cluster, "storageOptions": storage_options}
        if kind == "read":
            reader = spark.read.format("sparklog").options(**options)
            reader.option("subscribe", topic).load().collect()
        else:
            save(
                spark.sql("select 'a' value"), running, topic=topic, storageOptions=storage_options
            )

    use(reference)
    with pytest.raises(Exception, match="AWS_SECRET_ACCESS_KEY of s3://logs is a secret") as told:
        use(literal)
    assert "hush-hush" not in str(told.value).splitlines()[0]


class TestADataFrame:
    def test_is_stored_when_save_returns(
        self, spark: SparkSession, running: RunningCluster
    ) -> None:
        """Keys, values and headers are stored, in the rows' partitions or by Kafka's hash of the
        key.
        """
        running.create_topic("whole", partitions=3)
        frame = spark.sql(
            """
            select cast(concat('k', id) as string) key, cast(concat('v', id) as binary) value,
                case when id % 2 = 0 then cast(id % 3 as int) end partition,
                case when id = 3
                    then array(named_struct('key', 'h', 'value', cast('x' as binary))) end headers,
                current_timestamp() timestamp, id as offset
            from range(0, 40, 1, 4)
            """
        )
        save(frame, running, topic="whole")
        found = running.committed("whole")
        rows = {row["key"]: (partition, row) for partition in found for row in found[partition]}
        assert len(rows) == sum(map(len, found.values())) == 40
        import pyarrow as pa

        for number in range(40):
            key = b"k%d" % number
            partition, row = rows[key]
            hashed = int(keyed_partitions(pa.array([key]), 3)[0])
            assert partition == (number % 3 if number % 2 == 0 else hashed)
            assert row["value"] == b"v%d" % number
            headers = [{"key": "h", "value": b"x"}] if number == 3 else None
            assert row["headers"] == headers

    def test_goes_to_the_topics_that_its_rows_name_unless_an_option_does(
        self, spark: SparkSession, running: RunningCluster
    ) -> None:
        """Rows go to their column's topic, unless the option `topic` is given."""
        for topic in ("even", "odd", "all"):
            running.create_topic(topic)
        frame = spark.sql(
            "select if(id % 2 = 0, 'even', 'odd') topic, cast(id as string) value "
            "from range(0, 10, 1, 2)"
        )
        save(frame, running)
        save(frame, running, topic="all")
        assert values(running, "even") == [b"0", b"2", b"4", b"6", b"8"]
        assert values(running, "odd") == [b"1", b"3", b"5", b"7", b"9"]
        assert len(values(running, "all")) == 10

    def test_of_no_rows_is_nothing_to_do(
        self, spark: SparkSession, running: RunningCluster
    ) -> None:
        """Saving a DataFrame without rows succeeds."""
        running.create_topic("empty")
        save(spark.sql("select 'a' value where 1 = 0"), running, topic="empty")
        assert values(running, "empty") == []

    @pytest.mark.parametrize(
        ("query", "options", "sentence"),
        [
            ("select 1 value", {"topic": "refused"}, "the column value is of type int"),
            ("select 'a' value", {}, "the column topic is missing"),
            ("select 'a' value, cast(null as string) topic", {}, "topic is null in a row"),
            ("select 'a' value", {"topic": "nowhere"}, "there is no topic 'nowhere'"),
            ("select 'a' value", {"topic": "refused", "ackz": "1"}, "did you mean acks"),
            ("select 'a' value, 7 partition", {"topic": "refused"}, "partition"),
        ],
    )
    def test_that_is_refused_leaves_nothing_behind(
        self,
        spark: SparkSession,
        running: RunningCluster,
        query: str,
        options: dict[str, str],
        sentence: str,
    ) -> None:
        """A refused DataFrame stores no records and is reported in one line."""
        if "refused" not in {one.topic for one in running.connection.metadata().topics.values()}:
            running.create_topic("refused")
        with pytest.raises(Exception, match=sentence) as told:
            save(spark.sql(query), running, **options)
        assert_shown_in_one_line(told.value, sentence)
        assert values(running, "refused") == []

    def test_is_never_written_over_what_is_there(
        self, spark: SparkSession, running: RunningCluster
    ) -> None:
        """Mode overwrite is refused."""
        writer = spark.sql("select 'a' value").write.format("sparklog").mode("overwrite")
        with pytest.raises(Exception, match="a log is only appended to"):
            writer.option("cluster", running.connection.cluster).option("topic", "t").save()


class TestAViewInSql:
    def test_is_read_and_inserted_into(self, spark: SparkSession, running: RunningCluster) -> None:
        """A temporary view with a topic is a sink; one with `subscribe` is read."""
        running.create_topic("sql")
        cluster = running.connection.cluster
        spark.sql(
            "create or replace temporary view sql_sink using sparklog "
            f"options (cluster '{cluster}', topic 'sql')"
        )
        spark.sql(
            "insert into sql_sink (key, value) select binary('k'), binary(string(id)) from range(3)"
        )
        spark.sql("select binary('4') value").createOrReplaceTempView("more")
        spark.sql("insert into sql_sink (value) table more")
        assert values(running, "sql") == [b"0", b"1", b"2", b"4"]
        spark.sql(
            "create or replace temporary view sql_source using sparklog "
            f"options (cluster '{cluster}', subscribe 'sql')"
        )
        found = spark.sql(
            "select string(value) value, offset from sql_source where key is not null"
        )
        assert sorted(row.value for row in found.collect()) == ["0", "1", "2"]
        with pytest.raises(Exception, match="a log is only appended to"):
            spark.sql("insert overwrite sql_sink (value) table more")

    def test_is_in_place_of_a_table(self, spark: SparkSession, running: RunningCluster) -> None:
        """Spark loses the options of a Python source's table, so none is created."""
        running.create_topic("no-table")
        options = f"options (cluster '{running.connection.cluster}', subscribe 'no-table')"
        with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW") as told:
            spark.sql(f"create table no_table using sparklog {options}")
        assert_shown_in_one_line(told.value, "CREATE TABLE ... USING sparklog is not supported")
        assert not spark.catalog.tableExists("no_table")


class Pipe:
    """A stream from one topic to another, with one checkpoint and many starts."""

    def __init__(self, spark: SparkSession, cluster: RunningCluster, folder: Path) -> None:
        self._spark = spark
        self._cluster = cluster
        self._checkpoint = folder / "checkpoint"

    def run(self, source: str, target: str, **options: str) -> None:
        """Pipe the available records."""
        run_to_end(partial(self._start, source, target, options))

    def _start(self, source: str, target: str, options: Mapping[str, str]) -> StreamingQuery:
        frame = (
            self._spark.readStream.format("sparklog")
            .option("cluster", self._cluster.connection.cluster)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .options(**options)
            .load()
        )
        return (
            frame.drop("topic")
            .writeStream.format("sparklog")
            .queryName(f"pipe-{target}")
            .option("cluster", self._cluster.connection.cluster)
            .option("topic", target)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def be_killed_before_the_checkpoint(self) -> None:
        """Set the checkpoint back to its state between the sink's commit and Spark's own."""
        commits = self._checkpoint / "commits"
        last = max(int(one.name) for one in commits.iterdir() if one.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)


def produce(
    spark: SparkSession, cluster: RunningCluster, topic: str, first: int, count: int
) -> Any:
    frame = spark.sql(f"select cast(id as string) value from range({first}, {first + count}, 1, 3)")
    save(frame, cluster, topic=topic)


def test_a_stream_that_is_killed_between_commit_and_checkpoint_writes_once(
    spark: SparkSession, running: RunningCluster, tmp_path: Path
) -> None:
    """The stream is killed many times, and the repeated micro-batch is divided differently
    (3.6).
    """
    running.create_topic("source", partitions=2)
    running.create_topic("target", partitions=3)
    pipe = Pipe(spark, running, tmp_path)
    sent = 0
    for cut in ("1", "5", "2"):
        produce(spark, running, "source", sent, 20)
        sent += 20
        pipe.run("source", "target", minPartitions=cut)
        pipe.be_killed_before_the_checkpoint()
        pipe.run("source", "target", minPartitions=str(int(cut) + 1))
        assert sorted(map(int, values(running, "target"))) == list(range(sent))


def test_a_stream_goes_on_over_a_failover(
    spark: SparkSession, running: RunningCluster, tmp_path: Path
) -> None:
    """A stream goes on after a failover."""
    running.create_topic("from", partitions=2)
    running.create_topic("to", partitions=2)
    pipe = Pipe(spark, running, tmp_path)
    produce(spark, running, "from", 0, 20)
    pipe.run("from", "to")
    with running.application.between_rounds():
        running.application.drop_broker(0)
    produce(spark, running, "from", 20, 20)
    pipe.run("from", "to")
    assert sorted(map(int, values(running, "to"))) == list(range(40))
    running.application.start_broker(0)


class TestAnAggregate:
    """Output modes of an aggregate: counts of the records of each key."""

    @pytest.fixture
    def source(self, spark: SparkSession, running: RunningCluster) -> Iterator[str]:
        """A topic, which each test fills with records of the keys a and b."""
        before = spark.conf.get("spark.sql.shuffle.partitions", "200")
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        yield f"keyed-{len(running.connection.metadata().topics)}"
        spark.conf.set("spark.sql.shuffle.partitions", str(before))

    def _counts(self, spark: SparkSession, running: RunningCluster, topic: str) -> DataFrame:
        frame = (
            spark.readStream.format("sparklog")
            .option("cluster", running.connection.cluster)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        return (
            frame.groupBy("key")
            .agg({"*": "count"})
            .selectExpr("key", "cast(`count(1)` as string) as value")
        )

    def _send(self, spark: SparkSession, running: RunningCluster, topic: str, keys: str) -> None:
        save(
            spark.createDataFrame([(key, "") for key in keys], "key string, value string"),
            running,
            topic=topic,
        )

    def _found(self, running: RunningCluster, topic: str) -> list[bytes]:
        rows = [row for rows in running.committed(topic).values() for row in rows]
        return [row["key"] + row["value"] for row in rows]

    def test_in_complete_mode_appends_all_rows_of_each_micro_batch_once(
        self, spark: SparkSession, running: RunningCluster, source: str, tmp_path: Path
    ) -> None:
        """As in Kafka's sink. A micro-batch that runs again appends nothing."""
        running.create_topic(source)
        running.create_topic("complete")

        def start() -> StreamingQuery:
            return (
                self._counts(spark, running, source)
                .writeStream.format("sparklog")
                .outputMode("complete")
                .option("cluster", running.connection.cluster)
                .option("topic", "complete")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )

        for keys in ("aab", "b"):
            self._send(spark, running, source, keys)
            run_to_end(start)
        commits = tmp_path / "checkpoint" / "commits"
        last = max(
            (one for one in commits.iterdir() if one.name.isdigit()), key=lambda o: int(o.name)
        )
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        run_to_end(start)
        found = self._found(running, "complete")
        assert sorted(found[:2]) == [b"a2", b"b1"]
        assert sorted(found[2:]) == [b"a2", b"b2"]

    def test_in_update_mode_goes_through_foreach_batch(
        self, spark: SparkSession, running: RunningCluster, source: str, tmp_path: Path
    ) -> None:
        """Spark gives a Python sink no update mode and says so; SparkProducer takes the changed
        rows.
        """
        running.create_topic(source)
        running.create_topic("updates")
        counts = self._counts(spark, running, source)
        self._send(spark, running, source, "aab")
        refused = (
            counts.writeStream.format("sparklog")
            .outputMode("update")
            .option("cluster", running.connection.cluster)
            .option("topic", "updates")
            .option("checkpointLocation", str(tmp_path / "refused"))
            .start()
        )
        with pytest.raises(StreamingQueryException, match="sparklog does not support Update mode"):
            refused.awaitTermination()
        producer = SparkProducer(running.connection, spark)

        def send(changed: DataFrame, batch_id: int) -> None:
            producer.send(changed, "updates", micro_batch=("updates", batch_id)).result()

        def start() -> StreamingQuery:
            return (
                counts.writeStream.outputMode("update")
                .foreachBatch(send)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )

        run_to_end(start)
        self._send(spark, running, source, "b")
        run_to_end(start)
        found = self._found(running, "updates")
        assert sorted(found[:2]) == [b"a2", b"b1"]
        assert found[2:] == [b"b2"]


def test_an_error_of_a_stream_is_shown_in_one_line(
    spark: SparkSession, running: RunningCluster, tmp_path: Path
) -> None:
    """The stack of the Python worker does not help the user who named the topic."""
    running.create_topic("known")
    pipe = Pipe(spark, running, tmp_path)
    with pytest.raises(StreamingQueryException) as told:
        pipe.run("nowhere", "known")
    assert_shown_in_one_line(told.value, "there is no topic 'nowhere'")
