"""Which files of a sharded table a change of some rows replaces, and by which rows.

A row stays in its file; a new one goes to a file of its unit, else to the smallest file. A file
that has grown beyond twice its share is split, and where a table has shrunk each change joins the
smallest file to one that it rewrites. So the number of files follows the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from sparklog.model import TableSchema
from sparklog.storage.shards import Key, Shard, ShardedRows, Unit, keys_of, taken

ROWS_PER_FILE = 512
"""The least number of rows that a file is split into. A file of 512 rows of `partition_state` takes
0.7 ms to encode and 0.4 ms to decode, one of 12,000 rows 2.9 ms and 1.6 ms."""

MAX_FILES = 64
"""About the number of files beyond which files grow instead of their number. Each costs a request
when a table on an object store is opened."""


class RowChanges(NamedTuple):
    """Changes to the rows of a table.

    First the rows with the keys in `removed` are removed. Then each of `rows` takes the place of
    the row with its primary key, or comes after the rows of a file where there is none.
    """

    rows: pa.Table
    removed: AbstractSet[Key] = frozenset()

    def applied_to(self, rows: pa.Table, schema: TableSchema) -> pa.Table:
        """Return `rows` after these changes."""
        keys = keys_of(rows, schema)
        numbers = {key: len(keys) + n for n, key in enumerate(keys_of(self.rows, schema))}
        order = [numbers.pop(key, n) for n, key in enumerate(keys) if key not in self.removed]
        order += numbers.values()
        return taken(pa.concat_tables([rows, self.rows]), order)

    def __bool__(self) -> bool:
        return bool(self.rows.num_rows or self.removed)


class DecidedChanges:
    """The changes of a writer that decides again on some units and not on the others.

    `rows` keeps all rows that were ever decided upon, so that their numbers stay valid; `numbers`
    has those that count, by their keys.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.rows = schema.columns.empty_table()
        self.numbers: dict[Key, int] = {}
        self.removed: set[Key] = set()

    def __bool__(self) -> bool:
        return bool(self.numbers or self.removed)

    def replace(self, changes: RowChanges, units: AbstractSet[Unit] | None) -> None:
        """Put `changes` in the place of the earlier ones to some units, or to all if `None`."""
        length = len(self.schema.conflict_key)
        if units is None:
            self.numbers, self.removed = {}, set()
        else:
            self.numbers = {
                key: number for key, number in self.numbers.items() if key[:length] not in units
            }
            self.removed = {key for key in self.removed if key[:length] not in units}
        first = self.rows.num_rows
        keys = keys_of(changes.rows, self.schema)
        if len(set(keys)) != len(keys):
            raise ValueError(f"a change of table {self.schema.name} has two rows with one key")
        self.rows = pa.concat_tables([self.rows, changes.rows])
        self.numbers |= {key: number for number, key in enumerate(keys, first)}
        self.removed |= changes.removed

    def as_changes(self) -> RowChanges:
        """Return the changes that count."""
        return RowChanges(taken(self.rows, list(self.numbers.values())), frozenset(self.removed))


@dataclass(frozen=True)
class Rewrite:
    """The replacement of the files `sources` by new ones.

    `put` are the numbers of the rows of `DecidedChanges` that go there, `removed` the keys of the
    rows that leave. Equal rewrites of the same `DecidedChanges` give equal files.
    """

    sources: tuple[str, ...]
    put: tuple[int, ...]
    removed: frozenset[Key]


@dataclass
class _Edit:
    put: list[int] = field(default_factory=list)
    removed: set[Key] = field(default_factory=set)


def rewrites(live: ShardedRows, changes: DecidedChanges) -> list[Rewrite]:
    """Return the files to be replaced so that `changes` are made to the `live` rows."""
    numbers = changes.numbers
    edits: dict[str, _Edit] = {}
    placed: set[Key] = set()
    for path, shard in live.shards.items():
        removed = shard.positions.keys() & changes.removed
        held = (shard.positions.keys() & numbers.keys()) - removed
        if removed or held:
            edits[path] = _Edit([numbers[key] for key in held], set(removed))
            placed |= held
    new = [key for key in numbers if key not in placed]
    for key, path in zip(new, _places(live, new), strict=True):
        edits.setdefault(path, _Edit()).put.append(numbers[key])
    joined = _joined(live, edits)
    return [
        Rewrite(
            (path, *joined.get(path, ())) if path else (),
            tuple(sorted(edit.put)),
            frozenset(edit.removed),
        )
        for path, edit in edits.items()
    ]


def _places(live: ShardedRows, keys: Sequence[Key]) -> list[str]:
    """Return the path of the file for each of some new keys, "" where the table has no file."""
    sizes = {path: shard.rows.num_rows for path, shard in live.shards.items()}
    smallest = min(sizes, key=lambda path: (sizes[path], path), default="")
    length = len(live.schema.conflict_key)
    of_unit: dict[Unit, str] = {}
    for unit in {key[:length] for key in keys}:
        held = [path for path, shard in live.shards.items() if unit in shard.units]
        of_unit[unit] = min(held, key=lambda path: (sizes[path], path), default=smallest)
    return [of_unit[key[:length]] for key in keys]


def _joined(live: ShardedRows, edits: Mapping[str, _Edit]) -> dict[str, tuple[str, ...]]:
    """Return the file that is joined to one of the edited ones, where a table has too many."""
    sizes = {path: shard.rows.num_rows for path, shard in live.shards.items()}
    edited = sorted(path for path in edits if path)
    others = [path for path in sizes if path not in edits]
    if not edited or not others:
        return {}
    share = _share(live.row_count)
    if len(sizes) <= 2 * max(1, live.row_count // share) + 1:
        return {}
    first, smallest = (min(of, key=lambda path: (sizes[path], path)) for of in (edited, others))
    return {first: (smallest,)} if sizes[first] + sizes[smallest] <= share else {}


def rewritten(live: ShardedRows, changes: DecidedChanges, rewrite: Rewrite) -> list[pa.Table]:
    """Return the rows of each file that takes the place of a rewrite's sources."""
    put = RowChanges(taken(changes.rows, rewrite.put), rewrite.removed)
    sources = ShardedRows({path: live.shards[path] for path in rewrite.sources}, live.schema)
    rows = put.applied_to(sources.rows, live.schema).combine_chunks()
    return split(rows, live.schema, live.row_count + put.rows.num_rows)


def split(rows: pa.Table, schema: TableSchema, row_count: int) -> list[pa.Table]:
    """Return the rows of one file or of several, none of which is much larger than its share.

    `row_count` is the number of rows of the whole table. Rows of a unit that follow each other stay
    together where they are fewer than such a share.
    """
    share = _share(row_count)
    if rows.num_rows <= 2 * share:
        return [rows] if rows.num_rows else []
    length = len(schema.conflict_key)
    units = [key[:length] for key in Shard(rows, schema).keys]
    count = rows.num_rows // share
    ends = [_end(units, rows.num_rows * number // count, share) for number in range(1, count)]
    return [
        rows.slice(start, end - start)
        for start, end in pairwise([0, *ends, rows.num_rows])
        if end > start
    ]


def _end(units: Sequence[Unit], near: int, share: int) -> int:
    """Return where the unit ends that the row number `near` is in; `near` for a large unit."""
    for end in range(near, min(near + share // 2, len(units))):
        if units[end] != units[end - 1]:
            return end
    return near


def _share(row_count: int) -> int:
    return max(ROWS_PER_FILE, row_count // MAX_FILES)
