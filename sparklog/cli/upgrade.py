"""`sparklog upgrade` and `sparklog features`: the formats of a cluster's roots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.options import JsonOption
from sparklog.cli.progress import progress_bars

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparklog.maintenance.upgrade import Upgrade, UpgradeStep


def upgrade(
    cluster: ClusterOption,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the steps, and change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Upgrade the roots of a cluster to the newest format that this release knows.

    Start all brokers with this release before, one after another; they run with
    the cluster's format until then. Afterwards older releases are refused. An
    interrupted upgrade is completed by the next one.
    """
    from sparklog.cli import output
    from sparklog.maintenance.upgrade import Upgrade

    named = Cluster.of(cluster)
    with reaching(named.root):
        planned = Upgrade.of(named.location(), named.storage_options)

        def show(step: UpgradeStep) -> None:
            if not as_json:
                typer.echo(f"{step.root.uri}: {step.change}")

        if dry_run:
            for step in planned.steps:
                show(step)
            planned.check_brokers()
        else:
            _make(planned, show)
    for sentence in planned.left_to_brokers:
        typer.echo(f"sparklog: {sentence}: its broker upgrades it at its next start", err=True)
    if as_json:
        steps = [{"root": step.root.uri, "change": step.change} for step in planned.steps]
        output.print_value({"format": planned.target, "dry_run": dry_run, "steps": steps})
    elif not planned.steps:
        typer.echo(f"The cluster has format {planned.target}: nothing to do.")
    elif not dry_run:
        typer.echo(f"Upgraded the cluster to format {planned.target}.")


def _make(planned: Upgrade, show: Callable[[UpgradeStep], None]) -> None:
    """Make the steps; each is shown when it is made, in a terminal after the progress bar."""
    made: list[UpgradeStep] = []
    try:
        with progress_bars() as on_progress:

            def note(step: UpgradeStep) -> None:
                made.append(step)
                if on_progress is None:
                    show(step)
                else:
                    on_progress("steps", len(made), len(planned.steps))

            if on_progress is not None:
                on_progress("steps", 0, len(planned.steps))
            planned.make(note)
    finally:
        if on_progress is not None:
            for step in made:
                show(step)


def features(
    cluster: ClusterOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
) -> None:
    """Print the format of the cluster, and the newest one that each broker's release knows.

    The cluster's format can be raised to the lowest of the brokers' newest ones:
    see `sparklog upgrade`.
    """
    from sparklog import model
    from sparklog.cli import output

    connected = Cluster.of(cluster).connect()
    with reaching(connected.root.location.uri):
        connected.root.brokers.refresh()
        brokers = sorted(
            connected.root.brokers.rows().to_pylist(), key=lambda row: int(row["broker_id"])
        )
    columns = {"of": "string", "state": "string", "format": "int32", "newest_format": "int32"}
    rows: list[tuple[str, str | None, int | None, int | None]] = [
        ("cluster", None, connected.root.format_version, model.SCHEMA_VERSION)
    ]
    rows += [
        (f"broker {row['broker_id']}", row["state"], None, row["newest_format"]) for row in brokers
    ]
    output.print_rows(rows, columns, as_json=as_json)
