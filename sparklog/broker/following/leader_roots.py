"""The roots of the leaders, as a follower reads them. Each is opened once and kept."""

from __future__ import annotations

from collections.abc import Collection

from sparklog.broker.peers import Peer, Peers
from sparklog.broker.producer_state import producer_batches
from sparklog.cluster.metadata import MetadataReader
from sparklog.cluster.replica_rows import ReplicaRows
from sparklog.logger import RepeatedFailures, get_logger
from sparklog.model import PRODUCER_STATE, ProducerBatch, Row, TopicIdPartition
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location

_log = get_logger(__name__)


class LeaderRoot:
    """The tables of a leader's root, as a follower reads them.

    `fetch_id` names the fetches from it.
    """

    def __init__(self, of: Peer, location: Location, rows: ReplicaRows) -> None:
        self.of = of
        self.location = location
        self.fetch_id = "/".join(("fetch", *map(str, of)))
        self.log = rows.journal
        self.changes = rows.changes
        """The partitions whose rows or histories have changed."""
        self._rows = rows
        self._producer_state: ControlTable | None = None

    def refresh(self) -> None:
        """Load the newest rows of the leader's replicas; `log` is then at their version."""
        self._rows.refresh()

    def row(self, key: TopicIdPartition) -> Row | None:
        """Return the row of one of the leader's replicas, as loaded last, or `None`."""
        return self._rows.get(key)

    def producer_batches(self) -> list[ProducerBatch]:
        """Return the leader's state of producers whose batches it has merged (3.6, 8.4)."""
        if self._producer_state is None:
            # Opened on demand: only followers that are far behind need it.
            self._producer_state = ControlTable(self.location, PRODUCER_STATE)
        self._producer_state.refresh()
        return producer_batches(self._producer_state.rows())


class LeaderRoots:
    """The open roots of leaders."""

    def __init__(self, reader: MetadataReader, peers: Peers) -> None:
        self._reader = reader
        self._peers = peers
        self._open: dict[Peer, LeaderRoot] = {}
        self._failures = RepeatedFailures(_log)

    def keep(self, wanted: Collection[Peer]) -> None:
        """Close all but these."""
        self._open = {of: root for of, root in self._open.items() if of in wanted}

    def opened(self, of: Peer) -> LeaderRoot | None:
        """Return a leader's root if it is open, otherwise `None`."""
        return self._open.get(of)

    def open(self, of: Peer) -> LeaderRoot:
        """Return a leader's root, opened if necessary; one of `UNREADABLE` if it is missing."""
        if of not in self._open:
            location = self._reader.location(of.broker_id, of.root)
            self._open[of] = LeaderRoot(of, location, self._peers.rows(of))
        return self._open[of]

    def release(self, root: LeaderRoot, error: Exception) -> None:
        """Close a root, to be opened again in the next tick; replicas of other leaders continue."""
        self._failures.warning(
            root.location.uri, "leader not readable", root=root.location.uri, error=str(error)
        )
        self._peers.release(root.of)
        self._open = {of: one for of, one in self._open.items() if one is not root}
