"""The `sparklog` command: creating a cluster, its topics, and looking into its state.

What a command needs is imported when it runs, so that help is there at once. Spark is needed only
where it is asked for.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sparklog.cli import brokers, checkpoints, consumer_groups, topics
from sparklog.cli.audit import audit
from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.get_offsets import get_offsets
from sparklog.errors import SparklogError, StorageError


class Commands(TyperGroup):
    """Commands whose errors, where they are foreseen, are one line and exit code 2."""

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
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A replicated log in Delta tables, kept by Spark jobs instead of brokers.",
)
app.add_typer(topics.app, name="topics")
app.add_typer(brokers.app, name="brokers")
app.add_typer(consumer_groups.app, name="consumer-groups")
app.add_typer(checkpoints.app, name="checkpoints")
app.command("audit")(audit)
app.command("get-offsets")(get_offsets)


@app.command("format")
def format_(cluster: ClusterOption) -> None:
    """Create a cluster: the tables of its root, in a new or empty folder or prefix.

    Brokers create their own roots when they start. A cluster that is there stays as it is.
    """
    from sparklog.storage.roots import ClusterRoot

    location = Cluster.of(cluster).location()
    with reaching(location.uri):
        try:
            root = ClusterRoot(location)
            outcome = f"{location.uri} holds cluster {root.cluster_id}; nothing was changed."
        except StorageError:
            root = ClusterRoot.create(location)
            outcome = f"Created cluster {root.cluster_id} in {location.uri}."
    typer.echo(outcome)


@app.command()
def query(
    statement: Annotated[str, typer.Argument(help="A SELECT statement, in DuckDB's SQL.")],
    cluster: ClusterOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of objects.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, NULL as nothing.")] = False,
) -> None:
    """Ask a cluster's state a question in SQL.

    The cluster's tables: brokers, controller, topics, partition_state,
    producer_ids, stream_writes, consumer_groups, consumer_group_heartbeats,
    consumer_offsets.

    What each broker holds, with a broker_id column first:
    high_watermark_checkpoint, leader_epoch_checkpoint, producer_state,
    produce_requests, delayed_operations, and batches, the
    record batches of its log. DESCRIBE shows a table's columns.

    The records themselves are not offered, they need Spark: see the view
    records of sparklog.clients.views.
    """
    from sparklog.cli import output, sql

    if as_json and as_csv:
        raise SparklogError("--json and --csv are both given: choose one of them")
    answer = sql.query(statement, Cluster.of(cluster))
    for line in answer.left_out:
        typer.echo(f"sparklog: {line}", err=True)
    if as_json:
        output.print_json(answer.rows)
    elif as_csv:
        output.print_csv(answer.rows)
    else:
        output.print_table(answer.rows)
