"""`sparklog consumer-groups`: listing, describing, deleting groups, and resetting offsets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.get_offsets import read_time_ms
from sparklog.cli.options import JsonOption
from sparklog.errors import ConfigError

if TYPE_CHECKING:
    from sparklog.cluster.connection import Connection
    from sparklog.groups.admin import ResetTo

app = typer.Typer(
    no_args_is_help=True,
    help="List, describe and delete consumer groups, and set their committed offsets.",
)

_Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]
_Json = Annotated[bool, typer.Option("--json", help="Print a JSON array of objects.")]


@app.command("list")
def list_(cluster: ClusterOption, as_json: _Json = False) -> None:
    """Print all groups with their state, generation and number of members."""
    from sparklog.cli import output
    from sparklog.groups.admin import GroupAdmin

    with _connection(cluster) as connection:
        groups = GroupAdmin(connection).list_groups()
    columns = {"group_id": "string", "state": "string", "generation": "int32", "members": "int32"}
    rows = [(one.group_id, one.state, one.generation, len(one.members)) for one in groups]
    output.print_rows(rows, columns, as_json=as_json)


@app.command()
def describe(group: _Group, cluster: ClusterOption, as_json: _Json = False) -> None:
    """Print a group's position in each partition that it reads or has committed.

    committed_offset is CURRENT-OFFSET of Kafka's tool, high_watermark is its
    LOG-END-OFFSET. The lag is the number of offsets between them.
    """
    from sparklog.cli import output
    from sparklog.groups.committed_offsets import lag

    with _connection(cluster) as connection:
        rows = lag(connection, group)
    columns = {
        "topic": "string",
        "partition": "int32",
        "committed_offset": "int64",
        "high_watermark": "int64",
        "lag": "int64",
        "member_id": "string",
    }
    output.print_rows(rows, columns, as_json=as_json)


@app.command()
def delete(group: _Group, cluster: ClusterOption, as_json: JsonOption = False) -> None:
    """Delete a group without live members, with its committed offsets.

    If dead members are still registered, this takes their session.timeout.ms,
    to be sure that they are dead.
    """
    from sparklog.cli import output
    from sparklog.groups.admin import GroupAdmin

    with _connection(cluster) as connection:
        GroupAdmin(connection).delete(group)
    output.print_outcome({"group_id": group}, f"Deleted group {group}.", as_json=as_json)


@app.command("reset-offsets")
def reset_offsets(
    group: _Group,
    cluster: ClusterOption,
    topic: Annotated[str, typer.Option(help="The topic, in all of its partitions.")],
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first records.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the high watermarks.")] = False,
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
    execute: Annotated[
        bool, typer.Option("--execute", help="Set the offsets; without it they are only shown.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Set the committed offsets of a group without live members.

    An offset outside of a log becomes the nearest end of the log. A missing
    group is created.
    """
    from sparklog.cli import output
    from sparklog.groups.admin import GroupAdmin, ResetTo

    given = {
        "--to-earliest": ResetTo("earliest") if to_earliest else None,
        "--to-latest": ResetTo("latest") if to_latest else None,
        "--to-offset": None if to_offset is None else ResetTo("offset", to_offset),
        "--shift-by": None if shift_by is None else ResetTo("shift", shift_by),
        "--to-datetime": None
        if to_datetime is None
        else ResetTo("time_ms", read_time_ms(to_datetime, "--to-datetime")),
    }
    to = _only(given)
    with _connection(cluster) as connection:
        admin = GroupAdmin(connection)
        resets = admin.plan_reset(group, topic, to)
        if execute:
            admin.reset(group, resets)
    columns = {
        "topic": "string",
        "partition": "int32",
        "committed_offset": "int64",
        "new_offset": "int64",
    }
    output.print_rows(resets, columns, as_json=as_json)
    if not execute and not as_json:
        typer.echo("Nothing was changed: add --execute to set these offsets.")


def _only(given: dict[str, ResetTo | None]) -> ResetTo:
    [*named] = (one for one in given.values() if one is not None)
    if len(named) != 1:
        raise ConfigError(f"one of {', '.join(given)} is required: {len(named)} are given")
    return named[0]


@contextmanager
def _connection(text: str) -> Iterator[Connection]:
    cluster = Cluster.of(text)
    with reaching(cluster.root):
        yield cluster.connect()
