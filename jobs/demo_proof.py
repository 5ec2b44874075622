"""What the demo claims in the end, and how each claim is checked against the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from sparklog.clients.connection import Visible
from sparklog.clients.produce import ProduceResponse
from sparklog.storage.batch_files import file_checksum
from sparklog.storage.location import Location
from sparklog.storage.record_log import RecordLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Claim(NamedTuple):
    """A claim, what was found when it was checked, and whether it holds."""

    text: str
    found: str
    holds: bool


def once_claim(sent: DataFrame, consumed: DataFrame) -> Claim:
    """Check that every record is there exactly once; both have the columns key and value."""
    from pyspark.sql import functions as sf

    pair = ("key", "value")
    both = sent.select(*pair, sf.lit(1).alias("sent"), sf.lit(0).alias("found")).unionAll(
        consumed.select(*pair, sf.lit(0), sf.lit(1))
    )
    [count] = (
        both.groupBy(*pair)
        .agg(sf.sum("sent").alias("sent"), sf.sum("found").alias("found"))
        .agg(
            sf.sum("sent").alias("sent"),
            sf.sum("found").alias("found"),
            sf.sum(sf.expr("greatest(sent - found, 0)")).alias("missing"),
            sf.sum(sf.expr("greatest(found - sent, 0)")).alias("invented"),
        )
        .collect()
    )
    return Claim(
        "every record is there exactly once",
        f"{count.found:,} of {count.sent:,}; {count.missing} missing, {count.invented} too many",
        count.sent == count.found and count.missing == count.invented == 0,
    )


def order_claim(consumed: DataFrame) -> Claim:
    """Check that every key is in one partition, its records in the order of sending.

    `consumed` has the columns key, value, partition and offset. The values are JSON with the field
    `row`, which counts the records in the order of sending.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.window import Window

    by_key = Window.partitionBy("key").orderBy("partition", "offset")
    row = sf.get_json_object(sf.col("value").cast("string"), "$.row").cast("int")
    [count] = (
        consumed.select("key", "partition", "offset", row.alias("row"))
        .withColumn("before", sf.lag(sf.struct("partition", "row")).over(by_key))
        .agg(
            sf.count_distinct("key").alias("keys"),
            sf.expr("count_if(key is null)").alias("without_key"),
            sf.expr(
                "count_if(key is not null and (row <= before.row or partition <> before.partition))"
            ).alias("disordered"),
        )
        .collect()
    )
    return Claim(
        "the order of every key is kept",
        f"{count['keys']:,} keys, {count.disordered} records out of order; "
        f"{count.without_key:,} without a key",
        count.disordered == 0,
    )


def answer_claim(
    answers: Iterable[Mapping[int, ProduceResponse]], visible: Sequence[Visible]
) -> Claim:
    """Check that the answers to the producer name all offsets that there are, each once."""
    ends = dict.fromkeys((one.state.partition for one in visible), 0)
    is_dense = True
    answered = 0
    for answer in answers:
        for partition, response in answer.items():
            answered += response.last_offset + 1 - response.base_offset
            is_dense &= response.base_offset == ends[partition]
            ends[partition] = response.last_offset + 1
    is_all = ends == {one.state.partition: one.high_watermark for one in visible}
    return Claim(
        "the producer was told every offset, and each once",
        f"{answered:,} offsets in {len(ends)} partitions; no gap, no overlap"
        if is_dense and is_all
        else f"answers up to {ends}",
        is_dense and is_all,
    )


def replica_claims(roots: Mapping[int, Sequence[Location]]) -> list[Claim]:
    """Check that all brokers hold the same batches, by headers and by the bytes of their files.

    `roots` are the brokers' log directories, by broker id.
    """
    contents: dict[int, set[object]] = {}
    files = []
    is_dense = True
    for broker_id, locations in roots.items():
        content = contents.setdefault(broker_id, set())
        for log in map(RecordLog, locations):
            for key in log.partitions():
                end = 0
                for batch in log.batches(key):
                    is_dense &= batch.base_offset == end
                    end = batch.next_offset
                    content.add((key, batch.base_offset, batch.leader_epoch, batch.checksum))
                    files.append((log.location, batch))
    same = len({frozenset(content) for content in contents.values()}) == 1
    with ThreadPoolExecutor() as pool:
        hashed = pool.map(lambda one: file_checksum(one[0], one[1].path) == one[1].checksum, files)
        intact = sum(hashed)
    counts = sorted({len(content) for content in contents.values()})
    return [
        Claim(
            "all replicas hold the same batches at the same offsets",
            f"{' or '.join(map(str, counts))} batches on each of {len(contents)} brokers",
            same and is_dense,
        ),
        Claim(
            "every batch file has the bytes of its checksum",
            f"{intact} of {len(files)} files, read again and hashed",
            intact == len(files),
        ),
    ]
