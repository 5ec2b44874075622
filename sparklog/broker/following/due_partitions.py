"""The partitions that a follower's tick examines: those that changed, are unfinished, or are due.

An examined partition without work is examined again when its leader's row or history, its own
state or the metadata changes. So a tick costs O(changed partitions), and an idle one
O(leaders). All partitions are examined when rows have to be renewed, and while fetches wait for
more bytes, since such a fetch has all partitions of its leader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from sparklog.broker.following.leader_roots import LeaderRoot
from sparklog.broker.peers import Peer
from sparklog.broker.replicas import Replicas
from sparklog.cluster.metadata import Metadata, PartitionState
from sparklog.model import TopicIdPartition

Followed = Mapping[TopicIdPartition, PartitionState]


class DuePartitions:
    """The partitions that one root of broker `broker_id` follows, and those to be examined."""

    def __init__(self, broker_id: int, replicas: Replicas) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._partitions: object = None
        self._leader_of: dict[TopicIdPartition, Peer] = {}
        self._by_leader: dict[Peer, dict[TopicIdPartition, PartitionState]] = {}
        self.waiting: set[TopicIdPartition] = set()
        """The partitions that the next tick examines, and those that are no longer followed."""
        self._seen_change = 0
        # By leader, its root and the number of the last change of its rows that was noted.
        self._seen_rows: dict[Peer, tuple[LeaderRoot, int]] = {}
        self._damaged: frozenset[TopicIdPartition] = frozenset()
        self._renewal_at_ms: int | None = None

    @property
    def by_leader(self) -> Mapping[Peer, Followed]:
        """The partitions to follow, by leader, in the metadata that were loaded last."""
        return self._by_leader

    def load(self, metadata: Metadata) -> None:
        """Take over the partitions to follow; those whose state has changed are examined."""
        if metadata.partitions is self._partitions:
            return
        before, known = self._by_leader, self._leader_of
        by_leader: dict[Peer, dict[TopicIdPartition, PartitionState]] = {}
        leader_of: dict[TopicIdPartition, Peer] = {}
        for key, state in metadata.partitions.items():
            own = state.replica(self._broker_id)
            if own is None or own.root != self._replicas.root_index:
                continue
            leader = state.replica(state.leader) if state.leader is not None else None
            if leader is None or leader.broker_id == self._broker_id:
                continue
            of = Peer(leader.broker_id, leader.root, state.leader_broker_epoch)
            by_leader.setdefault(of, {})[key] = state
            leader_of[key] = of
            # Unchanged partitions keep their objects.
            if known.get(key) != of or before[of].get(key) is not state:
                self.waiting.add(key)
        self.waiting |= known.keys() - leader_of.keys()
        self._by_leader, self._leader_of = by_leader, leader_of
        self._partitions = metadata.partitions

    def note_changes(self, roots: Mapping[Peer, LeaderRoot]) -> None:
        """Note what has changed in the open roots of the leaders, and in the own replicas."""
        changes = self._replicas.changes
        self._add(changes.since(self._seen_change), self._leader_of)
        self._seen_change = changes.number
        damaged = frozenset(self._replicas.damaged)
        self.waiting |= damaged ^ self._damaged
        self._damaged = damaged
        for of, root in roots.items():
            seen = self._seen_rows.get(of)
            is_known = seen is not None and seen[0] is root
            number = root.changes.number
            found = root.changes.since(seen[1]) if seen is not None and is_known else None
            self._add(found, self._by_leader[of])
            self._seen_rows[of] = root, number
        # An unreadable root is examined as a whole when it can be read again.
        self._seen_rows = {of: seen for of, seen in self._seen_rows.items() if of in roots}

    def _add(
        self, changed: AbstractSet[TopicIdPartition] | None, those: Collection[TopicIdPartition]
    ) -> None:
        self.waiting |= set(those) if changed is None else changed

    def examine_all(self) -> None:
        """Examine all partitions in this tick."""
        self.waiting |= self._leader_of.keys()

    def is_renewal_due(self, now_ms: int) -> bool:
        """Return whether the row of an examined partition may be due for renewal (5.1)."""
        return self._renewal_at_ms is not None and now_ms >= self._renewal_at_ms

    def examined(self) -> list[tuple[Peer, TopicIdPartition, PartitionState]]:
        """Return the followed partitions to be examined, sorted by their leaders."""
        found = [(self._leader_of[key], key) for key in self.waiting if key in self._leader_of]
        return [(of, key, self._by_leader[of][key]) for of, key in sorted(found)]

    def no_longer_followed(self) -> set[TopicIdPartition]:
        """Return the partitions to be examined that this root does not follow."""
        return self.waiting - self._leader_of.keys()

    def finish(
        self, unfinished: Iterable[TopicIdPartition], renewals_ms: Iterable[int], *, was_all: bool
    ) -> None:
        """End the examination; `unfinished` are examined again in the next tick.

        `renewals_ms` are the times at which the rows of the examined partitions are due, and
        `was_all` says whether these were all partitions.
        """
        self.waiting = set(unfinished)
        known = [] if was_all or self._renewal_at_ms is None else [self._renewal_at_ms]
        self._renewal_at_ms = min([*known, *renewals_ms], default=None)
