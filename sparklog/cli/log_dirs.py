"""`sparklog log-dirs`: the log directories of brokers, in the format of Kafka's kafka-log-dirs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.name_completion import complete_broker_list, complete_topic_list
from sparklog.cli.options import JsonOption
from sparklog.errors import ConfigError

if TYPE_CHECKING:
    from sparklog.cluster.log_dirs import LogDirDescription


def log_dirs(
    cluster: ClusterOption,
    describe: Annotated[
        bool, typer.Option("--describe", help="Describe the log directories.")
    ] = False,
    broker_list: Annotated[
        str | None,
        typer.Option(
            metavar="IDS",
            help="Broker ids, separated by commas; all by default.",
            autocompletion=complete_broker_list,
        ),
    ] = None,
    topic_list: Annotated[
        str | None,
        typer.Option(
            metavar="TOPICS",
            help="Topics, separated by commas; all by default.",
            autocompletion=complete_topic_list,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the log directories of brokers as JSON: state, replicas, their sizes and lags.

    The format is that of Kafka's kafka-log-dirs.sh, whose first two lines are
    left out with --json, with the number, the id
    and the state of each directory in addition. A directory that is offline has
    an error and no partitions. Exit code 1 if a directory has an error.
    """
    from sparklog.cluster.admin import Admin

    if not describe:
        raise ConfigError("log-dirs has one action: give --describe")
    named = Cluster.of(cluster)
    broker_ids = None if broker_list is None else [_broker_id(one) for one in _split(broker_list)]
    topics = None if topic_list is None else _split(topic_list)
    with reaching(named.root):
        admin = Admin(named.connect(), settings=named.settings)
        if not as_json:
            typer.echo("Querying brokers for log directories information")
        found = admin.describe_log_dirs(broker_ids, topics)
    if not as_json:
        ids = ",".join(map(str, sorted(found)))
        typer.echo(f"Received log directory information from brokers {ids}")
    brokers = [
        {"broker": broker_id, "logDirs": [_json(one) for one in directories]}
        for broker_id, directories in found.items()
    ]
    typer.echo(json.dumps({"version": 1, "brokers": brokers}))
    if any(one.error for directories in found.values() for one in directories):
        raise typer.Exit(1)


def _json(directory: LogDirDescription) -> dict[str, Any]:
    return {
        "logDir": directory.path,
        "error": directory.error,
        "number": directory.number,
        "id": directory.directory_id,
        "state": "online" if directory.is_online else "offline",
        "partitions": [
            {
                "partition": str(partition),
                "size": replica.size,
                "offsetLag": replica.offset_lag,
                "isFuture": False,
            }
            for partition, replica in directory.replicas.items()
        ],
    }


def _split(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _broker_id(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--broker-list has {text!r}: give broker ids such as 0,1") from None
