"""The rows of another broker's replicas, by partition, kept up to date from its journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparklog.cluster.changed_partitions import ChangedPartitions
from sparklog.model import Row, TopicIdPartition
from sparklog.storage.journal import Journal
from sparklog.storage.location import Location


class ReplicaRows(Mapping[TopicIdPartition, Row]):
    """The rows of the replicas in the broker root at `root`, as last loaded."""

    def __init__(self, root: Location) -> None:
        self.journal = Journal(root)
        """The journal that contains the rows, at their version."""
        self._changed: set[TopicIdPartition] = set(self.journal.rows)
        self.changes = ChangedPartitions()
        """The partitions whose rows or histories may have changed since the journal was opened."""

    def __getitem__(self, key: TopicIdPartition) -> Row:
        return self.journal.rows[key]

    def __iter__(self) -> Iterator[TopicIdPartition]:
        return iter(self.journal.rows)

    def __len__(self) -> int:
        return len(self.journal.rows)

    def has_news(self) -> bool:
        """Return True if the journal has a newer version. Always False on object stores."""
        return self.journal.has_news()

    def refresh(self) -> None:
        """Load the newest rows."""
        self.journal.refresh()
        moved = self.journal.pop_moved()
        self._changed |= moved
        self.changes.note(moved)

    def pop_changed(self) -> set[TopicIdPartition]:
        """Return the partitions whose rows may have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed
