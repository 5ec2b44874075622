"""`sparklog get-offsets`: the offsets of a topic's partitions, earliest, latest or by time."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.name_completion import complete_topics
from sparklog.cli.name_patterns import matching, topics_matching
from sparklog.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    from sparklog.cluster.metadata import Metadata
    from sparklog.model import TopicPartition


def get_offsets(
    cluster: ClusterOption,
    topic: Annotated[
        str | None,
        typer.Argument(
            help="A topic, or a regular expression; by default all topics.",
            autocompletion=complete_topics,
        ),
    ] = None,
    partitions: Annotated[
        str | None, typer.Option(metavar="0,1,...", help="Only these partitions.")
    ] = None,
    topic_partitions: Annotated[
        str | None,
        typer.Option(
            metavar="t1:1,t2:0-3,...",
            help="Only these partitions of topics, in place of TOPIC; a range excludes its end, "
            "which may be left out as its start may.",
        ),
    ] = None,
    time: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="earliest (-2), latest (-1), max-timestamp (-3), or a time: ISO 8601, or ms since "
            "1970.",
        ),
    ] = "latest",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of objects.")] = False,
) -> None:
    """Print an offset of each partition of a topic, or of all topics.

    The latest offset is the high watermark. The offset by time is that of the
    first committed record that is not older than the time, or NULL if all
    records are older. max-timestamp is the record with the newest time.
    """
    from sparklog.cli import output
    from sparklog.cluster.committed_logs import CommittedLogs
    from sparklog.cluster.offsets import Offsets

    if topic_partitions is not None and (topic is not None or partitions is not None):
        raise ConfigError("--topic-partitions names topics and partitions: give nothing else")
    time = {"-1": "latest", "-2": "earliest", "-3": "max-timestamp"}.get(time, time)
    is_named = time in ("earliest", "latest", "max-timestamp")
    time_ms = None if is_named else read_time_ms(time, "--time")
    named = Cluster.of(cluster)
    with reaching(named.root):
        logs = CommittedLogs(named.connect())
        if topic_partitions is not None:
            names = _of_list(topic_partitions, logs.metadata())
        else:
            names = _of_topics(topic, partitions, logs.metadata())
        offsets = Offsets(logs)
        found: dict[TopicPartition, int | None]
        if time_ms is not None:
            by_time = offsets.for_times(dict.fromkeys(names, time_ms))
            found = {name: one.offset if one else None for name, one in by_time.items()}
        elif time == "max-timestamp":
            newest = offsets.of_max_timestamp(names)
            found = {name: one.offset if one else None for name, one in newest.items()}
        else:
            look_up = offsets.beginning if time == "earliest" else offsets.end
            found = dict(look_up(names))
    rows = [(*name, found[name]) for name in names]
    columns = {"topic": "string", "partition": "int32", "offset": "int64"}
    output.print_rows(rows, columns, as_json=as_json)


def _of_topics(
    pattern: str | None, partitions: str | None, metadata: Metadata
) -> list[TopicPartition]:
    """Return the partitions of the topics that a pattern matches, or those of a list of numbers."""
    from sparklog.model import TopicPartition

    counts = {one.topic: one.partitions for one in metadata.topics.values()}
    if pattern is None:
        topics = sorted(counts)
    else:
        topics = topics_matching(pattern, counts, if_exists=False)
    wanted = None if partitions is None else _numbers(partitions)
    found = [
        TopicPartition(topic, number)
        for topic in topics
        for number in range(metadata.topic(topic).partitions)
        if wanted is None or number in wanted
    ]
    if partitions is not None and not found:
        raise ProtocolError(
            "UNKNOWN_TOPIC_OR_PARTITION",
            f"--partitions {partitions} names no partition of {', '.join(topics)}",
        )
    return found


def _numbers(text: str) -> set[int]:
    if not re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", text, re.ASCII):
        raise ConfigError(f"--partitions {text!r} is not a list of numbers, such as 0,1,2")
    return {int(one) for one in text.split(",")}


def _of_list(text: str, metadata: Metadata) -> list[TopicPartition]:
    """Return the partitions that --topic-partitions names, in Kafka's format.

    Raises UNKNOWN_TOPIC_OR_PARTITION if an entry names no partition that exists.
    """
    from sparklog.model import TopicPartition

    counts = {one.topic: one.partitions for one in metadata.topics.values()}
    found: set[TopicPartition] = set()
    for entry in text.split(","):
        pattern, _, numbers = entry.strip().partition(":")
        is_wanted = _range(entry, numbers)
        of_entry = {
            TopicPartition(topic, number)
            for topic in (matching(pattern, counts) if pattern else counts)
            for number in range(counts[topic])
            if is_wanted(number)
        }
        if not of_entry:
            raise ProtocolError(
                "UNKNOWN_TOPIC_OR_PARTITION", f"--topic-partitions {entry!r} names no partition"
            )
        found |= of_entry
    return sorted(found)


def _range(entry: str, text: str) -> Callable[[int], bool]:
    """Return the condition of a number or a range: `3`, `1-3`, `1-`, `-3`, or nothing for all."""
    parsed = re.fullmatch(r"(\d{1,9})|(\d{1,9})?-(\d{1,9})?|", text, re.ASCII)
    if parsed is None:
        raise ConfigError(
            f"--topic-partitions {entry!r} is not topic:partitions, such as t:1 or t:0-3"
        )
    number, first, end = (None if one is None else int(one) for one in parsed.groups())
    if number is not None:
        return lambda one: one == number
    return lambda one: (first or 0) <= one and (end is None or one < end)


def read_time_ms(text: str, option: str) -> int:
    """Return a time in ms since 1970; a time without a time zone is UTC, as in Kafka's tools.

    Raises `ConfigError` if `text` is not a time.
    """
    if re.fullmatch(r"\d{1,15}", text, re.ASCII):
        return int(text)
    try:
        # Python 3.10 does not parse the suffix Z.
        found = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} is not a time: write it like 2026-01-31T12:00:00.000Z, or as ms "
            "since 1970"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=timezone.utc)
    return round(found.timestamp() * 1000)
