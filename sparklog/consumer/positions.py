"""The positions of a consumer: look-up, reset, and the check against the log."""

from __future__ import annotations

from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Visible
from sparklog.config import OffsetReset
from sparklog.consumer.assigned_partition import AssignedPartition
from sparklog.consumer.log_truncation import handle_log_truncation
from sparklog.errors import NoOffsetForPartitionError, ProtocolError
from sparklog.logger import get_logger

_log = get_logger(__name__)


class Positions:
    """Finds and checks the positions of one consumer's partitions."""

    def __init__(self, logs: CommittedLogs, auto_offset_reset: OffsetReset) -> None:
        self._logs = logs
        self._auto_offset_reset = auto_offset_reset

    def find(self, one: AssignedPartition, visible: Visible) -> None:
        """Find the position of a partition if it is missing, or check the existing one.

        A partition that starts at the latest offset has no position until that offset is known.
        Raises `NoOffsetForPartitionError`, OFFSET_OUT_OF_RANGE and `LogTruncationError` with
        auto.offset.reset=none, and an error of `UNREADABLE` if the log cannot be read.
        """
        if one.leader_epoch != visible.state.leader_epoch:
            handle_log_truncation(one, visible, self._logs, self._auto_offset_reset)
        if one.position is not None and not self._is_inside(one.position, visible):
            self._out_of_range(one, one.position, visible)
        if one.position is None:
            self._reset(one, visible)
        one.leader_epoch = visible.state.leader_epoch

    def _is_inside(self, position: int, visible: Visible) -> bool:
        if visible.log_start_offset <= position <= visible.high_watermark:
            return True
        # Records between the high watermark and the log end offset are not committed yet.
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
                f"{one} has no committed offset and auto.offset.reset=none: seek, "
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
            # The log is damaged there. The position does not depend on the epoch.
            return -1
