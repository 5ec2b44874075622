"""Deletion of records by an administrator: Kafka's DeleteRecords (rule 8.3).

A request is a pair of columns of `partition_state`, so it survives a change of leader and needs no
broker to be running. The leader moves its log start offset in its next tick, and followers take it
over. The request names the last record to be deleted by offset and leader epoch: after an unclean
election that has replaced the record it is void.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from sparklog.clock import wait_until
from sparklog.cluster.arguments import by_partition, milliseconds, whole_number
from sparklog.cluster.committed_logs import CommittedLogs
from sparklog.cluster.connection import Connection, Visible
from sparklog.cluster.metadata import Metadata, PartitionState
from sparklog.errors import ProtocolError, SparklogError
from sparklog.model import PARTITION_STATE, TopicIdPartition, TopicPartition
from sparklog.storage.commits import Cause
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.shard_rewrites import RowChanges

HIGH_WATERMARK = -1
"""The offset that stands for the high watermark, as in Kafka."""

_PAUSE_MS = 100
"""Interval in ms between polls of the replicas."""


class DeletedRecords(NamedTuple):
    """The outcome of a deletion in one partition.

    Attributes
    ----------
    low_watermark : int
        The least log start offset of the live replicas; -1 if there is an error.
    error : str
        The name of Kafka's error; NONE if all records below the requested offset are deleted.
    detail : str
        The reason of the error, in one sentence.

    Examples
    --------
    >>> from sparklog import Admin
    >>> deleted = Admin("sparklog-data/cluster").delete_records({("clicks", 0): 0})
    >>> deleted["clicks", 0].low_watermark
    0
    """

    low_watermark: int
    error: str = "NONE"
    detail: str = ""


class _Target(NamedTuple):
    """The end of a deletion: the offset, and the leader epoch of the record before it.

    The epoch is -1 if the log starts at or after the offset: then there is nothing to request.
    """

    offset: int
    epoch: int


class RecordDeletion:
    """One request to delete records of several partitions, and the wait for its effect."""

    def __init__(self, connection: Connection, offsets: Mapping[TopicPartition, int]) -> None:
        self._connection = connection
        self._logs = CommittedLogs(connection)
        self._asked = {
            name: whole_number(offset, f"the offset of {name}")
            for name, offset in by_partition(offsets, "offsets").items()
        }
        self._targets: dict[TopicPartition, _Target] = {}
        self._results: dict[TopicPartition, DeletedRecords] = {}
        self._delays: dict[TopicPartition, SparklogError] = {}

    def run(self, timeout_ms: float) -> dict[TopicPartition, DeletedRecords]:
        """Request the deletion, and wait until it is done or `timeout_ms` have passed."""
        timeout_ms = milliseconds(timeout_ms, "timeout_ms")
        if not self._poll() and timeout_ms > 0:
            wait_until(self._poll, timeout_ms, pause_ms=_PAUSE_MS)
        return {name: self._results.get(name) or self._timed_out(name) for name in self._asked}

    def _poll(self) -> bool:
        """Request what can be requested, read the replicas, and return whether all is done."""
        metadata = self._logs.metadata(max_age_ms=0)
        states: dict[TopicPartition, PartitionState] = {}
        for name in self._asked.keys() - self._results.keys():
            try:
                states[name] = metadata.partition(*name)
            except ProtocolError as error:
                self._fail(name, error)
        self._request({name: one for name, one in states.items() if name not in self._targets})
        for name in self._targets.keys() & states.keys():
            low_watermark = self._low_watermark(states[name], metadata)
            if low_watermark >= self._targets[name].offset:
                self._results[name] = DeletedRecords(low_watermark)
        return self._asked.keys() == self._results.keys()

    def _request(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Write the requests of the partitions whose leaders can be read."""
        if not states:
            return
        seen = self._logs.visible({state.key for state in states.values()})
        targets: dict[TopicPartition, _Target] = {}
        for name, state in states.items():
            visible = seen[state.key]
            try:
                if isinstance(visible, SparklogError):
                    raise visible
                targets[name] = self._target(name, visible)
            except ProtocolError as error:
                if error.retriable:
                    self._delays[name] = error
                else:
                    self._fail(name, error)
            except UNREADABLE as error:
                self._delays[name] = SparklogError(str(error))
        of_key = {states[name].key: one for name, one in targets.items() if one.epoch >= 0}
        if of_key:
            over = dict(filter(None, map(self._request_that_is_over, map(seen.get, of_key))))
            self._connection.root.partition_state.change_rows(
                lambda rows: _with_requests(rows, of_key, over),
                of_key,
                cause=Cause("DELETE RECORDS"),
            )
        self._targets |= targets

    def _target(self, name: TopicPartition, visible: Visible) -> _Target:
        """Return the target of a request; OFFSET_OUT_OF_RANGE if the offset is not committed."""
        asked, end = self._asked[name], visible.high_watermark
        if asked == HIGH_WATERMARK or asked > end:
            # A new leader that has to catch up does not know the high watermark yet.
            visible.check_latest()
        offset = end if asked == HIGH_WATERMARK else asked
        if not 0 <= offset <= end:
            raise ProtocolError(
                "OFFSET_OUT_OF_RANGE",
                f"records of {name} can be deleted up to its high watermark {end}, not up to "
                f"{offset}: give an offset from 0 to {end}, or -1 for the high watermark",
            )
        if offset <= visible.log_start_offset:
            return _Target(offset, -1)
        return _Target(offset, self._logs.epoch_before(visible, offset))

    def _request_that_is_over(
        self, visible: Visible | SparklogError | None
    ) -> tuple[TopicIdPartition, _Target] | None:
        """Return the last request of a partition if it is done or void."""
        assert isinstance(visible, Visible), "a request is made of partitions that can be read"
        state = visible.state
        offset, epoch = state.delete_records_offset, state.delete_records_epoch
        if offset is None or epoch is None:
            return None
        is_done = offset <= visible.log_start_offset
        if is_done or self._logs.epoch_before(visible, offset) != epoch:
            return state.key, _Target(offset, epoch)
        return None

    def _low_watermark(self, state: PartitionState, metadata: Metadata) -> int:
        """Return the least log start offset of the live replicas, -1 if one cannot be read."""
        starts = []
        for one in state.replicas:
            if not metadata.is_live(one):
                continue
            try:
                location = self._connection.replica_location(state, one.broker_id)
                row = self._connection.journal(location).rows.get(state.key)
            except UNREADABLE:
                return -1
            starts.append(row["log_start_offset"] if row is not None else 0)
        return min(starts, default=-1)

    def _fail(self, name: TopicPartition, error: ProtocolError) -> None:
        self._results[name] = DeletedRecords(-1, error.code.name, str(error))

    def _timed_out(self, name: TopicPartition) -> DeletedRecords:
        if name in self._targets:
            detail = (
                f"REQUEST_TIMED_OUT: the records of {name} are not deleted in every live replica "
                "yet; the request is stored and will be served"
            )
        else:
            detail = f"REQUEST_TIMED_OUT: nothing was requested for {name}: {self._delays[name]}"
        return DeletedRecords(-1, "REQUEST_TIMED_OUT", detail)


def _with_requests(
    rows: pa.Table,
    targets: Mapping[TopicIdPartition, _Target],
    over: Mapping[TopicIdPartition, _Target],
) -> RowChanges:
    """Return the rows of partitions with new requests; a pending one that goes further stays.

    Parameters: `over`, requests that are done or void.
    """
    changed = []
    for row in rows.to_pylist():
        key = TopicIdPartition(row["topic_id"], row["partition"])
        before = row["delete_records_offset"], row["delete_records_epoch"]
        if before[0] is not None and before[0] >= targets[key].offset and before != over.get(key):
            continue
        row["delete_records_offset"], row["delete_records_epoch"] = targets[key]
        row["partition_epoch"] += 1
        changed.append(row)
    return RowChanges(PARTITION_STATE.rows(changed))
