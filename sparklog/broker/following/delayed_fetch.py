"""Delayed fetches: a follower waits until its leader has enough bytes for it (rules 4.1-4.4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sparklog.broker.purgatory import DelayedFetch, FetchProgress, Purgatory
from sparklog.cluster.metadata import PartitionState
from sparklog.config import Settings
from sparklog.model import TopicIdPartition


class Fetch(NamedTuple):
    """The state of a fetch from one leader's root.

    `states` and `positions`: of every partition that the follower follows there, the state, and the
    follower's log end offset. `bytes_of`: the bytes to copy, of the partitions that have any.
    """

    states: Sequence[PartitionState]
    positions: Mapping[TopicIdPartition, int]
    bytes_of: Mapping[TopicIdPartition, int]


def may_be_delayed(purgatory: Purgatory, settings: Settings) -> bool:
    """Return whether a fetch may have to wait, or waits already.

    With replica.fetch.min.bytes = 1, the default, any byte is enough, and the rule is not run.
    """
    return settings.replica_fetch_min_bytes > 1 or bool(purgatory.waiting(DelayedFetch))


def delayed_fetches(
    purgatory: Purgatory, fetches: Mapping[str, Fetch], settings: Settings, now_ms: int
) -> Collection[str]:
    """Return the ids of the fetches that have to wait for replica.fetch.min.bytes.

    All partitions of a fetch wait and complete together: when there are enough bytes for them, or
    after replica.fetch.wait.max.ms. Fetches that have waited on another leader are dropped.
    """
    waiting = {one.request_id: one for one in purgatory.waiting(DelayedFetch)}
    available = {
        _operation_id(fetch_id, state): fetch.bytes_of.get(state.key, 0)
        for fetch_id, fetch in fetches.items()
        for state in fetch.states
    }

    def progress(operation: DelayedFetch) -> FetchProgress:
        found = available.get(operation.operation_id)
        return FetchProgress(found is not None, found or 0)

    operations = []
    for fetch_id, fetch in fetches.items():
        known = waiting.get(fetch_id)
        deadline_ms = known.deadline_ms if known else now_ms + settings.replica_fetch_wait_max_ms
        operations += [
            DelayedFetch(
                operation_id=_operation_id(fetch_id, state),
                request_id=fetch_id,
                topic_id=state.topic_id,
                topic=state.topic,
                partition=state.partition,
                leader_epoch=state.leader_epoch,
                base_offset=fetch.positions[state.key],
                min_bytes=settings.replica_fetch_min_bytes,
                deadline_ms=deadline_ms,
            )
            for state in fetch.states
        ]
    purgatory.try_complete_else_watch(operations, progress)
    # Triggers: the leaders have appended, or are no longer the leaders (A.2, 4.4).
    purgatory.check_and_complete(DelayedFetch, purgatory.watched(DelayedFetch), progress)
    purgatory.expire(DelayedFetch, now_ms)
    return {one.request_id for one in purgatory.waiting(DelayedFetch)}


def _operation_id(fetch_id: str, state: PartitionState) -> str:
    return f"{fetch_id}/{state.topic_id}/{state.partition}/{state.leader_epoch}"
