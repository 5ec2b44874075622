"""Changing in-sync sets: one compare-and-set on `partition_state` (rules 5.3, 7.5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from sparklog.config import Settings
from sparklog.model import PARTITION_STATE, TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.metadata import Metadata, PartitionState, TopicInfo
from sparklog.storage.shard_rewrites import RowChanges
from sparklog.storage.sharded_table import ShardedTable
from sparklog.storage.shards import keys_of


def min_isr(metadata: Metadata, state: PartitionState, settings: Settings) -> int:
    """Return how many in-sync replicas acks=all needs in a partition.

    The published value counts, so that its leader and the controller go by the same one. A
    partition for which none is published yet takes the value that this process would publish.
    """
    if state.min_isr is not None:
        return state.min_isr
    return configured_min_isr(metadata.topics.get(state.topic_id), settings)


def configured_min_isr(topic: TopicInfo | None, settings: Settings) -> int:
    """Return min.insync.replicas of a topic: its own, or the one in `settings`."""
    own = topic.config.min_insync_replicas if topic else None
    return settings.min_insync_replicas if own is None else own


NO_REGISTRATION = -1
"""The leader's broker epoch while no process leads a partition."""


def change_isr(
    partition_state: ShardedTable,
    rules: Rules,
    held: Mapping[TopicIdPartition, PartitionState],
    proposed: Mapping[TopicIdPartition, frozenset[int]],
    min_isr_of: Mapping[TopicIdPartition, int],
) -> set[TopicIdPartition]:
    """Propose new in-sync sets, by the leader that holds the state `held` of each partition.

    A partition whose partition epoch has moved since is left alone: whoever moved it was faster,
    and the leader must look again. Returns the partitions that were changed.
    """

    def decide(rows: pa.Table) -> RowChanges:
        moved: list[dict[str, Any]] = []
        for row in rows.to_pylist():
            key = TopicIdPartition(row["topic_id"], row["partition"])
            if row["partition_epoch"] != held[key].partition_epoch:
                continue
            row["was_in_isr"] = row["in_isr"]
            row["in_isr"] = row["broker_id"] in proposed[key]
            row["is_unclean"] = False
            row["published_min_isr"] = row["min_isr"]
            row["min_isr"] = min_isr_of[key]
            row["partition_epoch"] += 1
            moved.append(row)
        if moved:
            set_eligible_replicas(rules, moved)
        for row in moved:
            row["min_isr"] = row["published_min_isr"]
        return RowChanges(PARTITION_STATE.rows(moved))

    return _partitions_of(partition_state.change_rows(decide, proposed))


def leave_isr(
    partition_state: ShardedTable,
    broker_id: int,
    keys: Collection[TopicIdPartition],
    *,
    keep_last: bool = False,
) -> set[TopicIdPartition]:
    """Remove a broker from the ISR and ELR of partitions, and from leading them.

    Nobody counts on its replicas after that: it may truncate them below its own high watermark.
    The controller elects another leader at its next tick where the broker led. The partition epoch
    rises also where the broker was in neither set: a leader may be about to add it by an earlier
    report (rule 5.2). A follower withdraws its report first (`Replicas.withdraw`), or the leader
    adds it again by what it had reported.

    Parameters: `keep_last`, whether the broker stays where nobody else is in the ISR or ELR; else
    the partition is offline afterwards if nobody is eligible.

    Returns the partitions, of those that exist, in whose ISR and ELR the broker is no longer.
    """

    def decide(rows: pa.Table) -> RowChanges:
        members: dict[TopicIdPartition, list[dict[str, Any]]] = defaultdict(list)
        for row in rows.to_pylist():
            members[TopicIdPartition(row["topic_id"], row["partition"])].append(row)
        moved: list[dict[str, Any]] = []
        for replicas in members.values():
            own = [row for row in replicas if row["broker_id"] == broker_id]
            if not own:
                continue
            others = any(
                row["in_isr"] or row["in_elr"] for row in replicas if row["broker_id"] != broker_id
            )
            if keep_last and not others and own[0]["in_isr"]:
                continue
            for row in own:
                row["in_isr"] = row["in_elr"] = False
            for row in replicas:
                row["partition_epoch"] += 1
                if row["leader"] == broker_id:
                    # Not the registration that was elected: the controller elects (rule 7.2).
                    row["leader_broker_epoch"] = NO_REGISTRATION
            moved += replicas
        return RowChanges(PARTITION_STATE.rows(moved))

    return _partitions_of(partition_state.change_rows(decide, keys))


def _partitions_of(changes: RowChanges) -> set[TopicIdPartition]:
    keys = keys_of(changes.rows, PARTITION_STATE)
    return {TopicIdPartition(topic_id, partition) for topic_id, partition, _ in keys}


def set_eligible_replicas(rules: Rules, rows: list[dict[str, Any]]) -> set[TopicIdPartition]:
    """Say in `rows`, those of whole partitions, who may lead although it is not in sync (7.5).

    Each row has what the rule takes beside the columns of `partition_state`. Returns the
    partitions in which anything changes.
    """
    eligible = {
        (row["topic_id"], row["partition"], row["broker_id"]): row["in_elr"]
        for row in rules.run("eligible_replicas", replicas=rows)
    }
    changed = set()
    for row in rows:
        in_elr = eligible[row["topic_id"], row["partition"], row["broker_id"]]
        if row["in_elr"] != in_elr:
            row["in_elr"] = in_elr
            changed.add(TopicIdPartition(row["topic_id"], row["partition"]))
    return changed
