"""`sparklog topics`: creating, changing, deleting, listing and describing topics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.cli.name_completion import complete_topic_key, complete_topics
from sparklog.cli.name_patterns import is_name, matching, topics_matching
from sparklog.cli.options import JsonOption
from sparklog.cli.partition_filters import (
    AtMinIsr,
    Health,
    PartitionFilter,
    Unavailable,
    UnderMinIsr,
    UnderReplicated,
)
from sparklog.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    from sparklog.cluster.admin import Admin, TopicDescription

app = typer.Typer(no_args_is_help=True, help="Create, change, delete, list and describe topics.")

_TopicOrPattern = Annotated[
    str,
    typer.Argument(
        help="A topic, or a regular expression such as 'orders-.*'.",
        autocompletion=complete_topics,
    ),
]
_OptionalPattern = Annotated[
    str | None,
    typer.Argument(
        help="A topic, or a regular expression; by default all topics.",
        autocompletion=complete_topics,
    ),
]
_IfExists = Annotated[
    bool, typer.Option("--if-exists", help="Do nothing, with exit code 0, if there is no topic.")
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The new topic's name.")],
    cluster: ClusterOption,
    partitions: Annotated[
        int | None, typer.Option(help="Default: num.partitions of the configuration file, or 1.")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(help="Default: default.replication.factor of the configuration file, or 1."),
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option(
            metavar="0:1:2,1:2:0,...",
            help="The brokers of each partition, the preferred leader first.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="One of Kafka's topic keys; may be repeated.",
            autocompletion=complete_topic_key,
        ),
    ] = None,
    if_not_exists: Annotated[
        bool,
        typer.Option(
            "--if-not-exists", help="Do nothing, with exit code 0, if the topic exists already."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a topic: place its replicas on the live brokers, and elect its leaders."""
    configs = _configs(config or [])
    assignment = None if replica_assignment is None else _assignment(replica_assignment)
    text: str | None = f"Created topic {name}."
    with _admin(cluster) as admin:
        try:
            created = admin.create_topic(
                name, partitions, replication_factor, assignment=assignment, configs=configs
            )
        except ProtocolError as error:
            if not if_not_exists or error.code.name != "TOPIC_ALREADY_EXISTS":
                raise
            created, text = admin.describe_topic(name), None
    _print_outcome(_as_json(created), text, as_json=as_json)


@app.command()
def alter(
    name: _TopicOrPattern,
    cluster: ClusterOption,
    partitions: Annotated[
        int, typer.Option(help="The new number of partitions, above the current one.")
    ],
    replica_assignment: Annotated[
        str | None,
        typer.Option(
            metavar="0:1:2,1:2:0,...",
            help="The brokers of each partition; those of existing partitions are ignored.",
        ),
    ] = None,
    if_exists: _IfExists = False,
    as_json: JsonOption = False,
) -> None:
    """Raise the number of partitions of a topic.

    Records with a key may go to another partition than before.
    """
    given = None if replica_assignment is None else _assignment(replica_assignment)
    outcomes = []
    with _admin(cluster) as admin:
        for topic in topics_matching(name, admin.list_topics(), if_exists=if_exists):
            new = None
            if given is not None:
                known = admin.describe_topic(topic).topic.partitions
                new = {number: brokers for number, brokers in given.items() if number >= known}
            grown = admin.create_partitions(topic, partitions, assignment=new)
            outcomes.append(_as_json(grown))
    _print_outcomes(name, outcomes, as_json=as_json)


@app.command()
def delete(
    name: _TopicOrPattern,
    cluster: ClusterOption,
    if_exists: _IfExists = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic with all of its records, for good; or all topics that a pattern matches."""
    with _admin(cluster) as admin:
        deleted = topics_matching(name, admin.list_topics(), if_exists=if_exists)
        for topic in deleted:
            admin.delete_topic(topic)
    outcomes = [{"topic": topic, "marked_for_deletion": True} for topic in deleted]
    _print_outcomes(name, outcomes, as_json=as_json)


@app.command("list")
def list_(
    cluster: ClusterOption,
    pattern: _OptionalPattern = None,
    under_replicated: UnderReplicated = False,
    under_min_isr: UnderMinIsr = False,
    at_min_isr: AtMinIsr = False,
    unavailable: Unavailable = False,
    as_json: JsonOption = False,
) -> None:
    """Print the names of all topics, one per line.

    A filter leaves the topics that have such partitions.
    """
    health = _health(under_replicated, under_min_isr, at_min_isr, unavailable)
    with _admin(cluster) as admin:
        names = admin.list_topics()
        deleted = [one.topic.topic for one in admin.list_topics_marked_for_deletion()]
        if pattern is not None:
            names, deleted = matching(pattern, names), matching(pattern, deleted)
        if health is not None:
            kept = PartitionFilter(admin, health)
            deleted = []
            names = [one for one in names if kept.of_topic(admin.describe_topic(one).partitions)]
    if as_json:
        from sparklog.cli import output

        topics = [{"topic": name, "marked_for_deletion": False} for name in names]
        topics += [{"topic": name, "marked_for_deletion": True} for name in deleted]
        output.print_value(topics)
        return
    for name in sorted([*names, *(f"{one} - marked for deletion" for one in deleted)]):
        typer.echo(name)


@app.command()
def describe(
    cluster: ClusterOption,
    name: _OptionalPattern = None,
    topic_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The topic with this id, in place of a name.")
    ] = None,
    under_replicated: UnderReplicated = False,
    under_min_isr: UnderMinIsr = False,
    at_min_isr: AtMinIsr = False,
    unavailable: Unavailable = False,
    topics_with_overrides: Annotated[
        bool,
        typer.Option(
            "--topics-with-overrides",
            help="Only topics that set a key themselves, without their partitions.",
        ),
    ] = False,
    if_exists: _IfExists = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of topics.")] = False,
) -> None:
    """Describe a topic, or all topics, in the format of Kafka's tool.

    A filter leaves such partitions, and prints no line of the topics.
    """
    health = _health(under_replicated, under_min_isr, at_min_isr, unavailable)
    if topics_with_overrides and health is not None:
        raise ConfigError(f"{health.value} and --topics-with-overrides are given: give one of them")
    if topic_id is not None and name is not None:
        raise ConfigError("--topic-id and a topic are given: give one of them")
    with _admin(cluster) as admin:
        names, deleted = admin.list_topics(), admin.list_topics_marked_for_deletion()
        if name is not None:
            of_deleted = matching(name, [one.topic.topic for one in deleted])
            deleted = [one for one in deleted if one.topic.topic in of_deleted]
            names = topics_matching(name, names, if_exists=if_exists or bool(deleted))
        found = [*(admin.describe_topic(one) for one in names), *deleted]
        if topic_id is not None:
            found = [one for one in found if one.topic.topic_id == topic_id]
            if not found and not if_exists:
                raise ProtocolError(
                    "UNKNOWN_TOPIC_OR_PARTITION",
                    f"there is no topic with id {topic_id!r}: see `sparklog topics describe`",
                )
        if topics_with_overrides:
            found = [one for one in found if _overrides(one)]
            found = [one._replace(partitions=()) for one in found]
        if health is not None:
            kept = PartitionFilter(admin, health)
            found = [one._replace(partitions=kept.of_topic(one.partitions)) for one in found]
            found = [one for one in found if one.partitions]
    if as_json:
        typer.echo(json.dumps([_as_json(one) for one in found], indent=2))
        return
    for description in found:
        lines = str(description).splitlines()
        typer.echo("\n".join(lines if health is None else lines[1:]))


def _health(
    under_replicated: bool, under_min_isr: bool, at_min_isr: bool, unavailable: bool
) -> Health | None:
    return Health.chosen(
        {
            Health.UNDER_REPLICATED: under_replicated,
            Health.UNDER_MIN_ISR: under_min_isr,
            Health.AT_MIN_ISR: at_min_isr,
            Health.UNAVAILABLE: unavailable,
        }
    )


def _overrides(description: TopicDescription) -> dict[str, Any]:
    return description.topic.config.model_dump(by_alias=True, exclude_none=True)


def _print_outcomes(name: str, outcomes: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print as JSON the outcome of one topic as an object, those of a pattern as an array."""
    from sparklog.cli import output

    if as_json:
        output.print_value(outcomes[0] if outcomes and is_name(name) else outcomes)


def _print_outcome(outcome: Mapping[str, Any], text: str | None, *, as_json: bool) -> None:
    from sparklog.cli import output

    output.print_outcome(outcome, text, as_json=as_json)


@contextmanager
def _admin(text: str) -> Iterator[Admin]:
    from sparklog.cluster.admin import Admin

    cluster = Cluster.of(text)
    with reaching(cluster.root):
        yield Admin(cluster.connect(), settings=cluster.settings)


def _configs(texts: Sequence[str]) -> dict[str, str]:
    configs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(
                f"--config {text!r} is not key=value: write it as in --config min.insync.replicas=2"
            )
        if key in configs:
            raise ConfigError(f"--config {key} is given twice: give it once")
        configs[key] = value
    return configs


def _assignment(text: str) -> dict[int, list[int]]:
    """Parse Kafka's format: partitions separated by commas, the replicas of each by colons."""
    try:
        return {
            partition: [int(broker_id) for broker_id in replicas.split(":")]
            for partition, replicas in enumerate(text.split(","))
        }
    except ValueError:
        raise ProtocolError(
            "INVALID_REPLICA_ASSIGNMENT",
            f"{text!r} does not name brokers: write their ids with ':' between the replicas "
            "of a partition and ',' between partitions, as in 0:1:2,1:2:0",
        ) from None


def _as_json(description: TopicDescription) -> dict[str, Any]:
    topic = description.topic
    marked = {"marked_for_deletion": True} if description.is_marked_for_deletion else {}
    return marked | {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "replication_factor": topic.replication_factor,
        "configs": _overrides(description),
        "partitions": [
            {
                "partition": state.partition,
                "leader": state.leader,
                "leader_epoch": state.leader_epoch,
                "partition_epoch": state.partition_epoch,
                "replicas": [one.broker_id for one in state.replicas],
                "isr": [one.broker_id for one in state.replicas if one.in_isr],
                "elr": [one.broker_id for one in state.replicas if one.in_elr],
                "adding_replicas": [one.broker_id for one in state.replicas if one.adding],
                "removing_replicas": [one.broker_id for one in state.replicas if one.removing],
            }
            for state in description.partitions
        ],
    }
