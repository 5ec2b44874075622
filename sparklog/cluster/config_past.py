"""The past of dynamic configurations, from the commits of the tables that have them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from sparklog.cluster.partition_changes import commits_between, rows_added_by
from sparklog.cluster.root_format import read_format
from sparklog.model import CONFIGS, TOPICS, Row, TableSchema
from sparklog.storage.commits import Commit
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location
from sparklog.storage.parallel import map_in_parallel

CONFIG_HISTORY = pa.schema(
    [
        ("at_ms", pa.int64()),
        ("entity_type", pa.string()),
        ("entity_name", pa.string()),
        ("key", pa.string()),
        ("value_before", pa.string()),
        ("value", pa.string()),
        ("operation", pa.string()),
        ("version", pa.int64()),
    ]
)
"""The columns of `config_history`: changes of values; those of a new topic have none before."""

_Entity = tuple[str, str]
_Values = Mapping[str, str]


def config_past(root: Location) -> pa.Table:
    """Return the changes of dynamic configurations in the commits that are kept, oldest first.

    The first commit that is kept is where the changes begin, unless it is the table's first one.
    """
    found = read_format(root)
    listed = found.tables if found is not None else frozenset()
    rows = [
        row
        for schema in (TOPICS, CONFIGS)
        if schema.name in listed
        for row in _changes(ControlTable(root, schema))
    ]
    return pa.Table.from_pylist(sorted(rows, key=lambda one: one["at_ms"]), schema=CONFIG_HISTORY)


def _changes(table: ControlTable) -> Iterator[dict[str, Any]]:
    commits = [*commits_between(table, 0, table.version)]
    is_local = table.location.is_local
    rows = map_in_parallel(partial(rows_added_by, table), commits, 0, is_local=is_local)
    known: dict[_Entity, _Values] | None = {}
    seen = -1
    for commit, stored in zip(commits, rows, strict=True):
        if not (commit.added or commit.removed):
            # A fence, or the version of another table.
            seen = commit.version
            continue
        values = None if stored is None else dict(_of_entity(table.schema, row) for row in stored)
        if values is not None and known is not None and commit.version == seen + 1:
            yield from _differences(known, values, commit)
        known, seen = values, commit.version


def _of_entity(schema: TableSchema, row: Row) -> tuple[_Entity, _Values]:
    configs = json.loads(row["configs"] or "{}")
    values = {key: _text(value) for key, value in configs.items() if value is not None}
    if schema is TOPICS:
        return ("topics", row["topic"]), values if row["state"] == "live" else {}
    return (row["entity_type"], row["entity_name"]), values


def _differences(
    before: Mapping[_Entity, _Values], after: Mapping[_Entity, _Values], commit: Commit
) -> Iterator[dict[str, Any]]:
    for entity in sorted(before.keys() | after.keys()):
        old, new = before.get(entity, {}), after.get(entity, {})
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                yield {
                    "at_ms": commit.made_at_ms,
                    "entity_type": entity[0],
                    "entity_name": entity[1],
                    "key": key,
                    "value_before": old.get(key),
                    "value": new.get(key),
                    "operation": commit.cause.operation,
                    "version": commit.version,
                }


def _text(value: object) -> str:
    """Return a value as Kafka's tools print it."""
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value)
