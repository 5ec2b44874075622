"""`sparklog configs`: settings of topics and brokers, quotas of clients, as kafka-configs.sh."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.cluster import Cluster, ClusterOption, OptionalClusterOption, reaching
from sparklog.cli.config_values import (
    last_changes,
    registered_brokers,
    shown,
    synonyms,
    values_of_brokers,
    values_of_topics,
)
from sparklog.cli.name_completion import (
    complete_brokers,
    complete_clients,
    complete_entities,
    complete_key_list,
    complete_key_values,
    complete_keys,
    complete_topics,
)
from sparklog.cli.options import JsonOption
from sparklog.cli.properties_files import read_properties
from sparklog.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    from sparklog.cli.config_values import LastChange, ValueInForce
    from sparklog.cluster.admin import Admin
    from sparklog.cluster.topic_admin import ConfigEntry

app = typer.Typer(
    no_args_is_help=True,
    help="Describe and change settings of topics and brokers, and quotas of clients.",
)


class _Entity(str, Enum):
    TOPICS = "topics"
    BROKERS = "brokers"
    CLIENTS = "clients"
    USERS = "users"


_EntityType = Annotated[_Entity, typer.Option(help="There are no users here.")]
_EntityDefault = Annotated[
    bool, typer.Option("--entity-default", help="All brokers, or all client ids.")
]


_Topic = Annotated[
    str | None,
    typer.Option(help="A topic: short for --entity-name.", autocompletion=complete_topics),
]
_Broker = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="A broker: short for --entity-type brokers.",
        autocompletion=complete_brokers,
    ),
]
_Client = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="A client id: short for --entity-type clients.",
        autocompletion=complete_clients,
    ),
]
_BrokerDefaults = Annotated[bool, typer.Option("--broker-defaults", help="All brokers.")]
_ClientDefaults = Annotated[bool, typer.Option("--client-defaults", help="All client ids.")]


@app.command()
def describe(
    cluster: ClusterOption,
    entity_type: _EntityType = _Entity.TOPICS,
    entity_name: Annotated[
        str | None,
        typer.Option(
            help="A topic, the id of a broker, or a client id; by default all.",
            autocompletion=complete_entities,
        ),
    ] = None,
    entity_default: _EntityDefault = False,
    topic: _Topic = None,
    broker: _Broker = None,
    client: _Client = None,
    broker_defaults: _BrokerDefaults = False,
    client_defaults: _ClientDefaults = False,
    is_all: Annotated[
        bool, typer.Option("--all", help="Print also the settings that it does not set itself.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
) -> None:
    """Print settings or quotas in the format of Kafka's tool.

    Values of the brokers' configuration file are shown if --cluster names it.
    """
    entity_type, entity_name, entity_default = _entity(
        (entity_type, entity_name, entity_default),
        {_Entity.TOPICS: topic, _Entity.BROKERS: broker, _Entity.CLIENTS: client},
        {_Entity.BROKERS: broker_defaults, _Entity.CLIENTS: client_defaults},
    )
    _check(entity_type, entity_name, is_default=entity_default)
    with _admin(cluster) as admin:
        if entity_type is _Entity.CLIENTS:
            _print_quotas(admin, entity_name, is_default=entity_default, as_json=as_json)
            return
        if entity_type is _Entity.TOPICS:
            names = admin.list_topics() if entity_name is None else [entity_name]
            found = {f"topic {name}": admin.describe_configs(name) for name in names}
            own = "topic"
        elif entity_default:
            found = {"": admin.describe_broker_configs()}
            own = "dynamic default"
        else:
            chosen = registered_brokers(admin) if entity_name is None else [_broker_id(entity_name)]
            found = {f"broker {one}": admin.describe_broker_configs(one) for one in chosen}
            own = "dynamic broker"
    kind = entity_type.value.removesuffix("s")
    for name, entries in found.items():
        chosen_entries = [one for one in entries.values() if is_all or one.source == own]
        found[name] = {one.name: one for one in chosen_entries}
    if as_json:
        rows = [_as_json(kind, name, list(of.values())) for name, of in found.items()]
        typer.echo(json.dumps(rows, indent=2))
        return
    for name, entries in found.items():
        if name:
            typer.echo(f"{'All' if is_all else 'Dynamic'} configs for {name} are:")
        else:
            typer.echo("Default configs for brokers in the cluster are:")
        for one in entries.values():
            typer.echo(f"  {_line(one)}")


@app.command()
def explain(
    key: Annotated[
        str | None,
        typer.Argument(
            help="A key such as min.insync.replicas; by default all.",
            autocompletion=complete_keys,
        ),
    ] = None,
    cluster: OptionalClusterOption = None,
    entity_type: Annotated[
        _Entity | None, typer.Option(help="Show the values of topics or of brokers only.")
    ] = None,
    entity_name: Annotated[
        str | None,
        typer.Option(
            help="A topic, or the id of a broker: show its value only.",
            autocompletion=complete_entities,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the meaning of a key: description, default, values, places, and Kafka's default.

    With a cluster, also the values in force in it, with their sources: for all
    topics or brokers, and for each that sets the key itself; and the last
    change that the view config_history has. Without KEY all keys are listed,
    and no cluster is needed.
    """
    from sparklog.cli import explain as explaining
    from sparklog.cli import output

    found = explaining.all_explanations() if key is None else explaining.explanations(key)
    in_force: list[ValueInForce] = []
    changes: dict[str, LastChange] = {}
    if key is not None and cluster is not None:
        in_force = _values_in_force(cluster, key, entity_type, entity_name)
        named = Cluster.of(cluster)
        with reaching(named.root):
            changes = last_changes(named.location(), key, entity_name)
    elif entity_type is not None or entity_name is not None:
        raise ConfigError("values are those of a key in a cluster: give KEY and --cluster")
    if in_force and entity_name is not None:
        # Not the places in which this topic or broker has no value.
        found = explaining.with_values(found, in_force)
    if as_json:
        output.print_value([explaining.as_json(one, in_force, changes) for one in found])
    elif key is None:
        rows = [(one.key, one.default, "; ".join(one.valid_in)) for one in found]
        columns = dict.fromkeys(("key", "default", "valid_in"), "string")
        output.print_rows(rows, columns, as_json=False)
    else:
        typer.echo("\n\n".join(explaining.text_of(one, in_force, changes) for one in found))
        if in_force and Cluster.of(cluster or "").settings is None:
            typer.echo(
                "\nValues of the brokers' configuration file are shown if --cluster names it."
            )


def _values_in_force(
    cluster: str, key: str, entity_type: _Entity | None, name: str | None
) -> list[ValueInForce]:
    """Return the values of a key; a name alone is that of a topic, as for `describe`."""
    if entity_type is None and name is not None:
        entity_type = _Entity.TOPICS
    if entity_type in (_Entity.CLIENTS, _Entity.USERS):
        raise ConfigError(
            f"--entity-type {entity_type.value}: give topics or brokers; quotas are shown by "
            "`sparklog configs describe --entity-type clients`"
        )
    broker_id = _broker_id(name) if entity_type is _Entity.BROKERS and name is not None else None
    found: list[ValueInForce] = []
    with _admin(cluster) as admin:
        if entity_type is not _Entity.TOPICS:
            found += values_of_brokers(admin, key, broker_id)
        if entity_type is not _Entity.BROKERS:
            found += values_of_topics(admin, key, name)
    return found


@app.command()
def alter(
    cluster: ClusterOption,
    entity_name: Annotated[
        str | None,
        typer.Option(
            help="A topic, the id of a broker, or a client id.", autocompletion=complete_entities
        ),
    ] = None,
    entity_type: _EntityType = _Entity.TOPICS,
    entity_default: _EntityDefault = False,
    topic: _Topic = None,
    broker: _Broker = None,
    client: _Client = None,
    broker_defaults: _BrokerDefaults = False,
    client_defaults: _ClientDefaults = False,
    add_config: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Settings; [a,b] is a value with commas.",
            autocompletion=complete_key_values,
        ),
    ] = None,
    add_config_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A properties file with settings: key=value lines."),
    ] = None,
    delete_config: Annotated[
        str | None,
        typer.Option(
            metavar="KEY,...", help="Settings to be removed.", autocompletion=complete_key_list
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change settings or quotas; running brokers and clients take them without a restart."""
    from sparklog.cli import output

    entity_type, entity_name, entity_default = _entity(
        (entity_type, entity_name, entity_default),
        {_Entity.TOPICS: topic, _Entity.BROKERS: broker, _Entity.CLIENTS: client},
        {_Entity.BROKERS: broker_defaults, _Entity.CLIENTS: client_defaults},
    )
    _check(entity_type, entity_name, is_default=entity_default)
    if entity_name is None and not entity_default:
        raise ConfigError("name what is to be changed: give --entity-name or --entity-default")
    if add_config is not None and add_config_file is not None:
        raise ConfigError("--add-config and --add-config-file are given: give one of them")
    new, removed = _added(add_config or ""), _names(delete_config or "")
    if add_config_file is not None:
        # A list is given without brackets there: a line ends at its end.
        new = read_properties(add_config_file)
    if not new and not removed:
        raise ConfigError("nothing is to be changed: give --add-config or --delete-config")
    with _admin(cluster) as admin:
        if entity_type is _Entity.BROKERS:
            of = None if entity_name is None else _broker_id(entity_name)
            admin.alter_broker_configs(of, new, delete=removed)
        elif entity_type is _Entity.CLIENTS:
            admin.alter_client_quotas(entity_name, new, delete=removed)
        elif entity_name is not None:
            _alter_topic(admin, entity_name, new, removed)
    kind = entity_type.value.removesuffix("s")
    if entity_name is None:
        text = f"Completed updating default config for {entity_type.value} in the cluster."
    else:
        text = f"Completed updating config for {kind} {entity_name}."
    outcome = {kind: entity_name, "set": new, "removed": removed}
    output.print_outcome(outcome, text, as_json=as_json)


def _alter_topic(admin: Admin, name: str, new: dict[str, str], removed: list[str]) -> None:
    entries = admin.describe_configs(name)
    absent = [one for one in removed if one in entries and entries[one].source != "topic"]
    if absent:
        raise ProtocolError(
            "INVALID_CONFIG",
            f"topic {name} does not set {absent[0]}: leave it out of --delete-config",
        )
    admin.alter_configs(name, new, delete=removed)


def _print_quotas(admin: Admin, name: str | None, *, is_default: bool, as_json: bool) -> None:
    found = admin.describe_client_quotas()
    chosen = {
        of: quotas
        for of, quotas in found.items()
        if (of is None if is_default else name in (None, of))
    }
    if as_json:
        rows = [{"client_id": of, "quotas": quotas} for of, quotas in chosen.items()]
        typer.echo(json.dumps(rows, indent=2))
        return
    for of, quotas in chosen.items():
        whose = "the default client-id" if of is None else f"client-id '{of}'"
        values = ", ".join(f"{key}={float(value)}" for key, value in sorted(quotas.items()))
        typer.echo(f"Quota configs for {whose} are {values}")


@contextmanager
def _admin(text: str) -> Iterator[Admin]:
    from sparklog.cluster.admin import Admin

    cluster = Cluster.of(text)
    with reaching(cluster.root):
        yield Admin(cluster.connect(), settings=cluster.settings)


def _entity(
    given: tuple[_Entity, str | None, bool],
    names: Mapping[_Entity, str | None],
    defaults: Mapping[_Entity, bool],
) -> tuple[_Entity, str | None, bool]:
    """Return the entity that is named: by its type and name, or by an option of the type's own."""
    short: list[tuple[_Entity, str | None, bool]] = [
        (of, name, False) for of, name in names.items() if name is not None
    ]
    short += [(of, None, True) for of, is_given in defaults.items() if is_given]
    _, name, is_default = given
    if len(short) + (name is not None or is_default) > 1:
        raise ConfigError(
            "several entities are given: give one of --entity-name, --entity-default, --topic, "
            "--broker, --broker-defaults, --client, --client-defaults"
        )
    return short[0] if short else given


def _check(entity_type: _Entity, name: str | None, *, is_default: bool) -> None:
    if entity_type is _Entity.USERS:
        raise ConfigError(
            "--entity-type users: clients do not authenticate here, so quotas are those of client "
            "ids: give clients"
        )
    if is_default and (name is not None or entity_type is _Entity.TOPICS):
        raise ConfigError(
            "--entity-default stands for all brokers or all client ids: give it with "
            "--entity-type brokers or clients, and without --entity-name"
        )


def _broker_id(name: str) -> int:
    if not re.fullmatch(r"\d{1,9}", name, re.ASCII):
        raise ConfigError(f"--entity-name {name} is not the id of a broker: give a whole number")
    return int(name)


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
    return f"{entry.name}={shown(entry)} sensitive=false synonyms={{{synonyms(entry)}}}"


def _as_json(kind: str, name: str, entries: list[ConfigEntry]) -> dict[str, Any]:
    return {
        kind: name.removeprefix(f"{kind} ") or None,
        "configs": [
            {"name": one.name, "value": one.value, "source": one.source} for one in entries
        ],
    }
