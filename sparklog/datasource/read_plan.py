"""The files and rows of each Spark task."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sparklog.cluster.sound_replicas import sound_replica
from sparklog.datasource.offset_reader import OffsetReader, Seen
from sparklog.datasource.read_task import OffsetRange, PlannedFile, ReadTask


def split_ranges(
    ranges: Iterable[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Split ranges into those of the tasks, as Spark's Kafka connector does.

    `max_records` limits the records of one task; `min_partitions` is a hint: large ranges are split
    in proportion until there are about as many. Empty ranges are left out.
    """
    found = [one for one in ranges if one.size > 0]
    if max_records is not None:
        found = [part for one in found for part in _divide(one, -(-one.size // max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(one.size for one in found)
    small = {one for one in found if _part_count(one.size, total, min_partitions) == 1}
    large_total = total - sum(one.size for one in small)
    large_partitions = max(min_partitions - len(small), 1)
    return [
        part
        for one in found
        for part in _divide(
            one, 1 if one in small else _part_count(one.size, large_total, large_partitions)
        )
    ]


def _part_count(size: int, total: int, min_partitions: int) -> int:
    # Java rounds half up, Python half to even.
    return max(math.floor(size / total * min_partitions + 0.5), 1)


def _divide(one: OffsetRange, parts: int) -> list[OffsetRange]:
    divided, start = [], one.start
    for part in range(parts):
        end = start + (one.end - start) // (parts - part)
        divided.append(one._replace(start=start, end=end))
        start = end
    return [part for part in divided if part.size > 0]


def plan_tasks(
    offset_reader: OffsetReader, seen: Seen, ranges: Iterable[OffsetRange]
) -> list[ReadTask]:
    """Return the tasks that read `ranges`, each with only the files that overlap its offsets."""
    options = offset_reader.options
    split = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
    connection = offset_reader.logs.connection
    tasks = []
    for one in split:
        replica = sound_replica(offset_reader.logs, seen[one.partition], one.start, one.end)
        batches = offset_reader.logs.batches(replica, one.start)
        tasks.append(
            ReadTask(
                one,
                replica.location.child("log"),
                tuple(PlannedFile.of(batch) for batch in batches if batch.base_offset < one.end),
                options.include_headers,
                connection.cluster,
                connection.storage_options,
                replica.state.topic_id,
            )
        )
    return tasks
