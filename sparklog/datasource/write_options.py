"""The options of `format("sparklog")` for writing: those of Spark's Kafka sink, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from sparklog.config import ProducerConfig
from sparklog.datasource import option_values as values
from sparklog.datasource.given_options import STORAGE_OPTIONS, GivenOptions
from sparklog.errors import ConfigError
from sparklog.producer.partitioner import DefaultPartitioner, Partitioner
from sparklog.producer.produce_requests import Acks

if TYPE_CHECKING:
    from sparklog.storage.location import StorageOptions

_DEFAULTS = ProducerConfig()


@dataclass(frozen=True)
class WriteOptions:
    """The checked options of a sink, which are sent to its tasks; `cluster` is the cluster's root.

    References in the storage options are resolved by the tasks.
    """

    cluster: str
    topic: str | None = None
    acks: Acks = "all"
    partitioner: str | None = None
    request_timeout_ms: int = _DEFAULTS.request_timeout_ms
    delivery_timeout_ms: int = _DEFAULTS.delivery_timeout_ms
    client_id: str = "spark"
    storage_options: StorageOptions = field(default_factory=dict, repr=False)


KNOWN = (
    "cluster",
    STORAGE_OPTIONS,
    "topic",
    "acks",
    "kafka.acks",
    "partitioner",
    "includeHeaders",
    "kafka.request.timeout.ms",
    "kafka.delivery.timeout.ms",
    "kafka.client.id",
    "checkpointLocation",
    "queryName",
)
"""The supported options, as they are written."""

_WHOLE_FILES = "a task writes whole files, leave it out"
_INSTEAD = {
    "path": "save() and start() take no path here, name the topic in option topic",
    "subscribe": "it is an option of a reader, a sink names its topic in option topic",
    "kafka.bootstrap.servers": "name the cluster's root, or its configuration file, in option "
    "cluster",
    "kafka.key.serializer": "key is a string or binary column, cast it",
    "kafka.value.serializer": "value is a string or binary column, cast it",
    "kafka.partitioner.class": "use option partitioner, a Python class",
    "kafka.enable.idempotence": "a stream's records are written once in any case, leave it out",
    "kafka.transactional.id": "there are no transactions; a stream's writes are stored once",
    "kafka.linger.ms": _WHOLE_FILES,
    "kafka.batch.size": _WHOLE_FILES,
    "kafka.buffer.memory": _WHOLE_FILES,
    "kafka.compression.type": "files are compressed with zstd, leave it out",
}


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a sink; `ConfigError` names the wrong option."""
    given = GivenOptions(options, KNOWN, _INSTEAD)
    if "acks" in given and "kafka.acks" in given:
        raise ConfigError("options acks and kafka.acks are the same: give one of them")
    if not given.get("includeHeaders", values.boolean, default=True):
        raise ConfigError(
            "option includeHeaders is false, but a sink writes the column headers if there is one: "
            "drop the column, and leave the option out"
        )
    cluster = given.cluster()
    parsed = WriteOptions(
        cluster=cluster.root,
        topic=given.get("topic", values.text, None),
        acks=given.get("acks", _acks, given.get("kafka.acks", _acks, "all")),
        partitioner=given.get("partitioner", values.text, None),
        request_timeout_ms=given.get(
            "kafka.request.timeout.ms", values.positive, WriteOptions.request_timeout_ms
        ),
        delivery_timeout_ms=given.get(
            "kafka.delivery.timeout.ms", values.positive, WriteOptions.delivery_timeout_ms
        ),
        client_id=given.get("kafka.client.id", values.text, WriteOptions.client_id),
        storage_options=cluster.storage_options,
    )
    make_partitioner(parsed, 1)
    return parsed


def make_partitioner(options: WriteOptions, partition_count: int) -> Partitioner:
    """Return the partitioner for this number of partitions; `ConfigError` if it cannot be made."""
    if options.partitioner is None:
        return DefaultPartitioner(partition_count)
    module, _, name = options.partitioner.partition(":")
    try:
        made: Partitioner = getattr(import_module(module), name)(partition_count)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"option partitioner has the value {options.partitioner!r}, which cannot be made "
            f"({error}): write it as package.module:Class, a class that takes the number of "
            "partitions, and that the workers can import"
        ) from error
    return made


def _acks(text: str, name: str) -> Acks:
    accepted: dict[str, Acks] = {"0": 0, "1": 1, "-1": "all", "all": "all"}
    if text.lower() not in accepted:
        raise ConfigError(f"option {name} has the value {text!r}: use 0, 1 or all")
    return accepted[text.lower()]
