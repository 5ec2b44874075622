"""Elections: ISRs and leaders after brokers came or went, or on request (rules 7.2-7.6).

Used by the controller in its ticks, and by an administrator who creates a topic or elects leaders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from sparklog.cluster.causes import PartitionCauses
from sparklog.cluster.isr import NO_REGISTRATION, configured_min_isr, set_eligible_replicas
from sparklog.cluster.metadata import Metadata, TopicInfo, with_removed
from sparklog.config import Settings
from sparklog.logger import get_logger
from sparklog.model import PARTITION_STATE, TopicIdPartition
from sparklog.protocol.controller.isr_fence import may_be_fenced
from sparklog.protocol.rules import Rules
from sparklog.storage.shard_rewrites import RowChanges

_log = get_logger(__name__)

Rows = list[dict[str, Any]]
ElectionType = Literal["preferred", "unclean"]


class Elections:
    """Decides on elections; commits nothing."""

    def __init__(self, rules: Rules, settings: Settings) -> None:
        self._rules = rules
        self._settings = settings

    def elect(
        self,
        table: pa.Table,
        metadata: Metadata,
        controller_epoch: int | None = None,
        unclean: Collection[TopicIdPartition] = (),
        causes: PartitionCauses | None = None,
    ) -> RowChanges | None:
        """Remove fenced brokers from ISRs and elect a leader for every partition.

        A controller also publishes changed values of min.insync.replicas. The new partition epoch
        keeps leaders from changing an ISR by the old value.

        The decision on a partition depends on its own rows only.

        Parameters: `table`, rows of `partition_state`; `controller_epoch`, that of the acting
        controller; `unclean`, partitions that any live replica may lead, in addition to those that
        are configured so; `causes`, where the causes of the changes are noted. Returns the rows of
        the partitions that change, or `None`.
        """
        rows = self._annotated(table, metadata, controller_epoch, unclean)
        republished = {
            TopicIdPartition(row["topic_id"], row["partition"])
            for row in rows
            if controller_epoch is not None and row["min_isr"] != row["published_min_isr"]
        }
        has_fenced = any(may_be_fenced(row["in_isr"], row["is_alive"]) for row in rows)
        leaving = self._rules.run("isr_fence", replicas=rows) if has_fenced else []
        fenced = {(row["topic_id"], row["partition"], row["broker_id"]) for row in leaving}
        changed = {TopicIdPartition(row["topic_id"], row["partition"]) for row in leaving}
        changed |= republished
        for row in rows:
            row["was_in_isr"] = row["in_isr"]
            if (row["topic_id"], row["partition"], row["broker_id"]) in fenced:
                row["in_isr"] = False
        led_by = {
            TopicIdPartition(row["topic_id"], row["partition"]): row["leader"] for row in rows
        }
        elected = self._set_leaders(rows)
        changed |= elected | set_eligible_replicas(self._rules, rows)
        if causes is not None:
            outcome = _Outcome(led_by, elected, fenced, republished, changed, unclean)
            _note_causes(causes, rows, metadata, outcome)
        return _written(rows, changed, metadata, controller_epoch)

    def elect_first(self, rows: Sequence[Mapping[str, Any]], metadata: Metadata) -> pa.Table:
        """Return the rows of a new topic's partitions with their first leaders, in epoch 0.

        Parameters: `rows`, rows of `partition_state` without the leader's columns. The replicas of
        live brokers are in sync.
        """
        unled = {"leader": None, "leader_epoch": -1, "leader_broker_epoch": NO_REGISTRATION}
        elected = self._annotated(
            PARTITION_STATE.rows([{**row, **unled} for row in rows]), metadata
        )
        self._set_leaders(elected)
        for row in elected:
            row["min_isr"] = row["published_min_isr"]
            row["leader_broker_epoch"] = _broker_epoch(row["leader"], metadata)
        return PARTITION_STATE.rows(elected)

    def elect_preferred(
        self,
        table: pa.Table,
        metadata: Metadata,
        controller_epoch: int | None = None,
        partitions: Collection[TopicIdPartition] | None = None,
    ) -> RowChanges | None:
        """Elect the preferred replicas of partitions as leaders, if they are in sync.

        Parameters: as for `elect`; `partitions`, the partitions to change. `None` stands for those
        of brokers above leader.imbalance.per.broker.percentage, which depends on all rows. Returns
        as `elect` does.
        """
        rows = self._annotated(table, metadata, controller_epoch)
        if partitions is None:
            found = self._rules.run("leader_imbalance", replicas=rows)
            partitions = {TopicIdPartition(row["topic_id"], row["partition"]) for row in found}
        asked = [row for row in rows if (row["topic_id"], row["partition"]) in partitions]
        leaders = {
            TopicIdPartition(row["topic_id"], row["partition"]): row["leader"]
            for row in self._rules.run("preferred_election", replicas=asked)
        }
        for row in rows:
            key = TopicIdPartition(row["topic_id"], row["partition"])
            if key in leaders:
                row["leader"] = leaders[key]
                row["leader_epoch"] += 1
        return _written(rows, set(leaders), metadata, controller_epoch)

    def assign(
        self,
        before: pa.Table,
        after: Rows,
        metadata: Metadata,
        controller_epoch: int | None = None,
    ) -> RowChanges | None:
        """Give partitions the replicas in `after`, and elect where a leader is not valid (KIP-455).

        Parameters: `before` and `after`, the rows of whole partitions; the others as for `elect`.
        A partition that loses a replica gets a higher leader epoch, even if its leader stays: with
        it begins the record of the removal, by which the broker removes the replica. Returns the
        changes of all partitions in `after`.
        """
        rows = self._annotated(PARTITION_STATE.rows(after), metadata, controller_epoch)
        members: dict[TopicIdPartition, Rows] = {}
        for row in rows:
            row["was_in_isr"], row["is_unclean"] = row["in_isr"], False
            members.setdefault(TopicIdPartition(row["topic_id"], row["partition"]), []).append(row)
        dropped: dict[TopicIdPartition, Rows] = {}
        for row in before.to_pylist():
            key = TopicIdPartition(row["topic_id"], row["partition"])
            if all(one["broker_id"] != row["broker_id"] for one in members.get(key, ())):
                dropped.setdefault(key, []).append(row)
        for key in dropped:
            is_led = any(row["broker_id"] == row["leader"] for row in members[key])
            for row in members[key]:
                row["leader_is_valid"] &= is_led
        self._set_leaders(rows)
        for key, gone in dropped.items():
            leader_epoch = max(members[key][0]["leader_epoch"], gone[0]["leader_epoch"] + 1)
            record = with_removed(
                gone[0]["removed_replicas"],
                [(row["broker_id"], row["root"], leader_epoch) for row in gone],
            )
            for row in members[key]:
                row["leader_epoch"], row["removed_replicas"] = leader_epoch, record
        set_eligible_replicas(self._rules, rows)
        changes = _written(rows, set(members), metadata, controller_epoch)
        if changes is None:
            return None
        removed = {
            (key.topic_id, key.partition, row["broker_id"])
            for key, gone in dropped.items()
            for row in gone
        }
        return RowChanges(changes.rows, frozenset(removed))

    def _set_leaders(self, rows: Rows) -> set[TopicIdPartition]:
        """Elect leaders in annotated `rows` of whole partitions; return what has changed (7.5)."""
        decided = {
            (row["topic_id"], row["partition"], row["broker_id"]): row
            for row in self._rules.run("leader_election", replicas=rows)
        }
        changed = set()
        for row in rows:
            new = decided[row["topic_id"], row["partition"], row["broker_id"]]
            if new["is_changed"]:
                changed.add(TopicIdPartition(row["topic_id"], row["partition"]))
            for column in ("in_isr", "leader", "leader_epoch", "is_unclean"):
                row[column] = new[column]
        return changed

    def _annotated(
        self,
        table: pa.Table,
        metadata: Metadata,
        controller_epoch: int | None = None,
        unclean: Collection[TopicIdPartition] = (),
    ) -> Rows:
        rows: Rows = table.to_pylist()
        lost = _in_offline_directories(rows, metadata)
        for row in rows:
            of_partition = row["topic_id"], row["partition"]
            broker = metadata.brokers.get(row["broker_id"])
            leader = metadata.brokers.get(row["leader"]) if row["leader"] is not None else None
            topic = metadata.topics.get(row["topic_id"])
            is_allowed = self.is_unclean_allowed(topic)
            is_asked = of_partition in unclean
            row["is_alive"] = (
                broker is not None
                and broker.is_alive
                and (*of_partition, row["broker_id"]) not in lost
            )
            row["is_stopping"] = broker is not None and broker.is_stopping
            # A parked broker keeps the partitions that it leads, and others are better candidates.
            is_candidate = row["leader"] != row["broker_id"]
            row["is_stopping"] |= broker is not None and broker.is_parked and is_candidate
            row["leader_is_valid"] = (
                leader is not None
                and leader.is_alive
                and leader.broker_epoch == row["leader_broker_epoch"]
                and (*of_partition, row["leader"]) not in lost
            )
            row["allows"] = "unclean" if is_allowed or is_asked else "clean"
            published = row["published_min_isr"] = row["min_isr"]
            if published is None or controller_epoch is not None:
                row["min_isr"] = configured_min_isr(topic, self._settings)
            row["max_percentage"] = self._settings.leader_imbalance_per_broker_percentage
        return rows

    def is_unclean_allowed(self, topic: TopicInfo | None) -> bool:
        """Return unclean.leader.election.enable of a topic: its own value, or the cluster's."""
        own = topic.config.unclean_leader_election_enable if topic else None
        return self._settings.unclean_leader_election_enable if own is None else own


def log_changes(changes: RowChanges) -> None:
    """Log the partitions that a committed election has changed."""
    members: dict[TopicIdPartition, Rows] = {}
    for row in changes.rows.to_pylist():
        members.setdefault(TopicIdPartition(row["topic_id"], row["partition"]), []).append(row)
    for key, of_partition in sorted(members.items()):
        first = of_partition[0]
        _log.info(
            "partition changed",
            topic=first["topic"],
            partition=key.partition,
            leader=first["leader"],
            leader_epoch=first["leader_epoch"],
            isr=sorted(row["broker_id"] for row in of_partition if row["in_isr"]),
        )


def _in_offline_directories(rows: Rows, metadata: Metadata) -> set[tuple[str, int, int]]:
    """Return the replicas whose log directory has failed or is missing, as (topic id, ...)."""
    return {
        (row["topic_id"], row["partition"], row["broker_id"])
        for row in rows
        if (broker := metadata.brokers.get(row["broker_id"])) is not None
        and not broker.has_online(row["root"])
    }


class _Outcome(NamedTuple):
    """The decision of an election on some partitions.

    `led_by` are the leaders before, `fenced` the replicas that have left an ISR; the others are
    partitions.
    """

    led_by: Mapping[TopicIdPartition, int | None]
    elected: Collection[TopicIdPartition]
    fenced: Collection[tuple[str, int, int]]
    republished: Collection[TopicIdPartition]
    changed: Collection[TopicIdPartition]
    requested: Collection[TopicIdPartition]


def _note_causes(
    causes: PartitionCauses, rows: Rows, metadata: Metadata, outcome: _Outcome
) -> None:
    """Note the cause of each change: an election, or else a fenced follower, or else settings."""
    lost = _in_offline_directories(rows, metadata)
    fencings: dict[TopicIdPartition, list[str]] = defaultdict(list)
    for row in rows:
        key = TopicIdPartition(row["topic_id"], row["partition"])
        if key not in outcome.changed:
            continue
        name = row["topic"], row["partition"]
        led_by = outcome.led_by[key]
        if key in outcome.elected:
            if key in outcome.requested:
                causes.note(*name, "requested")
            elif led_by is None and row["is_unclean"]:
                lacking = f"broker {row['leader']} was neither in the ISR nor in the ELR"
                causes.note(*name, "unclean_election_allowed", lacking)
            elif led_by is None:
                causes.note(*name, "replica_returned")
            elif row["broker_id"] == led_by:
                absence = _absence(row, metadata, lost)
                is_fenced = absence == "fenced"
                detail = _fencing(causes, row["broker_id"]) if is_fenced else None
                causes.note(*name, f"leader_{absence}", detail)
        elif (*key, row["broker_id"]) in outcome.fenced:
            absence = _absence(row, metadata, lost)
            if absence == "fenced":
                fencings[key].append(_fencing(causes, row["broker_id"]))
            causes.note(*name, f"follower_{absence}", "; ".join(fencings[key]) or None)
        elif not causes.has(*name):
            is_published = key in outcome.republished
            causes.note(*name, "min_isr_changed" if is_published else "eligible_replicas_changed")


def _fencing(causes: PartitionCauses, broker_id: int) -> str:
    """Return what is known about the fencing of a broker."""
    unknown = f"broker {broker_id} was fenced by an operator or an earlier controller"
    return causes.fenced.get(broker_id, unknown)


def _absence(
    row: Mapping[str, Any], metadata: Metadata, lost: Collection[tuple[str, int, int]]
) -> str:
    """Return why a replica's broker does not lead or is not in sync any more."""
    broker = metadata.brokers.get(row["broker_id"])
    if broker is None:
        return "unregistered"
    if (row["topic_id"], row["partition"], row["broker_id"]) in lost:
        return "log_directory_offline"
    if broker.state != "alive":
        return broker.state
    # Of the leader alone: its process is a newer one, or it has left the ISR.
    return "left_isr" if row["leader_broker_epoch"] == NO_REGISTRATION else "restarted"


def _broker_epoch(leader: int | None, metadata: Metadata) -> int:
    broker = metadata.brokers.get(leader) if leader is not None else None
    return broker.broker_epoch if broker else NO_REGISTRATION


def _written(
    rows: Rows,
    changed: set[TopicIdPartition],
    metadata: Metadata,
    controller_epoch: int | None,
) -> RowChanges | None:
    """Return the rows of the `changed` partitions with increased partition epochs."""
    if not changed:
        return None
    members: dict[TopicIdPartition, Rows] = {key: [] for key in sorted(changed)}
    for row in rows:
        of_partition = members.get(TopicIdPartition(row["topic_id"], row["partition"]))
        if of_partition is None:
            continue
        of_partition.append(row)
        if controller_epoch is None:
            row["min_isr"] = row["published_min_isr"]
        row["leader_broker_epoch"] = _broker_epoch(row["leader"], metadata)
        row["partition_epoch"] += 1
        if controller_epoch is not None:
            row["controller_epoch"] = controller_epoch
    return RowChanges(PARTITION_STATE.rows([row for of in members.values() for row in of]))
