"""`sparklog policy`: the permissions of a role, as a policy of S3 or as commands for folders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption

if TYPE_CHECKING:
    from sparklog.cluster.access import RootUris


def policy(
    role: Annotated[
        str,
        typer.Argument(
            help="consumer, group-member, producer, stream-writer, broker, controller, auditor, "
            "backup, admin or operator."
        ),
    ],
    cluster: ClusterOption,
    broker_id: Annotated[
        int | None,
        typer.Option(help="The broker whose own log directories a broker or controller has."),
    ] = None,
    principal: Annotated[
        str | None,
        typer.Option(
            metavar="u:NAME|g:NAME",
            help="The user or group of the operating system that gets the permissions on folders.",
        ),
    ] = None,
) -> None:
    """Print the permissions that a role needs, and no others.

    For S3: a policy in JSON. For folders: setfacl commands, to be run once
    the brokers have started, and again after an upgrade or a new log directory.

    The log directories are those of the configuration file, or else of all
    registered brokers. docs/access.md describes the roles.
    """
    from sparklog.cluster.access import Role, folder_commands, policy_text
    from sparklog.errors import ConfigError

    names = [one.value for one in Role]
    if role not in names:
        raise ConfigError(f"{role!r} is not a role: name one of {', '.join(names)}")
    wanted = Role(role)
    has_own = wanted in (Role.BROKER, Role.CONTROLLER)
    if has_own != (broker_id is not None):
        raise ConfigError(
            f"--broker-id is {'missing' if has_own else 'given'} for the role {role}: the roles "
            "broker and controller need it, and no other role has it"
        )
    named = Cluster.of(cluster)
    uris = _uris(named, broker_id)
    if "://" in uris.cluster:
        typer.echo(policy_text(wanted, uris))
        return
    if principal is None or not principal.startswith(("u:", "g:")):
        raise ConfigError(
            f"{uris.cluster} is a folder: give --principal u:NAME for a user of the operating "
            "system, or g:NAME for a group"
        )
    for line in folder_commands(wanted, uris, principal):
        typer.echo(line)


def _uris(named: Cluster, broker_id: int | None) -> RootUris:
    from sparklog.cluster.access import RootUris
    from sparklog.config import ClusterConfig
    from sparklog.errors import ConfigError

    if isinstance(named.settings, ClusterConfig):
        log_dirs = {one.broker_id: list(one.log_dirs) for one in named.settings.brokers}
    else:
        brokers = named.connect().metadata().brokers.values()
        log_dirs = {one.broker_id: list(one.online_roots.values()) for one in brokers}
    if broker_id is not None and broker_id not in log_dirs:
        raise ConfigError(
            f"there is no broker {broker_id} in this cluster: name one of "
            f"{', '.join(map(str, sorted(log_dirs)))}"
        )
    every = [named.location(uri).uri for of in log_dirs.values() for uri in of]
    own = [] if broker_id is None else [named.location(uri).uri for uri in log_dirs[broker_id]]
    return RootUris(named.location().uri, every, own)
