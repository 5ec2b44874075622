"""Records between a topic and a Spark source or a Delta table, in one Spark application."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple

from sparklog.cli.cluster import given_storage_options
from sparklog.errors import ConfigError, SparklogError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from sparklog.storage.progress import OnProgress

RECORD_COLUMNS = ("key", "value", "headers", "partition")
"""The columns of a source that are a record's; the time of a record is that of its writing."""

_PROGRESS_SECONDS = 1

TABLE, SQL = "table", "sql"
"""The formats of a source or target that is a table's name, or of a source that is a query."""


class Source(NamedTuple):
    """A Spark source as the command line names it.

    `name` is a path or URI in a format, a table's name or a SELECT statement; `None` for a format
    without a path, such as rate.
    """

    name: str | None
    format: str
    options: Mapping[str, str]


class Target(NamedTuple):
    """A Delta table: its path or URI, or its name in the session's catalog."""

    name: str
    is_table: bool


class StreamTrigger(NamedTuple):
    """The micro-batches of a stream, whose progress is in the folder `checkpoint`.

    They run until the source is read, or at an interval of Spark's notation, such as "10 seconds".
    """

    checkpoint: str
    processing_time: str | None


def produce_batch(
    spark: SparkSession, cluster: str, topic: str, source: Source, select: Sequence[str], acks: str
) -> None:
    """Produce the rows of a source to a topic; a run that is repeated stores its records again."""
    if source.format == SQL:
        frame = spark.sql(_named(source))
    else:
        reader = spark.read.options(**source.options)
        if source.format == TABLE:
            frame = reader.table(_named(source))
        else:
            frame = reader.format(source.format).load(source.name)
    writer = _records(frame, select).write.format("sparklog").mode("append")
    writer.options(**of_cluster(cluster)).option("topic", topic).option("acks", acks).save()


def produce_stream(
    spark: SparkSession,
    cluster: str,
    topic: str,
    source: Source,
    select: Sequence[str],
    acks: str,
    trigger: StreamTrigger,
) -> StreamingQuery:
    """Start a query that produces each new row of a source to a topic exactly once."""
    if source.format == SQL:
        raise ConfigError("a SELECT statement is no stream: name a table or a path, and --select")
    reader = spark.readStream.options(**source.options)
    if source.format == TABLE:
        frame = reader.table(_named(source))
    else:
        frame = reader.format(source.format).load(source.name)
    writer = _records(frame, select).writeStream.format("sparklog")
    writer = writer.options(**of_cluster(cluster))
    return _triggered(writer.option("topic", topic).option("acks", acks), trigger).start()


def consume_to_delta(
    spark: SparkSession,
    cluster: str,
    topic: str,
    options: Mapping[str, str],
    select: Sequence[str],
    target: Target,
    trigger: StreamTrigger,
) -> StreamingQuery:
    """Start a query that appends each record of a topic to a Delta table exactly once.

    Delta commits a micro-batch together with the query's id and the number of the micro-batch, and
    ignores one that it has. A new checkpoint begins at the earliest offsets.
    """
    reader = spark.readStream.format("sparklog").options(**of_cluster(cluster))
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    frame = reader.options(**options).load()
    if select:
        frame = frame.selectExpr(*select)
    writer = _triggered(frame.writeStream.format("delta").outputMode("append"), trigger)
    return writer.toTable(target.name) if target.is_table else writer.start(absolute(target.name))


def await_end(query: StreamingQuery, on_progress: OnProgress | None = None) -> None:
    """Wait for the end of a query; SIGTERM and SIGINT stop it after its current micro-batch.

    The number of records is reported after each micro-batch.
    """

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        # In a thread: the interrupted call waits for the same query.
        Thread(target=query.stop, name="stop").start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if on_progress is None:
        query.awaitTermination()
        return
    records: dict[int, int] = {}
    has_ended: bool | None = False
    while not has_ended:
        has_ended = query.awaitTermination(_PROGRESS_SECONDS)
        records |= {one.batchId: one.numInputRows for one in query.recentProgress}
        on_progress("records", sum(records.values()), None)


@contextmanager
def reporting_tasks(spark: SparkSession, on_progress: OnProgress | None) -> Iterator[None]:
    """Report the tasks of the session's running stages, from a thread, until the body ends.

    A session of Spark Connect has no tracker of them.
    """
    context = getattr(spark, "sparkContext", None)
    if on_progress is None or context is None:
        yield
        return
    tracker = context.statusTracker()
    has_ended = Event()

    def report() -> None:
        while not has_ended.wait(_PROGRESS_SECONDS):
            found = map(tracker.getStageInfo, tracker.getActiveStageIds())
            stages = [stage for stage in found if stage is not None]
            if stages:
                done, total = (
                    sum(getattr(stage, name) for stage in stages)
                    for name in ("numCompletedTasks", "numTasks")
                )
                on_progress("tasks", done, total)

    thread = Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


@contextmanager
def one_sentence() -> Iterator[None]:
    """Convert an error of Spark into a `SparklogError` with the sentence of its cause."""
    from pyspark.errors import PySparkException

    # pyspark would print the same error to standard error, as JSON.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    try:
        yield
    except PySparkException as error:
        raise SparklogError(_cause(str(error))) from error


def of_cluster(cluster: str) -> dict[str, str]:
    """Return the options of `format("sparklog")` that name the cluster of the command line."""
    storage_options = given_storage_options.get()
    given = {} if storage_options is None else {"storageOptions": storage_options}
    return {"cluster": absolute(cluster), **given}


def absolute(path: str) -> str:
    """Return a local path as an absolute one: Spark may have started in another folder."""
    return path if "://" in path else str(Path(path).expanduser().resolve())


def _named(source: Source) -> str:
    if not source.name:
        raise ConfigError("--from is missing: give the name of the table")
    return source.name


def _triggered(writer: DataStreamWriter, trigger: StreamTrigger) -> DataStreamWriter:
    writer = writer.option("checkpointLocation", trigger.checkpoint)
    if trigger.processing_time is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=trigger.processing_time)


def _records(frame: DataFrame, select: Sequence[str]) -> DataFrame:
    if select:
        chosen = frame.selectExpr(*select)
        unknown = [name for name in chosen.columns if name.lower() not in RECORD_COLUMNS]
        if unknown:
            # The sink ignores such columns, as Kafka's does: here each was named to be produced.
            raise ConfigError(
                f"a record has no column {', '.join(unknown)}: --select may name "
                f"{', '.join(RECORD_COLUMNS)}; a record's timestamp is the time of its writing"
            )
        return chosen
    names = [name for name in RECORD_COLUMNS if name in frame.columns]
    if "value" not in names:
        raise ConfigError(
            f"the source has no column value, but {', '.join(frame.columns)}: name the columns of "
            'a record, as in --select "to_json(struct(*)) as value"'
        )
    return frame.select(*names)


def _cause(message: str) -> str:
    """Return the sentence of sparklog's error in a message of Spark, or else its first line."""
    own = re.findall(r"sparklog\.errors\.\w+: (.+)", message)
    return str(own[-1]) if own else message.strip().splitlines()[0]
