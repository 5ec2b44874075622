"""Changing in-sync sets: one compare-and-set on `partition_state` (rule 5.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from sparklog.model import PARTITION_STATE, TopicIdPartition
from sparklog.storage.control_table import ControlTable
from sparklog.storage.metadata import PartitionState


def change_isr(
    partition_state: ControlTable,
    held: Mapping[TopicIdPartition, PartitionState],
    proposed: Mapping[TopicIdPartition, frozenset[int]],
) -> set[TopicIdPartition]:
    """Propose new in-sync sets, by the leader that holds the state `held` of each partition.

    A partition whose partition epoch has moved since is left alone: whoever moved it was faster,
    and the leader must look again. Returns the partitions that were changed.
    """

    def change(rows: pa.Table) -> tuple[pa.Table | None, set[TopicIdPartition]]:
        changed: set[TopicIdPartition] = set()
        result: list[dict[str, Any]] = rows.to_pylist()
        for row in result:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            isr = proposed.get(key)
            if isr is None or row["partition_epoch"] != held[key].partition_epoch:
                continue
            row["in_isr"] = row["broker_id"] in isr
            row["partition_epoch"] += 1
            changed.add(key)
        return (PARTITION_STATE.rows(result) if changed else None), changed

    return partition_state.update(change)
