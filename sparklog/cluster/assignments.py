"""Assignments of replicas to brokers: checks of given ones, and the first rows of partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparklog.cluster.arguments import numbers_list, whole_number
from sparklog.cluster.metadata import Metadata
from sparklog.errors import ProtocolError, SparklogError


def checked_assignment(
    topic: str,
    assignment: Mapping[int, Sequence[int]],
    partitions: int | None,
    replication_factor: int | None,
    live: Mapping[int, str | None],
    metadata: Metadata,
    first: int = 0,
) -> dict[int, list[int]]:
    """Return an assignment that a user gives, with the number of each partition.

    Parameters: `partitions`, their number if it is given; `live`, the live brokers; `first`, the
    number of the first partition. Raises INVALID_REPLICA_ASSIGNMENT.
    """

    def refuse(reason: str) -> ProtocolError:
        return ProtocolError(
            "INVALID_REPLICA_ASSIGNMENT", f"the assignment of topic {topic} {reason}"
        )

    try:
        placed = {
            whole_number(partition, "a partition's number"): numbers_list(brokers, "brokers")
            for partition, brokers in assignment.items()
        }
    except (AttributeError, SparklogError):
        raise refuse(
            f"must be a dict of brokers by partition, such as {{0: [1, 2, 3]}}, not {assignment!r}"
        ) from None

    if sorted(placed) != list(range(first, first + len(placed))) or not placed:
        raise refuse(f"must number its partitions from {first} without a gap, not {sorted(placed)}")
    if partitions is not None and partitions != len(placed):
        raise refuse(
            f"has {len(placed)} partitions, but {partitions} were asked for: give one of the two"
        )
    sizes = {len(brokers) for brokers in placed.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise refuse(
            "must give every partition the same number of replicas, at least one, not "
            f"{sorted(sizes)}"
        )
    if replication_factor is not None and sizes != {replication_factor}:
        raise refuse(
            f"has {sizes.pop()} replicas, but {replication_factor} were asked for: "
            "give one of the two"
        )
    for partition, brokers in placed.items():
        if len(set(brokers)) < len(brokers):
            raise refuse(f"names a broker twice for partition {partition}: {brokers}")
        known = {one.broker_id for one in metadata.brokers.values() if one.is_registered}
        unknown = sorted(set(brokers) - known)
        if unknown:
            raise refuse(
                f"names broker {unknown[0]}, which is not registered: choose from {sorted(known)}"
            )
        if not set(brokers) & live.keys():
            raise refuse(
                f"leaves partition {partition} without a live broker: start one of {brokers}, or "
                "name others"
            )
    return placed


def partition_rows(
    topic_id: str,
    topic: str,
    placed: Mapping[int, Sequence[int]],
    live: Mapping[int, str | None],
    metadata: Metadata,
    min_isr: int | None,
) -> list[dict[str, Any]]:
    """Return the rows of new partitions, without a leader; the replicas of `live` are in sync."""
    rows = []
    loads = dict.fromkeys(metadata.brokers, 0)
    for state in metadata.partitions.values():
        for one in state.replicas:
            loads[one.broker_id] = loads.get(one.broker_id, 0) + 1
    for partition, brokers in placed.items():
        for index, broker in enumerate(brokers):
            # Round robin over the broker's log directories.
            online = list(metadata.brokers[broker].online_roots)
            root = online[loads[broker] % len(online)]
            loads[broker] += 1
            rows.append(
                {
                    "topic_id": topic_id,
                    "topic": topic,
                    "partition": partition,
                    "broker_id": broker,
                    "root": root,
                    "replica_index": index,
                    "in_isr": broker in live,
                    "in_elr": False,
                    "adding": False,
                    "removing": False,
                    "partition_epoch": 0,
                    "controller_epoch": 0,
                    "min_isr": min_isr,
                }
            )
    return rows
