"""Batch and stream reads, without Spark, have the same records if brokers have merged batches."""

from __future__ import annotations

import pytest

from tests.datasource.conftest import Readable, Row, offsets, rows

MERGED = 40


@pytest.fixture
def small_batches(readable: Readable) -> Readable:
    """Topic t with small batches that are old enough to be merged."""
    readable.create_topic("t")
    for number in range(MERGED):
        readable.cluster.produce("t", 0, [b"%d" % number])
    readable.cluster.tick_until_idle()
    readable.cluster.clock.advance(readable.cluster.settings.log_merger_min_lag_ms)
    readable.cluster.tick_until_idle()
    return readable


def merge(readable: Readable, *brokers: int) -> None:
    for broker in brokers:
        assert readable.cluster.merge(broker) == (MERGED, 1)


def test_a_batch_read_is_the_same(small_batches: Readable) -> None:
    """A batch read is the same after a merge, for any offset and replica, and for an earlier
    plan.
    """
    expected: list[Row] = [("t", 0, one, b"%d" % one) for one in range(MERGED)]
    planned = small_batches.batch(subscribe="t")
    merge(small_batches, 0, 1)
    assert rows(planned) == expected
    assert rows(small_batches.batch(subscribe="t")) == expected
    for rack in ("b", "c"):
        read = small_batches.batch(subscribe="t", replica="nearest", clientRack=rack)
        assert rows(read) == expected
    inside = {"startingOffsets": '{"t":{"0":7}}', "endingOffsets": '{"t":{"0":11}}'}
    assert offsets(small_batches.batch(subscribe="t", **inside)) == [7, 8, 9, 10]


def test_a_stream_goes_on_inside_a_merged_batch(small_batches: Readable) -> None:
    """A stream continues inside a merged batch."""
    stream = small_batches.stream(
        subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="15"
    )
    position, read = stream.initial_offset(), []
    for _ in range(3):
        end = stream.latest_offset(position, is_limited=True)
        read += offsets(stream.plan(position, end))
        position = end
        if len(read) == 15:
            merge(small_batches, 0)
    assert read == list(range(MERGED))
