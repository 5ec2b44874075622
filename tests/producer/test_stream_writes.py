"""A streaming query's micro-batch that runs again is stored once (3.6, 3.7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import write_deltalake

from sparklog.cluster.connection import Connection
from sparklog.errors import DamagedError, ProtocolError
from sparklog.model import STREAM_WRITES, TopicIdPartition
from sparklog.producer.spark import SparkProducer
from sparklog.producer.stream_writes import Files, MicroBatch, SentFile, StreamWrites
from sparklog.storage.batch_files import BatchFile
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster
from tests.running_cluster import RunningCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class KilledError(Exception):
    """The end of the driver process, simulated for Spark."""


def files(name: str) -> Files:
    file = BatchFile(f"_inbox/{name}.parquet", 10, "sum", 3, 1, 2)
    return {TopicIdPartition("id", 1): [SentFile(Location.of("/b/log"), file)]}


class TestTheLatestMicroBatch:
    @pytest.fixture
    def connection(self, tmp_path: Path) -> Iterator[Connection]:
        cluster = LocalCluster(tmp_path, brokers=[0])
        yield Connection(str(tmp_path / "cluster"))
        cluster.close()

    def test_is_found_by_a_process_that_runs_it_again(self, connection: Connection) -> None:
        """Another process that runs the micro-batch again finds its files and whether it is
        finished.
        """
        writes, once = StreamWrites(connection), MicroBatch("q", 0)
        assert writes.find(once) is None
        assert writes.begin(once, files("a")) == (False, files("a"))
        again = StreamWrites(Connection(connection.cluster))
        assert again.find(once) == (False, files("a"))
        again.finish(once)
        assert writes.find(once) == (True, {})

    def test_has_the_files_of_all_its_topics(self, connection: Connection) -> None:
        """One compare-and-set notes them, so that no run finds only a part of them."""
        writes, once = StreamWrites(connection), MicroBatch("q", 3)
        both = files("a") | {TopicIdPartition("other", 0): files("b")[TopicIdPartition("id", 1)]}
        before = connection.root.stream_writes.version
        writes.begin(once, both)
        assert connection.root.stream_writes.version == before + 1
        assert writes.find(once) == (False, both)
        writes.begin(MicroBatch("q", 4), files("c"))
        assert connection.root.stream_writes.rows().num_rows == 1

    def test_is_that_of_the_run_which_was_faster(self, connection: Connection) -> None:
        """Two drivers encode the same micro-batch: the slower one sends the faster one's files."""
        once = MicroBatch("q", 4)
        StreamWrites(connection).begin(once, files("a"))
        found = StreamWrites(Connection(connection.cluster)).begin(once, files("b"))
        assert found == (False, files("a"))

    def test_takes_the_place_of_the_one_before_it(self, connection: Connection) -> None:
        """Each micro-batch replaces the row of the query's previous one."""
        writes = StreamWrites(connection)
        for batch_id in (0, 1, 5):
            writes.begin(MicroBatch("q", batch_id), files(str(batch_id)))
        assert connection.root.stream_writes.rows().num_rows == 1
        assert writes.find(MicroBatch("q", 6)) is None

    def test_is_known_for_each_query_and_topic(self, connection: Connection) -> None:
        """A program that writes several topics in foreachBatch notes each of them separately."""
        writes = StreamWrites(connection)
        writes.begin(MicroBatch("q", 1, "id"), files("a"))
        assert writes.find(MicroBatch("other", 1, "id")) is None
        assert writes.find(MicroBatch("q", 1, "other")) is None
        writes.begin(MicroBatch("q", 1, "other"), {})
        assert writes.find(MicroBatch("q", 1, "id")) == (False, files("a"))
        assert writes.find(MicroBatch("q", 1, "other")) == (False, {})

    def test_refuses_an_older_run_that_is_still_about(self, connection: Connection) -> None:
        """An older micro-batch of a query is refused with INVALID_PRODUCER_EPOCH."""
        writes = StreamWrites(connection)
        writes.begin(MicroBatch("q", 7), files("a"))
        said = "INVALID_PRODUCER_EPOCH: micro-batch 6 of query q is written after its micro-batch 7"
        with pytest.raises(ProtocolError, match=said):
            writes.find(MicroBatch("q", 6))
        with pytest.raises(ProtocolError, match=said):
            writes.begin(MicroBatch("q", 6), files("b"))

    def test_whose_files_another_run_has_replaced_is_refused_to_the_older_run(
        self, connection: Connection
    ) -> None:
        """If another run has replaced a micro-batch's files, the older run is refused."""
        writes, once = StreamWrites(connection), MicroBatch("q", 7)
        writes.begin(once, files("a"))
        writes.check(once, files("a"))
        writes.replace(once, files("a"), files("b"))
        said = "INVALID_PRODUCER_EPOCH: micro-batch 7 of query q is being written by another run"
        with pytest.raises(ProtocolError, match=said):
            writes.check(once, files("a"))
        with pytest.raises(ProtocolError, match=said):
            writes.replace(once, files("a"), files("c"))
        assert writes.find(once) == (False, files("b"))


class TestAQueryThatIsKilled:
    def stream(self, spark: SparkSession, folder: Path, rows: int) -> DataFrame:
        """A stream of text lines; each file is one micro-batch."""
        for number in range(rows // 100):
            source = folder / "source"
            source.mkdir(exist_ok=True)
            lines = "\n".join(str(number * 100 + line) for line in range(100))
            (source / f"{number}.txt").write_text(lines, encoding="utf-8")
        return spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "source"))

    def test_between_the_commit_and_its_checkpoint_writes_nothing_twice(
        self, spark: SparkSession, running_cluster: RunningCluster, tmp_path: Path
    ) -> None:
        """A query that is killed between commit and checkpoint writes no row twice.

        Each run divides its micro-batch differently, and Spark knows no interrupted micro-batch.
        """
        from pyspark.errors import StreamingQueryException

        running_cluster.create_topic("stream", partitions=2, min_insync_replicas=2)
        connection = running_cluster.connection
        lines = self.stream(spark, tmp_path, rows=300)
        interruptions = [("sent", 0), ("answered", 0), ("answered", 1), ("sent", 2)]
        runs: list[int] = []

        def write(df: DataFrame, batch_id: int) -> None:
            runs.append(batch_id)
            cut = df.repartition(1 + len(runs) % 3)
            producer = SparkProducer(connection, spark)
            pending = producer.send(cut, "stream", micro_batch=("query", batch_id))
            for moment in ("sent", "answered"):
                if (moment, batch_id) in interruptions:
                    interruptions.remove((moment, batch_id))
                    raise KilledError(f"{moment}, then killed")
                pending.result()

        def run() -> str:
            query = (
                lines.writeStream.foreachBatch(write)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            with suppress(StreamingQueryException):
                query.awaitTermination()
            return str(query.exception())

        while interruptions:
            left = len(interruptions)
            assert "then killed" in run()
            assert len(interruptions) == left - 1
        assert run() == "None"
        assert (interruptions, runs) == ([], [0, 0, 0, 1, 1, 2, 2])
        stored = running_cluster.committed("stream")
        values = [int(record["value"]) for records in stored.values() for record in records]
        assert sorted(values) == list(range(300))
        topic_id = connection.metadata().topic("stream").topic_id
        assert StreamWrites(connection).find(MicroBatch("query", 2, topic_id)) == (True, {})


MALFORMED = [
    None,
    "no JSON",
    "7",
    "[7]",
    '[[0,"/b/log"]]',
    '[[0,"s3://[","_inbox/a.parquet",10,"sum",3,1,2]]',
    '[[0,5,{},10,"sum",3,1,2]]',
    "[" * 100_000,
]


class TestARowOfAnotherWriter:
    """Every client may write to the table. Found by hostile input."""

    @pytest.fixture
    def cluster(self, tmp_path: Path) -> Iterator[LocalCluster]:
        cluster = LocalCluster(tmp_path, brokers=[0], config={"log.merger.min.lag.ms": 0})
        cluster.create_topic("t", assignment={0: [0]})
        cluster.tick_until_idle()
        yield cluster
        cluster.close()

    @pytest.mark.parametrize("noted", MALFORMED, ids=lambda one: str(one)[:30])
    def test_stops_neither_merging_nor_the_vacuum(
        self, cluster: LocalCluster, noted: str | None
    ) -> None:
        """They read the rows of all queries; ValueError and TypeError ended them each time."""
        write(cluster, noted)
        for number in range(40):
            cluster.produce("t", 0, [b"%d" % number])
        cluster.tick_until_idle()
        cluster.clock.advance(3_600_000)
        assert cluster.merge(0).batches == 40
        cluster.vacuum(0)

    @pytest.mark.parametrize("noted", MALFORMED, ids=lambda one: str(one)[:30])
    def test_is_damage_to_its_query(self, cluster: LocalCluster, noted: str | None) -> None:
        """The run of the query must not take it for one without files, which it would send."""
        write(cluster, noted)
        writes = StreamWrites(cluster.connection)
        with pytest.raises(DamagedError, match="query 'q' in the table stream_writes is damaged"):
            writes.find(MicroBatch("q", 3))


def write(cluster: LocalCluster, noted: str | None) -> None:
    """Append a row as another Delta writer does."""
    row = {"query_id": "q", "topic_id": "t", "batch_id": 3, "files": noted, "is_done": False}
    table = cluster.connection.root.stream_writes.location.uri
    write_deltalake(table, STREAM_WRITES.rows([row]), mode="append")
