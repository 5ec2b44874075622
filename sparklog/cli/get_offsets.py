"""`sparklog get-offsets`: the offsets of a topic's partitions, earliest, latest or by time."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.errors import ConfigError


def get_offsets(
    topic: Annotated[str, typer.Argument(help="A topic.")],
    cluster: ClusterOption,
    time: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="earliest (-2), latest (-1), or a time: ISO 8601, or ms since 1970.",
        ),
    ] = "latest",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of objects.")] = False,
) -> None:
    """Print an offset of each partition of a topic.

    The latest offset is the high watermark. The offset by time is that of the
    first committed record that is not older than the time, or NULL if all
    records are older.
    """
    from sparklog.cli import output
    from sparklog.cluster.committed_logs import CommittedLogs
    from sparklog.cluster.offsets import Offsets
    from sparklog.model import TopicPartition

    time = {"-1": "latest", "-2": "earliest"}.get(time, time)
    time_ms = None if time in ("earliest", "latest") else read_time_ms(time, "--time")
    named = Cluster.of(cluster)
    with reaching(named.root):
        logs = CommittedLogs(named.connect())
        count = logs.metadata().topic(topic).partitions
        names = [TopicPartition(topic, number) for number in range(count)]
        offsets = Offsets(logs)
        found: dict[TopicPartition, int | None]
        if time_ms is not None:
            by_time = offsets.for_times(dict.fromkeys(names, time_ms))
            found = {name: one.offset if one else None for name, one in by_time.items()}
        else:
            look_up = offsets.beginning if time == "earliest" else offsets.end
            found = dict(look_up(names))
    rows = [(*name, found[name]) for name in names]
    columns = {"topic": "string", "partition": "int32", "offset": "int64"}
    output.print_rows(rows, columns, as_json=as_json)


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
