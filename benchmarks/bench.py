"""The environment of works: Spark, Kafka, a folder on disk, and the scale and number of runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from benchmarks.kafka import Kafka, running
from benchmarks.kafka_jars import KafkaJars
from sparklog.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Self


@dataclass
class Bench:
    """One run of the benchmarks; a context manager that stops the processes it has started.

    Parameters: `folder`, for all files written, on the disk to be measured; `scale`, a factor of
    counts; `runs`, the number of measurements of each figure; `kafka_jars`, `None` for a run
    without Kafka; `given_spark`, a session to use instead of a new one.
    """

    folder: Path
    scale: float = 1.0
    runs: int = 3
    cores: int = 2
    kafka_jars: KafkaJars | None = None
    given_spark: SparkSession | None = None
    say: Callable[[str], None] = print
    _ending: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.close()

    def scaled(self, count: int, least: int = 1) -> int:
        """Return a count of the full size at this run's scale."""
        return max(least, round(count * self.scale))

    @cached_property
    def spark(self) -> SparkSession:
        """A Spark session with Delta Lake and, for runs with Kafka, Spark's connector."""
        if self.given_spark is not None:
            return self.given_spark
        jars = self.kafka_jars.connector if self.kafka_jars is not None else []
        spark = spark_session(
            "sparklog benchmarks",
            master=f"local[{self.cores}]",
            memory="4g",
            config={
                "spark.jars": ",".join(map(str, jars)),
                "spark.local.dir": str(self.folder / "spark"),
                "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            },
        )
        spark.sparkContext.setLogLevel("ERROR")
        self._ending.callback(spark.stop)
        return spark

    @cached_property
    def kafka(self) -> Kafka | None:
        """Three running brokers, or `None` for a run without Kafka."""
        if self.kafka_jars is None:
            return None
        spark = self.spark
        folder = self._ending.enter_context(self.temporary("kafka"))
        return self._ending.enter_context(running(self.kafka_jars.server, folder, spark))

    @contextmanager
    def temporary(self, name: str) -> Iterator[Path]:
        """Yield an empty folder, and remove it at the end."""
        folder = self.folder / f"{name}-{time.time_ns()}"
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def seconds(action: Callable[[], object]) -> float:
    """Return the duration of `action` in s."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
