"""`sparklog configs`: describing and changing the settings of topics, as kafka-configs.sh does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, reaching
from sparklog.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    from sparklog.cluster.admin import Admin
    from sparklog.cluster.topic_admin import ConfigEntry

app = typer.Typer(no_args_is_help=True, help="Describe and change the settings of topics.")

_SOURCES = {
    "topic": "DYNAMIC_TOPIC_CONFIG",
    "broker": "STATIC_BROKER_CONFIG",
    "default": "DEFAULT_CONFIG",
}
"""Kafka's names of the sources of a value."""

_EntityType = Annotated[
    str, typer.Option(metavar="topics", help="topics; brokers take settings at their start only.")
]


@app.command()
def describe(
    cluster: ClusterOption,
    entity_type: _EntityType = "topics",
    entity_name: Annotated[
        str | None, typer.Option(help="A topic's name; by default all topics.")
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Print also the settings that the topic does not set.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of topics.")] = False,
) -> None:
    """Print the settings of a topic, or of all topics, in the format of Kafka's tool."""
    _check_type(entity_type)
    with _admin(cluster) as admin:
        names = admin.list_topics() if entity_name is None else [entity_name]
        found = {name: admin.describe_configs(name) for name in names}
    shown = {
        name: [one for one in entries.values() if is_all or one.source == "topic"]
        for name, entries in found.items()
    }
    if as_json:
        typer.echo(json.dumps([_as_json(name, of) for name, of in shown.items()], indent=2))
        return
    kind = "All" if is_all else "Dynamic"
    for name, entries in shown.items():
        typer.echo(f"{kind} configs for topic {name} are:")
        for one in entries:
            typer.echo(f"  {_line(one)}")


@app.command()
def alter(
    cluster: ClusterOption,
    entity_name: Annotated[str, typer.Option(help="The topic's name.")],
    entity_type: _EntityType = "topics",
    add_config: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE,...", help="Settings; [a,b] is a value with commas."),
    ] = None,
    delete_config: Annotated[
        str | None,
        typer.Option(metavar="KEY,...", help="Settings of the topic to be removed."),
    ] = None,
) -> None:
    """Change settings of a topic; the brokers use them from their next tick on."""
    _check_type(entity_type)
    new, removed = _added(add_config or ""), _names(delete_config or "")
    if not new and not removed:
        raise ConfigError("nothing is to be changed: give --add-config or --delete-config")
    with _admin(cluster) as admin:
        entries = admin.describe_configs(entity_name)
        absent = [one for one in removed if one in entries and entries[one].source != "topic"]
        if absent:
            raise ProtocolError(
                "INVALID_CONFIG",
                f"topic {entity_name} does not set {absent[0]}: leave it out of --delete-config",
            )
        admin.alter_configs(entity_name, new, delete=removed)
    typer.echo(f"Completed updating config for topic {entity_name}.")


@contextmanager
def _admin(text: str) -> Iterator[Admin]:
    from sparklog.cluster.admin import Admin

    cluster = Cluster.of(text)
    with reaching(cluster.root):
        yield Admin(cluster.connect(), settings=cluster.settings)


def _check_type(entity_type: str) -> None:
    if entity_type != "topics":
        raise ConfigError(
            f"--entity-type {entity_type} has no settings that can be changed while the cluster "
            "runs: give topics, or change the configuration file and restart the brokers"
        )


def _names(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _added(text: str) -> dict[str, str]:
    """Parse Kafka's format: key=value pairs separated by commas; [a,b] is a value with commas."""
    configs: dict[str, str] = {}
    for pair in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text):
        key, equals, value = pair.strip().partition("=")
        if not key or not equals:
            raise ConfigError(
                f"--add-config {pair!r} is not key=value: write it as in "
                "--add-config min.insync.replicas=2"
            )
        if key in configs:
            raise ConfigError(f"--add-config {key} is given twice: give it once")
        configs[key] = value.removeprefix("[").removesuffix("]")
    return configs


def _line(entry: ConfigEntry) -> str:
    synonyms = ", ".join(f"{_SOURCES[one.source]}:{one.name}={one.value}" for one in entry.synonyms)
    value = "null" if entry.value is None else entry.value
    return f"{entry.name}={value} sensitive=false synonyms={{{synonyms}}}"


def _as_json(topic: str, entries: list[ConfigEntry]) -> dict[str, Any]:
    return {
        "topic": topic,
        "configs": [
            {"name": one.name, "value": one.value, "source": one.source} for one in entries
        ],
    }
