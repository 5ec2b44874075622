"""`sparklog maintain`: the maintenance of a cluster's tables from outside of its brokers."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.options import JsonOption
from sparklog.cli.progress import progress_bars

FAILED = 1
"""The exit code if a table could not be maintained."""


DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Write and remove nothing; print the files that would be removed."
    ),
]


def maintain(
    cluster: ClusterOption, is_dry_run: DryRunOption = False, as_json: JsonOption = False
) -> None:
    """Write Delta checkpoints of tables with new commits; remove files that no table names.

    Tables with a checkpoint are opened with fewer requests. A file is removed
    file.delete.delay.ms after a commit has removed it from its table, or
    log.vacuum.unknown.file.retention.ms after it was written if no commit is
    known that names it; both are those of the configuration file that --cluster
    names, or the defaults. Brokers and clients may run. Brokers do the same by
    themselves, also in a run with --until-idle.

    Exits with 0 if all tables are done, with 1 if some failed, and with 2 if
    the cluster cannot be read.
    """
    from sparklog.cli import output
    from sparklog.config import Settings
    from sparklog.maintenance.table_checkpoints import checkpoint_tables
    from sparklog.maintenance.vacuum import total, vacuum_cluster

    named = Cluster.of(cluster)
    with reaching(named.root), progress_bars() as on_progress:
        connection = named.connect()
        tables = [] if is_dry_run else checkpoint_tables(connection, on_progress)
        settings = named.settings or Settings()
        vacuums = vacuum_cluster(
            connection, settings, is_dry_run=is_dry_run, on_progress=on_progress
        )
    faults = [
        *(f"{one.uri}: no checkpoint: {one.error}" for one in tables if one.error),
        *(f"{one.uri}: no files removed: {one.error}" for one in vacuums if one.error),
    ]
    lines = [" ".join(fault.split()) for fault in faults]
    if not is_dry_run:
        written = [one for one in tables if one.commits]
        commits = sum(one.commits for one in written)
        lines.append(
            f"Wrote checkpoints of {len(written)} of {len(tables)} tables ({commits} commits)."
        )
    removed = total(vacuums)
    lines.append(
        f"{'Would remove' if is_dry_run else 'Removed'} {removed.files} files "
        f"({removed.size_bytes} bytes); {removed.kept} that are not live stay "
        f"({removed.kept_bytes} bytes)."
    )
    outcome = {
        "dry_run": is_dry_run,
        "checkpoints": [one._asdict() for one in tables],
        "vacuums": [
            {"uri": one.uri, "error": one.error, **one.report._asdict()} for one in vacuums
        ],
    }
    output.print_outcome(outcome, "\n".join(lines), as_json=as_json)
    if faults:
        raise typer.Exit(FAILED)
