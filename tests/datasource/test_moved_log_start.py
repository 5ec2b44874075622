"""`format("sparklog")` on logs whose first records were deleted: failOnDataLoss, as in Kafka's
connector.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparklog import read
from sparklog.cluster.views import COMMITTED_RECORDS, create_views
from sparklog.datasource.data_loss import DataLossError
from sparklog.model import TopicPartition
from tests.available_now import run_to_end
from tests.datasource.conftest import Readable, offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = TopicPartition("t", 0)


@pytest.fixture
def shortened(readable: Readable) -> Readable:
    """Topic t with records 0 to 8 in batches of three; those before 4 are deleted by `shorten`."""
    readable.create_topic("t")
    for number in range(0, 9, 3):
        readable.produce("t", *(b"%d" % (number + one) for one in range(3)))
    return readable


def shorten(readable: Readable, offset: int = 4) -> None:
    readable.cluster.delete_records({T0: offset})
    readable.cluster.tick_until_idle()
    assert readable.cluster.replica(0, "t", 0).log_start_offset == offset


class TestABatch:
    def test_begins_at_the_log_start(self, shortened: Readable) -> None:
        shorten(shortened)
        assert offsets(shortened.batch(subscribe="t")) == [4, 5, 6, 7, 8]
        at_start = '{"t":{"0":4}}'
        assert offsets(shortened.batch(subscribe="t", startingOffsets=at_start)) == [*range(4, 9)]
        by_time = shortened.batch(subscribe="t", startingTimestamp="0")
        assert offsets(by_time) == [4, 5, 6, 7, 8]

    def test_of_deleted_records_is_a_loss(self, shortened: Readable) -> None:
        shorten(shortened)
        asked = {"subscribe": "t", "startingOffsets": '{"t":{"0":2}}'}
        with pytest.raises(DataLossError, match="records 2 to 3 of t-0 were deleted before"):
            shortened.batch(**asked)
        with pytest.warns(UserWarning, match="records 2 to 3 of t-0"):
            assert offsets(shortened.batch(**asked, failOnDataLoss="false")) == [4, 5, 6, 7, 8]
        asked = {"subscribe": "t", "endingOffsets": '{"t":{"0":3}}'}
        with pytest.raises(DataLossError, match=r"up to 2 of t-0 .* were deleted"):
            shortened.batch(**asked)
        with pytest.warns(UserWarning, match="its log starts at 4"):
            assert offsets(shortened.batch(**asked, failOnDataLoss="false")) == []

    def test_that_was_planned_before_is_read(self, shortened: Readable) -> None:
        """The files stay until clean-up removes them."""
        tasks = shortened.batch(subscribe="t")
        shorten(shortened, 9)
        assert offsets(tasks) == [*range(9)]


class TestAStream:
    def test_goes_on_where_its_records_are_there(self, shortened: Readable) -> None:
        stream = shortened.stream(subscribe="t", startingOffsets="earliest")
        end = stream.latest_offset(stream.initial_offset(), is_limited=False)
        shorten(shortened, 9)
        assert stream.latest_offset(end, is_limited=False) == end
        shortened.produce("t", b"9")
        following = stream.latest_offset(end, is_limited=False)
        assert offsets(stream.plan(end, following)) == [9]

    def test_reports_records_that_were_deleted_before_it_read_them(
        self, shortened: Readable
    ) -> None:
        stream = shortened.stream(subscribe="t", startingOffsets="earliest")
        start = stream.initial_offset()
        end = stream.latest_offset(start, is_limited=False)
        shorten(shortened)
        for call in (
            lambda: stream.latest_offset(start, is_limited=False),
            lambda: stream.plan(start, end),
        ):
            with pytest.raises(DataLossError, match="records 0 to 3 of t-0 were deleted before"):
                call()
        tolerant = shortened.stream(subscribe="t", failOnDataLoss="false")
        with pytest.warns(UserWarning, match="records 0 to 3 of t-0"):
            assert offsets(tolerant.plan(start, end)) == [4, 5, 6, 7, 8]

    def test_a_micro_batch_of_deleted_records_alone_is_empty(self, shortened: Readable) -> None:
        """It ends before the log start: its end is reported, too."""
        tolerant = shortened.stream(
            subscribe="t",
            startingOffsets="earliest",
            failOnDataLoss="false",
            maxOffsetsPerTrigger="3",
        )
        start = tolerant.initial_offset()
        end = tolerant.latest_offset(start, is_limited=True)
        assert offsets(tolerant.plan(start, end)) == [0, 1, 2]
        shorten(shortened)
        with pytest.warns(UserWarning, match="were deleted before they were read"):
            assert offsets(tolerant.plan(start, end)) == []
        with pytest.warns(UserWarning, match="record"):
            following = tolerant.latest_offset(end, is_limited=True)
        with pytest.warns(UserWarning, match="record"):
            assert offsets(tolerant.plan(end, following)) == [4, 5, 6]


def test_spark_shows_no_deleted_records(
    spark: SparkSession, shortened: Readable, tmp_path: Path
) -> None:
    """In a batch, a native read, the view of committed records, and a stream from a checkpoint."""
    checkpoint = str(tmp_path / "checkpoint")
    seen: list[int] = []

    def keep(frame: Any, _: int) -> None:
        seen.extend(sorted(row.offset for row in frame.select("offset").collect()))

    def stream(**options: str) -> None:
        frame = (
            spark.readStream.format("sparklog")
            .options(cluster=shortened.root, subscribe="t", **options)
            .load()
        )
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
        run_to_end(writer.trigger(availableNow=True).start)

    stream(startingOffsets="earliest")
    shortened.produce("t", *(b"%d" % one for one in range(9, 12)))
    shorten(shortened, 10)
    options = {"cluster": shortened.root, "subscribe": "t"}
    frames = [
        spark.read.format("sparklog").options(**options).load(),
        read(spark, **options),
    ]
    create_views(spark, shortened.root)
    frames.append(spark.sql(f"select * from ({COMMITTED_RECORDS}) where topic = 't'"))
    for frame in frames:
        assert sorted(row.offset for row in frame.select("offset").collect()) == [10, 11]
    with pytest.raises(Exception, match="records 9 to 9 of t-0 were deleted"):
        stream()
    stream(failOnDataLoss="false")
    assert seen == [*range(9), 10, 11]
