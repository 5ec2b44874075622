"""Producer state that a follower copies from its leaders, of batches that they have removed.

A merged batch carries no producer ids. Its leader has them in its table `producer_state`, which it
writes before its log's commit. So the newest version of that table covers every log version that
one of the leader's rows names. A follower writes the state into its own table before it commits
what it copied.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter

from sparklog.broker.following.fetch import Followed
from sparklog.broker.following.leader_roots import LeaderRoots
from sparklog.broker.producer_state import ProducerState
from sparklog.model import Batch, ProducerBatch, TopicIdPartition
from sparklog.storage.errors import UNREADABLE

_base_offset = attrgetter("base_offset")

Told = dict[TopicIdPartition, list[ProducerBatch]]
"""Producer state read from leaders; partitions whose leader cannot be read are missing."""


class ProducerFetcher:
    """Fetches producer state into one broker root."""

    def __init__(self, producer_state: ProducerState, leader_roots: LeaderRoots) -> None:
        self._producer_state = producer_state
        self._leader_roots = leader_roots

    def copy_merged(
        self, batches: list[Batch], followed: list[Followed], now_ms: int
    ) -> list[Batch]:
        """Copy the producer state of the batches that these were merged of, and nothing beyond.

        Returns the batches that may be committed: those of a partition with merged batches may not
        if its leader cannot be read.
        """
        of_key = {one.key: one for one in followed}
        # A replica that keeps up copies nothing below the high watermark, and only batches below it
        # are merged.
        merged = [
            batch
            for batch in batches
            if batch.producer_id < 0
            and batch.next_offset <= of_key[batch.topic_id_partition].row["high_watermark"]
        ]
        wanted = {batch.topic_id_partition for batch in merged}
        told = self._ask([of_key[key] for key in wanted])
        known = _merged_into(merged, (one for of in told.values() for one in of))
        self._add(known, now_ms)
        return [batch for batch in batches if batch.topic_id_partition not in wanted - told.keys()]

    def copy_before(
        self, starts: Mapping[TopicIdPartition, int], followed: list[Followed], now_ms: int
    ) -> Told:
        """Copy the leaders' producer state from before these offsets (6.7), and return it."""
        told = self._ask([one for one in followed if one.key in starts])
        before = {
            key: [one for one in batches if one.last_offset < starts[key]]
            for key, batches in told.items()
        }
        self._add((one for of in before.values() for one in of), now_ms)
        return before

    def _add(self, known: Iterable[ProducerBatch], now_ms: int) -> None:
        # Clocks of two brokers are not compared: the state counts as written when it is copied.
        self._producer_state.add([one._replace(timestamp_ms=now_ms) for one in known], now_ms)

    def _ask(self, asked: list[Followed]) -> Told:
        told: Told = {}
        for root in {one.root for one in asked}:
            try:
                known = root.producer_batches()
            except UNREADABLE as error:
                self._leader_roots.release(root, error)
                continue
            of_root: Told = {one.key: [] for one in asked if one.root is root}
            for batch in known:
                if batch.topic_id_partition in of_root:
                    of_root[batch.topic_id_partition].append(batch)
            told |= of_root
        return told


def _merged_into(batches: Collection[Batch], known: Iterable[ProducerBatch]) -> list[ProducerBatch]:
    """Return the part of `known` whose batches were merged into `batches`."""
    of_partition: dict[TopicIdPartition, list[Batch]] = defaultdict(list)
    for batch in sorted(batches, key=_base_offset):
        of_partition[batch.topic_id_partition].append(batch)
    found = []
    for one in known:
        candidates = of_partition.get(one.topic_id_partition, [])
        index = bisect.bisect_right(candidates, one.base_offset, key=_base_offset) - 1
        if index >= 0 and one.last_offset < candidates[index].next_offset:
            found.append(one)
    return found
