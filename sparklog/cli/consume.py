"""`sparklog consume`: the records of a topic to standard output, or to a Delta table."""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.name_completion import complete_groups, complete_topics
from sparklog.cli.name_patterns import expression, is_name, topics_matching
from sparklog.cli.produce import (
    CheckpointOption,
    CommandConfigOption,
    ProcessingTimeOption,
    SelectOption,
    trigger_of,
)
from sparklog.cli.progress import is_file, progress_bars
from sparklog.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sparklog.cli.spark_records import StreamTrigger
    from sparklog.consumer.assigned_partition import ConsumerRecord
    from sparklog.consumer.consumer import Consumer

_POLL_MS = 500
"""The longest wait of one poll in ms, after which signals and --timeout-ms are handled."""


def consume(
    topic: Annotated[
        str,
        typer.Argument(
            help="A topic, or without --to a regular expression such as 'orders-.*'.",
            autocompletion=complete_topics,
        ),
    ],
    cluster: ClusterOption,
    from_beginning: Annotated[
        bool,
        typer.Option("--from-beginning", help="Begin with the earliest record, not the next one."),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="The consumer group; it continues at its offsets.",
            autocompletion=complete_groups,
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Read only this partition; not with --group.")
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Begin with this offset of --partition; or earliest or latest."
        ),
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option(min=1, help="End after this number of records.")
    ] = None,
    timeout_ms: Annotated[
        int | None, typer.Option(min=1, help="End if there is no record for this time in ms.")
    ] = None,
    formatter_property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A property of kafka-console-consumer, such as print.key=true; may be repeated.",
        ),
    ] = None,
    formatter_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A properties file with those of --formatter-property, which has precedence.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per record and line.")
    ] = False,
    command_property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A key of a consumer, such as client.rack=a; may be repeated.",
        ),
    ] = None,
    command_config: CommandConfigOption = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="A Delta table: its path or URI, or its name."),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="The form of --to: delta (a path, the default) or table."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="An option of the format sparklog, such as maxOffsetsPerTrigger=1000.",
        ),
    ] = None,
    select: SelectOption = None,
    checkpoint: CheckpointOption = None,
    processing_time: ProcessingTimeOption = None,
) -> None:
    """Print committed records, or append them to a Delta table exactly once.

    Without --to, values are printed as kafka-console-consumer prints them,
    until --max-messages, --timeout-ms or a signal. A group's offsets are
    committed after the records are printed.

    With --to and --checkpoint each record is appended to the table exactly
    once, also if runs are killed; the first run begins with the earliest
    record. The command ends when it has caught up, unless --processing-time
    is given.
    """
    from sparklog.cli.record_lines import client_config, key_values, with_file

    named = Cluster.of(cluster)
    of_lines = {
        "--from-beginning": from_beginning,
        "--group": group,
        "--partition": partition is not None,
        "--offset": offset is not None,
        "--max-messages": max_messages,
        "--timeout-ms": timeout_ms,
        "--formatter-property": formatter_property,
        "--formatter-config": formatter_config,
        "--json": as_json,
        "--command-property": command_property,
        "--command-config": command_config,
    }
    of_table = {
        "--format": format_,
        "--option": option,
        "--select": select,
        "--checkpoint": checkpoint,
        "--processing-time": processing_time,
    }
    wrong = [name for name, given in (of_lines if to else of_table).items() if given]
    if wrong:
        hint = "cannot be given with --to: leave it out" if to else "needs --to, a Delta table"
        raise ConfigError(f"{wrong[0]} {hint}")
    if to:
        if format_ not in (None, "delta", "table"):
            raise ConfigError(f"--format {format_} is no form of --to: write delta or table")
        options = key_values(option or [], "--option")
        trigger = trigger_of(checkpoint, processing_time)
        named.connect().metadata().topic(topic)
        _append_to_table(cluster, topic, options, select or [], (to, format_ == "table"), trigger)
        typer.echo(f"Consumed topic {topic} to {to}.", err=True)
        return
    if group is not None and partition is not None:
        raise ConfigError("--group shares the partitions of a topic: leave out --partition")
    start = _start(offset, partition, from_beginning=from_beginning)
    config = client_config(command_property or [], command_config)
    config.setdefault("auto_offset_reset", "earliest" if from_beginning else "latest")
    config.setdefault("enable_auto_commit", False)
    properties = with_file(formatter_config, formatter_property or [], "--formatter-property")
    line = _formatted(properties, as_json)
    with reaching(named.root):
        count = _print_records(
            named, topic, group, partition, start, config, line, max_messages, timeout_ms
        )
    typer.echo(f"Processed a total of {count} message{'' if count == 1 else 's'}.", err=True)


def _start(
    offset: str | None, partition: int | None, *, from_beginning: bool
) -> int | Literal["earliest"] | None:
    """Return the offset to begin with; `None` is that of auto.offset.reset."""
    if offset is None:
        return None
    if partition is None:
        raise ConfigError("--offset is one of a partition: give --partition")
    if from_beginning:
        raise ConfigError("--from-beginning and --offset are both given: choose one of them")
    if offset == "earliest":
        return "earliest"
    if offset != "latest" and not re.fullmatch(r"\d{1,18}", offset, re.ASCII):
        raise ConfigError(f"--offset {offset!r} is no offset: give a number, earliest or latest")
    return None if offset == "latest" else int(offset)


def _append_to_table(
    cluster: str,
    topic: str,
    options: dict[str, str],
    select: list[str],
    target: tuple[str, bool],
    trigger: StreamTrigger,
) -> None:
    from sparklog.cli import spark_records
    from sparklog.session import spark_session

    spark = spark_session(f"sparklog consume {topic}")
    with spark_records.one_sentence(), progress_bars() as on_progress:
        query = spark_records.consume_to_delta(
            spark, cluster, topic, options, select, spark_records.Target(*target), trigger
        )
        spark_records.await_end(query, on_progress)


def _formatted(properties: dict[str, str], as_json: bool) -> Callable[[ConsumerRecord], bytes]:
    from sparklog.cli import record_lines

    if not as_json:
        return record_lines.LineFormatter(properties).format
    if properties:
        raise ConfigError("--json and --formatter-property are both given: choose one of them")
    return lambda record: json.dumps(record_lines.as_json(record)).encode() + b"\n"


def _print_records(
    cluster: Cluster,
    topic: str,
    group: str | None,
    partition: int | None,
    start: int | Literal["earliest"] | None,
    config: dict[str, Any],
    line: Callable[[ConsumerRecord], bytes],
    max_messages: int | None,
    timeout_ms: int | None,
) -> int:
    """Print records, and return their number; in a terminal it is shown if they go to a file."""
    from sparklog.consumer.consumer import Consumer

    count = 0
    with (
        progress_bars() if is_file(sys.stdout.buffer) else nullcontext() as on_progress,
        Consumer(cluster.connect(), group, **config) as consumer,
    ):
        topics = topics_matching(topic, consumer.topics(), if_exists=False)
        known = [name for one in topics for name in consumer.partitions_for_topic(one)]
        if group is not None and not is_name(topic):
            # Topics that are created later and match are read, too.
            consumer.subscribe(pattern=expression(topic))
        elif group is not None:
            consumer.subscribe([topic])
        else:
            consumer.assign(known if partition is None else [(one, partition) for one in topics])
        if partition is not None and start is not None:
            for one in topics:
                if start == "earliest":
                    consumer.seek_to_beginning((one, partition))
                else:
                    consumer.seek((one, partition), start)
        for records in _polls(consumer, max_messages, timeout_ms):
            sys.stdout.buffer.writelines(map(line, records))
            # Offsets are committed after the records have left this process.
            sys.stdout.buffer.flush()
            count += len(records)
            if on_progress is not None:
                on_progress("records", count, max_messages)
            if group is not None:
                consumer.commit()
    return count


def _polls(
    consumer: Consumer, max_messages: int | None, timeout_ms: int | None
) -> Iterator[list[ConsumerRecord]]:
    """Yield polled records until `max_messages`, or `timeout_ms` without a record."""
    from sparklog.clock import SystemClock

    clock = SystemClock()
    left = max_messages
    last_ms = clock.monotonic_ms()
    while left is None or left > 0:
        polled = consumer.poll(min(_POLL_MS, timeout_ms or _POLL_MS), max_records=left)
        records = [record for one in polled.values() for record in one]
        if records:
            yield records
            last_ms = clock.monotonic_ms()
            left = None if left is None else left - len(records)
        elif timeout_ms is not None and clock.monotonic_ms() - last_ms >= timeout_ms:
            return
