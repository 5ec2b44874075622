"""The columns of `format("sparklog")`: names and types are those of Spark's Kafka source."""

from __future__ import annotations

import pyarrow as pa

from sparklog.errors import ConfigError

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_COLUMNS = (
    ("key", "binary", pa.binary()),
    ("value", "binary", pa.binary()),
    ("topic", "string", pa.string()),
    ("partition", "int", pa.int32()),
    ("offset", "bigint", pa.int64()),
    ("timestamp", "timestamp", pa.timestamp("us", "UTC")),
    ("timestampType", "int", pa.int32()),
)
_HEADERS = (
    "headers",
    "array<struct<key:string,value:binary>>",
    pa.list_(pa.field("element", _HEADER)),
)

CREATE_TIME = 0
"""Kafka's number of the only timestamp type that is supported: the producer's time."""


def ddl(*, include_headers: bool) -> str:
    """Return the columns in Spark's DDL."""
    return ", ".join(f"{name} {type_}" for name, type_, _ in _columns(include_headers))


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """Return the columns as an Arrow schema; Spark accepts no other."""
    return pa.schema([(name, type_) for name, _, type_ in _columns(include_headers)])


def check_schema(given: str, *, include_headers: bool) -> None:
    """Raise `ConfigError` for a schema of the user's own, as Spark's Kafka source does.

    `given` is Spark's `simpleString` of it.
    """
    members = (f"{name}:{type_}" for name, type_, _ in _columns(include_headers))
    if given != f"struct<{','.join(members)}>":
        raise ConfigError(
            "format('sparklog') has a fixed schema: leave .schema(...) out, and cast or select "
            "columns of the DataFrame"
        )


def _columns(include_headers: bool) -> tuple[tuple[str, str, pa.DataType], ...]:
    return (*_COLUMNS, _HEADERS) if include_headers else _COLUMNS
