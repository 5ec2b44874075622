"""The rows of another broker's replicas, by partition, followed as its journal goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparklog.model import TopicIdPartition
from sparklog.storage.journal import Journal, Row
from sparklog.storage.location import Location


class ReplicaRows(Mapping[TopicIdPartition, Row]):
    """The rows of the replicas in the broker root at `root`, as of the last look."""

    def __init__(self, root: Location) -> None:
        self.journal = Journal(root)
        """The journal that has the rows, at their version."""
        self._changed: set[TopicIdPartition] = set(self.journal.rows)

    def __getitem__(self, key: TopicIdPartition) -> Row:
        return self.journal.rows[key]

    def __iter__(self) -> Iterator[TopicIdPartition]:
        return iter(self.journal.rows)

    def __len__(self) -> int:
        return len(self.journal.rows)

    def has_news(self) -> bool:
        """Say whether the journal has certainly gone on."""
        return self.journal.has_news()

    def refresh(self) -> None:
        """Load the newest rows."""
        self.journal.refresh()
        self._changed |= self.journal.take_moved()

    def take_changed(self) -> set[TopicIdPartition]:
        """Return the partitions whose rows may be others than when this was asked last."""
        changed, self._changed = self._changed, set()
        return changed
