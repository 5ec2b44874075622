"""Changes of in-sync replica sets: one compare-and-set on `partition_state` (rules 5.3, 7.5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from sparklog.cluster.causes import PartitionCauses
from sparklog.cluster.metadata import Metadata, PartitionState, TopicInfo
from sparklog.config import Settings
from sparklog.model import PARTITION_STATE, TopicIdPartition
from sparklog.protocol.controller.eligible_replicas import may_be_eligible
from sparklog.protocol.rules import Rules
from sparklog.storage.commits import Cause
from sparklog.storage.shard_rewrites import RowChanges
from sparklog.storage.sharded_table import ShardedTable
from sparklog.storage.shards import keys_of


def min_isr(metadata: Metadata, state: PartitionState, settings: Settings) -> int:
    """Return the number of in-sync replicas that acks=all needs in a partition.

    It is the published value, so that the leader and the controller use the same one. While none is
    published, it is the value that this process would publish.
    """
    if state.min_isr is not None:
        return state.min_isr
    return configured_min_isr(metadata.topics.get(state.topic_id), settings)


def configured_min_isr(topic: TopicInfo | None, settings: Settings) -> int:
    """Return min.insync.replicas of a topic: its own value, or the one in `settings`."""
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
    details: Mapping[TopicIdPartition, str] | None = None,
) -> set[TopicIdPartition]:
    """Set new ISRs, proposed by the leader that holds the state `held` of each partition.

    A partition whose partition epoch differs from that in `held` stays as it is: another change
    came first, and the leader must reload the state. `details` says why followers join or leave.
    Returns the partitions that were changed.
    """
    causes = PartitionCauses("CHANGE ISR")

    def decide(rows: pa.Table) -> RowChanges:
        moved: list[dict[str, Any]] = []
        for row in rows.to_pylist():
            key = TopicIdPartition(row["topic_id"], row["partition"])
            if row["partition_epoch"] != held[key].partition_epoch:
                continue
            gone = frozenset(held[key].isr) - proposed[key]
            causes.note(
                row["topic"],
                key.partition,
                "follower_lagging" if gone else "follower_caught_up",
                (details or {}).get(key),
            )
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

    return _partitions_of(partition_state.change_rows(decide, proposed, cause=causes))


def leave_isr(
    partition_state: ShardedTable,
    broker_id: int,
    keys: Collection[TopicIdPartition],
    *,
    keep_last: bool = False,
    cause: str = "truncation",
) -> set[TopicIdPartition]:
    """Remove a broker from the ISR and ELR of partitions, and from leading them.

    Afterwards no decision depends on its replicas: it may truncate them below its own high
    watermark. If the broker led a partition, the controller elects another leader in its next tick.

    The partition epoch rises even if the broker was in neither set, because a leader may be about
    to add it by an earlier report (rule 5.2). A follower must withdraw its report first
    (`Replicas.withdraw`), or the leader adds it again by that report.

    Parameters: `keep_last`, whether the broker stays in an ISR if no other broker is in the ISR or
    ELR. Otherwise the partition is offline afterwards if no broker is eligible. `cause`, a word for
    the table's history.

    Returns the existing partitions whose ISR and ELR no longer contain the broker.
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
                    # No broker is registered with this epoch, so the controller elects (rule 7.2).
                    row["leader_broker_epoch"] = NO_REGISTRATION
            moved += replicas
        return RowChanges(PARTITION_STATE.rows(moved))

    why = Cause("LEAVE ISR", {"cause": cause, "brokerId": str(broker_id)})
    return _partitions_of(partition_state.change_rows(decide, keys, cause=why))


def _partitions_of(changes: RowChanges) -> set[TopicIdPartition]:
    keys = keys_of(changes.rows, PARTITION_STATE)
    return {TopicIdPartition(topic_id, partition) for topic_id, partition, _ in keys}


def set_eligible_replicas(rules: Rules, rows: list[dict[str, Any]]) -> set[TopicIdPartition]:
    """Set `in_elr` in `rows`, those of whole partitions: who may lead without being in sync (7.5).

    Each row has the rule's other inputs in addition to the columns of `partition_state`. Returns
    the partitions that changed.
    """
    if not any(may_be_eligible(row["was_in_isr"], row["in_isr"], row["in_elr"]) for row in rows):
        return set()
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
