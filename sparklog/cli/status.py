"""`sparklog status`: the health of a cluster on one screen, as JSON, or as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.times import read_duration_ms
from sparklog.errors import ConfigError, SparklogError

if TYPE_CHECKING:
    from sparklog.maintenance.status import ClusterStatus

UNREADABLE = 3
"""The exit code if the cluster cannot be read: UNKNOWN of monitoring plugins."""


def status(
    cluster: ClusterOption,
    watch: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Refresh the screen each SECONDS until Ctrl-C."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a page with the replicas, and the incidents and in-sync sets of the last "
            "hours; with --watch it is written each time, and browsers reload it.",
        ),
    ] = None,
    hours: Annotated[
        float, typer.Option(min=0.01, help="The hours before now that the page shows.")
    ] = 6.0,
    max_parked: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="The longest time between two scheduled runs, such as PT15M: if all brokers are "
            "parked for longer, that is a failure. By default parked.session.timeout.ms.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    utc: Annotated[bool, typer.Option("--utc", help="Print times in UTC.")] = False,
) -> None:
    """Print the health of a cluster: brokers, controller, partitions in trouble, lags.

    Exits with 0 if nothing is wrong, 1 for warnings, 2 if a partition cannot be
    read or written or nothing would replace a failed broker, and 3 if the
    cluster cannot be read.
    """
    if watch is not None and watch <= 0:
        raise ConfigError(f"--watch {watch:g} is not a time: give seconds above 0")
    if watch is not None and as_json:
        raise ConfigError("--watch and --json exclude each other: leave one out")
    max_parked_ms = None
    if max_parked is not None:
        max_parked_ms = read_duration_ms(max_parked, "--max-parked")
    named = Cluster.of(cluster)
    try:
        code = _show(named, watch, html, hours, max_parked_ms, as_json=as_json, utc=utc)
    except ConfigError:
        raise
    except SparklogError as error:
        typer.echo(f"sparklog: {error}", err=True)
        code = UNREADABLE
    raise typer.Exit(code)


def _show(
    cluster: Cluster,
    watch: float | None,
    html: Path | None,
    hours: float,
    max_parked_ms: int | None,
    *,
    as_json: bool,
    utc: bool,
) -> int:
    from sparklog.cli import output, status_page, status_screen
    from sparklog.cli.status_history import past_status
    from sparklog.maintenance.cluster_past import ClusterPast
    from sparklog.maintenance.status_reader import StatusReader

    connection = cluster.connect()
    reader = StatusReader(connection, cluster.settings, max_parked_ms=max_parked_ms)
    past = ClusterPast(reader, hours)

    def read() -> ClusterStatus:
        with reaching(cluster.root):
            found = reader.read()
            if html is not None:
                shown = past_status(past.read(found.read_at_ms))
                status_page.write(html, found, shown, watch, utc=utc)
        return found

    if watch is not None:
        return status_screen.watch(read, watch, utc=utc)
    found = read()
    if as_json:
        output.print_value(status_screen.as_json(found))
    elif html is None:
        output.show(*status_screen.screen(found, utc=utc))
    else:
        typer.echo(f"{html}: open it in a browser")
    return int(found.severity)
