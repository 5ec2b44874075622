"""Values of settings as Kafka's tools print them, and the values of one key in a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sparklog.cli.times import time_text
from sparklog.errors import ConfigError

if TYPE_CHECKING:
    from sparklog.cluster.admin import Admin
    from sparklog.cluster.topic_admin import ConfigEntry
    from sparklog.storage.location import Location

SOURCES = {
    "topic": "DYNAMIC_TOPIC_CONFIG",
    "dynamic broker": "DYNAMIC_BROKER_CONFIG",
    "dynamic default": "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "broker": "STATIC_BROKER_CONFIG",
    "default": "DEFAULT_CONFIG",
}
"""Kafka's names of the sources of a value."""

_OWN = ("topic", "dynamic broker")
"""The sources of a value that one topic or one broker sets itself."""


class ValueInForce(NamedTuple):
    """The value of a key for a topic or a broker, or for all that do not set it themselves.

    `entity` is topics or brokers, and `name` is `None` for all others.
    """

    entity: str
    name: str | None
    entry: ConfigEntry

    @property
    def text(self) -> str:
        """The value with its source, and the values that would take its place in turn."""
        whose = f"all {self.entity}" if self.name is None else f"{self.entity[:-1]} {self.name}"
        text = f"{shown(self.entry)} for {whose} ({SOURCES[self.entry.source]})"
        hidden = [
            f"{one.value} ({SOURCES[one.source]}:{one.name})" for one in self.entry.synonyms[1:]
        ]
        return f"{text}; without it {', then '.join(hidden)}" if hidden else text

    @property
    def fields(self) -> dict[str, object]:
        """The value as JSON."""
        return {
            "entity_type": self.entity,
            "entity_name": self.name,
            "value": self.entry.value,
            "source": SOURCES[self.entry.source],
            "synonyms": [
                {"source": SOURCES[one.source], "name": one.name, "value": one.value}
                for one in self.entry.synonyms
            ],
        }


class LastChange(NamedTuple):
    """The newest change of a key's dynamic value that the history has.

    `entity` is topics or brokers, and `name` is `None` for all brokers. A value is `None` where the
    entity does not set the key.
    """

    at_ms: int
    entity: str
    name: str | None
    value_before: str | None
    value: str | None
    operation: str | None

    @property
    def text(self) -> str:
        """The time, whose value it is, and the values before and after."""
        whose = f"all {self.entity}" if self.name is None else f"{self.entity[:-1]} {self.name}"
        before, after = (
            "not set" if one is None else one for one in (self.value_before, self.value)
        )
        return f"{time_text(self.at_ms, utc=False)}, {whose}: {before} -> {after}"

    @property
    def fields(self) -> dict[str, object]:
        """The change as JSON, by the columns of `config_history`."""
        return {
            "at_ms": self.at_ms,
            "entity_type": self.entity,
            "entity_name": self.name,
            "value_before": self.value_before,
            "value": self.value,
            "operation": self.operation,
        }


def last_changes(root: Location, key: str, name: str | None) -> dict[str, LastChange]:
    """Return the newest change of a key by entity: topics or brokers.

    Parameters: `root`, that of the cluster; `name`, the topic or broker whose value is asked for,
    `None` for all. The value that all brokers share is also that of each.
    """
    from sparklog.cluster.config_past import config_past
    from sparklog.cluster.dynamic_configs import DEFAULT_ENTITY

    found: dict[str, LastChange] = {}
    for row in config_past(root).to_pylist():
        of = row["entity_name"] if row["entity_name"] != DEFAULT_ENTITY else None
        if row["key"] == key and (name is None or of in (name, None)):
            values = (row[one] for one in ("value_before", "value", "operation"))
            change = LastChange(row["at_ms"], row["entity_type"], of, *values)
            found[change.entity] = change
    return found


def shown(entry: ConfigEntry) -> str:
    """Return the value as text, null if there is none."""
    return "null" if entry.value is None else entry.value


def synonyms(entry: ConfigEntry) -> str:
    """Return the value and those that would take its place, each with its source and key."""
    return ", ".join(f"{SOURCES[one.source]}:{one.name}={one.value}" for one in entry.synonyms)


def values_of_topics(admin: Admin, key: str, name: str | None) -> list[ValueInForce]:
    """Return the value of a key for topic `name`, or for all topics and those that set it.

    Raises `ConfigError` if topic `name` is given and topics have no such key.
    """
    names = admin.list_topics() if name is None else [name]
    found = {one: entry for one in names if (entry := admin.describe_configs(one).get(key))}
    if name is not None:
        if name not in found:
            raise _no_setting(key, "topics")
        return [ValueInForce("topics", name, found[name])]
    own = {one: entry for one, entry in found.items() if entry.source in _OWN}
    others = [entry for one, entry in found.items() if one not in own]
    shared = others[:1] or [_without_own(entry) for entry in [*own.values()][:1]]
    return [
        *(ValueInForce("topics", None, entry) for entry in shared),
        *(ValueInForce("topics", one, entry) for one, entry in own.items()),
    ]


def values_of_brokers(admin: Admin, key: str, broker_id: int | None) -> list[ValueInForce]:
    """Return the value of a key for a broker, or for all brokers and those that set it.

    Raises `ConfigError` if `broker_id` is given and brokers have no such key.
    """
    shared = admin.describe_broker_configs(broker_id)
    if key not in shared:
        if broker_id is not None:
            raise _no_setting(key, "brokers")
        return []
    if broker_id is not None:
        return [ValueInForce("brokers", str(broker_id), shared[key])]
    of_each = {one: admin.describe_broker_configs(one)[key] for one in registered_brokers(admin)}
    return [
        ValueInForce("brokers", None, shared[key]),
        *(
            ValueInForce("brokers", str(one), entry)
            for one, entry in of_each.items()
            if entry.source in _OWN
        ),
    ]


def registered_brokers(admin: Admin) -> list[int]:
    """Return the ids of the brokers that have settings: unregistered ones have none."""
    return [one.broker.broker_id for one in admin.list_brokers() if one.broker.is_registered]


def _without_own(entry: ConfigEntry) -> ConfigEntry:
    """Return the entry of a topic that does not set the key."""
    left = tuple(one for one in entry.synonyms if one.source not in _OWN)
    if not left:
        return entry._replace(value=None, source="default", synonyms=())
    return entry._replace(value=left[0].value, source=left[0].source, synonyms=left)


def _no_setting(key: str, entity: str) -> ConfigError:
    return ConfigError(
        f"{key} is not a setting of {entity}: `sparklog configs explain {key}` says where it is "
        "valid"
    )
