"""The rows that are produced: the same for each system, cached before the measurement starts.

The key of row i is the decimal i. Its value is a JSON object of exactly 100 or 1,024 bytes. Parts
of it are hex digits of sha2, so that it compresses about 2:1, as real JSON does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4


class Size(NamedTuple):
    """A size of records: its name in results, and the number of records produced."""

    name: str
    value_bytes: int
    records: int


SIZES = (Size("100 B", 100, 1_000_000), Size("1 KiB", 1024, 500_000))


def records(
    spark: SparkSession, count: int, value_bytes: int, partitions: int = PARTITIONS
) -> DataFrame:
    """Return `count` rows with values of 100 or 1,024 bytes, in `partitions` Spark partitions."""
    from pyspark.sql import functions as sf

    number = sf.col("id")
    key = number.cast("string")

    def digits(salt: str) -> object:
        return sf.sha2(sf.concat(key, sf.lit(salt)), 256)

    event = sf.when(number % 3 == 0, "click").when(number % 3 == 1, "view").otherwise("buy")
    parts: list[object] = [
        sf.lit('{"id":"'), sf.lpad(key, 10, "0"), sf.lit('","ev":"'), event,
    ]  # fmt: skip
    if value_bytes == 100:
        parts += [sf.lit('","amount":'), (number % 9973).cast("string"), sf.lit(',"tok":"')]
        parts += [sf.substring(digits("a"), 1, 32), sf.lit('"')]  # type: ignore[arg-type]
    else:
        parts.append(sf.lit('","source":"web-frontend","region":"eu-central-1","version":"1.4.2'))
        for one in range(9):
            status = sf.when((number + one) % 5 == 0, "pending").otherwise("active")
            parts += [sf.lit(f'","field_{one}":"'), digits(chr(97 + one))]
            parts += [sf.lit(f'","status_{one}":"'), status]
        parts.append(sf.lit('"'))
    body = sf.concat(*parts)  # type: ignore[arg-type]
    value = sf.concat(sf.rpad(body, value_bytes - 1, " "), sf.lit("}"))
    rows = spark.range(0, count, 1, partitions)
    return rows.select(key.alias("key"), value.alias("value"))


@contextmanager
def cached(
    spark: SparkSession, count: int, value_bytes: int, partitions: int = PARTITIONS
) -> Iterator[DataFrame]:
    """Yield the rows, computed and cached in memory."""
    from pyspark import StorageLevel
    from pyspark.sql import functions as sf

    rows = records(spark, count, value_bytes, partitions).persist(StorageLevel.MEMORY_AND_DISK)
    extent = rows.agg(sf.count("*"), sf.min(sf.length("value")), sf.max(sf.length("value"))).first()
    assert extent is not None
    assert tuple(extent) == (count, value_bytes, value_bytes)
    try:
        yield rows
    finally:
        rows.unpersist(blocking=True)
