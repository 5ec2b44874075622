"""The split of offset ranges into tasks, and the files that a task reads."""

from __future__ import annotations

import pytest

from sparklog.datasource.read_plan import split_ranges
from sparklog.datasource.read_task import OffsetRange
from sparklog.model import TopicPartition
from tests.datasource.conftest import Readable, offsets

T0, T1, T2 = (TopicPartition("t", one) for one in range(3))

Split = list[tuple[int, int, int]]


@pytest.mark.parametrize(
    ("ranges", "min_partitions", "max_records", "expected"),
    [
        ([(0, 1, 1), (1, 0, 2)], None, None, [(1, 0, 2)]),
        ([(0, 1, 3), (1, 1, 4)], 2, None, [(0, 1, 3), (1, 1, 4)]),
        ([(0, 1, 5)], 4, None, [(0, 1, 2), (0, 2, 3), (0, 3, 4), (0, 4, 5)]),
        ([(0, 1, 5)], 3, None, [(0, 1, 2), (0, 2, 3), (0, 3, 5)]),
        (
            [(0, 0, 3), (1, 0, 9), (2, 0, 2)],
            6,
            None,
            [(0, 0, 3), (1, 0, 2), (1, 2, 4), (1, 4, 6), (1, 6, 9), (2, 0, 2)],
        ),
        ([(0, 0, 10)], None, 4, [(0, 0, 3), (0, 3, 6), (0, 6, 10)]),
        ([(0, 0, 4), (1, 0, 2)], None, 4, [(0, 0, 4), (1, 0, 2)]),
        ([(0, 0, 4)], 4, 2, [(0, 0, 1), (0, 1, 2), (0, 2, 3), (0, 3, 4)]),
        ([(0, 5, 5)], 4, 2, []),
        ([(0, 0, 2)], 8, None, [(0, 0, 1), (0, 1, 2)]),
    ],
)
def test_ranges_are_split_as_sparks_kafka_source_splits_them(
    ranges: Split, min_partitions: int | None, max_records: int | None, expected: Split
) -> None:
    """Ranges are split like those of Spark's Kafka source."""
    given = [OffsetRange(TopicPartition("t", one), *rest) for one, *rest in ranges]
    found = split_ranges(given, min_partitions, max_records)
    assert [(one.partition.partition, one.start, one.end) for one in found] == expected


def test_a_split_loses_and_repeats_nothing() -> None:
    """The parts of a split cover each range once, with at most maxRecordsPerPartition offsets
    each.
    """
    ranges = [OffsetRange(T0, 3, 1003), OffsetRange(T1, 0, 10), OffsetRange(T2, 7, 77)]
    for min_partitions in (None, 1, 2, 3, 7, 50, 2000):
        for max_records in (None, 1, 9, 100, 5000):
            found = split_ranges(ranges, min_partitions, max_records)
            for whole in ranges:
                parts = [one for one in found if one.partition == whole.partition]
                covered = [offset for one in parts for offset in range(one.start, one.end)]
                assert covered == list(range(whole.start, whole.end))
            if max_records is not None:
                assert max(one.size for one in found) <= max_records


def test_a_read_of_few_offsets_touches_the_one_file_they_are_in(readable: Readable) -> None:
    """A read of offsets within one file reads only this file."""
    readable.create_topic("t")
    for batch in range(20):
        readable.cluster.produce("t", 0, [f"{batch}.{one}".encode() for one in range(10)])
    readable.cluster.tick_until_idle()
    [task] = readable.batch(
        subscribe="t", startingOffsets='{"t":{"0":123}}', endingOffsets='{"t":{"0":128}}'
    )
    assert [file.base_offset for file in task.files] == [120]
    assert offsets([task]) == [123, 124, 125, 126, 127]


def test_tasks_share_a_file_where_there_are_more_of_them(readable: Readable) -> None:
    """Several tasks can read parts of one file."""
    readable.create_topic("t")
    readable.produce("t", *(str(one).encode() for one in range(10)))
    tasks = readable.batch(subscribe="t", minPartitions="4")
    assert len(tasks) == 4
    assert len({file.path for task in tasks for file in task.files}) == 1
    assert offsets(tasks) == list(range(10))
    capped = readable.batch(subscribe="t", maxRecordsPerPartition="3")
    assert [len(offsets([task])) for task in capped] == [2, 2, 3, 3]
