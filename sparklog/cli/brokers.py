"""`sparklog brokers`: listing brokers, and fencing and unregistering a broker that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.name_completion import complete_brokers
from sparklog.cli.options import JsonOption, UtcOption
from sparklog.cli.reassign_partitions import progress_line, reassignment_of

if TYPE_CHECKING:
    from sparklog.cluster.admin import Admin

app = typer.Typer(no_args_is_help=True, help="List, drain, fence and unregister brokers.")

_BrokerId = Annotated[
    int,
    typer.Argument(metavar="ID", help="The broker's id.", autocompletion=complete_brokers),
]


@app.command("list")
def list_(
    cluster: ClusterOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of brokers.")] = False,
    utc: UtcOption = False,
) -> None:
    """Print the brokers: state, epoch, rack, partitions, and log directories by number.

    leader_imbalance is the percentage of the partitions whose first replica the
    broker has, and that it does not lead. controller_since_ms is the time since
    which the broker is the controller; with --json in ms since 1970.
    """
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
        "leader_imbalance": "double",
        "is_controller": "bool",
        "controller_since_ms": "int64",
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
            round(one.leader_imbalance, 1),
            one.is_controller,
            one.controller_since_ms,
            [
                f"{number}={uri}" + ("" if one.broker.has_online(number) else " (offline)")
                for number, uri in enumerate(one.broker.roots)
                if uri is not None
            ],
        )
        for one in found
    ]
    output.print_rows(rows, columns | {"log_dirs": "list<string>"}, as_json=as_json, utc=utc)


@app.command()
def fence(broker_id: _BrokerId, cluster: ClusterOption, as_json: JsonOption = False) -> None:
    """Fence a broker that is not running, as its session's end does: others lead its partitions.

    If its row says that it is alive, this takes broker.session.timeout.ms, to
    be sure that it is not running. A fenced broker that is started again
    rejoins the cluster.
    """
    from sparklog.cli import output

    with _admin(cluster) as admin:
        admin.fence_broker(broker_id)
    outcome = {"broker_id": broker_id, "state": "fenced"}
    output.print_outcome(outcome, f"Fenced broker {broker_id}.", as_json=as_json)


@app.command()
def drain(
    broker_id: _BrokerId,
    cluster: ClusterOption,
    throttle: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES", help="Bytes per second that a broker copies into new replicas.", min=1
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Move all replicas away from a broker, by reassignments; print what is left.

    Run it again to see the progress. The broker may run or not. When it holds no
    replica any more, stop and unregister it.
    """
    from sparklog.cli import output

    with _admin(cluster) as admin:
        started = admin.drain_broker(broker_id, throttle=throttle)
        moving = {
            name: one
            for name, one in admin.list_partition_reassignments().items()
            if broker_id in one.removing_replicas
        }
        adding = admin.list_adding_replicas()
    if as_json:
        output.print_value(
            {
                "broker_id": broker_id,
                "started": [one._asdict() for one in sorted(started)],
                "moving": [reassignment_of(*item, adding) for item in sorted(moving.items())],
            }
        )
        return
    if not moving and not started:
        typer.echo(f"Broker {broker_id} has no replicas.")
        return
    new = "1 reassignment" if len(started) == 1 else f"{len(started)} reassignments"
    left = "1 partition is" if len(moving) == 1 else f"{len(moving)} partitions are"
    typer.echo(f"Started {new}. {left} moving away from broker {broker_id}:")
    for name, one in sorted(moving.items()):
        target = ",".join(str(id_) for id_ in one.replicas if id_ not in one.removing_replicas)
        typer.echo(f"{name}: to {target}.")
        for replica in adding:
            if (replica.topic, replica.partition) == name:
                typer.echo(progress_line(replica))


@app.command()
def unregister(
    broker_id: _BrokerId,
    cluster: ClusterOption,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Unregister it even if it has replicas, also the only in-sync ones.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Unregister a broker that is not running and will not return.

    New topics are no longer placed on it. Refused while it has replicas: drain
    it first.
    """
    from sparklog.cli import output

    with _admin(cluster) as admin:
        replicas = admin.unregister_broker(broker_id, force=force)
    text = f"Unregistered broker {broker_id}."
    if replicas:
        partitions = "1 partition has" if replicas == 1 else f"{replicas} partitions have"
        text += f"\nIts replicas stay assigned to it: {partitions} one replica less."
    outcome = {"broker_id": broker_id, "state": "unregistered", "replicas": replicas}
    output.print_outcome(outcome, text, as_json=as_json)


@contextmanager
def _admin(text: str) -> Iterator[Admin]:
    from sparklog.cluster.admin import Admin

    cluster = Cluster.of(text)
    with reaching(cluster.root):
        yield Admin(cluster.connect(), settings=cluster.settings)
