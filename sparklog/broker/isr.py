"""Changing in-sync sets: one compare-and-set on `partition_state` (rules 5.3, 7.5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.config import Settings
from sparklog.model import TopicIdPartition
from sparklog.protocol.rules import Rules
from sparklog.storage.control_table import ControlTable
from sparklog.storage.metadata import Metadata, PartitionState, TopicInfo


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


_LEFT = ("in_isr", "in_elr", "partition_epoch", "leader_broker_epoch")
"""The columns that change where a broker leaves."""

NO_REGISTRATION = -1
"""The leader's broker epoch while no process leads a partition."""


def change_isr(
    partition_state: ControlTable,
    rules: Rules,
    held: Mapping[TopicIdPartition, PartitionState],
    proposed: Mapping[TopicIdPartition, frozenset[int]],
    min_isr_of: Mapping[TopicIdPartition, int],
) -> set[TopicIdPartition]:
    """Propose new in-sync sets, by the leader that holds the state `held` of each partition.

    A partition whose partition epoch has moved since is left alone: whoever moved it was faster,
    and the leader must look again. Returns the partitions that were changed.
    """

    def change(rows: pa.Table) -> tuple[pa.Table | None, set[TopicIdPartition]]:
        moved: list[dict[str, Any]] = []
        for row in _rows_of(rows, proposed):
            key = TopicIdPartition(row["topic_id"], row["partition"])
            if row["partition_epoch"] != held[key].partition_epoch:
                continue
            row["was_in_isr"] = row["in_isr"]
            row["in_isr"] = row["broker_id"] in proposed[key]
            row["is_unclean"] = False
            row["min_isr"] = min_isr_of[key]
            row["partition_epoch"] += 1
            moved.append(row)
        if not moved:
            return None, set()
        set_eligible_replicas(rules, moved)
        return _with_rows(rows, moved, ("in_isr", "in_elr", "partition_epoch")), {
            TopicIdPartition(row["topic_id"], row["partition"]) for row in moved
        }

    return partition_state.update(change)


def leave_isr(
    partition_state: ControlTable,
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

    def change(rows: pa.Table) -> tuple[pa.Table | None, set[TopicIdPartition]]:
        members: dict[TopicIdPartition, list[dict[str, Any]]] = defaultdict(list)
        for row in _rows_of(rows, wanted):
            members[TopicIdPartition(row["topic_id"], row["partition"])].append(row)
        moved: list[dict[str, Any]] = []
        left = set()
        for key, replicas in members.items():
            own = [row for row in replicas if row["broker_id"] == broker_id]
            if not own:
                continue
            others = any(
                row["in_isr"] or row["in_elr"] for row in replicas if row["broker_id"] != broker_id
            )
            if keep_last and not others and own[0]["in_isr"]:
                continue
            left.add(key)
            for row in own:
                row["in_isr"] = row["in_elr"] = False
            for row in replicas:
                row["partition_epoch"] += 1
                if row["leader"] == broker_id:
                    # Not the registration that was elected: the controller elects (rule 7.2).
                    row["leader_broker_epoch"] = NO_REGISTRATION
            moved += replicas
        if not moved:
            return None, left
        moved.sort(key=itemgetter("row_number"))
        return _with_rows(rows, moved, _LEFT), left

    wanted = set(keys)
    return partition_state.update(change) if wanted else set()


def _rows_of(table: pa.Table, keys: Collection[TopicIdPartition]) -> list[dict[str, Any]]:
    """Return the rows of some partitions, each with its `row_number` in the table.

    The other rows stay in Arrow: there may be thousands, and the shorter a compare-and-set takes
    the seldomer another writer is faster.
    """
    topic_ids = pa.array({key.topic_id for key in keys}, pa.string())
    partitions = pa.array({key.partition for key in keys}, pa.int32())
    mask = pc.and_(pc.is_in(table["topic_id"], topic_ids), pc.is_in(table["partition"], partitions))
    numbers = pc.indices_nonzero(mask)
    rows: list[dict[str, Any]] = table.take(numbers).to_pylist()
    return [
        row | {"row_number": number}
        for row, number in zip(rows, numbers.to_pylist(), strict=True)
        if (row["topic_id"], row["partition"]) in keys
    ]


def _with_rows(
    table: pa.Table, rows: Sequence[Mapping[str, Any]], columns: Collection[str]
) -> pa.Table:
    """Return the table with these columns as in `rows`, which `_rows_of` has returned, in order."""
    is_changed = [False] * table.num_rows
    for row in rows:
        is_changed[row["row_number"]] = True
    mask = pa.array(is_changed)
    for name in columns:
        place = table.schema.get_field_index(name)
        field = table.schema.field(place)
        values = pa.array([row[name] for row in rows], field.type)
        changed = pc.replace_with_mask(table[name].combine_chunks(), mask, values)
        table = table.set_column(place, field, changed)
    return table


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
