"""The demo's claims, each with its check against the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sparklog.cluster.connection import Visible
from sparklog.producer.produce_requests import ProduceResponse
from sparklog.storage.batch_files import file_checksum
from sparklog.storage.location import Location
from sparklog.storage.parallel import map_in_parallel
from sparklog.storage.record_log import RecordLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Claim(NamedTuple):
    """A claim, the result of its check, and whether it holds."""

    text: str
    found: str
    holds: bool


def once_claim(sent: DataFrame, consumed: DataFrame) -> Claim:
    """Check that each record is stored exactly once; both frames have the columns key and value."""
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
        "each record is stored exactly once",
        f"{count.found:,} of {count.sent:,}; {count.missing} missing, {count.invented} too many",
        count.sent == count.found and count.missing == count.invented == 0,
    )


def order_claim(consumed: DataFrame) -> Claim:
    """Check that each key is in one partition, with its records in the order of sending.

    `consumed` has the columns key, value, partition and offset. The values are JSON with the field
    `row`, which numbers the records in the order of sending.
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
        "the records of each key are in order",
        f"{count['keys']:,} keys, {count.disordered} records out of order; "
        f"{count.without_key:,} without a key",
        count.disordered == 0,
    )


def answer_claim(
    answers: Iterable[Mapping[int, ProduceResponse]], visible: Sequence[Visible]
) -> Claim:
    """Check that the answers to the producer name each offset exactly once."""
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
        "the producer has an answer for each offset, exactly once",
        f"{answered:,} offsets in {len(ends)} partitions; no gap, no overlap"
        if is_dense and is_all
        else f"answers up to {ends}",
        is_dense and is_all,
    )


def replica_claims(roots: Mapping[int, Sequence[Location]]) -> list[Claim]:
    """Check that all brokers have the same batches, by headers and by the bytes of their files.

    Parameters: `roots`, the brokers' log directories by broker id.
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
    hashed = map_in_parallel(
        lambda one: file_checksum(one[0], one[1].path) == one[1].checksum,
        files,
        sum(batch.size_bytes for _, batch in files),
        is_local=all(log.is_local for log, _ in files),
    )
    intact = sum(hashed)
    counts = sorted({len(content) for content in contents.values()})
    return [
        Claim(
            "all replicas have the same batches at the same offsets",
            f"{' or '.join(map(str, counts))} batches on each of {len(contents)} brokers",
            same and is_dense,
        ),
        Claim(
            "each batch file matches its checksum",
            f"{intact} of {len(files)} files, read again and hashed",
            intact == len(files),
        ),
    ]
