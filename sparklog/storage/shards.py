"""The rows of a sharded table by file, and the comparison of two versions.

A shard is a data file with some of a table's rows. Files are immutable, so the rows of each live
file are kept in memory, and a new version costs reading only the files that it has added.

Rows with equal values in the schema's `conflict_key` form one unit. Invariant: each primary key is
in exactly one live file. The rows of a unit are normally in one file; a unit with more rows than
fit there is in several.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.model import TableSchema

Key: TypeAlias = tuple[Any, ...]
"""The values of a row's primary key."""

Unit: TypeAlias = tuple[Any, ...]
"""The values of the conflict key, which is a prefix of the primary key."""


def keys_of(rows: pa.Table, schema: TableSchema) -> list[Key]:
    """Return the primary key of each row."""
    return list(zip(*(rows[name].to_pylist() for name in schema.key), strict=True))


def rows_at(rows: pa.Table, numbers: Sequence[int]) -> pa.Table:
    """Return the rows with these numbers, in the order of `numbers`."""
    return rows.take(pa.array(numbers, pa.int64()))


class Shard:
    """The rows of one file."""

    def __init__(self, rows: pa.Table, schema: TableSchema) -> None:
        self.rows = rows
        self._schema = schema

    @cached_property
    def keys(self) -> list[Key]:
        """The primary key of each row, in the order of the rows."""
        return keys_of(self.rows, self._schema)

    @cached_property
    def positions(self) -> dict[Key, int]:
        """The number of each row by its primary key."""
        return {key: number for number, key in enumerate(self.keys)}

    @cached_property
    def units(self) -> dict[Unit, list[int]]:
        """The row numbers of each unit."""
        length = len(self._schema.conflict_key)
        units: dict[Unit, list[int]] = {}
        for number, key in enumerate(self.keys):
            units.setdefault(key[:length], []).append(number)
        return units

    def rows_of(self, units: Collection[Unit]) -> pa.Table:
        """Return the rows of some units, in the order of the file."""
        held = [self.units[unit] for unit in units if unit in self.units]
        if sum(map(len, held)) == self.rows.num_rows:
            return self.rows
        return rows_at(self.rows, sorted(chain.from_iterable(held)))


class ShardedRows:
    """All rows of one version, by the path of their file; files are sorted by path."""

    def __init__(self, shards: Mapping[str, Shard], schema: TableSchema) -> None:
        self.shards = {path: shards[path] for path in sorted(shards)}
        self.schema = schema

    @cached_property
    def rows(self) -> pa.Table:
        """All rows."""
        return self._concat(shard.rows for shard in self.shards.values())

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return sum(shard.rows.num_rows for shard in self.shards.values())

    def rows_of(self, units: Collection[Unit]) -> pa.Table:
        """Return the rows of some units; units without rows are ignored."""
        wanted = set(units)
        found = []
        for shard in self.shards.values():
            held = shard.units.keys() & wanted
            if held:
                found.append(shard.rows_of(held))
        return self._concat(found)

    def _concat(self, tables: Iterable[pa.Table]) -> pa.Table:
        found = list(tables)
        return pa.concat_tables(found) if found else self.schema.columns.empty_table()


def changed_units(before: ShardedRows, after: ShardedRows) -> set[Unit]:
    """Return the units whose rows differ between two versions of a table, regardless of order.

    Only files that are live in exactly one of the versions are compared, column by column.
    """
    gone = [one for path, one in before.shards.items() if path not in after.shards]
    new = [one for path, one in after.shards.items() if path not in before.shards]
    length = len(after.schema.conflict_key)
    return {key[:length] for key in _changed_keys(gone, new)}


def _changed_keys(gone: Sequence[Shard], new: Sequence[Shard]) -> set[Key]:
    old_keys = [key for shard in gone for key in shard.keys]
    new_keys = [key for shard in new for key in shard.keys]
    if not old_keys or not new_keys:
        return {*old_keys, *new_keys}
    old_rows = pa.concat_tables([shard.rows for shard in gone])
    new_rows = pa.concat_tables([shard.rows for shard in new])
    if old_keys == new_keys:
        return {old_keys[number] for number in _differing_rows(old_rows, new_rows)}
    positions = {key: number for number, key in enumerate(new_keys)}
    common = [number for number, key in enumerate(old_keys) if key in positions]
    kept = [old_keys[number] for number in common]
    differing = _differing_rows(
        rows_at(old_rows, common), rows_at(new_rows, [positions[key] for key in kept])
    )
    return positions.keys() ^ set(old_keys) | {kept[number] for number in differing}


def _differing_rows(before: pa.Table, after: pa.Table) -> list[int]:
    """Return the numbers of the rows that differ; both tables have the same keys in each row.

    Nulls are equal to nulls.
    """
    differing: set[int] = set()
    for name in after.column_names:
        if not before[name].equals(after[name]):
            is_same = pc.coalesce(
                pc.equal(before[name], after[name]),
                pc.and_(pc.is_null(before[name]), pc.is_null(after[name])),
            )
            differing.update(pc.indices_nonzero(pc.invert(is_same)).to_pylist())
    return sorted(differing)
