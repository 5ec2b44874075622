"""`sparklog elect-leaders`: preferred and unclean elections, as kafka-leader-election.sh does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.name_completion import complete_topics
from sparklog.cli.options import JsonOption
from sparklog.errors import ConfigError
from sparklog.storage.json_text import json_value

if TYPE_CHECKING:
    from sparklog.cluster.metadata import Metadata
    from sparklog.model import TopicPartition


class Election(str, Enum):
    """The type of an election."""

    PREFERRED = "preferred"
    UNCLEAN = "unclean"


def elect_leaders(
    cluster: ClusterOption,
    election_type: Annotated[
        Election,
        typer.Option(
            case_sensitive=False,
            help="preferred: the first assigned replica; unclean: any live replica of a partition "
            "without a leader, which may lose committed records.",
        ),
    ],
    topic: Annotated[
        str | None,
        typer.Option(help="A topic; with --partition.", autocompletion=complete_topics),
    ] = None,
    partition: Annotated[int | None, typer.Option(help="A partition of the topic.", min=0)] = None,
    all_topic_partitions: Annotated[
        bool, typer.Option("--all-topic-partitions", help="All partitions of all topics.")
    ] = False,
    path_to_json_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='{"partitions": [{"topic": "t", "partition": 0}]}'),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Elect the leaders of some or all partitions, as kafka-leader-election.sh does.

    No broker has to run. The exit code is 1 if a leader could not be elected.
    """
    from sparklog.cli import output
    from sparklog.cluster.admin import Admin
    from sparklog.model import TopicPartition

    is_one = topic is not None or partition is not None
    if is_one + all_topic_partitions + (path_to_json_file is not None) != 1:
        raise ConfigError(
            "name the partitions in one way: --topic and --partition, --all-topic-partitions, or "
            "--path-to-json-file"
        )
    if is_one and (topic is None or partition is None):
        raise ConfigError("--topic and --partition belong together: give both")
    of_file = _partitions(path_to_json_file) if path_to_json_file is not None else None
    named = Cluster.of(cluster)
    with reaching(named.root):
        connection = named.connect()
        metadata = connection.metadata()
        if of_file is not None:
            asked = of_file
        elif topic is not None and partition is not None:
            asked = [TopicPartition(topic, partition)]
        else:
            states = metadata.partitions.values()
            asked = sorted(TopicPartition(one.topic, one.partition) for one in states)
        known = _known(metadata, asked)
        admin = Admin(connection, settings=named.settings)
        found = admin.elect_leaders(election_type.value, known) if known else {}
    errors = {one: found.get(one, "UNKNOWN_TOPIC_OR_PARTITION") for one in asked}
    if as_json:
        output.print_value([one._asdict() | {"error": error} for one, error in errors.items()])
    failed = _failed(errors)
    if not as_json:
        _print(election_type.name, errors, failed)
    if failed:
        raise typer.Exit(1)


def _known(metadata: Metadata, asked: Sequence[TopicPartition]) -> list[TopicPartition]:
    from sparklog.model import TopicPartition

    names = {TopicPartition(one.topic, one.partition) for one in metadata.partitions.values()}
    return [one for one in asked if one in names]


def _failed(errors: dict[TopicPartition, str]) -> dict[TopicPartition, str]:
    return {
        one: error for one, error in errors.items() if error not in ("NONE", "ELECTION_NOT_NEEDED")
    }


def _print(
    election_type: str, errors: dict[TopicPartition, str], failed: dict[TopicPartition, str]
) -> None:
    """Print the outcome in the words of Kafka's tool."""
    from sparklog.errors import ERROR_CODES

    elected = [str(one) for one, error in errors.items() if error == "NONE"]
    valid = [str(one) for one, error in errors.items() if error == "ELECTION_NOT_NEEDED"]
    if elected:
        typer.echo(
            f"Successfully completed leader election ({election_type}) for partitions "
            f"{', '.join(elected)}"
        )
    if valid:
        typer.echo(f"Valid replica already elected for partitions {', '.join(valid)}")
    for one, error in failed.items():
        typer.echo(
            f"Error completing leader election ({election_type}) for partition: {one}: "
            f"{error}: {ERROR_CODES[error].sentence}"
        )
    if failed:
        typer.echo(f"{len(failed)} replica(s) could not be elected")


def _partitions(file: Path) -> list[TopicPartition]:
    """Return the partitions in a file of Kafka's format; `ConfigError` if it has another one."""
    try:
        given = json_value(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None
    entries = given.get("partitions") if isinstance(given, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f'{file} must be an object with the list "partitions"')
    partitions = [_partition(file, entry) for entry in entries]
    for one in partitions:
        if partitions.count(one) > 1:
            raise ConfigError(f"{file} has the partition {one} twice: name each once")
    return partitions


def _partition(file: Path, entry: Any) -> TopicPartition:
    from sparklog.model import TopicPartition

    names = TopicPartition._fields
    values: list[Any] = [entry.get(name) for name in names] if isinstance(entry, dict) else []
    if [type(value) for value in values] != [str, int]:
        raise ConfigError(
            f"{file} has {json.dumps(entry)} for a partition: it needs a topic (text) and a "
            "partition (whole number)"
        )
    return TopicPartition(*values)
