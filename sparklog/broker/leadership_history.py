"""The leaders of all times: the compact history of `partition_state` that outlives its versions.

The versions of `partition_state` can be read for metadata.history.retention.ms. Before that has
passed, the controller copies each leader epoch of each partition to `leadership_history`, once. The
table names the version of `partition_state` up to which it is complete as an app transaction.
`partition_history` and `controller_history` are extended in the same way, from all changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from sparklog.cluster.partition_changes import (
    OF_CONTROLLER,
    OF_PARTITIONS,
    PastOfTable,
    further_rows,
)
from sparklog.cluster.roots import ClusterRoot
from sparklog.errors import DamagedError
from sparklog.logger import get_logger
from sparklog.model import LEADERSHIP_HISTORY, PARTITION_STATE, Row, TopicIdPartition
from sparklog.storage.commits import Cause, Commit, read_commits
from sparklog.storage.control_table import ControlTable
from sparklog.storage.fence import Fence

_log = get_logger(__name__)

_Known = dict[TopicIdPartition, int]
"""The newest leader epoch of each partition in the table."""


class LeadershipHistory:
    """Extends `leadership_history` for the controller."""

    def __init__(self, cluster: ClusterRoot) -> None:
        self._cluster = cluster

    def extend(self, fence: Fence, now_ms: int) -> int:
        """Add the leader epochs of the commits since the last call; return their number.

        Parameters: `fence`, that of the controller's epoch; `now_ms`, the time for leader epochs
        whose commit is no longer known, in ms since 1970. Nothing is committed if `partition_state`
        has not changed. Raises `FencedError` if another controller has taken over, and the errors
        of reading and writing the tables.
        """
        table = self._cluster.leadership_history
        table.take_fence(fence)
        states = self._cluster.partition_state
        newest = states.version
        covered = table.transaction(PARTITION_STATE.name)
        if covered is not None and covered >= newest:
            return 0
        rows = table.rows()
        known = _newest_epochs(rows)
        try:
            found = self._of_commits(known, (covered or 0) + 1, newest)
        except DamagedError as error:
            # The commits were cleaned up, since nobody has extended the table for too long.
            _log.warning("history of leaders has a gap", reason=str(error))
            current = states.rows_at(newest).to_pylist()
            found = list(_begun(known, current, newest, now_ms))
        table.compare_and_set(
            pa.concat_tables([rows, LEADERSHIP_HISTORY.rows(found)]),
            fence,
            {PARTITION_STATE.name: newest},
            Cause("EXTEND HISTORY"),
        )
        return len(found)

    def extend_past(self, fence: Fence, now_ms: int) -> int:
        """Add the changes of partitions and of the controller since the last call.

        Parameters and errors as for `extend`, but a damaged table is logged and left as it is.
        Returns the number of tables that were extended.
        """
        cluster = self._cluster
        extended = 0
        for history in (OF_PARTITIONS, OF_CONTROLLER):
            try:
                extended += _extend(history, *_tables_of(history, cluster), fence, now_ms)
            except DamagedError as error:
                _log.error("history not extended", table=history.schema.name, error=str(error))
        return extended

    def _of_commits(self, known: _Known, first: int, last: int) -> list[dict[str, Any]]:
        """Return the rows of the leader epochs that these commits began."""
        states, known = self._cluster.partition_state, dict(known)
        found: list[dict[str, Any]] = []
        for commit in read_commits(states.location, first, last):
            for row in _begun(known, self._rows_of(commit), commit.version, commit.made_at_ms or 0):
                found.append(row)
                known[TopicIdPartition(row["topic_id"], row["partition"])] = row["leader_epoch"]
        return found

    def _rows_of(self, commit: Commit) -> Iterator[Row]:
        for file in commit.added:
            yield from self._cluster.partition_state.read_file(file.path).to_pylist()


def _tables_of(history: PastOfTable, cluster: ClusterRoot) -> tuple[ControlTable, ControlTable]:
    """Return the table with the past and its source, which are opened at their first use."""
    if history is OF_PARTITIONS:
        return cluster.partition_history, cluster.partition_state
    return cluster.controller_history, cluster.controller


def _extend(
    history: PastOfTable, table: ControlTable, source: ControlTable, fence: Fence, now_ms: int
) -> bool:
    """Extend a table with the past of `source`; return whether the source has newer commits."""
    table.refresh()
    version, covered = source.version, table.transaction(history.source.name)
    rows = further_rows(history, table.rows(), covered, source, now_ms)
    if rows is None:
        return False
    table.take_fence(fence)
    table.compare_and_set(rows, fence, {history.source.name: version}, Cause("EXTEND HISTORY"))
    return True


def _newest_epochs(rows: pa.Table) -> _Known:
    known: _Known = {}
    for topic_id, partition, epoch in zip(
        *(rows[name].to_pylist() for name in ("topic_id", "partition", "leader_epoch")),
        strict=True,
    ):
        key = TopicIdPartition(topic_id, partition)
        known[key] = max(epoch, known.get(key, -1))
    return known


def _begun(
    known: Mapping[TopicIdPartition, int], rows: Iterator[Row] | list[Row], version: int, at_ms: int
) -> Iterator[dict[str, Any]]:
    """Yield a row for each leader epoch in rows of `partition_state` that is not known yet."""
    seen: set[TopicIdPartition] = set()
    for row in rows:
        key = TopicIdPartition(row["topic_id"], row["partition"])
        if key not in seen and row["leader_epoch"] > known.get(key, -1):
            seen.add(key)
            columns = LEADERSHIP_HISTORY.columns.names
            of_row = {name: row[name] for name in columns if name in row}
            yield of_row | {"version": version, "since_ms": at_ms}
