"""Assignors: functions that share a group's partitions among its members, like Kafka's.

Each is a pure function of the partitions and the members, and does not depend on their order. Every
member that leads the group computes the same assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

from sparklog.model import TopicPartition


class MemberSubscription(NamedTuple):
    """A member's subscription: topics by name; `owned` is its previous assignment."""

    member_id: str
    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    group_instance_id: str | None = None


Assignment = dict[str, list[TopicPartition]]
"""The partitions of each member, by member id; every member has an entry."""

Assign = Callable[[Mapping[str, int], Iterable[MemberSubscription]], Assignment]
"""An assignor: a function of the number of partitions of each topic, and of the members."""


def range_(partitions: Mapping[str, int], members: Iterable[MemberSubscription]) -> Assignment:
    """Assign each member of a topic a range of its partitions; the first members get one more.

    Topics with equal numbers of partitions are shared in the same way, so that they can be joined
    by partition.
    """
    ordered = _ordered(members)
    assignment: Assignment = {one.member_id: [] for one in ordered}
    for topic in sorted(partitions):
        readers = [one.member_id for one in ordered if topic in one.topics]
        first = 0
        for index, member_id in enumerate(readers):
            each, more = divmod(partitions[topic], len(readers))
            below = first + each + (index < more)
            assignment[member_id] += [TopicPartition(topic, one) for one in range(first, below)]
            first = below
    return assignment


def roundrobin(partitions: Mapping[str, int], members: Iterable[MemberSubscription]) -> Assignment:
    """Assign all partitions of all topics to the members in turn, skipping those not subscribed."""
    ordered = _ordered(members)
    assignment: Assignment = {one.member_id: [] for one in ordered}
    turn = cycle(ordered)
    for partition in _shared(partitions, ordered):
        reader = next(one for one in turn if partition.topic in one.topics)
        assignment[reader.member_id].append(partition)
    return assignment


def sticky(partitions: Mapping[str, int], members: Iterable[MemberSubscription]) -> Assignment:
    """Share partitions as evenly as the subscriptions allow; members keep their partitions.

    Invariant: no partition can be moved to a member with at least two partitions fewer. A partition
    moves only to establish this.
    """
    ordered = _ordered(members)
    by_id = {one.member_id: one for one in ordered}
    shared = _shared(partitions, ordered)
    assignment = _kept(shared, ordered)
    taken = {partition for owned in assignment.values() for partition in owned}
    readers = {
        topic: [one.member_id for one in ordered if topic in one.topics] for topic in partitions
    }
    # Partitions with few readers come first, before other partitions fill up these readers.
    for partition in sorted(set(shared) - taken, key=lambda one: (len(readers[one.topic]), one)):
        poorest = min(readers[partition.topic], key=lambda one: len(assignment[one]))
        assignment[poorest].append(partition)
    while _move_one(assignment, by_id, readers):
        pass
    return {member_id: sorted(owned) for member_id, owned in assignment.items()}


ASSIGNORS: Mapping[str, Assign] = {"range": range_, "roundrobin": roundrobin, "sticky": sticky}
"""The assignors, by their names in partition.assignment.strategy."""


def _kept(shared: Sequence[TopicPartition], ordered: Sequence[MemberSubscription]) -> Assignment:
    """Return the partitions that members had and may keep; the first of two claimants keeps one."""
    available = set(shared)
    assignment: Assignment = {one.member_id: [] for one in ordered}
    for one in ordered:
        for partition in sorted(set(one.owned)):
            if partition in available and partition.topic in one.topics:
                available.remove(partition)
                assignment[one.member_id].append(partition)
    return assignment


def _move_one(
    assignment: Assignment,
    members: Mapping[str, MemberSubscription],
    readers: Mapping[str, Sequence[str]],
) -> bool:
    """Move one partition to a member with at least two fewer; return whether one has moved."""
    for giver in sorted(assignment, key=lambda one: (-len(assignment[one]), one)):
        had = set(members[giver].owned)
        # Partitions that the member did not own before are moved first.
        latest_first = sorted(assignment[giver], reverse=True)
        for partition in sorted(latest_first, key=lambda one: one in had):
            poorest = min(readers[partition.topic], key=lambda one: len(assignment[one]))
            if len(assignment[poorest]) + 1 < len(assignment[giver]):
                assignment[giver].remove(partition)
                assignment[poorest].append(partition)
                return True
    return False


def _shared(
    partitions: Mapping[str, int], members: Sequence[MemberSubscription]
) -> list[TopicPartition]:
    """Return the partitions of the subscribed topics, in order."""
    wanted = {topic for one in members for topic in one.topics}
    return [
        TopicPartition(topic, number)
        for topic in sorted(partitions)
        if topic in wanted
        for number in range(partitions[topic])
    ]


def _ordered(members: Iterable[MemberSubscription]) -> list[MemberSubscription]:
    """Order members as Kafka does: static members first, which keep their place at a restart."""
    return sorted(
        members,
        key=lambda one: (
            one.group_instance_id is None,
            one.group_instance_id or one.member_id,
            one.member_id,
        ),
    )
