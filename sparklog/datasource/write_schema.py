"""The columns that a sink takes: those of Spark's Kafka sink. Others are ignored, as there."""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.datasource.write_options import WriteOptions
from sparklog.errors import ConfigError

_TEXT = ("string", "binary")
_TYPES: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "partition": ("int",),
    "key": _TEXT,
    "value": _TEXT,
    "headers": ("array<struct<key:string,value:binary>>",),
}


def check_write_schema(types: Mapping[str, str], options: WriteOptions) -> None:
    """Raise `ConfigError` for rows that are not records; it names the column.

    `types`: Spark's `simpleString` of every column's type, by name.
    """
    if "value" not in types:
        raise ConfigError(
            "the required column value is missing: select the content of records as it"
        )
    if options.topic is None and "topic" not in types:
        raise ConfigError(
            "the column topic is missing: give option topic, or a column of that name"
        )
    for name, accepted in _TYPES.items():
        if name in types and types[name] not in accepted:
            raise ConfigError(
                f"the column {name} is of type {types[name]}: cast it to {' or '.join(accepted)}"
            )
