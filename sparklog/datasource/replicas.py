"""Which replica is read: the leader, the nearest, or a certain broker's (KIP-392)."""

from __future__ import annotations

from sparklog.clients.connection import Connection, Visible
from sparklog.clients.replica_selection import RackAwareReplicaSelector
from sparklog.datasource.options import ReadOptions
from sparklog.errors import ProtocolError
from sparklog.storage.metadata import Metadata


class ReplicaChoice:
    """Takes the `replica` option at its word."""

    def __init__(self, connection: Connection, options: ReadOptions) -> None:
        self._wanted = options.replica
        self._selector = RackAwareReplicaSelector(connection, options.client_rack or "")

    def replica(self, leader: Visible, metadata: Metadata, needed: int = 0) -> Visible:
        """Return what may be seen of a partition in the replica that is wanted.

        `leader` is what its leader shows. Another replica shows what is below its own high
        watermark, and only while its broker lives and it bears the leader's epoch (rule 2.7); one
        that has not reached offset `needed` is left out. Where no replica in sync is near, the
        leader is read. Raises REPLICA_NOT_AVAILABLE where a certain broker's is wanted and cannot
        be read.
        """
        # What not even the leader shows is lost, and no matter of replicas.
        if self._wanted == "leader" or leader.high_watermark < needed:
            return leader
        if self._wanted == "nearest":
            nearest = self._selector.select(leader, metadata)
            return nearest if nearest.high_watermark >= needed else leader
        broker_id = int(self._wanted)
        if broker_id == leader.state.leader:
            return leader
        replica, broker = leader.state.replica(broker_id), metadata.brokers.get(broker_id)
        if replica is not None and broker is not None and broker.is_alive:
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
