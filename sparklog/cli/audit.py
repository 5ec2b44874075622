"""`sparklog audit`: checking a cluster's tables for consistency."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.options import JsonOption
from sparklog.cli.progress import progress_bars

if TYPE_CHECKING:
    from sparklog.protocol.rules import Rules

DISAGREES = 1
"""The exit code if there are inconsistencies."""


class Engine(str, Enum):
    """The engine that runs the rules."""

    DUCKDB = "duckdb"
    SPARK = "spark"


def audit(
    cluster: ClusterOption,
    engine: Annotated[
        Engine, typer.Option(help="The engine of the checks: this process, or Spark.")
    ] = Engine.DUCKDB,
    verify_files: Annotated[
        bool,
        typer.Option("--verify-files", help="Also read every batch file and compare its checksum."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a cluster's tables for consistency, and print the inconsistencies.

    High watermarks, log density, leader-epoch histories, checkpoints, leader
    epochs and the agreement of the replicas are computed again from the logs.
    The cluster may be running or stopped; nothing is changed.

    Exits with 0 if no inconsistencies are found, with 1 if there are some, and
    with 2 if the cluster cannot be read.
    """
    from sparklog.cli import output
    from sparklog.maintenance import audit as auditing

    named = Cluster.of(cluster)
    with reaching(named.root), progress_bars() as on_progress:
        connection = named.connect()
        findings = auditing.audit(connection, _rules(engine), verify_files, on_progress)
        partitions = len(connection.metadata().partitions)
    text = "\n".join(" ".join(str(finding).split()) for finding in findings) or (
        f"No inconsistencies found: {partitions} partition{'' if partitions == 1 else 's'}."
    )
    outcome = {"partitions": partitions, "findings": [one._asdict() for one in findings]}
    output.print_outcome(outcome, text, as_json=as_json)
    if findings:
        raise typer.Exit(DISAGREES)


def _rules(engine: Engine) -> Rules:
    from sparklog.protocol.rules import DuckDBRules, SparkRules

    if engine is Engine.DUCKDB:
        return DuckDBRules()
    from sparklog.session import spark_session

    return SparkRules(spark_session("sparklog audit"))
