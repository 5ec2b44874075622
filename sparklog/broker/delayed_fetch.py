"""Fetches of a follower that wait until their leader has enough for them (rules 4.1-4.4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sparklog.broker.purgatory import Operation, Purgatory
from sparklog.config import Settings
from sparklog.model import TopicIdPartition
from sparklog.storage.metadata import PartitionState


class Fetch(NamedTuple):
    """What a follower may fetch from one leader's root now.

    Of every partition that it follows there: the state, and where its own log ends. `bytes_of`:
    how many bytes there are to copy, of the partitions that have any.
    """

    states: Sequence[PartitionState]
    positions: Mapping[TopicIdPartition, int]
    bytes_of: Mapping[TopicIdPartition, int]


def delayed_fetches(
    purgatory: Purgatory, fetches: Mapping[str, Fetch], settings: Settings, now_ms: int
) -> Collection[str]:
    """Return which of the fetches, by their ids, have to wait for replica.fetch.min.bytes.

    All partitions of a fetch wait together and go on together: when there is enough for them, or
    after replica.fetch.wait.max.ms. Those that have waited on another leader are forgotten.
    """
    waiting = {one["request_id"]: one for one in purgatory.waiting("DelayedFetch")}
    # One byte is always there, where there is anything: the default spares followers the rule.
    if settings.replica_fetch_min_bytes <= 1 and not waiting:
        return ()

    available = {
        _operation_id(fetch_id, state): fetch.bytes_of.get(state.key, 0)
        for fetch_id, fetch in fetches.items()
        for state in fetch.states
    }

    def standing(operation: Operation) -> dict[str, Any]:
        found = available.get(operation["operation_id"])
        return {"is_leader": found is not None, "available_bytes": found or 0}

    operations = []
    for fetch_id, fetch in fetches.items():
        known = waiting.get(fetch_id)
        deadline_ms = known["deadline_ms"] if known else now_ms + settings.replica_fetch_wait_max_ms
        operations += [
            {
                "operation_id": _operation_id(fetch_id, state),
                "kind": "DelayedFetch",
                "request_id": fetch_id,
                "topic_id": state.topic_id,
                "topic": state.topic,
                "partition": state.partition,
                "leader_epoch": state.leader_epoch,
                "base_offset": fetch.positions[state.key],
                "required_offset": None,
                "min_bytes": settings.replica_fetch_min_bytes,
                "deadline_ms": deadline_ms,
                "state": "pending",
            }
            for state in fetch.states
        ]
    purgatory.try_complete_else_watch(operations, standing)
    # The leaders have appended, or are no longer the leaders (A.2, 4.4).
    purgatory.check_and_complete("DelayedFetch", purgatory.watched("DelayedFetch"), standing)
    purgatory.expire("DelayedFetch", now_ms)
    return {one["request_id"] for one in purgatory.waiting("DelayedFetch")}


def _operation_id(fetch_id: str, state: PartitionState) -> str:
    return f"{fetch_id}/{state.topic_id}/{state.partition}/{state.leader_epoch}"
