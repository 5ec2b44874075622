"""`sparklog backup` and `sparklog restore`."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, given_storage_options, reaching
from sparklog.cli.options import JsonOption
from sparklog.cli.progress import progress_bars


def backup(
    cluster: ClusterOption,
    to: Annotated[
        str,
        typer.Option("--to", metavar="URI", help="A new folder or prefix, or an earlier backup."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Copy a cluster, which may run, as it is at one point in time.

    A repeated backup to the same place copies only new files.
    """
    from sparklog.cli import output
    from sparklog.maintenance.backup import backup as make

    named = Cluster.of(cluster)
    with reaching(named.root), progress_bars() as on_progress:
        outcome = make(named.location(), named.location(to), named.storage_options, on_progress)
    text = f"Copied {len(outcome.roots)} roots to {to}: {outcome.files} new files."
    output.print_outcome({**outcome._asdict(), "roots": dict(outcome.roots)}, text, as_json=as_json)


def restore(
    from_: Annotated[str, typer.Option("--from", metavar="URI", help="The backup.")],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="URI",
            help="The place of the new roots; by default they return to where they were.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create the roots of a cluster from a backup; no root may exist there.

    An interrupted restoration is completed by the next one.
    """
    from sparklog.cli import output
    from sparklog.cluster.naming import named_cluster
    from sparklog.maintenance.backup import restore as make
    from sparklog.storage.location import Location

    options = named_cluster(from_, given_storage_options.get()).storage_options
    with reaching(from_), progress_bars() as on_progress:
        source = Location.of(from_, options)
        target = None if to is None else Location.of(to, options)
        outcome = make(source, options, target, on_progress)
    lines = [f"{name}: {uri}" for name, uri in sorted(outcome.roots.items())]
    lines.append("Name these roots in cluster.root and log.dirs, and start the brokers.")
    output.print_outcome(
        {**outcome._asdict(), "roots": dict(outcome.roots)}, "\n".join(lines), as_json=as_json
    )
