"""The readers as Spark's classes, for Spark 4.2 and older releases, without a session."""

from __future__ import annotations

import inspect
import pickle

import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from pyspark_sparklog.readers import StreamReader, StreamReaderWithoutLimits, stream_reader
from sparklog.errors import ConfigError
from tests.datasource.conftest import Readable, offsets


def test_this_spark_gets_the_reader_that_knows_limits(readable: Readable) -> None:
    """The installed Spark gets the reader with limits."""
    assert isinstance(stream_reader(readable.options("stream", subscribe="t")), StreamReader)


def test_an_older_spark_calls_latest_offset_without_arguments(readable: Readable) -> None:
    """For an older Spark `latestOffset` has no parameters, which shows that there is no admission
    control.

    Spark 4.2 recognises it by this signature, too.
    """
    readable.create_topic("t")
    readable.produce("t", b"a0", b"a1")
    options = readable.options("stream", subscribe="t", startingOffsets="earliest")
    reader = StreamReaderWithoutLimits(options)
    assert not inspect.signature(reader.latestOffset).parameters
    end = reader.latestOffset()
    tasks = [one.value for one in reader.partitions(reader.initialOffset(), end)]
    assert offsets(tasks) == [0, 1]


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_an_older_spark_has_no_limits_and_says_so(readable: Readable, name: str) -> None:
    """With an older Spark, options for limits are refused."""
    with pytest.raises(ConfigError, match=f"option {name} needs Spark 4.2"):
        StreamReaderWithoutLimits(readable.options("stream", subscribe="t", **{name: "5"}))


def test_limits_are_announced_and_all_available_has_no_limit(readable: Readable) -> None:
    """The default read limit reflects the options, and ReadAllAvailable ignores them."""
    readable.create_topic("t")
    readable.produce("t", b"a0", b"a1", b"a2")
    given = {"subscribe": "t", "startingOffsets": "earliest"}
    for limits, announced in (
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "2"}, ReadMaxRows(2)),
        ({"minOffsetsPerTrigger": "2"}, ReadMinRows(2)),
    ):
        options = readable.options("stream", **given, **limits)
        assert StreamReader(options).getDefaultReadLimit() == announced
    both = {"maxOffsetsPerTrigger": "2", "minOffsetsPerTrigger": "1"}
    reader = StreamReader(readable.options("stream", **given, **both))
    assert reader.getDefaultReadLimit() == ReadMaxRows(2)
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit())["t"] == {"0": 2}
    assert reader.latestOffset(start, ReadAllAvailable())["t"] == {"0": 3}


def test_a_reader_that_has_a_connection_can_go_to_a_task(readable: Readable) -> None:
    """A reader that has opened a connection can be pickled for a task."""
    readable.create_topic("t")
    readable.produce("t", b"a0")
    reader = StreamReader(readable.options("stream", subscribe="t", startingOffsets="earliest"))
    start = reader.initialOffset()
    [partition] = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    # As Spark pickles what it sends to tasks.
    pickled = cloudpickle.dumps((reader, partition))  # type: ignore[no-untyped-call]
    sent, what = pickle.loads(pickled)
    [batch] = sent.read(what)
    assert batch.column("value").to_pylist() == [b"a0"]
