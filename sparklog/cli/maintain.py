"""`sparklog maintain`: the maintenance of a cluster's tables from outside of its brokers."""

from __future__ import annotations

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching

FAILED = 1
"""The exit code if a table could not be maintained."""


def maintain(cluster: ClusterOption) -> None:
    """Write Delta checkpoints of all tables that have commits since their last one.

    Tables with a checkpoint are opened with fewer requests. Brokers and
    clients may run; no row and no commit is changed or removed. Brokers merge
    small batches themselves, also in a run with --until-idle. Batch files that
    are no longer live are not removed yet.

    Exits with 0 if all tables are done, with 1 if some failed, and with 2 if
    the cluster cannot be read.
    """
    from sparklog.maintenance.table_checkpoints import checkpoint_tables

    named = Cluster.of(cluster)
    with reaching(named.root):
        tables = checkpoint_tables(named.connect())
    written = [one for one in tables if one.commits]
    failed = [one for one in tables if one.error]
    for one in failed:
        typer.echo(f"{one.uri}: no checkpoint: {' '.join(one.error.split())}")
    commits = sum(one.commits for one in written)
    typer.echo(f"Wrote checkpoints of {len(written)} of {len(tables)} tables ({commits} commits).")
    if failed:
        raise typer.Exit(FAILED)
