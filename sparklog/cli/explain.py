"""Explanations of configuration keys: where they are valid, their defaults, and Kafka's."""

from __future__ import annotations

import difflib
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparklog.cli.config_values import LastChange, ValueInForce
from sparklog.cli.kafka_keys import DELIBERATE, KAFKA_DEFAULTS, PRODUCER_DEFAULTS
from sparklog.cluster.dynamic_configs import CLUSTER_WIDE_KEYS, DYNAMIC_BROKER_KEYS
from sparklog.config import (
    BrokerConfig,
    BrokerEntry,
    ClientQuotas,
    ClusterConfig,
    ConsumerConfig,
    ProducerConfig,
    TopicConfig,
)
from sparklog.errors import ConfigError

_PLACES: Mapping[type[BaseModel], str] = {
    ClusterConfig: "the file of `sparklog cluster`",
    BrokerEntry: "an entry of brokers in the file of `sparklog cluster`",
    BrokerConfig: "the file of `sparklog broker`",
    TopicConfig: "a topic: topics create --config, configs alter",
    ClientQuotas: "a client id: configs alter --entity-type clients",
    ProducerConfig: "a producer",
    ConsumerConfig: "a consumer",
}

_ENTITIES: Mapping[type[BaseModel], str] = {
    ClusterConfig: "brokers",
    BrokerConfig: "brokers",
    TopicConfig: "topics",
}
"""The entities whose values can be described."""

_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}

_WIDTH = 80

_NO_DEFAULT = "none: the key is required"


class Explanation(NamedTuple):
    """One meaning of a key; the same key may have another in another place."""

    key: str
    description: str
    default: str
    values: str
    valid_in: tuple[str, ...]
    kafka: str


def explanations(key: str) -> list[Explanation]:
    """Return the meanings of a key; raises `ConfigError` with the one that was meant, if any."""
    found = [one for one in all_explanations() if one.key == key]
    if not found:
        known = sorted({one.key for one in all_explanations()})
        close = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {close[0]}?" if close else "`configs explain` lists all keys"
        raise ConfigError(f"there is no configuration key {key}: {hint}")
    return found


def all_explanations() -> list[Explanation]:
    """Return all keys with their meanings, sorted; equal meanings are one, with all its places."""
    found: dict[Explanation, list[str]] = {}
    for one in _each():
        found.setdefault(one._replace(valid_in=()), []).extend(one.valid_in)
    merged = [one._replace(valid_in=tuple(dict.fromkeys(of))) for one, of in found.items()]
    return sorted(merged, key=lambda one: one.key)


def text_of(
    one: Explanation,
    in_force: Sequence[ValueInForce] = (),
    changes: Mapping[str, LastChange] = MappingProxyType({}),
) -> str:
    """Return a meaning as lines of 80 columns.

    With values of its places in a cluster, they follow with the last change by entity.
    """
    lines = [one.key, *_filled("", one.description)]
    lines += _filled("Default: ", one.default) + _filled("Values: ", one.values)
    lines += [line for place in one.valid_in for line in _filled("Valid in: ", place)]
    lines += _filled("Kafka: ", one.kafka)
    values = _of(one, in_force)
    lines += [line for value in values for line in _filled("In force: ", value.text)]
    if values:
        last = _last_change(values, changes)
        lines += _filled("Changed: ", "never, in the history" if last is None else last.text)
        statement = f"from config_history where key = '{one.key}'"
        # Not filled: a command is copied as one line.
        lines.append(f'  History: sparklog query "{statement}"')
    return "\n".join(lines)


def as_json(
    one: Explanation, in_force: Sequence[ValueInForce], changes: Mapping[str, LastChange]
) -> dict[str, Any]:
    """Return a meaning as JSON; if there are values at all, with those of its places."""
    if not in_force:
        return one._asdict()
    values = _of(one, in_force)
    last = _last_change(values, changes)
    return {
        **one._asdict(),
        "in_force": [value.fields for value in values],
        "last_change": None if last is None else last.fields,
    }


def _last_change(
    values: Sequence[ValueInForce], changes: Mapping[str, LastChange]
) -> LastChange | None:
    entities = {value.entity for value in values}
    found = [change for entity, change in changes.items() if entity in entities]
    return max(found, key=lambda change: change.at_ms, default=None)


def with_values(
    explanations: Sequence[Explanation], in_force: Sequence[ValueInForce]
) -> list[Explanation]:
    """Return the meanings of places that have one of the values."""
    return [one for one in explanations if _of(one, in_force)]


def _of(one: Explanation, in_force: Sequence[ValueInForce]) -> list[ValueInForce]:
    """Return the values that are of a meaning's places."""
    entities = {_ENTITIES[model] for model in _ENTITIES if _PLACES[model] in one.valid_in}
    return [value for value in in_force if value.entity in entities]


def _filled(name: str, text: str) -> list[str]:
    indent = "  " + " " * len(name)
    return textwrap.wrap(
        text, _WIDTH, initial_indent=f"  {name}", subsequent_indent=indent, break_on_hyphens=False
    )


def _each() -> Iterator[Explanation]:
    for model, place in _PLACES.items():
        documented = _documented(model)
        is_of_broker = model in (ClusterConfig, BrokerConfig, BrokerEntry)
        for name, field in model.model_fields.items():
            key = field.alias or name
            places = [place]
            if is_of_broker and key in DYNAMIC_BROKER_KEYS:
                whose = "all brokers" if key in CLUSTER_WIDE_KEYS else "a broker or all brokers"
                places.append(f"{whose}, while they run: configs alter --entity-type brokers")
            description = " ".join((field.description or documented.get(name, "")).split())
            description = description.removesuffix(".").removesuffix(f" ({key})") + "."
            yield Explanation(
                key,
                description,
                _default(model, field),
                _values(field),
                tuple(places),
                _kafka(model, key),
            )


def _documented(model: type[BaseModel]) -> dict[str, str]:
    """Return the descriptions of fields in a docstring, by name."""
    doc = inspect.getdoc(model) or ""
    parts = re.findall(r"^(\w+) : .*\n((?:    .*\n)+)", f"{doc}\n", re.MULTILINE)
    return dict(parts)


def _default(model: type[BaseModel], field: FieldInfo) -> str:
    if field.is_required():
        return _NO_DEFAULT
    default = field.get_default(call_default_factory=True)
    if default is None:
        is_inherited = model is TopicConfig and field.alias != "producer_byte_rate"
        return "the brokers' setting" if is_inherited else "none"
    return _shown(default)


def _shown(value: Any) -> str:
    """Return a value as it is written in a file."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, str) and value else json.dumps(value)


def _values(field: FieldInfo) -> str:
    choices = re.findall(r"Literal\[([^\]]*)\]", str(field.annotation))
    if choices:
        return str(choices[0]).replace("'", "")
    kinds = [one for one in get_args(field.annotation) or [field.annotation] if one is not None]
    names = {int: "whole number", float: "number", bool: "true or false"}
    text = next((names[one] for one in kinds if one in names), "text")
    if "list[" in str(field.annotation) or "dict[" in str(field.annotation):
        return "list, separated by commas" if "list[" in str(field.annotation) else "mapping"
    bounds = [
        f"{word} {value}"
        for one in field.metadata
        for name, word in _BOUNDS.items()
        if (value := getattr(one, name, None)) is not None
    ]
    return ", ".join([text, *bounds])


def _kafka(model: type[BaseModel], key: str) -> str:
    if model is TopicConfig and key == "producer_byte_rate":
        return "a quota of clients only, not of topics."
    if model in (TopicConfig, ClientQuotas, ConsumerConfig):
        return "the same key and meaning."
    if key in ("broker.id", "log.dirs"):
        return "the same key and meaning; it is not required there."
    defaults = PRODUCER_DEFAULTS if model is ProducerConfig else KAFKA_DEFAULTS
    if key not in defaults:
        return "no such key with this meaning; it is sparklog's own."
    reason = f" It differs here on purpose: {DELIBERATE[key]}." if key in DELIBERATE else ""
    return f"the same key and meaning; its default is {_shown(defaults[key])}.{reason}"
