"""Log start offsets of one broker root, and the removal of the batches below them (rule 8.3).

A log start offset moves in the replica's row. The batches that end at or before it are removed in
the same commit, up to a limit, and in the next ones. Their files stay until clean-up removes them.
The order of effects is: producer state, journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice, takewhile

from sparklog.broker.producer_state import ProducerState
from sparklog.broker.replicas import Replicas
from sparklog.broker.tick import Effects
from sparklog.logger import get_logger
from sparklog.model import Batch, TopicIdPartition

_log = get_logger(__name__)

_MOST_BATCHES = 1_000
"""The maximum number of batches that a commit removes, so that a tick does not wait long for it."""


class LogStarts:
    """Moves log start offsets; leader and follower of a root share one instance.

    A tick calls `move`, commits the batches that it returns as removed, and then calls
    `note_committed`. If the commit fails, nothing has moved.
    """

    def __init__(self, replicas: Replicas, producer_state: ProducerState) -> None:
        self._replicas = replicas
        self._log = replicas.root.log
        self._producer_state = producer_state
        # Replicas that may have batches below their log start offset. Initially all: the process
        # may have died before the last removal.
        self._unremoved = set(self._log.partitions())

    def unremoved(self) -> set[TopicIdPartition]:
        """Return the replicas with batches below their log start offset; costs O(their number)."""
        if self._unremoved:
            self._unremoved = {key for key in self._unremoved if self._has_unremoved(key)}
        return set(self._unremoved)

    def _has_unremoved(self, key: TopicIdPartition) -> bool:
        first = self._log.first_batch(key)
        return (
            first is not None
            and key in self._replicas
            and first.next_offset <= self._replicas[key].log_start_offset
        )

    def move(
        self, starts: Mapping[TopicIdPartition, int], now_ms: int, effects: Effects
    ) -> list[Batch]:
        """Stage new log start offsets; return the batches to remove with the next commit.

        The leader-epoch histories are cut at the new starts. The producer state of the removed
        batches is written here, before the commit. Parameters: `starts`, by replica; they may be
        empty if only batches are left to remove.
        """
        for key, offset in starts.items():
            replica = self._replicas[key]
            _log.info(
                "log start offset moved",
                root=self._replicas.root.location.uri,
                topic=replica.topic,
                partition=key.partition,
                from_offset=replica.log_start_offset,
                to_offset=offset,
            )
            self._replicas.put(key, replica.topic, log_start_offset=offset)
        self._replicas.cut_epochs(starts)
        self._unremoved |= starts.keys()
        removed = list(islice(self._batches_below(), _MOST_BATCHES))
        told = [
            one
            for batch in removed
            for one in self._producer_state.said_by(
                [batch], self._replicas[batch.topic_id_partition].log_start_offset
            )
        ]
        self._producer_state.add(told, now_ms)
        effects.done("producer_state")
        return removed

    def _batches_below(self) -> Iterable[Batch]:
        """Yield the batches that end at or before their replica's log start offset."""
        for key in sorted(self._unremoved):
            if self._has_unremoved(key):
                start = self._replicas[key].log_start_offset
                yield from takewhile(_ends_by(start), self._log.batches(key))

    def note_committed(self, starts: Iterable[TopicIdPartition]) -> None:
        """Drop the damage of batch files that are below the log start offset now."""
        for key in starts:
            damage = self._replicas.damaged.get(key)
            if damage is not None and not damage.in_log:
                start = self._replicas[key].log_start_offset
                batch = self._log.batch_at(key, damage.from_offset)
                if damage.from_offset < start and batch is None:
                    del self._replicas.damaged[key]


def _ends_by(offset: int) -> Callable[[Batch], bool]:
    """Return whether a batch ends at or before `offset`."""
    return lambda batch: batch.next_offset <= offset
