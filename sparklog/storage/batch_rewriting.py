"""Rewriting of adjacent batches of a log as one batch in another file, by merges and compaction."""

from __future__ import annotations

from typing import NamedTuple

from sparklog.model import Batch
from sparklog.storage.batch_files import BatchFile
from sparklog.storage.location import Location


class BatchRewrite(NamedTuple):
    """Adjacent batches of one log that become one batch in a new file at `path`."""

    log: Location
    batches: tuple[Batch, ...]
    path: str

    @property
    def size_bytes(self) -> int:
        """The sum of the batches' file sizes, in bytes."""
        return sum(batch.size_bytes for batch in self.batches)

    def batch(self, file: BatchFile) -> Batch:
        """Return the batch that takes the place of the others, with its file.

        It has their range of offsets. The header is the first batch's, without its producer fields:
        the batches may have several producers (rule 8.4).
        """
        first, last = self.batches[0], self.batches[-1]
        times = file.min_timestamp_ms, file.max_timestamp_ms
        if not file.record_count:
            times = (
                min(batch.min_timestamp_ms for batch in self.batches),
                max(batch.max_timestamp_ms for batch in self.batches),
            )
        return first._replace(
            path=file.path,
            size_bytes=file.size_bytes,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            checksum=file.checksum,
            record_count=file.record_count,
            last_offset_delta=last.next_offset - 1 - first.base_offset,
            min_timestamp_ms=times[0],
            max_timestamp_ms=times[1],
        )
