"""`sparklog checkpoints`: a broker's checkpoints as the files of a Kafka log directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.name_completion import complete_brokers
from sparklog.cli.options import JsonOption

app = typer.Typer(
    no_args_is_help=True,
    help="Export and import a broker's checkpoints in the form of Kafka's own files.",
)

_Broker = Annotated[
    int,
    typer.Option(
        "--broker", metavar="ID", help="The broker's id.", autocompletion=complete_brokers
    ),
]
_LogDir = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        help="The number of the log directory in log.dirs, from 0; required if there are several.",
    ),
]


@app.command("export")
def export(
    cluster: ClusterOption,
    broker: _Broker,
    folder: Annotated[Path, typer.Option(help="A new or empty folder.")],
    log_dir: _LogDir = None,
    as_json: JsonOption = False,
) -> None:
    """Write a broker's checkpoints into a folder, in the format of a Kafka log directory."""
    from sparklog.cli import output
    from sparklog.maintenance.checkpoints import export_checkpoints

    named = Cluster.of(cluster)
    with reaching(named.root):
        count = export_checkpoints(named.connect(), broker, folder, log_dir)
    text = f"Exported the checkpoints of {_replicas(count)} of broker {broker} to {folder}."
    outcome = {"broker_id": broker, "replicas": count, "folder": str(folder)}
    output.print_outcome(outcome, text, as_json=as_json)


@app.command("import")
def import_(
    cluster: ClusterOption,
    broker: _Broker,
    folder: Annotated[Path, typer.Option(help="A folder in the shape of a Kafka log directory.")],
    log_dir: _LogDir = None,
    as_json: JsonOption = False,
) -> None:
    """Replace a stopped broker's checkpoints by those in a folder, all of them or none.

    Replicas that the folder does not name are unchanged. When the broker
    starts, its high watermarks are limited to its log ends.
    """
    from sparklog.cli import output
    from sparklog.maintenance.checkpoints import import_checkpoints

    named = Cluster.of(cluster)
    with reaching(named.root):
        count = import_checkpoints(named.connect(), broker, folder, log_dir)
    text = f"Imported the checkpoints of {_replicas(count)} of broker {broker} from {folder}."
    outcome = {"broker_id": broker, "replicas": count, "folder": str(folder)}
    output.print_outcome(outcome, text, as_json=as_json)


def _replicas(count: int) -> str:
    return f"{count} replica{'' if count == 1 else 's'}"
