"""Comparing two replicas record by record if their batches have different bounds (rule 9.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from sparklog.errors import StorageError
from sparklog.model import Batch
from sparklog.storage.batch_files import read_batch
from sparklog.storage.location import Location

_OFFSET = "offset"


class UncomparedError(StorageError):
    """A file of a compared log cannot be read, or is damaged.

    Parameters: `log`, the log that has the file; `reason`, a sentence that names it.
    """

    def __init__(self, log: Location, reason: str) -> None:
        super().__init__(reason)
        self.log = log


class LastOffsets:
    """The last offset of each key in some batches of one log, read when it is needed.

    Parameters: `committed`, the end of the records that all replicas in sync have.
    """

    def __init__(self, log: Location, batches: Sequence[Batch], committed: int) -> None:
        self._log = log
        self._batches = batches
        self._committed = committed

    @cached_property
    def _last(self) -> dict[bytes, int]:
        return dict(self._keys(self._batches))

    @cached_property
    def _last_committed(self) -> dict[bytes, int]:
        return {key: at for key, at in self._keys(self._batches) if at < self._committed}

    def _keys(self, batches: Sequence[Batch]) -> Iterator[tuple[bytes, int]]:
        for batch in batches:
            records = _read(self._log, batch)
            deltas = records["offset_delta"].to_pylist()
            for key, delta in zip(records["key"].to_pylist(), deltas, strict=True):
                if key is not None:
                    yield key, batch.base_offset + delta

    def supersedes(self, row: dict[str, Any]) -> bool:
        """Return whether the cleaner may have removed a record from the batches' replica."""
        key = row["key"]
        return key is None or row["value"] is None or self._last.get(key, -1) > int(row[_OFFSET])

    def repeats(self, row: dict[str, Any]) -> bool:
        """Return whether the batches have a later committed record with the key of one of them."""
        return self._last_committed.get(row["key"], -1) > int(row[_OFFSET])


class Slice(NamedTuple):
    """Some of the batches of one replica, by ascending offset, and their log.

    `keys` are those of these batches and of the later ones: in a compacted log they explain records
    that are missing.
    """

    log: Location
    batches: Sequence[Batch]
    keys: LastOffsets | None = None


class Difference(NamedTuple):
    """The first offset at which two replicas differ, and digests of the records around it."""

    offset: int
    digest: str
    other_digest: str


def first_difference(
    one: Slice, other: Slice, from_offset: int, below_offset: int
) -> Difference | None:
    """Return the first difference with from_offset <= offset < below_offset, or `None`.

    Compares offsets, leader epochs, timestamps, keys, values and headers, regardless of the batches
    that contain them. Batches that both replicas have are not read. Brokers clean compacted logs
    independently (8.3): where a batch lacks offsets, a record may be missing in one replica if it
    is a tombstone, or if one of them has a later record with its key. That one may be a tombstone,
    which the other replica has removed as well; another is itself compared. Raises
    `UncomparedError` if a file cannot be read or is damaged.
    """
    of_keys, of_other_keys = (
        of.keys or LastOffsets(of.log, of.batches, below_offset) for of in (one, other)
    )
    for own, others in stretches(one.batches, other.batches):
        if has_equal_batches(own, others):
            continue
        records = _records(one.log, own, from_offset, below_offset)
        other_records = _records(other.log, others, from_offset, below_offset)
        if records.combine_chunks().equals(other_records.combine_chunks()):
            continue
        if not all(batch.has_all_offsets for batch in (*own, *others)):
            offset = _first_unexplained(records, other_records, of_keys, of_other_keys)
        else:
            offset = _first_unequal(records, other_records)
        if offset is not None:
            return Difference(offset, _digest(records), _digest(other_records))
    return None


def _first_unequal(records: pa.Table, other_records: pa.Table) -> int | None:
    for mine, theirs in zip_longest(records.to_pylist(), other_records.to_pylist()):
        if mine != theirs:
            return min(int(row[_OFFSET]) for row in (mine, theirs) if row is not None)
    return None


def _first_unexplained(
    records: pa.Table, other_records: pa.Table, of_keys: LastOffsets, of_other_keys: LastOffsets
) -> int | None:
    """Return the first offset at which two compacted logs differ otherwise than by cleaning."""
    mine = {int(row[_OFFSET]): row for row in records.to_pylist()}
    theirs = {int(row[_OFFSET]): row for row in other_records.to_pylist()}
    for offset in sorted(mine.keys() | theirs.keys()):
        row, other_row = mine.get(offset), theirs.get(offset)
        if row == other_row:
            continue
        if row is not None and other_row is None:
            is_cleaned = of_other_keys.supersedes(row) or of_keys.repeats(row)
        elif other_row is not None and row is None:
            is_cleaned = of_keys.supersedes(other_row) or of_other_keys.repeats(other_row)
        else:
            is_cleaned = False
        if not is_cleaned:
            return offset
    return None


def has_equal_batches(own: Sequence[Batch], others: Sequence[Batch]) -> bool:
    """Return whether a stretch is one batch that both replicas have."""
    is_one = len(own) == len(others) == 1
    return is_one and _batch_identity(own[0]) == _batch_identity(others[0])


def _batch_identity(batch: Batch) -> tuple[object, ...]:
    return batch.base_offset, batch.last_offset_delta, batch.leader_epoch, batch.checksum


def stretches(
    one: Sequence[Batch], other: Sequence[Batch]
) -> Iterator[tuple[list[Batch], list[Batch]]]:
    """Yield the shortest runs of batches that end at the same offset in both replicas."""
    left, right = deque(one), deque(other)
    while left or right:
        own: list[Batch] = []
        others: list[Batch] = []
        while True:
            own_end = own[-1].next_offset if own else -1
            other_end = others[-1].next_offset if others else -1
            if own_end == other_end and own:
                break
            if left and (own_end <= other_end or not right):
                own.append(left.popleft())
            elif right:
                others.append(right.popleft())
            else:
                break
        yield own, others


def _records(log: Location, batches: Sequence[Batch], first: int, below: int) -> pa.Table:
    """Return the records of `batches` within the bounds, each with its offset and leader epoch."""
    tables = []
    for batch in batches:
        table = _read(log, batch)
        offsets = pc.add(table["offset_delta"].cast(pa.int64()), batch.base_offset)
        epochs = pa.array(np.full(table.num_rows, batch.leader_epoch, dtype=np.int64))
        table = table.set_column(0, _OFFSET, offsets).append_column("leader_epoch", epochs)
        tables.append(
            table.filter(pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, below)))
        )
    return pa.concat_tables(tables) if tables else pa.table({_OFFSET: pa.array([], pa.int64())})


def _read(log: Location, batch: Batch) -> pa.Table:
    try:
        return read_batch(log, batch)
    except StorageError as error:
        raise UncomparedError(log, str(error)) from error


def _digest(records: pa.Table) -> str:
    """Return a digest of records and offsets that does not depend on their batches."""
    digest = xxhash.xxh3_64()
    for row in records.to_pylist():
        digest.update(repr(tuple(row.values())).encode())
    return digest.hexdigest()
