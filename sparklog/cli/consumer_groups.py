"""`sparklog consumer-groups`: listing, describing, deleting groups, and resetting offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.name_completion import complete_groups
from sparklog.cli.options import JsonOption
from sparklog.cli.reset_offsets import (
    AllGroups,
    Groups,
    Topics,
    chosen_groups,
    group_admin,
    of_groups,
    partitions_of,
    reset_offsets,
)
from sparklog.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    from sparklog.cluster.connection import Connection
    from sparklog.groups.group import Group

app = typer.Typer(
    no_args_is_help=True,
    help="List, describe and delete consumer groups, and set their committed offsets.",
)
app.command("reset-offsets")(reset_offsets)

_Json = Annotated[bool, typer.Option("--json", help="Print a JSON array of objects.")]


@app.command("list")
def list_(
    cluster: ClusterOption,
    state: Annotated[
        str | None,
        typer.Option(metavar="STATE,...", help="Only groups in these states, such as stable."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Print all groups with their state, generation and number of members."""
    from sparklog.cli import output

    states = None if state is None else _states(state)
    with group_admin(cluster) as admin:
        groups = admin.list_groups()
    columns = {"group_id": "string", "state": "string", "generation": "int32", "members": "int32"}
    rows = [
        (one.group_id, one.state, one.generation, len(one.members))
        for one in groups
        if states is None or one.state in states
    ]
    output.print_rows(rows, columns, as_json=as_json)


@app.command()
def describe(
    cluster: ClusterOption,
    groups: Groups = None,
    all_groups: AllGroups = False,
    members: Annotated[
        bool, typer.Option("--members", help="The members, with their partitions.")
    ] = False,
    state: Annotated[
        bool, typer.Option("--state", help="The state, the assignor, and the number of members.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Print a group's position in each partition that it reads or has committed.

    committed_offset is CURRENT-OFFSET of Kafka's tool, high_watermark is its
    LOG-END-OFFSET. The lag is the number of offsets between them. The rows of
    several groups begin with the group's name.
    """
    from sparklog.cli import output
    from sparklog.groups.admin import GroupAdmin
    from sparklog.groups.committed_offsets import lag

    if members and state:
        raise ConfigError("--members and --state are given: give one of them")
    named = Cluster.of(cluster)
    with reaching(named.root):
        connection = named.connect()
        admin = GroupAdmin(connection)
        names = chosen_groups(admin, groups, all_groups=all_groups)
        rows: dict[str, Sequence[Sequence[object]]]
        if members or state:
            known = {one.group_id: one for one in admin.list_groups()}
            _check_known(names, known)
            of = _members if members else _state
            rows = {name: of(connection, known[name]) for name in names}
            columns = _MEMBER_COLUMNS if members else _STATE_COLUMNS
        else:
            rows = {name: lag(connection, name) for name in names}
            columns = _LAG_COLUMNS
    is_several = all_groups or len(names) > 1
    output.print_rows(*of_groups(rows, columns, with_group=is_several), as_json=as_json)


_LAG_COLUMNS = {
    "topic": "string",
    "partition": "int32",
    "committed_offset": "int64",
    "high_watermark": "int64",
    "lag": "int64",
    "member_id": "string",
}
_MEMBER_COLUMNS = {
    "member_id": "string",
    "group_instance_id": "string",
    "client_id": "string",
    "partitions": "int32",
    "assignment": "list<string>",
}
_STATE_COLUMNS = {
    "state": "string",
    "generation": "int32",
    "assignor": "string",
    "leader": "string",
    "members": "int32",
}


def _members(connection: Connection, group: Group) -> list[Sequence[object]]:
    """Return a row for each member of a group, with the partitions that it reads."""
    from sparklog.cluster.committed_logs import CommittedLogs
    from sparklog.groups.committed_offsets import names_of

    logs = CommittedLogs(connection)
    rows: list[Sequence[object]] = []
    for one in group.members:
        names = sorted(names_of(logs, one.assignment).values())
        texts = [str(name) for name in names]
        rows.append((one.member_id, one.group_instance_id, one.client_id, len(names), texts))
    return rows


def _state(_: Connection, group: Group) -> list[Sequence[object]]:
    return [(group.state, group.generation, group.protocol, group.leader, len(group.members))]


def _states(text: str) -> set[str]:
    """Return the states that an option names, in any case of letters."""
    from sparklog.states import GroupState

    known = {str(one).lower(): str(one) for one in get_args(GroupState) if one != "Dead"}
    wanted = [one.strip() for one in text.split(",")]
    unknown = [one for one in wanted if one.lower() not in known]
    if unknown:
        raise ConfigError(
            f"--state {unknown[0]!r} is not a state of groups: give {', '.join(known.values())}"
        )
    return {known[one.lower()] for one in wanted}


def _check_known(names: Sequence[str], known: Mapping[str, Group]) -> None:
    unknown = [one for one in names if one not in known]
    if unknown:
        raise ProtocolError("GROUP_ID_NOT_FOUND", f"there is no group {unknown[0]!r}: name another")


@app.command()
def delete(
    cluster: ClusterOption,
    groups: Groups = None,
    all_groups: AllGroups = False,
    as_json: JsonOption = False,
) -> None:
    """Delete groups without live members, with their committed offsets.

    If dead members are still registered, this takes their session.timeout.ms,
    to be sure that they are dead.
    """
    from sparklog.cli import output

    deleted: list[dict[str, Any]] = []
    with group_admin(cluster) as admin:
        for group in chosen_groups(admin, groups, all_groups=all_groups):
            admin.delete(group)
            deleted.append({"group_id": group})
            if not as_json:
                typer.echo(f"Deleted group {group}.")
    if as_json:
        is_one = not all_groups and len(deleted) == 1
        output.print_value(deleted[0] if is_one else deleted)


@app.command("delete-offsets")
def delete_offsets(
    group: Annotated[
        str,
        typer.Argument(metavar="GROUP", help="The group's name.", autocompletion=complete_groups),
    ],
    cluster: ClusterOption,
    topic: Topics = None,
    as_json: _Json = False,
) -> None:
    """Delete the committed offsets of a group without live members in some partitions.

    The group then begins there as auto.offset.reset says.
    """
    from sparklog.cli import output

    if not topic:
        raise ConfigError("--topic is missing: name the topics whose offsets are to be deleted")
    with group_admin(cluster) as admin:
        partitions = partitions_of(admin, topic)
        admin.delete_offsets(group, partitions)
    columns = {"topic": "string", "partition": "int32"}
    output.print_rows(partitions, columns, as_json=as_json)
