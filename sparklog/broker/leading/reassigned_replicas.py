"""Replicas of one root that a reassignment has removed, by its record (rule 7.8)."""

from __future__ import annotations

from sparklog.broker.producer_state import ProducerState
from sparklog.broker.replicas import Replicas
from sparklog.cluster.metadata import Metadata, PartitionState
from sparklog.model import TopicIdPartition
from sparklog.protocol.rules import Rules


class ReassignedReplicas:
    """Finds the replicas of a root that were removed by reassignments, as `partition_state` says.

    A replica that is only missing from the assignment stays: the cluster root may have been
    restored.
    """

    def __init__(
        self,
        broker_id: int,
        replicas: Replicas,
        producer_state: ProducerState,
        rules: Rules,
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._producer_state = producer_state
        self._rules = rules
        # The partitions in which all removals are done.
        self._done: object = None

    def find(self, metadata: Metadata) -> set[TopicIdPartition]:
        """Return the partitions whose replica is to be removed.

        Costs nothing while the partitions have not changed since the last call that found none.
        """
        if metadata.partitions is self._done:
            return set()
        known = {*self._replicas.partitions(), *self._producer_state.partitions()}
        rows = []
        for key in known:
            state = metadata.partitions.get(key)
            if state is None or self._is_assigned(state):
                continue
            removed = [
                one.leader_epoch
                for one in state.removed
                if (one.broker_id, one.root) == (self._broker_id, self._replicas.root_index)
            ]
            rows.append(
                {
                    **key._asdict(),
                    "is_assigned": False,
                    "last_epoch": self._last_epoch(key),
                    "removed_in_epoch": max(removed, default=None),
                }
            )
        found = self._rules.run("removable_replicas", replicas=rows) if rows else []
        if not found:
            self._done = metadata.partitions
        return {TopicIdPartition(row["topic_id"], row["partition"]) for row in found}

    def note_removed(self, metadata: Metadata) -> None:
        """Note that the replicas that were found are removed."""
        self._done = metadata.partitions

    def _is_assigned(self, state: PartitionState) -> bool:
        own = state.replica(self._broker_id)
        return own is not None and own.root == self._replicas.root_index

    def _last_epoch(self, key: TopicIdPartition) -> int:
        """Return the last leader epoch that the replica has seen, -1 without any."""
        seen = [entry.epoch for entry in self._replicas.epochs(key)]
        if key in self._replicas:
            seen.append(self._replicas[key].leader_epoch)
        return max(seen, default=-1)
