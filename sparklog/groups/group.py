"""Consumer groups: their members, generations and assignments (rule 8.1).

No process coordinates a group. A group is rows of the cluster's `consumer_groups`, and every step
of Kafka's eager rebalance is one compare-and-set by a member. The group prepares (its members give
up their partitions and join), completes (its leader assigns the partitions), and is stable. Each
rebalance has a number, the generation.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.errors import DamagedError, ProtocolError
from sparklog.model import CONSUMER_GROUPS, TopicIdPartition
from sparklog.states import GroupState, group_state_after
from sparklog.storage.commits import Cause
from sparklog.storage.control_table_damage import remedy
from sparklog.storage.damaged_commits import MALFORMED
from sparklog.storage.json_text import json_value
from sparklog.storage.location import one_line
from sparklog.storage.shard_rewrites import RowChanges
from sparklog.storage.sharded_table import ShardedTable
from sparklog.storage.shards import keys_of

_ASSIGNED = "partitions_assigned"

_MOST_NAMED = 20
"""Maximum number of members that a commit names: a large group may lose all at once."""


class Member(NamedTuple):
    """A member of a group: its subscription and its last assignment.

    Attributes
    ----------
    member_id : str
        The member's id, new at each start of a consumer.
    group_instance_id : str or None
        The group.instance.id of a static member.
    client_id : str
        The consumer's client.id.
    joined_generation : int
        The newest generation that it has joined, or waits for.
    topics : tuple of str
        Its subscription.
    protocols : tuple of str
        Its assignors, the preferred one first.
    assignment : tuple of TopicIdPartition
        The partitions that were last assigned to it.
    session_timeout_ms : int
        The time in ms without a heartbeat after which it is removed.
    rebalance_timeout_ms : int
        The time in ms that it has to give up its partitions and join.

    Examples
    --------
    >>> from sparklog import Consumer, GroupAdmin
    >>> with Consumer("sparklog-data/cluster", group_id="views") as consumer:
    ...     consumer.subscribe(["clicks"])
    ...     records = consumer.poll(timeout_ms=10_000)
    ...     groups = GroupAdmin("sparklog-data/cluster").list_groups()
    >>> group = next(group for group in groups if group.group_id == "views")
    >>> [(member.topics, len(member.assignment)) for member in group.members]
    [(('clicks',), 2)]
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    joined_generation: int
    topics: tuple[str, ...]
    protocols: tuple[str, ...]
    assignment: tuple[TopicIdPartition, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int


class GroupFence(NamedTuple):
    """The state of a group under which offsets are committed.

    Attributes
    ----------
    generation : int
        Kafka's generation; it stays the same when a static member replaces its predecessor.
    group_epoch : int
        It rises with every step of the group.

    Examples
    --------
    >>> from sparklog.groups.group import Group
    >>> Group("reports").fence
    GroupFence(generation=0, group_epoch=0)
    """

    generation: int
    group_epoch: int


class Group(NamedTuple):
    """A group at one version of the table; one that never existed is empty, in generation 0.

    Attributes
    ----------
    group_id : str
        The group's name.
    state : str
        `Empty`, `PreparingRebalance`, `CompletingRebalance`, `Stable` or `Dead`, as in Kafka.
    generation : int
        The number of rebalances so far.
    protocol : str or None
        The assignor of this generation.
    leader : str or None
        The id of the member that assigns partitions.
    group_epoch : int
        It rises with every step of the group.
    members : tuple of Member
        The members.

    Examples
    --------
    >>> from sparklog import Consumer, GroupAdmin
    >>> with Consumer("sparklog-data/cluster", group_id="sums") as consumer:
    ...     consumer.subscribe(["clicks"])
    ...     records = consumer.poll(timeout_ms=10_000)
    ...     groups = GroupAdmin("sparklog-data/cluster").list_groups()
    >>> group = next(group for group in groups if group.group_id == "sums")
    >>> group.state, group.generation, len(group.members)
    ('Stable', 1, 1)
    """

    group_id: str
    state: GroupState = "Empty"
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    group_epoch: int = 0
    members: tuple[Member, ...] = ()

    @property
    def fence(self) -> GroupFence:
        """The fence of members that were checked against this state of the group."""
        return GroupFence(self.generation, self.group_epoch)

    @property
    def exists(self) -> bool:
        """Whether the group has had members, and was not deleted since."""
        return self.generation > 0 and self.state != "Dead"

    def member(self, member_id: str) -> Member | None:
        """Return the member with an id.

        Parameters
        ----------
        member_id : str
            The id.

        Returns
        -------
        Member or None
            `None` without such a member.
        """
        return next((one for one in self.members if one.member_id == member_id), None)

    @property
    def missing(self) -> list[Member]:
        """The members that have yet to join the generation that the group prepares."""
        if self.state != "PreparingRebalance":
            return []
        return [one for one in self.members if one.joined_generation <= self.generation]


def joined(group: Group, member: Member) -> Group:
    """Return the group after a member has joined, or joined again.

    A member with the group.instance.id of another member replaces it. If the group is stable and
    the subscription is the same, there is no rebalance, and the member takes over the assignment.
    Raises INCONSISTENT_GROUP_PROTOCOL if the members would have no assignor in common.
    """
    before = next((one for one in group.members if _is_same(one, member)), None)
    others = [one for one in group.members if one is not before]
    if before is not None:
        member = member._replace(assignment=before.assignment)
    if not _common_protocols([*others, member]):
        raise ProtocolError(
            "INCONSISTENT_GROUP_PROTOCOL",
            f"group {group.group_id} has members that do not know any of "
            f"{', '.join(member.protocols)}: give all the same partition.assignment.strategy",
        )
    if before is not None and before.member_id != member.member_id and group.state == "Stable":
        wants = member.topics, member.protocols
        if wants == (before.topics, before.protocols):
            same = member._replace(joined_generation=group.generation)
            members = tuple(same if one is before else one for one in group.members)
            leader = same.member_id if group.leader == before.member_id else group.leader
            state = group_state_after("replace_member", group.state)
            return group._replace(state=state, members=members, leader=leader)
    joining = member._replace(joined_generation=group.generation + 1)
    return _settled(
        group._replace(
            state=group_state_after("join", group.state),
            members=(*others, joining)
            if before is None
            else tuple(joining if one is before else one for one in group.members),
        )
    )


def without(group: Group, member_ids: Collection[str]) -> Group:
    """Return the group after members have left, or were removed; the others join again."""
    left = tuple(one for one in group.members if one.member_id not in member_ids)
    if len(left) == len(group.members):
        return group
    if not left:
        state = group_state_after("empty", group.state)
        return Group(group.group_id, state, group.generation + 1)
    return _settled(group._replace(state=group_state_after("leave", group.state), members=left))


def expired(group: Group, seen: Group, silent: Collection[str]) -> Group:
    """Return the group without its `silent` members; `seen` is its state when they were found.

    A member that has joined again since then is alive, and stays.
    """
    still = [
        member_id
        for member_id in silent
        if (before := seen.member(member_id)) is not None
        and (now := group.member(member_id)) is not None
        and now.joined_generation == before.joined_generation
    ]
    return without(group, still)


def deleted(group: Group) -> Group:
    """Return the group after it was deleted; raises NON_EMPTY_GROUP if it has members."""
    require_empty(group)
    if not group.exists:
        return group
    return Group(group.group_id, group_state_after("delete", group.state), group.generation + 1)


def require_empty(group: Group) -> None:
    """Raise NON_EMPTY_GROUP if a group has members."""
    if group.members:
        names = ", ".join(sorted(one.member_id for one in group.members))
        raise ProtocolError(
            "NON_EMPTY_GROUP", f"group {group.group_id} has members, stop them first: {names}"
        )


def assigned(group: Group, assignment: Mapping[str, Collection[TopicIdPartition]]) -> Group:
    """Return the group, stable, with the assignment that its leader has decided."""
    return group._replace(
        state=group_state_after("assign", group.state),
        members=tuple(
            one._replace(assignment=tuple(sorted(assignment.get(one.member_id, ()))))
            for one in group.members
        ),
    )


def _settled(group: Group) -> Group:
    """Return the group with a leader, and in the next generation if all members have joined it."""
    if group.leader is None or group.member(group.leader) is None:
        group = group._replace(leader=group.members[0].member_id)
    if group.missing:
        return group
    return group._replace(
        state=group_state_after("all_joined", group.state),
        generation=group.generation + 1,
        protocol=_elected_protocol(group.members),
    )


def _is_same(one: Member, other: Member) -> bool:
    has_its_place = one.group_instance_id is not None
    return one.member_id == other.member_id or (
        has_its_place and one.group_instance_id == other.group_instance_id
    )


def _common_protocols(members: Collection[Member]) -> set[str]:
    return set.intersection(*(set(one.protocols) for one in members))


def _elected_protocol(members: Collection[Member]) -> str:
    """Return the assignor that most members prefer, of those that all members have."""
    common = _common_protocols(members)
    votes = [next(name for name in one.protocols if name in common) for one in members]
    return max(sorted(common), key=votes.count)


class ConsumerGroups:
    """The groups of a cluster, in its table `consumer_groups`; threads may share an instance."""

    def __init__(self, table: ShardedTable) -> None:
        self._table = table
        self._found: tuple[tuple[int, int], Group] | None = None

    def find(self, group_id: str) -> Group:
        """Return the newest state of a group."""
        self._table.refresh()
        state, found = self._table.state, self._found
        # Every member polls its group ten times a second, and it seldom changes.
        if found is None or found[0] != state or found[1].group_id != group_id:
            rows = self._table.rows_of([(group_id,)])
            found = self._found = state, _of_rows(group_id, rows.to_pylist())
        return found[1]

    def all(self) -> list[Group]:
        """Return all groups that exist, in their newest state, by name."""
        self._table.refresh()
        return groups_in(self._table.rows())

    def change(
        self, group_id: str, step: Callable[[Group], Group], cause: str | None = None
    ) -> Group:
        """Apply `step` to a group, by compare-and-set, and return the group after that.

        `step` is called again if another member was faster; it may raise an error. `cause`: why, in
        the history of the table; by default it is what the step has changed (`cause_of_change`).
        """
        seen = after = Group(group_id)

        def decide(rows: pa.Table) -> RowChanges | None:
            nonlocal after, seen
            seen = before = _of_rows(group_id, rows.to_pylist())
            after = step(before)
            if after == before:
                return None
            after = after._replace(group_epoch=before.group_epoch + 1)
            # Rows that are removed before they are written are stored in the order of the members.
            return RowChanges(
                CONSUMER_GROUPS.rows(_rows(after)), frozenset(keys_of(rows, CONSUMER_GROUPS))
            )

        self._table.change_rows(
            decide,
            [(group_id,)],
            cause=lambda: _described(seen, after, cause or cause_of_change(seen, after)),
        )
        return after


def cause_of_change(before: Group, after: Group) -> str:
    """Return what has changed between two states of a group, as its table's history names it."""
    known = {one.member_id: one for one in before.members}
    stay = {one.member_id for one in after.members}
    joined, gone = stay - known.keys(), known.keys() - stay
    if joined:
        return "member_replaced" if gone else "member_joined"
    if gone:
        return "member_left"
    if any(one.topics != known[one.member_id].topics for one in after.members):
        return "subscription_changed"
    if before.state == "CompletingRebalance" and after.state == "Stable":
        return _ASSIGNED
    return "member_joined_again"


def _described(before: Group, after: Group, cause: str) -> Cause:
    """Return the operation of a commit, with the members that it is about.

    Those that are gone, or else those that have joined; none for an assignment, which is for all.
    """
    parameters = {
        "groupId": after.group_id,
        "cause": cause,
        "generation": str(after.generation),
        "state": after.state,
        "memberCount": str(len(after.members)),
    }
    if cause != _ASSIGNED:
        gone = {one.member_id for one in before.members} - {one.member_id for one in after.members}
        joined = {one.member_id for one in set(after.members) - set(before.members)}
        parameters["members"] = json.dumps(sorted(gone or joined)[:_MOST_NAMED])
    return Cause("CHANGE GROUP", parameters)


def groups_in(table: pa.Table) -> list[Group]:
    """Return all groups that exist in rows of `consumer_groups`, by name.

    Raises `DamagedError` for a group whose rows no member can have written.
    """
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in table.to_pylist():
        # Any client may append a row of no group; no group reads it.
        if row["group_id"] is not None:
            rows[row["group_id"]].append(row)
    found = (_of_rows(name, rows[name]) for name in sorted(rows))
    return [group for group in found if group.exists]


def _of_rows(group_id: str, rows: Sequence[Mapping[str, Any]]) -> Group:
    """Return the group that these rows describe; raises `DamagedError` if they are malformed."""
    if not rows:
        return Group(group_id)
    try:
        return _parsed(rows)
    except MALFORMED as error:
        fault = f"a row is malformed ({type(error).__name__}: {one_line(error)})"
        path = f"group {group_id!r} in the table {CONSUMER_GROUPS.name}"
        raise DamagedError(path, fault, remedy(CONSUMER_GROUPS.name)) from error


def _parsed(rows: Sequence[Mapping[str, Any]]) -> Group:
    of_group = {name: rows[0][name] for name in Group._fields[:-1]}
    if of_group["generation"] is None:
        raise ValueError("its generation is null")
    # Older versions wrote no epoch.
    of_group["group_epoch"] = of_group["group_epoch"] or 0
    members = tuple(_member(row) for row in rows if row["member_id"] is not None)
    return Group(**of_group, members=members)


@lru_cache(maxsize=1024)
def _names(text: str) -> tuple[str, ...]:
    """Return the names in a column; cached, since the members of a group have the same ones."""
    names = json_value(text)
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise TypeError("its topics or protocols are not a list of names")
    return tuple(names)


def _assigned(topic_id: Any, partition: Any) -> TopicIdPartition:
    if not isinstance(topic_id, str) or type(partition) is not int:
        raise TypeError("its assignment is not a list of partitions")
    return TopicIdPartition(topic_id, partition)


def _member(row: Mapping[str, Any]) -> Member:
    values = {name: row[name] for name in Member._fields}
    values["topics"], values["protocols"] = _names(row["topics"]), _names(row["protocols"])
    values["assignment"] = tuple(_assigned(*one) for one in json_value(row["assignment"]))
    return Member(**values)


def _rows(group: Group) -> list[dict[str, Any]]:
    """Return one row per member; an empty group keeps one, as its generation must not decrease."""
    of_group = {name: getattr(group, name) for name in Group._fields[:-1]}
    nobody: dict[str, Any] = dict.fromkeys(Member._fields)
    of_members = [
        one._asdict()
        | {name: json.dumps(getattr(one, name)) for name in ("topics", "protocols", "assignment")}
        for one in group.members
    ]
    return [of_group | row for row in of_members or [nobody]]
