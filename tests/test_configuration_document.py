"""docs/configuration.md documents every key, and is what `sparklog.config` generates.

Rewrite it with `REWRITE=1 python -m pytest tests/test_configuration_document.py`.
"""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparklog.cli.kafka_keys import KAFKA_DEFAULTS, PRODUCER_DEFAULTS
from sparklog.cluster.dynamic_configs import CLUSTER_WIDE_KEYS, DYNAMIC_BROKER_KEYS
from sparklog.config import (
    BrokerConfig,
    BrokerEntry,
    ClientQuotas,
    ClusterConfig,
    ConsumerConfig,
    ProducerConfig,
    Settings,
    TopicConfig,
)
from tests.test_config import CONSUMER_DEFAULTS, NOT_KAFKAS

DOCUMENT = Path(__file__).parents[1] / "docs" / "configuration.md"

KAFKAS_ASSIGNORS = {"partition.assignment.strategy": ["range", "cooperative-sticky"]}

INTRODUCTION = """\
<!-- Generated from sparklog/config.py by
     REWRITE=1 python -m pytest tests/test_configuration_document.py -->

# Configuration

Every key. Keys and defaults are Kafka's unless the column *Kafka* says otherwise: it has Kafka's
default where that differs, and *no such key* for sparklog's own. A file has the keys as YAML
([`conf/cluster.yaml`](../conf/cluster.yaml), [`conf/broker.yaml`](../conf/broker.yaml)); clients in
Python take them as keyword arguments with underscores in place of dots. An unknown key, a missing
key or an unusable value is one error that names it.
"""

DYNAMIC = """\
The column *change* says how a running cluster takes another value: *dynamic*, by `sparklog configs
alter` for one broker or for all; *cluster-wide*, by `sparklog configs alter --entity-default` for
all brokers only; *restart*, by a change of the file and a restart of the brokers one by one
([settings of running brokers](operating.md#settings-of-running-brokers)).
"""

TOPICS = """\
`sparklog topics create --config KEY=VALUE`, `sparklog configs alter --entity-type topics`, `Admin`.
A key that is not set has the cluster's value.
"""

QUOTAS = "`sparklog configs alter --entity-type clients` ([quotas](operating.md#quotas))."
PRODUCERS = "`Producer` and `sparklog produce` ([writing](writing.md#producer))."
CONSUMERS = "`Consumer` and `sparklog consume` ([consuming](consuming.md))."


def as_markdown() -> str:
    """Return the text of docs/configuration.md."""
    location = ["| key | value | description |", "|---|---|---|"]
    location += [row(*one) for one in locations()]
    settings = [
        "| key | default | Kafka | values | change | description |",
        "|---|---|---|---|---|---|",
    ]
    settings += [
        row(
            key,
            default(field),
            kafkas(key, field, KAFKA_DEFAULTS),
            values(field),
            change(key),
            text,
        )
        for key, field, text in keys(Settings)
    ]
    return "\n".join(
        [
            INTRODUCTION,
            "## Locations and brokers\n\nKeys of the file of a cluster or of one broker.\n",
            *location,
            f"\n## Brokers and topics\n\n{DYNAMIC}",
            *settings,
            f"\n## Topics\n\n{TOPICS}",
            *of_overrides(TopicConfig),
            f"\n## Quotas of clients\n\n{QUOTAS}\n",
            *of_overrides(ClientQuotas),
            f"\n## Producers\n\n{PRODUCERS}\n",
            *of_clients(ProducerConfig, PRODUCER_DEFAULTS),
            f"\n## Consumers\n\n{CONSUMERS}\n",
            *of_clients(ConsumerConfig, CONSUMER_DEFAULTS | KAFKAS_ASSIGNORS),
            "",
        ]
    )


def locations() -> Iterator[tuple[str, str, str]]:
    """Yield the keys of files that are no settings: their kind of value, and their description."""
    described = {
        key: text for model in (BrokerConfig, ClusterConfig) for key, _, text in keys(model)
    }
    for key, kind in (
        ("cluster.root", "path or URI"),
        ("brokers", "list, in the file of a cluster"),
        ("broker.id", "integer, at least 0"),
        ("log.dirs", "list, or text with commas"),
        ("broker.rack", "text"),
        ("storage.options", "mapping of mappings"),
    ):
        yield f"`{key}`", kind, described[key]


def of_clients(model: type[BaseModel], kafka: Mapping[str, Any]) -> list[str]:
    head = ["| key | default | Kafka | values | description |", "|---|---|---|---|---|"]
    return head + [
        row(f"`{key}`", default(field), kafkas(key, field, kafka), values(field), text)
        for key, field, text in keys(model)
    ]


def of_overrides(model: type[BaseModel]) -> list[str]:
    head = ["| key | values | description |", "|---|---|---|"]
    return head + [row(f"`{key}`", values(field), text) for key, field, text in keys(model)]


def keys(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo, str]]:
    """Yield the keys of a model with their fields and descriptions."""
    of_docstring = docstring_texts(model)
    for name, field in model.model_fields.items():
        text = field.description or of_docstring.get(name, "")
        yield str(field.alias), field, text


def docstring_texts(model: type[BaseModel]) -> dict[str, str]:
    """Return the descriptions of fields in a numpy docstring, without the key at the end."""
    found = re.findall(r"^    (\w+) : .*\n((?:        .*\n)+)", model.__doc__ or "", re.MULTILINE)
    texts = {name: " ".join(text.split()) for name, text in found}
    return {name: re.sub(r" \([\w.]+\)(?=[.,])", "", text) for name, text in texts.items()}


def default(field: FieldInfo) -> str:
    return shown(field.get_default(call_default_factory=True))


def shown(value: object) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return f"`{','.join(value)}`"
    return f"`{value}`"


def kafkas(key: str, field: FieldInfo, kafka: Mapping[str, Any]) -> str:
    """Return Kafka's default if it differs."""
    if key not in kafka:
        return "no such key"
    theirs = kafka[key]
    own = field.get_default(call_default_factory=True)
    # Idempotence is on unless acks forbid it, in Kafka too.
    return "" if theirs == own or key == "enable.idempotence" else shown(theirs)


def values(field: FieldInfo) -> str:
    """Return the range of a field's values, or the values themselves."""
    choices = list(literals(field.annotation))
    if choices:
        return ", ".join(f"`{one}`" for one in choices)
    limits = []
    for limit in field.metadata:
        limits += [f"> {limit.gt}"] if getattr(limit, "gt", None) is not None else []
        limits += [f">= {limit.ge}"] if getattr(limit, "ge", None) is not None else []
        limits += [f"<= {limit.le}"] if getattr(limit, "le", None) is not None else []
    if field.annotation in (bool, bool | None):
        return "`true`, `false`"
    return " and ".join(limits)


def literals(annotation: object) -> Iterator[object]:
    if typing.get_origin(annotation) is Literal:
        yield from typing.get_args(annotation)
    else:
        for part in typing.get_args(annotation):
            yield from literals(part)


def change(key: str) -> str:
    if key in CLUSTER_WIDE_KEYS:
        return "cluster-wide"
    return "dynamic" if key in DYNAMIC_BROKER_KEYS else "restart"


def row(*cells: str) -> str:
    first, *others = cells
    first = first if first.startswith("`") else f"`{first}`"
    return f"| {' | '.join([first, *(one.replace('|', chr(92) + '|') for one in others)])} |"


def test_the_document_is_as_generated() -> None:
    if os.environ.get("REWRITE"):
        DOCUMENT.write_text(as_markdown(), encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == as_markdown(), "run this test with REWRITE=1"


def test_every_key_has_a_line_with_a_description() -> None:
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    for model in (
        ClusterConfig,
        BrokerConfig,
        BrokerEntry,
        TopicConfig,
        ClientQuotas,
        ProducerConfig,
        ConsumerConfig,
    ):
        for field in model.model_fields.values():
            rows = [line for line in lines if line.startswith(f"| `{field.alias}` |")]
            assert rows, field.alias
            assert all(len(line.split(" | ")[-1]) > 10 for line in rows), rows


def test_kafkas_defaults_of_a_producer_are_known_for_each_key() -> None:
    own = {str(field.alias): field.default for field in ProducerConfig.model_fields.values()}
    assert own.keys() == PRODUCER_DEFAULTS.keys()
    different = {key for key, value in PRODUCER_DEFAULTS.items() if own[key] != value}
    assert different == {"batch.size", "enable.idempotence"}
    assert not KAFKA_DEFAULTS.keys() & NOT_KAFKAS.keys()
