"""The rows of another broker's replicas, by partition, followed as its journal goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparklog.model import TopicIdPartition
from sparklog.storage.journal import Journal, Row
from sparklog.storage.location import Location


class ReplicaRows(Mapping[TopicIdPartition, Row]):
    """The rows of the replicas in the broker root at `root`, as of the last look.

    Parameters: `journal`, the root's journal where it is open.
    """

    def __init__(self, root: Location, journal: Journal | None = None) -> None:
        self._journal = journal or Journal(root)
        self._is_new = True

    def __getitem__(self, key: TopicIdPartition) -> Row:
        return self._journal.rows[key]

    def __iter__(self) -> Iterator[TopicIdPartition]:
        return iter(self._journal.rows)

    def __len__(self) -> int:
        return len(self._journal.rows)

    def has_news(self) -> bool:
        """Say whether the journal has certainly gone on."""
        return self._journal.has_news()

    def refresh(self) -> set[TopicIdPartition]:
        """Load the newest rows; return the partitions whose rows may be others than before."""
        self._journal.refresh()
        moved = self._journal.take_moved()
        if self._is_new:
            self._is_new = False
            return moved | self._journal.rows.keys()
        return moved
