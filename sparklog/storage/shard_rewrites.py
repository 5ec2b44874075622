"""The plan of a change to a sharded table: which files it replaces, and by which rows.

A row stays in its file. A new row goes to a file of its unit, or else to the smallest file. A file
is split if it has more than twice its share of rows. If a table has shrunk, each change joins the
smallest file to one that it rewrites. The number of files thus follows the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from sparklog.model import TableSchema
from sparklog.storage.shards import Key, Shard, ShardedRows, Unit, keys_of, rows_at

ROWS_PER_FILE = 512
"""The least number of rows of a file that a split produces. A file of 512 rows of `partition_state`
takes 0.7 ms to encode and 0.4 ms to decode, one of 12,000 rows 2.9 ms and 1.6 ms.
"""

MAX_FILES = 64
"""The approximate number of files above which a table grows by larger files. Each file costs a
request when a table on an object store is opened.
"""


class RowChanges(NamedTuple):
    """Changes to the rows of a table.

    First the rows with the keys in `removed` are removed. Then each of `rows` replaces the row with
    its primary key, or is appended if that key does not exist.
    """

    rows: pa.Table
    removed: AbstractSet[Key] = frozenset()

    def applied_to(self, rows: pa.Table, schema: TableSchema) -> pa.Table:
        """Return `rows` after these changes."""
        keys = keys_of(rows, schema)
        numbers = {key: len(keys) + n for n, key in enumerate(keys_of(self.rows, schema))}
        order = [numbers.pop(key, n) for n, key in enumerate(keys) if key not in self.removed]
        order += numbers.values()
        return rows_at(pa.concat_tables([rows, self.rows]), order)

    def __bool__(self) -> bool:
        return bool(self.rows.num_rows or self.removed)


class DecidedChanges:
    """The accumulated changes of a writer that repeats its decision for some units only.

    `rows` keeps all rows of earlier decisions, so that row numbers stay valid. `numbers` has the
    numbers of the current rows, by their keys.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.rows = schema.columns.empty_table()
        self.numbers: dict[Key, int] = {}
        self.removed: set[Key] = set()

    def __bool__(self) -> bool:
        return bool(self.numbers or self.removed)

    def replace(self, changes: RowChanges, units: AbstractSet[Unit] | None) -> None:
        """Replace the earlier changes to some units, or to all if `units` is `None`."""
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
        """Return the current changes."""
        return RowChanges(rows_at(self.rows, list(self.numbers.values())), frozenset(self.removed))


@dataclass(frozen=True)
class Rewrite:
    """The replacement of the files `sources` by new ones.

    `put` are the numbers in `DecidedChanges` of the rows to be written there, `removed` the keys of
    the rows to be removed. Invariant: equal rewrites of the same `DecidedChanges` produce equal
    files.
    """

    sources: tuple[str, ...]
    put: tuple[int, ...]
    removed: frozenset[Key]


@dataclass
class _Edit:
    put: list[int] = field(default_factory=list)
    removed: set[Key] = field(default_factory=set)


def rewrites(live: ShardedRows, changes: DecidedChanges) -> list[Rewrite]:
    """Return the file replacements that apply `changes` to the `live` rows."""
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
    """Return the path of the file for each new key, or "" if the table has no files."""
    sizes = {path: shard.rows.num_rows for path, shard in live.shards.items()}
    smallest = min(sizes, key=lambda path: (sizes[path], path), default="")
    length = len(live.schema.conflict_key)
    of_unit: dict[Unit, str] = {}
    for unit in {key[:length] for key in keys}:
        held = [path for path, shard in live.shards.items() if unit in shard.units]
        of_unit[unit] = min(held, key=lambda path: (sizes[path], path), default=smallest)
    return [of_unit[key[:length]] for key in keys]


def _joined(live: ShardedRows, edits: Mapping[str, _Edit]) -> dict[str, tuple[str, ...]]:
    """Return the file that is joined to one of the edited files, if a table has too many."""
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
    """Return the rows of each file that replaces a rewrite's sources."""
    put = RowChanges(rows_at(changes.rows, rewrite.put), rewrite.removed)
    sources = ShardedRows({path: live.shards[path] for path in rewrite.sources}, live.schema)
    rows = put.applied_to(sources.rows, live.schema).combine_chunks()
    return split(rows, live.schema, live.row_count + put.rows.num_rows)


def split(rows: pa.Table, schema: TableSchema, row_count: int) -> list[pa.Table]:
    """Return the rows as the tables of one or more files of about the table's share each.

    Parameters: `row_count`, the number of rows of the whole table. Adjacent rows of a unit stay in
    one file if they are fewer than half of a share.
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
    """Return the end of the unit that contains row `near`, or `near` for a large unit."""
    for end in range(near, min(near + share // 2, len(units))):
        if units[end] != units[end - 1]:
            return end
    return near


def _share(row_count: int) -> int:
    return max(ROWS_PER_FILE, row_count // MAX_FILES)
