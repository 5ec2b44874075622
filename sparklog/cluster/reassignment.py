"""Reassignment of partitions to other brokers, as rows of `partition_state` (rule 7.8; KIP-455).

A reassignment begins with one commit: the replicas become those of the target and the old ones, and
the columns `adding` and `removing` mark the difference. It ends with another commit, by the
controller, when all replicas of the target are in sync. Both raise the partition epoch.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.cluster.election import Elections, Rows
from sparklog.cluster.metadata import Metadata, removed_replicas
from sparklog.errors import ProtocolError
from sparklog.model import TopicIdPartition
from sparklog.protocol.controller.completed_reassignments import may_allow_completion
from sparklog.protocol.rules import Rules
from sparklog.storage.shard_rewrites import RowChanges

FORMAT_WITH_REASSIGNMENT = 3
"""The first format whose releases complete reassignments and remove replicas."""


class ReassignmentTarget(NamedTuple):
    """The requested replicas of a partition, the preferred leader first; `None` cancels.

    `rate` is the throttle in bytes per second; `None` leaves it as it is.
    """

    replicas: Sequence[int] | None
    rate: int | None = None


class Reassigner:
    """Decides on reassignments; commits nothing."""

    def __init__(self, elections: Elections, rules: Rules) -> None:
        self._elections = elections
        self._rules = rules

    def alter(
        self,
        table: pa.Table,
        targets: Mapping[TopicIdPartition, ReassignmentTarget],
        metadata: Metadata,
        failed: dict[TopicIdPartition, ProtocolError],
    ) -> RowChanges | None:
        """Return the changes that begin, replace or cancel reassignments.

        Parameters: `table`, the rows of the partitions in `targets`. Partitions that are refused
        are left out, with their errors in `failed`: INVALID_REPLICA_ASSIGNMENT,
        NO_REASSIGNMENT_IN_PROGRESS, UNKNOWN_TOPIC_OR_PARTITION. A partition that has the requested
        replicas already, or gets them, is left out, too.
        """
        after: Rows = []
        for key, rows in by_partition(table).items():
            target = targets[key]
            failed.pop(key, None)
            if key not in metadata.partitions:
                failed[key] = ProtocolError("UNKNOWN_TOPIC_OR_PARTITION")
                continue
            try:
                is_cancelled = target.replicas is None
                new = _reverted(rows) if is_cancelled else _begun(rows, target, metadata)
                if rows == new:
                    continue
                self._check_clean(rows, new, metadata)
                after += new
            except ProtocolError as error:
                failed[key] = error
        if not after:
            return None
        changed = {(row["topic_id"], row["partition"]) for row in after}
        before = [
            row for row in table.to_pylist() if (row["topic_id"], row["partition"]) in changed
        ]
        return self._elections.assign(pa.Table.from_pylist(before, table.schema), after, metadata)

    def complete(
        self, table: pa.Table, metadata: Metadata, controller_epoch: int
    ) -> RowChanges | None:
        """Return the changes that end the complete reassignments in `table`, or `None`."""
        rows: Rows = table.to_pylist()
        blocked = {
            (row["topic_id"], row["partition"])
            for row in rows
            if not may_allow_completion(row["in_isr"], row["removing"])
        }
        tried = [row for row in rows if (row["topic_id"], row["partition"]) not in blocked]
        for row in tried:
            broker = metadata.brokers.get(row["broker_id"])
            row["is_alive"] = (
                broker is not None and broker.is_alive and broker.has_online(row["root"])
            )
        found = self._rules.run("completed_reassignments", replicas=tried) if tried else []
        keys = {TopicIdPartition(row["topic_id"], row["partition"]) for row in found}
        if not keys:
            return None
        after: Rows = []
        before: Rows = []
        for key, members in by_partition(table).items():
            if key in keys:
                before += members
                after += _numbered([{**row} for row in members if not row["removing"]])
        for row in after:
            row["adding"] = row["removing"] = False
        return self._elections.assign(
            pa.Table.from_pylist(before, table.schema), after, metadata, controller_epoch
        )

    def _check_clean(self, before: Rows, after: Rows, metadata: Metadata) -> None:
        """Raise INVALID_REPLICA_ASSIGNMENT if no eligible replica would be left.

        It is allowed where unclean elections are, as in Kafka.
        """
        if any(row["in_isr"] or row["in_elr"] for row in after):
            return
        first = before[0]
        if self._elections.is_unclean_allowed(metadata.topics.get(first["topic_id"])):
            return
        raise ProtocolError(
            "INVALID_REPLICA_ASSIGNMENT",
            f"Unable to revert partition assignment for {first['topic']}:{first['partition']} "
            "because it would require an unclean leader election.",
        )


def check_target(replicas: Sequence[int], metadata: Metadata) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT if the brokers of a target are not usable."""
    manual = "The manual partition assignment includes"
    if not replicas:
        raise ProtocolError("INVALID_REPLICA_ASSIGNMENT", f"{manual} an empty replica list.")
    for broker_id in replicas:
        broker = metadata.brokers.get(broker_id)
        if broker is None or not broker.is_registered:
            raise ProtocolError(
                "INVALID_REPLICA_ASSIGNMENT",
                f"{manual} broker {broker_id}, but no such broker is registered.",
            )
        if replicas.count(broker_id) > 1:
            raise ProtocolError(
                "INVALID_REPLICA_ASSIGNMENT",
                f"{manual} the broker {broker_id} more than once.",
            )


def with_rates(table: pa.Table, rate_of: Callable[[Rows], int | None]) -> Rows:
    """Return the rows of the partitions whose throttle changes to what `rate_of` returns."""
    changed: Rows = []
    for members in by_partition(table).values():
        rate = rate_of(members)
        if rate != members[0]["replication_throttled_rate"]:
            for row in members:
                row["replication_throttled_rate"] = rate
                row["partition_epoch"] += 1
            changed += members
    return changed


def by_partition(table: pa.Table) -> dict[TopicIdPartition, Rows]:
    """Return the rows of each partition, in the order of the assignment."""
    members: dict[TopicIdPartition, Rows] = defaultdict(list)
    for row in sorted(table.to_pylist(), key=lambda row: row["replica_index"]):
        members[TopicIdPartition(row["topic_id"], row["partition"])].append(row)
    return members


def _begun(rows: Rows, of: ReassignmentTarget, metadata: Metadata) -> Rows:
    """Return the rows of a partition under a reassignment to the replicas of `of`.

    The original replicas are those that no reassignment is adding: the target of an earlier
    reassignment is given up, and replicas that only it has added go at once. Without a rate a
    reassignment that is in progress keeps its own.
    """
    target = list(of.replicas or ())
    check_target(target, metadata)
    is_new = not any(row["adding"] or row["removing"] for row in rows)
    known = {row["broker_id"]: row for row in rows}
    original = [row["broker_id"] for row in rows if not row["adding"]]
    loads = Counter(
        one.broker_id for state in metadata.partitions.values() for one in state.replicas
    )
    new = []
    for broker_id in [*target, *(one for one in original if one not in target)]:
        row = (
            {**known[broker_id]}
            if broker_id in known
            else _added(rows[0], broker_id, metadata, loads)
        )
        row["adding"] = broker_id not in original
        row["removing"] = broker_id not in target
        if is_new or of.rate is not None:
            row["replication_throttled_rate"] = of.rate
        new.append(row)
    return _without_records(_numbered(new))


def _added(
    of: Mapping[str, Any], broker_id: int, metadata: Metadata, loads: Mapping[int, int]
) -> dict[str, Any]:
    """Return the row of a new replica of the partition that the row `of` is about.

    It is in the log directory where the broker had a replica that is not removed yet, or else in
    the next one in turn.
    """
    online = sorted(metadata.brokers[broker_id].online_roots)
    left = [
        one.root
        for one in removed_replicas(of["removed_replicas"])
        if one.broker_id == broker_id and one.root in online
    ]
    root = left[0] if left else online[loads.get(broker_id, 0) % len(online)] if online else 0
    return {**of, "broker_id": broker_id, "root": root, "in_isr": False, "in_elr": False}


def _reverted(rows: Rows) -> Rows:
    """Return the rows of a partition after its reassignment is cancelled."""
    if not any(row["adding"] or row["removing"] for row in rows):
        raise ProtocolError("NO_REASSIGNMENT_IN_PROGRESS")
    kept = [{**row, "adding": False, "removing": False} for row in rows if not row["adding"]]
    return _numbered(kept)


def _numbered(rows: Rows) -> Rows:
    for index, row in enumerate(rows):
        row["replica_index"] = index
    return rows


def _without_records(rows: Rows) -> Rows:
    """Remove the records of removals where a replica is assigned again."""
    assigned = {(row["broker_id"], row["root"]) for row in rows}
    records = removed_replicas(rows[0]["removed_replicas"])
    kept = [one for one in records if (one.broker_id, one.root) not in assigned]
    for row in rows:
        row["removed_replicas"] = json.dumps(kept) if kept else None
    return rows
