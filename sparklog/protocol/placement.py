"""Kafka's placement of replicas: the one rule that is not a query (rule 7.4).

Replicas and leaders are spread evenly over the brokers. If all brokers name their rack, every rack
gets a replica before any rack gets a second one.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

from sparklog.errors import ProtocolError

MOST_PARTITIONS = 100_000
"""Maximum number of partitions of a new topic; clusters with more are not tested."""


def place_replicas(
    racks: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    start_index: int | None = None,
    shift: int | None = None,
    first_partition: int = 0,
) -> dict[int, list[int]]:
    """Assign replicas to brokers.

    Parameters: `racks`, the live brokers and their racks; `start_index`, the index of the broker
    that gets partition 0's first replica; `shift`, the distance to its second replica. Both are
    random by default. `first_partition`, the number of the first one, if a topic has others.
    Returns the brokers of each partition, the preferred leader first. Raises INVALID_PARTITIONS,
    INVALID_REPLICATION_FACTOR.
    """
    if partitions < 1:
        raise ProtocolError(
            "INVALID_PARTITIONS", f"a topic needs 1 partition or more, not {partitions}: raise it"
        )
    if partitions > MOST_PARTITIONS:
        raise ProtocolError(
            "INVALID_PARTITIONS",
            f"a topic has {MOST_PARTITIONS:,} partitions at most, not {partitions:,}: lower it",
        )
    if not 1 <= replication_factor <= len(racks):
        raise ProtocolError(
            "INVALID_REPLICATION_FACTOR",
            f"replication factor {replication_factor} needs as many live brokers, there are "
            f"{len(racks)}: lower it, or start more brokers",
        )
    is_rack_aware = bool(racks) and all(rack is not None for rack in racks.values())
    brokers = _rack_alternated(racks) if is_rack_aware else sorted(racks)
    start = random.randrange(len(brokers)) if start_index is None else start_index
    step = random.randrange(len(brokers)) if shift is None else shift
    assignment = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(brokers) == 0:
            step += 1
        first = (partition + start) % len(brokers)
        if is_rack_aware:
            replicas = _across_racks(brokers, racks, first, step, replication_factor)
        else:
            replicas = [brokers[first]] + [
                brokers[_follower_index(first, step, position, len(brokers))]
                for position in range(replication_factor - 1)
            ]
        assignment[partition] = replicas
    return assignment


def _follower_index(first: int, shift: int, position: int, brokers: int) -> int:
    if brokers == 1:
        return 0
    return (first + 1 + (shift + position) % (brokers - 1)) % brokers


def _rack_alternated(racks: Mapping[int, str | None]) -> list[int]:
    """Return the brokers so that neighbours are in different racks as far as possible."""
    members: dict[str, list[int]] = defaultdict(list)
    for broker, rack in sorted(racks.items()):
        members[str(rack)].append(broker)
    longest = max(len(brokers) for brokers in members.values())
    return [
        brokers[position]
        for position in range(longest)
        for _, brokers in sorted(members.items())
        if position < len(brokers)
    ]


def _across_racks(
    brokers: Sequence[int],
    racks: Mapping[int, str | None],
    first: int,
    shift: int,
    replication_factor: int,
) -> list[int]:
    rack_count = len(set(racks.values()))
    replicas = [brokers[first]]
    used_racks = {racks[brokers[first]]}
    position = 0
    while len(replicas) < replication_factor:
        # The factor rack_count makes the first step lead to another rack.
        index = _follower_index(first, shift * rack_count, position, len(brokers))
        broker = brokers[index]
        is_rack_free = racks[broker] not in used_racks or len(used_racks) == rack_count
        is_broker_free = broker not in replicas or len(set(replicas)) == len(brokers)
        if is_rack_free and is_broker_free:
            replicas.append(broker)
            used_racks.add(racks[broker])
        position += 1
    return replicas
