"""The partitions that a consumer reads: where it stands in each, and what was fetched of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from sparklog.clients.committed_logs import CommittedLogs
from sparklog.clients.connection import Visible
from sparklog.config import OffsetReset
from sparklog.errors import LogTruncationError, NoOffsetForPartitionError, ProtocolError
from sparklog.logger import get_logger
from sparklog.model import Batch, TopicIdPartition, TopicPartition
from sparklog.storage.location import Location

_log = get_logger(__name__)


class ConsumerRecord(NamedTuple):
    """A committed record; `timestamp_ms` is since 1970, `headers` are (name, value) each."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class FetchedBatch(NamedTuple):
    """A committed batch, the root it lies in, and which of its offsets are wanted.

    `records` are those that have yet to be returned, `None` while the file has not been read.
    """

    location: Location
    batch: Batch
    from_offset: int
    below_offset: int
    records: pa.Table | None = None


@dataclass(eq=False)
class AssignedPartition:
    """A partition that a consumer reads.

    `position` is the offset of the record to be returned next, `None` while it is to be found:
    by `reset` where that is set, else by the committed offset. `offset_epoch` is the leader epoch
    of the record before it, -1 where that is not known; `leader_epoch` the one under which that
    was last compared with the leader's log (KIP-320). `wants_committed` says that the group's
    committed offset has yet to be looked up, `auto_committed` what was last committed by itself.
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
    fetched: deque[FetchedBatch] = field(default_factory=deque)
    records: deque[ConsumerRecord] = field(default_factory=deque)

    @property
    def has_records(self) -> bool:
        """Whether something was fetched that has yet to be returned."""
        return bool(self.records or self.fetched)

    def seek(self, offset: int, offset_epoch: int = -1) -> None:
        """Go on at `offset`."""
        self.position, self.offset_epoch, self.wants_committed = offset, offset_epoch, False
        # To be compared with the leader's log before anything is fetched.
        self.leader_epoch = -1
        self.reset = None
        self._drop()

    def seek_to(self, end: OffsetReset) -> None:
        """Go on at the earliest or the latest offset, as it is when that is looked up."""
        self.position, self.reset, self.wants_committed = None, end, False
        self._drop()

    def __str__(self) -> str:
        return f"{self.name.topic}-{self.name.partition}"

    def _drop(self) -> None:
        self.fetched.clear()
        self.records.clear()


class Positions:
    """Finds and checks the positions of one consumer's partitions."""

    def __init__(self, logs: CommittedLogs, auto_offset_reset: OffsetReset) -> None:
        self._logs = logs
        self._auto_offset_reset = auto_offset_reset

    def find(self, one: AssignedPartition, visible: Visible) -> None:
        """Give a partition a position where it has none, and check the one that it has.

        A partition that begins at the latest offset stays without a position until that is known.
        Raises `NoOffsetForPartitionError`, OFFSET_OUT_OF_RANGE and `LogTruncationError` where
        auto.offset.reset is none, and one of `UNREADABLE` where the log cannot be read.
        """
        if one.leader_epoch != visible.state.leader_epoch:
            self._validate(one, visible)
        if one.position is not None and not self._is_inside(one.position, visible):
            self._out_of_range(one, one.position, visible)
        if one.position is None:
            self._reset(one, visible)
        one.leader_epoch = visible.state.leader_epoch

    def _validate(self, one: AssignedPartition, visible: Visible) -> None:
        """Notice where a new leader's log differs from what was read (rule 8.2, KIP-320)."""
        if one.position is None or one.offset_epoch < 0:
            return
        epoch, end_offset = self._logs.end_offset_for_epoch(visible, one.offset_epoch)
        # Kafka compares the end alone, and takes a log that never had the epoch for the same.
        if epoch == one.offset_epoch and one.position <= end_offset:
            return
        divergent = end_offset if 0 <= end_offset < one.position else None
        sentence = (
            f"{one} was truncated below the position {one.position}, after an "
            "unclean election: records that were returned are gone; seek"
            + (f" to {divergent}, where the log differs" if divergent is not None else "")
        )
        policy = self._auto_offset_reset
        if policy == "none":
            raise LogTruncationError(sentence, divergent)
        _log.warning("log truncated", partition=str(one), divergent_offset=divergent)
        if divergent is None:
            one.seek_to(policy)
        else:
            one.seek(divergent, epoch)

    def _is_inside(self, position: int, visible: Visible) -> bool:
        if visible.log_start_offset <= position <= visible.high_watermark:
            return True
        # Between the high watermark and the log's end there is something to wait for.
        return visible.high_watermark < position <= self._logs.log_end_offset(visible)

    def _out_of_range(self, one: AssignedPartition, position: int, visible: Visible) -> None:
        sentence = (
            f"the position {position} of {one} is outside its log, which has the "
            f"offsets {visible.log_start_offset} to {visible.high_watermark}"
        )
        if self._auto_offset_reset == "none":
            raise ProtocolError("OFFSET_OUT_OF_RANGE", f"{sentence}: seek to one of them")
        _log.warning("offset out of range", partition=str(one), position=position)
        one.seek_to(self._auto_offset_reset)

    def _reset(self, one: AssignedPartition, visible: Visible) -> None:
        policy = one.reset or self._auto_offset_reset
        if policy == "none":
            raise NoOffsetForPartitionError(
                f"{one} has no committed offset and auto.offset.reset is none: seek, "
                "or set it to earliest or latest"
            )
        is_earliest = policy == "earliest"
        if not is_earliest and not visible.is_latest_known:
            return
        offset = visible.log_start_offset if is_earliest else visible.high_watermark
        one.seek(offset, self._epoch_before(visible, offset))

    def _epoch_before(self, visible: Visible, offset: int) -> int:
        """Return the leader epoch of the record before `offset`, -1 if it is unknown."""
        try:
            return self._logs.epoch_before(visible, offset)
        except ProtocolError as error:
            if error.code.name != "KAFKA_STORAGE_ERROR":
                raise
            # The log is damaged there. The position does not depend on it.
            return -1
