"""`sparklog consumer-groups reset-offsets`: its targets, its scope, and Kafka's CSV files."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.get_offsets import read_time_ms
from sparklog.cli.name_completion import complete_groups, complete_topics
from sparklog.cli.times import read_duration_ms
from sparklog.errors import ConfigError, ProtocolError, SparklogError

if TYPE_CHECKING:
    from sparklog.groups.admin import GroupAdmin, PlannedReset, ResetTo
    from sparklog.model import TopicPartition

Groups = Annotated[
    list[str] | None,
    typer.Argument(metavar="GROUP", help="The groups' names.", autocompletion=complete_groups),
]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="All groups.")]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPIC[:0,1,...]",
        help="A topic, in all of its partitions or in these; may be repeated.",
        autocompletion=complete_topics,
    ),
]


def reset_offsets(
    cluster: ClusterOption,
    groups: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All partitions with committed offsets.")
    ] = False,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first records.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the high watermarks.")] = False,
    to_current: Annotated[
        bool,
        typer.Option("--to-current", help="To the committed offsets, or else the high watermarks."),
    ] = False,
    to_offset: Annotated[int | None, typer.Option(metavar="N", help="To this offset.")] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(metavar="N", help="By N offsets forward, or back if N is negative."),
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="To the first records that are not older than this ISO 8601 time."
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            metavar="PnDTnHnMnS",
            help="To the first records that are not older than this duration, as in PT1H30M.",
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="To the offsets of a CSV file of topic,partition,offset, or of "
            "group,topic,partition,offset for several groups.",
        ),
    ] = None,
    export: Annotated[
        bool, typer.Option("--export", help="Print CSV that --from-file reads.")
    ] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Set the offsets; without it they are only shown.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the offsets, as without --execute.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of objects.")] = False,
) -> None:
    """Set the committed offsets of groups without live members.

    An offset outside of a log becomes the nearest end of the log. A missing
    group is created. With several groups nothing is set before the offsets of
    all groups are known.
    """
    from sparklog.clock import SystemClock
    from sparklog.groups.admin import ResetTo

    given = {
        "--to-earliest": ResetTo("earliest") if to_earliest else None,
        "--to-latest": ResetTo("latest") if to_latest else None,
        "--to-current": ResetTo("current") if to_current else None,
        "--to-offset": None if to_offset is None else ResetTo("offset", to_offset),
        "--shift-by": None if shift_by is None else ResetTo("shift", shift_by),
        "--to-datetime": None
        if to_datetime is None
        else ResetTo("time_ms", read_time_ms(to_datetime, "--to-datetime")),
        "--by-duration": None
        if by_duration is None
        else _before_now(by_duration, SystemClock().now_ms()),
    }
    to = _only(given, from_file)
    if execute and dry_run:
        raise ConfigError("--execute and --dry-run are given: give one of them")
    if export and as_json:
        raise ConfigError("--export and --json are both given: choose one of them")
    if (from_file is None) == (not topic and not all_topics) or (topic and all_topics):
        raise ConfigError("give the partitions in one way: --topic, --all-topics, or --from-file")
    is_several = all_groups or len(groups or []) > 1
    with group_admin(cluster) as admin:
        names = chosen_groups(admin, groups, all_groups=all_groups)
        if from_file is not None:
            targets = _targets_of_file(from_file, names)
        else:
            targets = {
                one: dict.fromkeys(_partitions(admin, one, topic or []), to)
                for one in names
                if to is not None
            }
        planned = {one: admin.plan_resets(one, targets[one]) for one in targets}
        if execute:
            for one, resets in planned.items():
                admin.reset(one, resets)
    if export:
        _print_csv(planned, with_group=is_several)
    else:
        _print(planned, with_group=is_several, as_json=as_json)
    if not execute and not as_json:
        typer.echo("Nothing was changed: add --execute to set these offsets.", err=export)


@contextmanager
def group_admin(text: str) -> Iterator[GroupAdmin]:
    """Connect to a cluster, and administer its groups."""
    from sparklog.groups.admin import GroupAdmin

    cluster = Cluster.of(text)
    with reaching(cluster.root):
        yield GroupAdmin(cluster.connect())


def chosen_groups(
    admin: GroupAdmin, groups: Sequence[str] | None, *, all_groups: bool
) -> list[str]:
    """Return the named groups, or all; raises `ConfigError` unless they are given in one way."""
    if bool(groups) == all_groups:
        raise ConfigError("name the groups in one way: GROUP, or --all-groups")
    return list(dict.fromkeys(groups or [one.group_id for one in admin.list_groups()]))


def partitions_of(admin: GroupAdmin, texts: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions that values of --topic name, in Kafka's format `topic:0,1,2`.

    Raises `ConfigError` for other texts, and UNKNOWN_TOPIC_OR_PARTITION.
    """
    found: dict[TopicPartition, None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        known = admin.partitions_of(topic)
        if colon:
            if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", numbers, re.ASCII):
                raise ConfigError(
                    f"--topic {text!r} is not TOPIC:0,1,...: give partitions' numbers"
                )
            wanted = {int(one) for one in numbers.split(",")}
            if missing := wanted - {one.partition for one in known}:
                raise ProtocolError(
                    "UNKNOWN_TOPIC_OR_PARTITION",
                    f"topic {topic} has no partition {min(missing)}, it has {len(known)}",
                )
            known = [one for one in known if one.partition in wanted]
        found |= dict.fromkeys(known)
    return list(found)


def _partitions(admin: GroupAdmin, group: str, topics: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions of the topics, or else those in which a group has committed."""
    if topics:
        return partitions_of(admin, topics)
    found = admin.committed_partitions(group)
    if not found:
        raise SparklogError(f"group {group} has no committed offsets: name topics by --topic")
    return found


def _before_now(duration: str, now_ms: int) -> ResetTo:
    from sparklog.groups.admin import ResetTo

    return ResetTo("time_ms", max(0, now_ms - read_duration_ms(duration, "--by-duration")))


def _only(given: Mapping[str, ResetTo | None], file: Path | None) -> ResetTo | None:
    """Return the only target; `None` if it is a file."""
    [*named] = (one for one in given.values() if one is not None)
    count = len(named) + (file is not None)
    if count != 1:
        raise ConfigError(
            f"one of {', '.join([*given, '--from-file'])} is required: {count} are given"
        )
    return named[0] if named else None


def _targets_of_file(file: Path, groups: Sequence[str]) -> dict[str, dict[TopicPartition, ResetTo]]:
    """Return the offsets of a file of Kafka's format; rows without a group are of the only one."""
    from sparklog.groups.admin import ResetTo
    from sparklog.model import TopicPartition

    found: dict[str, dict[TopicPartition, ResetTo]] = {}
    try:
        rows = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} cannot be read: it is not UTF-8") from None
    for number, cells in enumerate(rows, 1):
        row = [one.strip() for one in cells]
        if not row:
            continue
        if len(row) == 3 and len(groups) == 1:
            row = [groups[0], *row]
        if len(row) != 4 or not all(re.fullmatch(r"\d{1,19}", one, re.ASCII) for one in row[2:]):
            columns = (
                "topic,partition,offset" if len(groups) == 1 else "group,topic,partition,offset"
            )
            raise ConfigError(f"{file} has in line {number} {','.join(cells)!r}: give {columns}")
        group, topic, partition, offset = row
        if group not in groups:
            raise ConfigError(f"{file} has group {group!r} in line {number}, which is not named")
        name = TopicPartition(topic, int(partition))
        targets = found.setdefault(group, {})
        if name in targets:
            raise ConfigError(f"{file} has the partition {name} twice: name each once")
        targets[name] = ResetTo("offset", int(offset))
    if not found:
        raise ConfigError(f"{file} has no lines: give topic,partition,offset in each")
    return found


def _print_csv(planned: Mapping[str, Iterable[PlannedReset]], *, with_group: bool) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for group, resets in planned.items():
        for one in resets:
            row = (one.topic, one.partition, one.new_offset)
            writer.writerow((group, *row) if with_group else row)


def _print(
    planned: Mapping[str, Iterable[PlannedReset]], *, with_group: bool, as_json: bool
) -> None:
    from sparklog.cli import output

    columns = {
        "topic": "string",
        "partition": "int32",
        "committed_offset": "int64",
        "new_offset": "int64",
    }
    output.print_rows(*of_groups(planned, columns, with_group=with_group), as_json=as_json)


def of_groups(
    rows: Mapping[str, Iterable[Sequence[object]]], columns: Mapping[str, str], *, with_group: bool
) -> tuple[list[Sequence[object]], Mapping[str, str]]:
    """Return the rows of groups and their columns; several groups have their names first."""
    if not with_group:
        return [row for of_group in rows.values() for row in of_group], columns
    named = [(group, *row) for group, of_group in rows.items() for row in of_group]
    return list(named), {"group_id": "string", **columns}
