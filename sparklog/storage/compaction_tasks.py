"""The parts of a Spark plan that read the keys of batches, and write the records that stay (8.3).

Both are tasks over batch files, each of which is read whole and verified. No key and no offset goes
through the driver. A task that is run again, after its executor was lost or by speculation, writes
a file of its own, as the other work in tasks does (`execution`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sparklog.model import Batch, batch_id, new_batch_path
from sparklog.spark_jobs import shares
from sparklog.storage.compaction import Compaction, compact_retained, record_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_KEY_COLUMNS = "base_offset bigint, record_offset bigint, key_digest string, is_tombstone boolean"
_RESULT_COLUMNS = "base_offset bigint, result binary"

_FILES_AT_ONCE = 8
"""The most files that a task holds at once while it reads keys; an object store is read in
parallel."""

_BYTES_AT_ONCE = 16 << 20
"""Bytes of files that a task holds at once while it reads keys, at least one file."""


class _OfBatch(NamedTuple):
    """A batch, and the base offset of the batch into which it is written."""

    base_offset: int
    batch: Batch


def keys_in_tasks(
    spark: SparkSession, compactions: Sequence[Compaction], task_count: int
) -> DataFrame:
    """Return the keys of all records of some compactions of one log, as `RECORD_KEYS`.

    Its job fails if a file is missing, damaged or unreadable.
    """
    log = compactions[0].log
    items = [_OfBatch(one.base_offset, batch) for one in compactions for batch in one.batches]
    dealt = shares([item.batch.size_bytes for item in items], task_count)
    given = [pickle.dumps([items[number] for number in sorted(share)]) for share in dealt]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for few in _read_at_once(pickle.loads(given[number])):
                    bases, of = zip(*few, strict=True)
                    yield from record_keys(log, of, bases).to_batches()

    count = len(given)
    return spark.range(0, count, 1, count).mapInArrow(run, _KEY_COLUMNS)


def _read_at_once(items: Sequence[_OfBatch]) -> Iterator[list[_OfBatch]]:
    """Yield the batches whose files are read at once."""
    few: list[_OfBatch] = []
    size_bytes = 0
    for item in items:
        size_bytes += item.batch.size_bytes
        if few and (len(few) == _FILES_AT_ONCE or size_bytes > _BYTES_AT_ONCE):
            yield few
            few, size_bytes = [], item.batch.size_bytes
        few.append(item)
    if few:
        yield few


def written_in_tasks(
    retained: DataFrame, compactions: Sequence[Compaction], task_count: int
) -> DataFrame:
    """Return a plan that writes the new batches of some compactions.

    Parameters: `retained`, rows with the base offset of a compaction and the offset of a record
    that stays. The rows are for `results_of`.
    """
    given = {one.base_offset: pickle.dumps(one) for one in compactions}
    dealt = retained.repartition(task_count, "base_offset")
    in_order = dealt.sortWithinPartitions("base_offset", "record_offset")
    return in_order.mapInArrow(_writing(given), _RESULT_COLUMNS)


def _writing(
    given: Mapping[int, bytes],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function with which tasks write the batches whose records they get."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for base_offset, retained in _by_compaction(batches):
            one: Compaction = pickle.loads(given[base_offset])
            # A path that no other attempt uses.
            one = one._replace(path=new_batch_path(batch_id(one.path)))
            result = pickle.dumps(compact_retained(one, retained))
            columns = [pa.array([base_offset], pa.int64()), pa.array([result], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, ["base_offset", "result"])

    return run


def _by_compaction(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Any]]:
    """Yield the base offset of each compaction of a task, and the offsets that it retains."""
    import numpy as np

    parts: list[Any] = []
    of: int | None = None
    for batch in batches:
        bases, offsets = (batch.column(number).to_numpy() for number in range(2))
        ends = [*(np.flatnonzero(np.diff(bases)) + 1), len(bases)] if len(bases) else []
        start = 0
        for end in map(int, ends):
            base_offset = int(bases[start])
            if of is not None and base_offset != of:
                yield of, np.concatenate(parts)
                parts = []
            # A copy: Spark reuses the memory of its batches.
            parts.append(np.array(offsets[start:end]))
            of, start = base_offset, end
    if of is not None:
        yield of, np.concatenate(parts)


def results_of(rows: pa.Table) -> dict[int, Batch | str | None]:
    """Return the outcome of each compaction that retains a record, by its base offset.

    The outcomes are those of `compact_retained`.
    """
    columns = (rows[name].to_pylist() for name in ("base_offset", "result"))
    return {base_offset: pickle.loads(result) for base_offset, result in zip(*columns, strict=True)}
