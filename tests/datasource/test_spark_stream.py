"""`spark.readStream.format("sparklog")`: checkpoints, limits, failovers and losses, in Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.available_now import run_to_end
from tests.datasource.conftest import Readable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Streamed:
    """A query that keeps the rows of each micro-batch, with one checkpoint and many starts."""

    def __init__(self, spark: SparkSession, readable: Readable, checkpoint: Path) -> None:
        self._spark = spark
        self._readable = readable
        self.checkpoint = checkpoint
        self.batches: dict[int, list[tuple[int, int, bytes]]] = {}
        self.fails = False

    def start(self, **options: str) -> StreamingQuery:
        """Read until the query is stopped."""
        return self._writer(options).trigger(processingTime="0 seconds").start()

    def run(self, **options: str) -> StreamingQuery:
        """Read the available records."""
        return run_to_end(self._writer(options).trigger(availableNow=True).start)

    def _writer(self, options: dict[str, str]) -> DataStreamWriter:
        frame = (
            self._spark.readStream.format("sparklog")
            .option("cluster", self._readable.root)
            .options(**{"fetchOffset.retryIntervalMs": "100"} | options)
            .load()
        )
        writer = frame.writeStream.foreachBatch(self._keep)
        return writer.option("checkpointLocation", str(self.checkpoint))

    def _keep(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("partition", "offset", "value").collect()
        self.batches[batch_id] = sorted((row[0], row[1], bytes(row[2])) for row in rows)
        if self.fails:
            raise RuntimeError("killed before the checkpoint")

    def rows(self) -> list[tuple[int, int, bytes]]:
        return [row for _, rows in sorted(self.batches.items()) for row in rows]

    def offset(self, batch_id: int) -> dict[str, Any]:
        """Return a micro-batch's offset in the checkpoint."""
        text = (self.checkpoint / "offsets" / str(batch_id)).read_text()
        result: dict[str, Any] = json.loads(text.splitlines()[2])
        return result


@pytest.fixture
def streamed(spark: SparkSession, readable: Readable, tmp_path: Path) -> Streamed:
    return Streamed(spark, readable, tmp_path / "checkpoint")


def test_available_now_reads_all_in_micro_batches_and_goes_on_from_its_checkpoint(
    readable: Readable, streamed: Streamed
) -> None:
    """availableNow reads all records within the limits, and continues from its checkpoint."""
    readable.create_topic("t", partitions=2)
    readable.cluster.produce("t", 0, [f"a{one}".encode() for one in range(6)])
    readable.produce("t", b"b0", b"b1", partition=1)
    query = streamed.run(
        subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="4", includeHeaders="true"
    )
    expected = [(0, one, f"a{one}".encode()) for one in range(6)]
    expected += [(1, 0, b"b0"), (1, 1, b"b1")]
    assert sorted(streamed.rows()) == expected
    assert [len(rows) for rows in streamed.batches.values()] == [4, 4]
    last = max(streamed.batches)
    assert streamed.offset(last)["t"] == {"0": 6, "1": 2}
    assert streamed.offset(last)["@sparklog"]["leader_epochs"] == {"t": {"0": 0, "1": 0}}
    source = query.recentProgress[-1]["sources"][0]
    assert json.loads(source["endOffset"])["t"] == {"0": 6, "1": 2}
    assert json.loads(source["latestOffset"])["t"] == {"0": 6, "1": 2}

    streamed.batches.clear()
    streamed.run(subscribe="t")
    assert streamed.rows() == [], "nothing is read twice"
    readable.produce("t", b"a6")
    streamed.run(subscribe="t")
    assert streamed.rows() == [(0, 6, b"a6")]


def test_a_first_micro_batch_that_died_is_read_again_as_it_was(
    readable: Readable, streamed: Streamed
) -> None:
    """A first micro-batch that died is read again from the same offset, which Spark does not
    store.
    """
    readable.create_topic("t")
    readable.produce("t", b"before")
    streamed.fails = True
    query = streamed.start(subscribe="t")
    with pytest.raises(Exception, match="killed before the checkpoint"):
        query.processAllAvailable()
    assert streamed.batches == {0: []}, "Spark's first micro-batch comes at once"
    streamed.fails = False
    readable.produce("t", b"while down")
    streamed.run(subscribe="t")
    assert streamed.rows() == [(0, 1, b"while down")]


def test_a_query_lives_through_a_failover_and_reads_every_record_once(
    readable: Readable, streamed: Streamed
) -> None:
    """A query goes on during a failover, and reads every record once."""
    readable.create_topic("t")
    query = streamed.start(subscribe="t", startingOffsets="earliest")
    readable.produce("t", b"0", b"1")
    query.processAllAvailable()
    readable.cluster.crash(0)
    query.processAllAvailable()
    readable.cluster.fence(0)
    # The new leader's high watermark is behind the stream's position, so the stream waits.
    query.processAllAvailable()
    assert query.exception() is None
    readable.cluster.tick_until_idle()
    readable.produce("t", b"2")
    query.processAllAvailable()
    readable.cluster.restart(0)
    readable.cluster.tick_until_idle()
    readable.produce("t", b"3")
    query.processAllAvailable()
    query.stop()
    assert streamed.rows() == [(0, one, str(one).encode()) for one in range(4)]


def test_a_truncation_fails_the_query_or_is_skipped_as_configured(
    readable: Readable, streamed: Streamed
) -> None:
    """A truncation fails the query, or with failOnDataLoss=false the query reads the new
    records.
    """
    readable.create_topic("t")
    readable.store_unevenly("t", kept=2, lost=3)
    streamed.run(subscribe="t", startingOffsets="earliest")
    assert len(streamed.rows()) == 5
    streamed.batches.clear()
    readable.go_offline()
    readable.elect_unclean("t")
    readable.produce("t", b"n2", b"n3", b"n4", b"n5")

    with pytest.raises(Exception, match="records 2 to 4, which were read, are replaced"):
        streamed.run(subscribe="t")
    assert streamed.rows() == []
    streamed.run(subscribe="t", failOnDataLoss="false")
    assert streamed.rows() == [(0, 2 + one, f"n{2 + one}".encode()) for one in range(4)]


def test_a_stream_refuses_what_is_a_batchs(streamed: Streamed) -> None:
    """A stream refuses the options of batches."""
    with pytest.raises(Exception, match="endingOffsets has no meaning for a stream"):
        streamed.run(subscribe="t", endingOffsets="latest")
