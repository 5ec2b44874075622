"""The `sparklog` command: running brokers, topics, records, and the state of a cluster.

The modules of a command are imported when it runs, so that help is printed at once. Spark is
started only if an option requests it.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import sparklog
from sparklog.cli import brokers, checkpoints, configs, consumer_groups, topics
from sparklog.cli.audit import audit
from sparklog.cli.backup import backup, restore
from sparklog.cli.cluster import (
    Cluster,
    ClusterOption,
    StorageOptionsOption,
    given_storage_options,
    reaching,
)
from sparklog.cli.consume import consume
from sparklog.cli.delete_records import delete_records
from sparklog.cli.elect_leaders import elect_leaders
from sparklog.cli.get_offsets import get_offsets
from sparklog.cli.log_dirs import log_dirs
from sparklog.cli.maintain import maintain
from sparklog.cli.options import JsonOption, RecordsOption, UtcOption
from sparklog.cli.policy import policy
from sparklog.cli.produce import produce
from sparklog.cli.reassign_partitions import reassign_partitions
from sparklog.cli.running import broker, cluster
from sparklog.cli.scrub import repair, scrub
from sparklog.cli.state import state
from sparklog.cli.status import status
from sparklog.cli.upgrade import features, upgrade
from sparklog.errors import SparklogError, StorageError


class Commands(TyperGroup):
    """Commands whose expected errors are printed as one line, with their exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except SparklogError:
            from sparklog.cli.application import one_line_errors

            with one_line_errors():
                raise


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A replicated log in Delta tables, kept by Spark jobs instead of brokers.",
)
app.add_typer(topics.app, name="topics")
app.add_typer(configs.app, name="configs")
app.add_typer(configs.app, name="config", hidden=True)
app.add_typer(brokers.app, name="brokers")
app.add_typer(consumer_groups.app, name="consumer-groups")
app.add_typer(checkpoints.app, name="checkpoints")
app.command("broker")(broker)
app.command("cluster")(cluster)
app.command("produce")(produce)
app.command("consume")(consume)
app.command("audit")(audit)
app.command("maintain")(maintain)
app.command("scrub")(scrub)
app.command("repair")(repair)
app.command("get-offsets")(get_offsets)
app.command("delete-records")(delete_records)
app.command("log-dirs")(log_dirs)
app.command("reassign-partitions")(reassign_partitions)
app.command("elect-leaders")(elect_leaders)
app.command("state")(state)
app.command("backup")(backup)
app.command("restore")(restore)
app.command("status")(status)
app.command("policy")(policy)
app.command("upgrade")(upgrade)
app.command("features")(features)


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"sparklog {sparklog.__version__}")
        raise typer.Exit


@app.callback()
def before_any_command(
    storage_options: StorageOptionsOption = None,
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """A replicated log in Delta tables, kept by Spark jobs instead of brokers."""
    given_storage_options.set(storage_options)


def main() -> None:
    """Run the command of this process's arguments; return if it ends with exit code 0.

    The entry point of the wheel. A task of Databricks calls it within its own interpreter, where a
    `SystemExit` counts as a failure, even with code 0.
    """
    try:
        app(prog_name="sparklog")
    except SystemExit as end:
        if end.code:
            raise


@app.command("format")
def format_(cluster: ClusterOption, as_json: JsonOption = False) -> None:
    """Create a cluster: the tables of its root, in a new or empty folder or prefix.

    Brokers create their own roots when they start. An existing cluster is not
    changed.
    """
    from sparklog.cli import output
    from sparklog.cluster.roots import ClusterRoot

    location = Cluster.of(cluster).location()
    with reaching(location.uri):
        try:
            root = ClusterRoot(location)
            text = f"{location.uri} holds cluster {root.cluster_id}; nothing was changed."
            is_new = False
        except StorageError:
            root = ClusterRoot.create(location)
            text = f"Created cluster {root.cluster_id} in {location.uri}."
            is_new = True
    outcome = {"cluster_id": root.cluster_id, "root": location.uri, "created": is_new}
    output.print_outcome(outcome, text, as_json=as_json)


@app.command()
def query(
    statement: Annotated[str, typer.Argument(help="A SELECT statement, in DuckDB's SQL.")],
    cluster: ClusterOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of objects.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV; NULL is an empty field.")
    ] = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="TIME",
            help='The tables as they were then: ISO 8601, or as in "10 minutes ago".',
        ),
    ] = None,
    as_records: RecordsOption = False,
    utc: UtcOption = False,
) -> None:
    """Run a SELECT statement over the cluster's tables, and print its rows.

    Tables of the cluster root: brokers, controller, topics, partition_state,
    leadership_history, partition_history, controller_history, producer_ids,
    stream_writes, consumer_groups, consumer_group_heartbeats, consumer_offsets,
    scrubs, repairs, configs.

    Tables of the broker roots, with broker_id as their first column:
    high_watermark_checkpoint, leader_epoch_checkpoint and delayed_operations
    (the newest state, from the journals), producer_state, produce_requests,
    cleaner_offset_checkpoint, truncations, replica_history, refusals,
    high_watermark_history, and batches, one row per record batch. DESCRIBE shows
    a table's columns.

    Views: leader_imbalance, isr_history, elections, config_history,
    group_history, replica_progress and lag.
    docs/questions.md has questions about the past and the queries that answer
    them.

    Rows that are wider than the terminal are printed as records, a line per
    value. Columns of times are printed as times; they are ms since 1970 in
    statements, JSON and CSV.

    With --as-of each table is read in its newest version that is not younger
    than TIME: topics, partition_state, configs, consumer_groups and
    high_watermark_checkpoint reach back metadata.history.retention.ms, batches an
    hour, other tables 10 minutes. A table without rows of TIME is refused with
    the earliest time; in a view, the columns that need it are null, which a line
    on stderr says. --as-of is refused for leader_epoch_checkpoint,
    delayed_operations and produce_requests.

    A broker root that cannot be read is left out and named on stderr. Records
    need Spark: see the view records of sparklog.cluster.views.
    """
    from sparklog.cli import output, sql
    from sparklog.cli.times import read_past_time_ms

    if as_json and as_csv:
        raise SparklogError("--json and --csv are both given: choose one of them")
    then = None
    if as_of is not None:
        now_ms = time.time_ns() // 1_000_000
        then = sql.AsOf(read_past_time_ms(as_of, "--as-of", now_ms, utc=utc), utc)
        if then.time_ms > now_ms:
            raise SparklogError(f"--as-of {as_of!r} is in the future: give a time that has passed")
    answer = sql.query(statement, Cluster.of(cluster), then)
    for line in answer.left_out:
        typer.echo(f"sparklog: {line}", err=True)
    if as_json:
        output.print_json(answer.rows)
    elif as_csv:
        output.print_csv(answer.rows)
    else:
        output.print_table(answer.rows, utc=utc, as_records=as_records)
