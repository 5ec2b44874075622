"""The partitions that a consumer reads, with their positions and fetched records."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.config import OffsetReset
from sparklog.model import Batch, TopicIdPartition, TopicPartition
from sparklog.storage.location import Location


class ConsumerRecord(NamedTuple):
    """A committed record.

    Attributes
    ----------
    topic : str
        The name of the topic.
    partition : int
        The number of the partition.
    offset : int
        The record's offset.
    leader_epoch : int
        The epoch of the leader that appended it.
    timestamp_ms : int
        Its time in ms since 1970.
    key : bytes or None
        Its key, or the result of the consumer's key_deserializer.
    value : bytes or None
        Its value, or the result of the consumer's value_deserializer; `None` is a tombstone.
    headers : tuple of (str, bytes or None)
        Its headers, as pairs (name, value).

    Examples
    --------
    >>> from sparklog import Consumer
    >>> with Consumer("sparklog-data/cluster", auto_offset_reset="earliest") as consumer:
    ...     consumer.assign([("clicks", 0)])
    ...     record = next(iter(consumer))
    >>> record.offset, record.timestamp_ms, record.key, record.value, record.headers
    (0, 1000, b'user-1', b'first', ())
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]


class FetchedBatch(NamedTuple):
    """A committed batch, the root that contains it, and the range of its offsets to return.

    `records` are the records that are yet to be returned, or `None` until the file is read.
    """

    location: Location
    batch: Batch
    from_offset: int
    below_offset: int
    records: pa.Table | None = None


@dataclass(eq=False)
class AssignedPartition:
    """A partition that a consumer reads.

    `position` is the offset of the next record to return. It is `None` until it is found: by
    `reset` if that is set, otherwise by the committed offset. `offset_epoch` is the leader epoch of
    the record before the position, or -1 if it is unknown. `leader_epoch` is the leader epoch in
    which `offset_epoch` was last compared with the leader's log (KIP-320).

    `wants_committed` is true while the look-up of the group's committed offset is pending.
    `auto_committed` is the offset that was last committed automatically or looked up.
    `high_watermark` is that of the last poll of this partition, or `None`.
    """

    name: TopicPartition
    key: TopicIdPartition
    position: int | None = None
    offset_epoch: int = -1
    leader_epoch: int = -1
    reset: OffsetReset | None = None
    is_paused: bool = False
    wants_committed: bool = False
    auto_committed: int | None = None
    high_watermark: int | None = None
    fetched: deque[FetchedBatch] = field(default_factory=deque)
    records: deque[ConsumerRecord] = field(default_factory=deque)

    @property
    def has_records(self) -> bool:
        """Whether fetched records are yet to be returned."""
        return bool(self.records or self.fetched)

    def seek(self, offset: int, offset_epoch: int = -1) -> None:
        """Continue at `offset`."""
        self.position, self.offset_epoch, self.wants_committed = offset, offset_epoch, False
        # The position is compared with the leader's log before the next fetch.
        self.leader_epoch = -1
        self.reset = None
        self._drop()

    def seek_to(self, end: OffsetReset) -> None:
        """Continue at the earliest or the latest offset, as of its look-up."""
        self.position, self.reset, self.wants_committed = None, end, False
        self._drop()

    def __str__(self) -> str:
        return f"{self.name.topic}-{self.name.partition}"

    def _drop(self) -> None:
        self.fetched.clear()
        self.records.clear()
