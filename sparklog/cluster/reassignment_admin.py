"""Administration of reassignments: starting, cancelling and listing them, and their progress.

The proposals of `propose` and `drain` are plain assignments, which `alter` starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from sparklog.cluster.arguments import by_partition, numbers_list, partition_names, whole_number
from sparklog.cluster.connection import Connection
from sparklog.cluster.election import Elections, log_changes
from sparklog.cluster.metadata import Metadata, PartitionState
from sparklog.cluster.reassignment import (
    FORMAT_WITH_REASSIGNMENT,
    Reassigner,
    ReassignmentTarget,
    with_rates,
)
from sparklog.errors import ProtocolError, SparklogError
from sparklog.model import PARTITION_STATE, TopicIdPartition, TopicPartition
from sparklog.protocol.placement import place_replicas
from sparklog.storage.commits import Cause
from sparklog.storage.errors import UNREADABLE
from sparklog.storage.shard_rewrites import RowChanges


class AlteredReassignment(NamedTuple):
    """The outcome of a request to reassign a partition, or to cancel its reassignment.

    Attributes
    ----------
    error : str
        The name of Kafka's error; NONE if the request is accepted.
    detail : str
        The reason of the error, in one sentence.

    Examples
    --------
    >>> from sparklog import Admin
    >>> admin = Admin("sparklog-data/cluster")
    >>> altered = admin.alter_partition_reassignments({("clicks", 0): None})
    >>> altered["clicks", 0].error
    'NO_REASSIGNMENT_IN_PROGRESS'
    """

    error: str = "NONE"
    detail: str = ""


class PartitionReassignment(NamedTuple):
    """A reassignment in progress, as Kafka's admin client describes it (KIP-455).

    Attributes
    ----------
    replicas : tuple of int
        All current replicas: those of the target, the preferred leader first, and the others.
    adding_replicas : tuple of int
        The replicas that are being added.
    removing_replicas : tuple of int
        The replicas that will be removed.

    Examples
    --------
    >>> from sparklog import Admin
    >>> Admin("sparklog-data/cluster").list_partition_reassignments()
    {}
    """

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


class AddingReplica(NamedTuple):
    """The progress of a replica that a reassignment is adding.

    Attributes
    ----------
    topic : str
        The name of the topic.
    partition : int
        The number of the partition.
    broker_id : int
        The broker that gets the replica.
    in_isr : bool
        Whether the replica is in sync.
    log_end_offset : int or None
        The offset of its next record; `None` if its broker or the leader cannot be read.
    leader_log_end_offset : int or None
        That of the leader.
    bytes_left : int or None
        The size in bytes of the leader's batches that it has yet to copy.

    Examples
    --------
    >>> from sparklog import Admin
    >>> Admin("sparklog-data/cluster").list_adding_replicas()
    []
    """

    topic: str
    partition: int
    broker_id: int
    in_isr: bool
    log_end_offset: int | None
    leader_log_end_offset: int | None
    bytes_left: int | None


class ReassignmentAdmin:
    """Administers reassignments through the cluster's tables; no broker has to run."""

    def __init__(self, connection: Connection, elections: Elections) -> None:
        self._connection = connection
        self._reassigner = Reassigner(elections, connection.rules)

    def alter(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        throttle: int | None,
    ) -> dict[TopicPartition, AlteredReassignment]:
        """Start or cancel reassignments; see `Admin.alter_partition_reassignments`."""
        root = self._connection.root
        metadata = self._connection.metadata()
        if root.format_version < FORMAT_WITH_REASSIGNMENT:
            raise ProtocolError(
                "UNSUPPORTED_VERSION",
                f"{root.location.uri} has format {root.format_version}, in which brokers do not "
                "complete reassignments: run `sparklog upgrade` first",
            )
        rate = _checked_rate(throttle)
        asked = by_partition(reassignments, "the brokers of a reassignment")
        results: dict[TopicPartition, AlteredReassignment] = {}
        names: dict[TopicIdPartition, TopicPartition] = {}
        targets: dict[TopicIdPartition, ReassignmentTarget] = {}
        for name, replicas in asked.items():
            wanted = None if replicas is None else numbers_list(replicas, "brokers")
            try:
                key = metadata.partition(*name).key
            except ProtocolError as error:
                results[name] = _refused(error)
                continue
            names[key], targets[key] = name, ReassignmentTarget(wanted, rate)
        failed: dict[TopicIdPartition, ProtocolError] = {}
        found: set[TopicIdPartition] = set()

        def decide(rows: pa.Table) -> RowChanges | None:
            found.update(
                map(TopicIdPartition, rows["topic_id"].to_pylist(), rows["partition"].to_pylist())
            )
            return self._reassigner.alter(rows, targets, self._connection.metadata(), failed)

        if targets:
            cause = Cause("REASSIGN PARTITIONS", {"cause": "requested"})
            log_changes(root.partition_state.change_rows(decide, targets, cause=cause))
        gone = ProtocolError("UNKNOWN_TOPIC_OR_PARTITION")
        failed |= dict.fromkeys(targets.keys() - found, gone)
        for key, name in names.items():
            results[name] = _refused(failed[key]) if key in failed else AlteredReassignment()
        return {name: results[name] for name in asked}

    def in_progress(
        self, partitions: Collection[tuple[str, int]] | None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Return the reassignments in progress; see `Admin.list_partition_reassignments`."""
        wanted = None if partitions is None else set(partition_names(partitions))
        return {
            TopicPartition(state.topic, state.partition): PartitionReassignment(
                tuple(one.broker_id for one in state.replicas),
                tuple(sorted(one.broker_id for one in state.replicas if one.adding)),
                tuple(sorted(one.broker_id for one in state.replicas if one.removing)),
            )
            for state in self._reassigning()
            if wanted is None or (state.topic, state.partition) in wanted
        }

    def adding(self) -> list[AddingReplica]:
        """Return the progress of all replicas that are being added, by partition and broker."""
        return [
            self._progress(state, one.broker_id, in_isr=one.in_isr)
            for state in self._reassigning()
            for one in state.replicas
            if one.adding
        ]

    def set_throttle(self, rate: int | None) -> int:
        """Set the throttle of the reassignments in progress, or remove all; return how many.

        Parameters: `rate`, in bytes per second; `None` removes the throttles of all partitions.
        """
        rate = _checked_rate(rate)
        changed: set[TopicIdPartition] = set()

        def rate_of(rows: list[dict[str, object]]) -> int | None:
            if rate is not None and any(row["adding"] or row["removing"] for row in rows):
                return rate
            kept = rows[0]["replication_throttled_rate"]
            return kept if rate is not None and isinstance(kept, int) else None

        def decide(rows: pa.Table) -> RowChanges | None:
            new = with_rates(rows, rate_of)
            changed.update(TopicIdPartition(row["topic_id"], row["partition"]) for row in new)
            return RowChanges(PARTITION_STATE.rows(new)) if new else None

        throttled = {
            key
            for key, state in self._connection.metadata().partitions.items()
            if state.replication_throttled_rate is not None or state.is_reassigning
        }
        if throttled:
            self._connection.root.partition_state.change_rows(
                decide, throttled, cause=Cause("SET REPLICATION THROTTLE", {"rate": str(rate)})
            )
        return len(changed)

    def propose(
        self, topics: Collection[str], brokers: Sequence[int], *, is_rack_aware: bool
    ) -> dict[TopicPartition, list[int]]:
        """Return a new placement of topics on brokers; see `Admin.propose_reassignment`."""
        metadata = self._connection.metadata()
        racks: dict[int, str | None] = {}
        for broker_id in numbers_list(brokers, "brokers"):
            broker = metadata.brokers.get(broker_id)
            if broker is not None and broker.is_alive:
                racks[broker_id] = broker.rack if is_rack_aware else None
        if len({rack is None for rack in racks.values()}) > 1:
            raise ProtocolError(
                "INVALID_REPLICA_ASSIGNMENT",
                "Not all brokers have rack information. Add --disable-rack-aware in command line "
                "to make replica assignment without rack information.",
            )
        proposed: dict[TopicPartition, list[int]] = {}
        for name in topics:
            topic = metadata.topic(name)
            first = metadata.partition(name, 0)
            placed = place_replicas(racks, topic.partitions, len(first.target))
            proposed |= {TopicPartition(name, one): brokers for one, brokers in placed.items()}
        return proposed

    def drained(self, broker_id: int) -> dict[TopicPartition, list[int]]:
        """Return the assignments that move every replica away from a broker.

        Each replica is replaced in its place. The new broker is one in a rack without another
        replica, if racks are named; among these the one with the fewest replicas, or of a preferred
        leader with the fewest of these. Raises BROKER_ID_NOT_REGISTERED, and
        INVALID_REPLICATION_FACTOR if there are too few other live brokers.
        """
        metadata = self._connection.metadata()
        broker = metadata.brokers.get(broker_id)
        if broker is None or not broker.is_registered:
            raise ProtocolError(
                "BROKER_ID_NOT_REGISTERED", f"there is no broker {broker_id} to be drained"
            )
        others = {
            one.broker_id: one
            for one in metadata.brokers.values()
            if one.is_alive and not one.is_stopping and one.broker_id != broker_id
        }
        loads, leads = _loads(metadata)
        alive = [one for one in metadata.brokers.values() if one.is_alive]
        is_rack_aware = all(one.rack is not None for one in alive)
        plan: dict[TopicPartition, list[int]] = {}
        for state in sorted(metadata.partitions.values(), key=lambda one: one[1:3]):
            target = state.target
            if broker_id not in target:
                continue
            at = target.index(broker_id)
            kept = [one for one in target if one != broker_id]
            free = [one for one in others.values() if one.broker_id not in kept]
            if not free:
                raise ProtocolError(
                    "INVALID_REPLICATION_FACTOR",
                    f"broker {broker_id} cannot be drained: {state.topic}-{state.partition} has "
                    f"{len(target)} replicas, and there are {len(others)} other live brokers: "
                    "start more of them, or reassign the topic to fewer replicas first",
                )
            conflicts = _conflicts(kept, metadata)
            load = leads if at == 0 else loads
            new = min(
                free,
                key=lambda one: (
                    conflicts[str(one.rack)] if is_rack_aware else 0,
                    load[one.broker_id],
                    loads[one.broker_id],
                    one.broker_id,
                ),
            ).broker_id
            loads[new] += 1
            leads[new] += at == 0
            plan[TopicPartition(state.topic, state.partition)] = [
                new if one == broker_id else one for one in target
            ]
        return plan

    def _reassigning(self) -> list[PartitionState]:
        found = [
            one for one in self._connection.metadata().partitions.values() if one.is_reassigning
        ]
        return sorted(found, key=lambda one: (one.topic, one.partition))

    def _progress(self, state: PartitionState, broker_id: int, *, in_isr: bool) -> AddingReplica:
        end: int | None
        leader_end = bytes_left = None
        try:
            location = self._connection.replica_location(state, broker_id)
            row = self._connection.journal(location).rows.get(state.key)
            end = row["log_end_offset"] if row is not None else 0
        except UNREADABLE:
            end = None
        try:
            log = self._connection.journal(self._connection.leader_location(state))
            leader = log.rows.get(state.key)
            leader_end = leader["log_end_offset"] if leader is not None else None
            if end is not None and leader_end is not None:
                start = max(end, leader["log_start_offset"] if leader is not None else 0)
                bytes_left = sum(one.size_bytes for one in log.batches(state.key, start))
        except (SparklogError, *UNREADABLE):
            leader_end = None
        return AddingReplica(
            state.topic, state.partition, broker_id, in_isr, end, leader_end, bytes_left
        )


def _refused(error: ProtocolError) -> AlteredReassignment:
    return AlteredReassignment(error.code.name, str(error))


def _checked_rate(rate: int | None) -> int | None:
    """Return a throttle in bytes per second, which must be above 0."""
    if rate is None:
        return None
    rate = whole_number(rate, "the throttle")
    if rate <= 0:
        raise SparklogError(f"the throttle must be above 0 bytes per second, not {rate}")
    return rate


def _loads(metadata: Metadata) -> tuple[Counter[int], Counter[int]]:
    """Return the numbers of replicas and of preferred leaders of each broker, by the targets."""
    targets = [state.target for state in metadata.partitions.values()]
    replicas = Counter(one for target in targets for one in target)
    return replicas, Counter(target[0] for target in targets if target)


def _conflicts(kept: Sequence[int], metadata: Metadata) -> Counter[str]:
    """Return the number of kept replicas in each rack."""
    return Counter(str(metadata.brokers[one].rack) for one in kept)
