"""Changing in-sync sets: one compare-and-set on `partition_state` (rules 5.3, 7.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from sparklog.model import PARTITION_STATE, TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.control_table import ControlTable
from sparklog.storage.metadata import PartitionState


def change_isr(
    partition_state: ControlTable,
    rules: Rules,
    held: Mapping[TopicIdPartition, PartitionState],
    proposed: Mapping[TopicIdPartition, frozenset[int]],
    min_isr: Mapping[TopicIdPartition, int],
) -> set[TopicIdPartition]:
    """Propose new in-sync sets, by the leader that holds the state `held` of each partition.

    A partition whose partition epoch has moved since is left alone: whoever moved it was faster,
    and the leader must look again. Returns the partitions that were changed.
    """

    def change(rows: pa.Table) -> tuple[pa.Table | None, set[TopicIdPartition]]:
        result: list[dict[str, Any]] = rows.to_pylist()
        moved = []
        for row in result:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            isr = proposed.get(key)
            if isr is None or row["partition_epoch"] != held[key].partition_epoch:
                continue
            row["was_in_isr"] = row["in_isr"]
            row["in_isr"] = row["broker_id"] in isr
            row["is_unclean"] = False
            row["min_isr"] = min_isr[key]
            row["partition_epoch"] += 1
            moved.append(row)
        if not moved:
            return None, set()
        set_eligible_replicas(rules, moved)
        return PARTITION_STATE.rows(result), {
            TopicIdPartition(row["topic_id"], row["partition"]) for row in moved
        }

    return partition_state.update(change)


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
