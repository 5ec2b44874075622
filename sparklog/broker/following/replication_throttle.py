"""The throttle of reassignments: bytes per second that new replicas may copy (rule 7.8).

Kafka's leader.replication.throttled.rate and follower.replication.throttled.rate, which its tool
sets to one value. Here the value is stored with the partitions that are reassigned, and followers
apply both: replicas read their leader's files themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

from sparklog.cluster.metadata import PartitionState
from sparklog.model import Batch, TopicIdPartition

BURST_MS = 1_000
"""The time in ms whose bytes may be copied at once, after a time without any: quota windows of
Kafka are of one second.
"""


@dataclass
class _Budget:
    """The bytes that may be copied; negative after a batch that was larger than that."""

    bytes_left: float
    at_ms: int


class ReplicationThrottle:
    """The budgets of one broker, for all of its log directories.

    One budget is the broker's own, and one is its share in the rate of each leader, which the
    brokers with replicas that copy from it have in equal parts.
    """

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._partitions: object = None
        self._rates: dict[Hashable, float] = {}
        self._throttled: dict[TopicIdPartition, tuple[Hashable, ...]] = {}
        self._budgets: dict[Hashable, _Budget] = {}

    def note(self, partitions: Mapping[TopicIdPartition, PartitionState]) -> None:
        """Take over the throttled partitions; costs nothing if `partitions` is the same object."""
        if partitions is self._partitions:
            return
        self._partitions = partitions
        throttled = [
            one
            for one in partitions.values()
            if one.replication_throttled_rate is not None and any(r.adding for r in one.replicas)
        ]
        copying: dict[int, set[int]] = defaultdict(set)
        rates: dict[Hashable, float] = {}
        self._throttled = {}
        for state in throttled:
            adding = {one.broker_id for one in state.replicas if one.adding}
            if state.leader is not None:
                copying[state.leader] |= adding - {state.leader}
        for state in throttled:
            own = state.replica(self._broker_id)
            rate = state.replication_throttled_rate
            if own is None or not own.adding or state.leader is None or rate is None:
                continue
            names: tuple[Hashable, ...] = ("follower", ("leader", state.leader))
            self._throttled[state.key] = names
            shares = (float(rate), rate / max(len(copying[state.leader]), 1))
            for name, share in zip(names, shares, strict=True):
                rates[name] = min(share, rates.get(name, share))
        self._rates = rates
        self._budgets = {of: one for of, one in self._budgets.items() if of in rates}

    def is_throttled(self, key: TopicIdPartition) -> bool:
        """Return whether the copies of a partition count."""
        return key in self._throttled

    def limits(self, keys: Iterable[TopicIdPartition], now_ms: int) -> dict[TopicIdPartition, int]:
        """Return the bytes that may be copied of each throttled partition in `keys`, 0 for none.

        The partitions of a budget share it.
        """
        wanted = [key for key in keys if key in self._throttled]
        for name in {name for key in wanted for name in self._throttled[key]}:
            self._refill(name, now_ms)
        users = {
            name: sum(name in self._throttled[key] for key in wanted) for name in self._budgets
        }
        return {
            key: max(
                int(min(self._budgets[of].bytes_left / users[of] for of in self._throttled[key])),
                0,
            )
            for key in wanted
        }

    def copied(self, batches: Collection[Batch]) -> None:
        """Count the bytes of copied batches."""
        for batch in batches:
            for name in self._throttled.get(batch.topic_id_partition, ()):
                self._budgets[name].bytes_left -= batch.size_bytes

    def _refill(self, name: Hashable, now_ms: int) -> None:
        most = self._rates[name] * BURST_MS / 1_000
        budget = self._budgets.setdefault(name, _Budget(most, now_ms))
        gained = self._rates[name] * max(now_ms - budget.at_ms, 0) / 1_000
        budget.bytes_left = min(budget.bytes_left + gained, most)
        budget.at_ms = now_ms
