"""The controller's part in reassignments: their end, when the target is in sync (rule 7.8).

The commit that ends a reassignment also records the removed replicas. Each broker removes its own
by that record, also one that was away. After a crash another controller begins again.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cluster.election import log_changes
from sparklog.cluster.metadata import LIVE, Metadata
from sparklog.cluster.reassignment import Reassigner
from sparklog.cluster.roots import ClusterRoot
from sparklog.logger import get_logger
from sparklog.model import TOPICS, TopicIdPartition
from sparklog.storage.commits import Cause
from sparklog.storage.fence import Fence
from sparklog.storage.shards import ShardedRows, changed_units

_log = get_logger(__name__)


class ReassignmentCompletion:
    """Finds reassignments in progress, and ends the complete ones.

    It costs nothing while neither `partition_state` nor `brokers` have changed.
    """

    def __init__(self, cluster: ClusterRoot, reassigner: Reassigner) -> None:
        self._cluster = cluster
        self._reassigner = reassigner
        self._rows: ShardedRows | None = None
        self._pending: set[TopicIdPartition] = set()
        self._tried: object = None
        # The replicas of partition 0 of topics whose factor is yet to be compared, by topic id.
        self._factors: dict[str, int] = {}

    def reset(self) -> None:
        """Read all rows again, since another controller may have acted meanwhile."""
        self._rows, self._tried = None, None
        self._pending.clear()
        self._factors.clear()

    def is_due(self) -> bool:
        """Return whether a reassignment may be complete, by the loaded tables."""
        self._note_changes()
        return bool(self._pending) and self._state() != self._tried

    def complete(self, metadata: Metadata, fence: Fence) -> None:
        """End the complete reassignments: the target alone, with a leader, and the record."""
        state = self._state()
        changes = self._cluster.partition_state.change_rows(
            lambda rows: self._reassigner.complete(rows, metadata, fence.epoch),
            self._pending,
            fence,
            cause=Cause("COMPLETE REASSIGNMENTS", {"cause": "target_in_sync"}),
        )
        log_changes(changes)
        self._tried = state

    def correct_factors(self, metadata: Metadata, fence: Fence) -> bool:
        """Set replication_factor of topics to the replicas of partition 0; return if one differed.

        As in Kafka, where it is that number.
        """
        self._note_changes()
        topics = metadata.topics
        wrong = {
            of: count
            for of, count in self._factors.items()
            if of in topics and topics[of].replication_factor != count
        }
        if wrong:
            table = self._cluster.topics
            # As for other rare changes of topics, the fence is taken here.
            table.take_fence(fence)
            table.update(
                lambda rows: (_with_factors(rows, wrong), None),
                fence,
                Cause("CORRECT REPLICATION FACTORS"),
            )
        self._factors.clear()
        return bool(wrong)

    def _state(self) -> object:
        return self._cluster.partition_state.state, self._cluster.brokers.state

    def _note_changes(self) -> None:
        """Note the reassignments and the factors in the rows that have changed."""
        rows = self._cluster.partition_state.sharded_rows()
        before, self._rows = self._rows, rows
        if rows is before:
            return
        if before is None:
            changed = rows.rows
        else:
            units = changed_units(before, rows)
            self._pending -= {TopicIdPartition(*unit) for unit in units}
            changed = rows.rows_of(units)
        is_moving = pc.or_(changed["adding"], changed["removing"])
        moving = changed.filter(is_moving)
        self._pending |= set(
            map(
                TopicIdPartition,
                moving["topic_id"].to_pylist(),
                moving["partition"].to_pylist(),
            )
        )
        first = changed.filter(pc.equal(changed["partition"], 0))
        counts = pc.value_counts(first["topic_id"].combine_chunks()).to_pylist()
        for one in counts:
            if TopicIdPartition(one["values"], 0) not in self._pending:
                self._factors[one["values"]] = one["counts"]


def _with_factors(topics: pa.Table, factors: dict[str, int]) -> pa.Table:
    rows = topics.to_pylist()
    for row in rows:
        if row["state"] == LIVE and row["topic_id"] in factors:
            row["replication_factor"] = factors[row["topic_id"]]
    return TOPICS.rows(rows)
