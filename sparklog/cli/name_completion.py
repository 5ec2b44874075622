"""Completion of names in shells: topics, groups, brokers, client ids, and configuration keys.

The names are read in a process of its own, which is killed after SPARKLOG_COMPLETION_SECONDS: the
libraries of object stores print warnings, and retry for longer than a person waits. A completion
never raises or prints; a cluster that cannot be read has no names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from sparklog.cluster.connection import Connection

_TIMEOUT = "SPARKLOG_COMPLETION_SECONDS"
"""The environment variable with the longest time in s that a completion waits for names."""

_DEFAULT_TIMEOUT = "5"
"""In s: reading a local cluster takes 1 s, most of it for imports."""

_READ = "from sparklog.cli.name_completion import print_names; print_names()"


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics of the command's cluster that begin with `incomplete`."""
    return _named("topics", ctx, incomplete)


def complete_topic_list(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `incomplete`, topics separated by commas, with each topic that may be its last."""
    return _listed("topics", ctx, incomplete)


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the consumer groups that begin with `incomplete`, without those given before."""
    return _named("groups", ctx, incomplete)


def complete_brokers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of registered brokers that begin with `incomplete`."""
    return _named("brokers", ctx, incomplete)


def complete_broker_list(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `incomplete`, ids separated by commas, with each broker that may be its last."""
    return _listed("brokers", ctx, incomplete)


def complete_clients(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the client ids with quotas that begin with `incomplete`."""
    return _named("clients", ctx, incomplete)


def complete_entities(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of entities of the given --entity-type, topics by default."""
    return _named(_entity_type(ctx), ctx, incomplete)


def complete_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the configuration keys that begin with `incomplete`; no cluster is read."""
    return _read("keys", ctx, incomplete)


def complete_key_list(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `incomplete`, keys separated by commas, with each key of the entity for its last."""
    return _listed(f"{_entity_type(ctx)}-keys", ctx, incomplete)


def complete_key_values(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `incomplete`, key=value pairs separated by commas, with each key for its last."""
    return [f"{one}=" for one in complete_key_list(ctx, incomplete)]


def complete_topic_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the keys of topics that begin with `incomplete`, each with an equals sign."""
    return [f"{one}=" for one in _read("topics-keys", ctx, incomplete)]


def _entity_type(ctx: typer.Context) -> str:
    """Return the type of entity that the options before the cursor name."""
    if ctx.params.get("broker") is not None or ctx.params.get("broker_defaults"):
        return "brokers"
    if ctx.params.get("client") is not None or ctx.params.get("client_defaults"):
        return "clients"
    given = ctx.params.get("entity_type") or "topics"
    # An enum, or its text if click has not converted it.
    return str(getattr(given, "value", given))


def _named(kind: str, ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names that are not among the arguments before the cursor."""
    given = {
        str(one)
        for values in ctx.params.values()
        if isinstance(values, (list, tuple))
        for one in values
    }
    return [one for one in _read(kind, ctx, incomplete) if one not in given]


def _listed(kind: str, ctx: typer.Context, incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    given = {one.partition("=")[0] for one in before.split(",")}
    return [f"{before}{comma}{one}" for one in _read(kind, ctx, last) if one not in given]


def _read(kind: str, ctx: typer.Context, prefix: str) -> list[str]:
    """Return the names of a kind that begin with `prefix`, in a process of its own."""
    try:
        cluster = str(ctx.params.get("cluster") or "")
        if cluster.startswith("~"):
            # A shell expands it before it runs a command, but not before it asks for completions.
            cluster = str(Path(cluster).expanduser())
        options = ctx.find_root().params.get("storage_options")
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        if options is not None:
            environment["SPARKLOG_STORAGE_OPTIONS"] = str(options)
        found = subprocess.run(
            [sys.executable, "-c", _READ, kind, cluster, prefix],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=float(os.environ.get(_TIMEOUT, _DEFAULT_TIMEOUT)),
            check=True,
            encoding="utf-8",
        )
    except Exception:  # noqa: BLE001 - an error would be printed into the line that is edited
        return []
    return found.stdout.splitlines()


def print_names() -> None:
    """Print the names of a kind that begin with a prefix; its arguments are those of `_read`."""
    kind, cluster, prefix = sys.argv[1:]
    # A line is a name, and shells divide lines into words.
    names = (one for one in _NAMES[kind](cluster) if len(one.split()) == 1)
    sys.stdout.write("".join(f"{one}\n" for one in sorted(names) if one.startswith(prefix)))


def _topics(cluster: str) -> Iterable[str]:
    from sparklog.cluster.admin import Admin

    return Admin(_connection(cluster)).list_topics()


def _groups(cluster: str) -> Iterable[str]:
    from sparklog.groups.admin import GroupAdmin

    return [one.group_id for one in GroupAdmin(_connection(cluster)).list_groups()]


def _brokers(cluster: str) -> Iterable[str]:
    from sparklog.cluster.admin import Admin

    return [str(one.broker.broker_id) for one in Admin(_connection(cluster)).list_brokers()]


def _clients(cluster: str) -> Iterable[str]:
    from sparklog.cluster.admin import Admin

    found = Admin(_connection(cluster)).describe_client_quotas()
    return [one for one in found if one is not None]


def _connection(cluster: str) -> Connection:
    from sparklog.cli.cluster import Cluster, given_storage_options

    given_storage_options.set(os.environ.get("SPARKLOG_STORAGE_OPTIONS"))
    return Cluster.of(cluster).connect()


def _keys(_: str) -> Iterable[str]:
    from sparklog.cli.explain import all_explanations

    return {one.key for one in all_explanations()}


def _keys_of_topics(_: str) -> Collection[str]:
    from sparklog.config import TopicConfig

    return [field.alias or name for name, field in TopicConfig.model_fields.items()]


def _keys_of_brokers(_: str) -> Collection[str]:
    from sparklog.cluster.dynamic_configs import DYNAMIC_BROKER_KEYS

    return DYNAMIC_BROKER_KEYS


def _keys_of_clients(_: str) -> Collection[str]:
    from sparklog.config import ClientQuotas

    return [field.alias or name for name, field in ClientQuotas.model_fields.items()]


_NAMES: dict[str, Callable[[str], Iterable[str]]] = {
    "topics": _topics,
    "groups": _groups,
    "brokers": _brokers,
    "clients": _clients,
    "keys": _keys,
    "topics-keys": _keys_of_topics,
    "brokers-keys": _keys_of_brokers,
    "clients-keys": _keys_of_clients,
}
"""The names of each kind, by the text that names the cluster."""
