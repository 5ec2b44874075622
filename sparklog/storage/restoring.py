"""Restoring the file of a batch from another replica that has the same records.

A file whose bytes have the checksum of the batch's header takes the place of the damaged one under
its name. No commit is needed, so any process may do that while the broker runs: a path is never
used for another batch (rule 3.7), and readers verify the checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import xxhash

from sparklog.errors import StorageError
from sparklog.model import Batch
from sparklog.storage.batch_files import rebuild_batch, verified_bytes
from sparklog.storage.location import Location


class Candidate(NamedTuple):
    """A replica from which a batch may be restored: its broker, its log, and its batches there.

    `batches` contain the batch's offsets, by ascending offset. `is_in_sync`: the replica is in the
    ISR and the offsets are below the high watermark, so its records are those of the batch (9.2).
    """

    broker_id: int
    log: Location
    batches: Sequence[Batch]
    is_in_sync: bool


def has_same_file(one: Batch, other: Batch) -> bool:
    """Return whether two replicas have the same batch, so that their files have equal bytes."""
    return _identity(one) == _identity(other)


def covers(batches: Sequence[Batch], batch: Batch) -> bool:
    """Return whether batches, by ascending offset, contain all offsets of a batch."""
    return (
        bool(batches)
        and batches[0].base_offset <= batch.base_offset
        and batches[-1].next_offset >= batch.next_offset
    )


def _identity(batch: Batch) -> tuple[object, ...]:
    return (
        batch.topic_id_partition,
        batch.base_offset,
        batch.last_offset_delta,
        batch.leader_epoch,
        batch.checksum,
    )


class Restored(NamedTuple):
    """The content of a batch's file from another replica.

    `batch` is the damaged one if the bytes have its checksum; otherwise it has the same records in
    another file, and the owner of the log must commit it in place of the damaged one.
    """

    batch: Batch
    content: bytes
    source_broker_id: int


def find_content(batch: Batch, candidates: Iterable[Candidate]) -> Restored | None:
    """Return the content of a batch from the best candidate, or `None` if none has it.

    Equal bytes come first, then records of an in-sync replica with other batches. A candidate that
    cannot be read is left out. Brokers clean compacted logs independently (8.3), so the records of
    a batch that lacks offsets are known by its checksum alone: as many records may be others, of
    keys that were deleted since.
    """
    rebuilt: Restored | None = None
    for one in candidates:
        try:
            same = next((other for other in one.batches if has_same_file(other, batch)), None)
            if same is not None:
                return Restored(batch, verified_bytes(one.log, same), one.broker_id)
            if rebuilt is None and one.is_in_sync and covers(one.batches, batch):
                new, content = rebuild_batch(one.log, one.batches, batch)
                is_equal = new.checksum == batch.checksum
                if is_equal or batch.has_all_offsets or not batch.record_count:
                    rebuilt = Restored(batch if is_equal else new, content, one.broker_id)
        except StorageError:
            continue
    return rebuilt


def replace_file(log: Location, batch: Batch, content: bytes) -> None:
    """Store the content of a batch under its name, and verify the stored file.

    Raises `StorageError` if the bytes are not the batch's, also when they are read back, and
    `OSError` if they cannot be stored.
    """
    if xxhash.xxh3_64_hexdigest(content) != batch.checksum:
        raise StorageError(f"{log.uri}/{batch.path}: the restored bytes do not have its checksum")
    log.replace(batch.path, content)
    verified_bytes(log, batch)
