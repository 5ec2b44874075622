"""`sparklog brokers`: listing brokers, and ending one that does not come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching

if TYPE_CHECKING:
    from sparklog.clients.admin import Admin

app = typer.Typer(no_args_is_help=True, help="List, fence and unregister brokers.")

_BrokerId = Annotated[int, typer.Argument(metavar="ID", help="The broker's id.")]


@app.command("list")
def list_(
    cluster: ClusterOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of brokers.")] = False,
) -> None:
    """Print the brokers: state, epoch, rack, partitions, and log directories by number."""
    from sparklog.cli import output

    with _admin(cluster) as admin:
        found = admin.list_brokers()
    columns = {
        "broker_id": "int32",
        "state": "string",
        "broker_epoch": "int64",
        "rack": "string",
        "leads": "int64",
        "in_sync": "int64",
        "replicas": "int64",
    }
    rows = [
        (
            one.broker.broker_id,
            one.broker.state,
            one.broker.broker_epoch,
            one.broker.rack,
            one.leads,
            one.in_sync,
            one.replicas,
            [f"{number}={uri}" for number, uri in one.broker.online_roots.items()],
        )
        for one in found
    ]
    output.print_rows(rows, columns | {"log_dirs": "list<string>"}, as_json=as_json)


@app.command()
def fence(broker_id: _BrokerId, cluster: ClusterOption) -> None:
    """Fence a broker that does not run, as after its session: others lead what it led.

    Where its row says that it is alive this takes broker.session.timeout.ms, to be sure that it
    does not run. A broker that is started again takes part again.
    """
    with _admin(cluster) as admin:
        admin.fence_broker(broker_id)
    typer.echo(f"Fenced broker {broker_id}.")


@app.command()
def unregister(
    broker_id: _BrokerId,
    cluster: ClusterOption,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also where it has the only replica that is in sync."),
    ] = False,
) -> None:
    """Unregister a broker that does not run and does not come back.

    No new topic is placed on it. Refused while it has a partition's only replica that is in sync.
    """
    with _admin(cluster) as admin:
        replicas = admin.unregister_broker(broker_id, force=force)
    typer.echo(f"Unregistered broker {broker_id}.")
    if replicas:
        partitions = "1 partition has" if replicas == 1 else f"{replicas} partitions have"
        typer.echo(f"Its replicas stay assigned to it: {partitions} one replica less.")


@contextmanager
def _admin(text: str) -> Iterator[Admin]:
    from sparklog.clients.admin import Admin

    cluster = Cluster.of(text)
    with reaching(cluster.root):
        yield Admin(cluster.connect(), settings=cluster.settings)
