"""`sparklog produce`: records from lines, or from any Spark source, to a topic."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.name_completion import complete_topics
from sparklog.cli.progress import bytes_left, progress_bars
from sparklog.errors import ConfigError, SparklogError

if TYPE_CHECKING:
    from sparklog.cli.spark_records import Source, StreamTrigger
    from sparklog.producer.accumulator import RecordMetadata


class AcksOption(str, Enum):
    """Required acknowledgements."""

    ALL = "all"
    LEADER = "1"
    NONE = "0"


CommandConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A properties file with keys of the client; --command-property has precedence.",
    ),
]
SelectOption = Annotated[
    list[str] | None,
    typer.Option(metavar="EXPR", help="A column, as an SQL expression; may be repeated."),
]
CheckpointOption = Annotated[
    str | None, typer.Option(metavar="URI", help="The folder of the stream's progress.")
]
ProcessingTimeOption = Annotated[
    str | None,
    typer.Option(
        metavar="INTERVAL",
        help='Keep running, with a micro-batch at this interval, such as "10 seconds".',
    ),
]


def produce(
    topic: Annotated[str, typer.Argument(help="A topic.", autocompletion=complete_topics)],
    cluster: ClusterOption,
    acks: Annotated[
        AcksOption, typer.Option(help="Required acknowledgements: the leader's (1), or all.")
    ] = AcksOption.ALL,
    reader_property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A property of kafka-console-producer, such as parse.key=true; may be repeated.",
        ),
    ] = None,
    command_property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A key of a producer, such as linger.ms=20; may be repeated."
        ),
    ] = None,
    reader_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A properties file with those of --reader-property, which has precedence.",
        ),
    ] = None,
    command_config: CommandConfigOption = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="SOURCE", help="A path or URI, a table, or a SELECT statement."
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="The format of --from: delta (the default), table, sql, or another of Spark's.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of the Spark source; may be repeated."),
    ] = None,
    select: SelectOption = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Produce what is new since the last run, exactly once."),
    ] = False,
    checkpoint: CheckpointOption = None,
    processing_time: ProcessingTimeOption = None,
    packages: Annotated[
        str | None,
        typer.Option(
            metavar="G:A:V,...",
            help="Maven coordinates of what the Spark source needs, as spark-submit takes them.",
        ),
    ] = None,
    jars: Annotated[
        str | None,
        typer.Option(
            metavar="PATH,...", help="JARs that the Spark source needs, in place of --packages."
        ),
    ] = None,
) -> None:
    """Produce records: lines of standard input, or the rows of a Spark source.

    Without --from each line is a record. The properties of
    kafka-console-producer say whether it begins with a key or headers.

    With --from or --format the rows of a Spark source are the records: its
    columns value, key, headers and partition, or those of --select. A batch
    that is repeated is stored again. With --stream and --checkpoint each row
    is stored exactly once; the command ends when it has read the source,
    unless --processing-time is given.
    """
    from sparklog.cli.record_lines import client_config, key_values, with_file

    named = Cluster.of(cluster)
    if from_ is None and format_ is None:
        _check_unused(
            "need --from, a Spark source",
            {
                "--option": option,
                "--select": select,
                "--stream": stream,
                "--checkpoint": checkpoint,
                "--processing-time": processing_time,
                "--packages": packages,
                "--jars": jars,
            },
        )
        config = client_config(command_property or [], command_config)
        number = 1 if acks is AcksOption.LEADER else 0
        config.setdefault("acks", "all" if acks is AcksOption.ALL else number)
        properties = with_file(reader_config, reader_property or [], "--reader-property")
        with reaching(named.root):
            count = _produce_lines(named, topic, properties, config)
        records = f"{count} record{'' if count == 1 else 's'}"
        typer.echo(f"Produced {records} to topic {topic}.", err=True)
        return
    _check_unused(
        "are for lines, and --from is given",
        {
            "--reader-property": reader_property,
            "--reader-config": reader_config,
            "--command-property": command_property,
            "--command-config": command_config,
        },
    )
    from sparklog.cli.spark_records import Source

    source = Source(from_, format_ or "delta", key_values(option or [], "--option"))
    trigger = trigger_of(checkpoint, processing_time) if stream else None
    if trigger is None:
        _check_unused(
            "need --stream", {"--checkpoint": checkpoint, "--processing-time": processing_time}
        )
    named.connect().metadata().topic(topic)
    given = {"spark.jars.packages": packages, "spark.jars": jars}
    config = {key: value for key, value in given.items() if value}
    _produce_source(cluster, topic, source, select or [], acks.value, trigger, config)
    typer.echo(f"Produced {from_ or format_} to topic {topic}.", err=True)


def trigger_of(checkpoint: str | None, processing_time: str | None) -> StreamTrigger:
    """Return the trigger of a stream; raises `ConfigError` without a checkpoint."""
    from sparklog.cli.spark_records import StreamTrigger, absolute

    if not checkpoint:
        raise ConfigError(
            "--checkpoint is missing: name a folder in which the progress of this stream is kept, "
            "the same in each run"
        )
    return StreamTrigger(absolute(checkpoint), processing_time)


def _check_unused(reason: str, options: dict[str, object]) -> None:
    given = [name for name, value in options.items() if value]
    if given:
        raise ConfigError(f"{', '.join(given)} {reason}: leave out one or the other")


class _Deliveries:
    """The outcomes of records, as the producer's thread reports them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self.error: SparklogError | None = None

    def note(self, error: Exception | None, metadata: RecordMetadata | None) -> None:
        """Note the outcome of one record."""
        with self._lock:
            if metadata is not None:
                self.count += 1
            elif self.error is None:
                self.error = error if isinstance(error, SparklogError) else None


def _produce_lines(
    cluster: Cluster, topic: str, properties: dict[str, str], config: dict[str, Any]
) -> int:
    """Produce the lines of standard input, and return their number.

    Reading ends with the first failure. The error says how many records are stored.
    """
    from sparklog.cli.record_lines import LineReader
    from sparklog.producer.plain import Producer

    reader = LineReader(properties)
    outcomes = _Deliveries()
    failure: SparklogError | None = None
    connection = cluster.connect()
    connection.metadata().topic(topic)
    with _line_progress() as on_line, Producer(connection, **config) as producer:
        for number, line in enumerate(sys.stdin.buffer, 1):
            on_line(line)
            try:
                key, value, headers = reader.read(line, number)
                producer.send(topic, value, key=key, headers=headers, on_delivery=outcomes.note)
            except SparklogError as error:
                failure = error
            if failure is not None or outcomes.error is not None:
                break
    failure = failure or outcomes.error
    if failure is not None and outcomes.count:
        raise SparklogError(f"{failure} (records stored: {outcomes.count})") from failure
    if failure is not None:
        raise failure
    return outcomes.count


@contextmanager
def _line_progress() -> Iterator[Callable[[bytes], None]]:
    """Yield a function that takes each line of standard input, and shows the bytes read of a file.

    Nothing is shown of a terminal or of another program's output: their end is not known.
    """
    total = bytes_left(sys.stdin.buffer)
    if total is None:
        yield lambda _: None
        return
    done = shown = 0
    with progress_bars() as on_progress:

        def on_line(line: bytes) -> None:
            nonlocal done, shown
            done += len(line)
            # A bar of 100 columns needs no more.
            if on_progress is not None and (done - shown) * 100 >= total:
                shown = done
                on_progress("bytes read", done, total)

        yield on_line


def _produce_source(
    cluster: str,
    topic: str,
    source: Source,
    select: list[str],
    acks: str,
    trigger: StreamTrigger | None,
    config: dict[str, str],
) -> None:
    from sparklog.cli import spark_records
    from sparklog.session import spark_session

    spark = spark_session(f"sparklog produce {topic}", config=config)
    with spark_records.one_sentence(), progress_bars() as on_progress:
        if trigger is None:
            with spark_records.reporting_tasks(spark, on_progress):
                spark_records.produce_batch(spark, cluster, topic, source, select, acks)
            return
        query = spark_records.produce_stream(spark, cluster, topic, source, select, acks, trigger)
        spark_records.await_end(query, on_progress)
