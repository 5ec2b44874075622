"""Records below a consumer's position that were lost in an unclean election (rule 8.2, KIP-320).

A new leader's log may end earlier than the consumer has read, in the epoch of the record before the
position.
"""

from __future__ import annotations

from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Visible
from sparklog.config import OffsetReset
from sparklog.consumer.assigned_partition import AssignedPartition
from sparklog.errors import LogTruncationError
from sparklog.logger import get_logger

_log = get_logger(__name__)


def handle_log_truncation(
    one: AssignedPartition, visible: Visible, logs: CommittedLogs, auto_offset_reset: OffsetReset
) -> None:
    """Check a position against a new leader's log, and seek if the log diverges below it.

    Raises `LogTruncationError` with auto.offset.reset=none, and an error of `UNREADABLE` if the log
    cannot be read.
    """
    if one.position is None or one.offset_epoch < 0:
        return
    diverged = logs.divergence(visible, one.position, one.offset_epoch)
    if diverged is None:
        return
    divergent = diverged.divergent_offset
    sentence = (
        f"{one} was truncated below the position {one.position}, after an "
        "unclean election: records that were returned are gone; seek"
        + (f" to {divergent}, where the log differs" if divergent is not None else "")
    )
    if auto_offset_reset == "none":
        raise LogTruncationError(sentence, divergent)
    _log.warning("log truncated", partition=str(one), divergent_offset=divergent)
    if divergent is None:
        one.seek_to(auto_offset_reset)
    else:
        one.seek(divergent, diverged.epoch)
