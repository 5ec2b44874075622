"""Replica selection: a consumer prefers a replica in its own rack (rule 2.7, KIP-392)."""

from __future__ import annotations

from sparklog.cluster.connection import Connection, Visible
from sparklog.cluster.metadata import AssignedReplica, Metadata
from sparklog.logger import get_logger
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.location import one_line

_log = get_logger(__name__)


class RackAwareReplicaSelector:
    """Selects replicas for a consumer in the rack `client_rack`, as Kafka's class does."""

    def __init__(self, connection: Connection, client_rack: str) -> None:
        self._connection = connection
        self._client_rack = client_rack

    def select(self, leader: Visible, metadata: Metadata) -> Visible:
        """Return the visible offsets of a partition in the nearest in-sync replica.

        `leader` has those of its leader. A follower shows records below its own high watermark, and
        only while its row has the leader's epoch. Of the followers in the consumer's rack, the one
        with the highest high watermark is selected. Without a readable one it is the leader.
        """
        brokers = metadata.brokers
        racks = {one.broker_id: one.rack for one in brokers.values() if one.is_alive}
        state = leader.state
        if state.leader is None or racks.get(state.leader) == self._client_rack:
            return leader
        near = [
            follower
            for one in state.replicas
            if one.in_isr
            and metadata.is_live(one)
            and racks.get(one.broker_id) == self._client_rack
            and (follower := self.follower(leader, one, brokers[one.broker_id].broker_epoch))
        ]
        return max(near, key=lambda one: one.high_watermark, default=leader)

    def follower(
        self, leader: Visible, replica: AssignedReplica, broker_epoch: int
    ) -> Visible | None:
        """Return a follower's visible offsets, or `None` if unreadable or in another epoch."""
        location = self._connection.replica_location(leader.state, replica.broker_id)
        try:
            journal = self._connection.journal(location)
        except UNREADABLE as error:
            _log.info("follower not readable", root=location.uri, error=one_line(error))
            return None
        row = journal.rows.get(leader.state.key)
        epochs = leader.state.leader_epoch, broker_epoch
        if row is None or (row["leader_epoch"], row["broker_epoch"]) != epochs:
            return None
        return leader._replace(
            location=location,
            log_version=journal.version,
            log_start_offset=row["log_start_offset"],
            # The follower's row may be newer than the leader's row that was read.
            high_watermark=min(row["high_watermark"], leader.high_watermark),
        )
