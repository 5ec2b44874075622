"""The choice of the replica to read: the leader, the nearest, or a certain broker's (KIP-392)."""

from __future__ import annotations

from sparklog.cluster.connection import Connection, Visible
from sparklog.cluster.metadata import Metadata
from sparklog.cluster.replica_selection import RackAwareReplicaSelector
from sparklog.datasource.options import ReadOptions
from sparklog.errors import ProtocolError


class ReplicaChoice:
    """Selects replicas by the option `replica`."""

    def __init__(self, connection: Connection, options: ReadOptions) -> None:
        self._wanted = options.replica
        self._selector = RackAwareReplicaSelector(connection, options.client_rack or "")

    def replica(self, leader: Visible, metadata: Metadata, needed: int = 0) -> Visible:
        """Return the selected replica of a partition, with the offsets that may be read there.

        `leader` is the leader's replica. Of another replica the offsets below its own high
        watermark may be read, and only while its broker is alive and its row has the leader's epoch
        (rule 2.7). One that has not reached offset `needed` is not selected. If no in-sync replica
        is near, the leader is read. Raises REPLICA_NOT_AVAILABLE if a certain broker's is requested
        and cannot be read.
        """
        # Records that not even the leader has are lost; the choice of the replica does not matter.
        if self._wanted == "leader" or leader.high_watermark < needed:
            return leader
        if self._wanted == "nearest":
            nearest = self._selector.select(leader, metadata)
            return nearest if nearest.high_watermark >= needed else leader
        broker_id = int(self._wanted)
        if broker_id == leader.state.leader:
            return leader
        replica, broker = leader.state.replica(broker_id), metadata.brokers.get(broker_id)
        if replica is not None and broker is not None and metadata.is_live(replica):
            found = self._selector.follower(leader, replica, broker.broker_epoch)
            if found is not None and found.high_watermark >= needed:
                return found
        state = leader.state
        raise ProtocolError(
            "REPLICA_NOT_AVAILABLE",
            f"broker {broker_id} has no replica of partition {state.partition} of topic "
            f"{state.topic} that follows leader {state.leader} in epoch {state.leader_epoch} and "
            f"has reached offset {needed}: try again, or read another replica of "
            f"{[one.broker_id for one in state.replicas]}",
        )
