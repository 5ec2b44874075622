"""The assignors: complete, balanced as documented, sticky, and deterministic."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.groups.assignors import (
    ASSIGNORS,
    Assignment,
    MemberSubscription,
    range_,
    roundrobin,
    sticky,
)
from sparklog.model import TopicPartition

TOPICS = ["a", "b", "c"]

partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))
subscriptions = st.lists(
    st.frozensets(st.sampled_from([*TOPICS, "not there"])), min_size=1, max_size=6
)


def members_of(topics: list[frozenset[str]]) -> list[MemberSubscription]:
    return [MemberSubscription(f"m{index}", of) for index, of in enumerate(topics)]


def alike(count: int, *topics: str) -> list[MemberSubscription]:
    return members_of([frozenset(topics)] * count)


def after(members: list[MemberSubscription], assignment: Assignment) -> list[MemberSubscription]:
    """Return the members with the partitions that they were assigned."""
    return [one._replace(owned=tuple(assignment.get(one.member_id, ()))) for one in members]


def shown(assignment: Assignment) -> dict[str, str]:
    return {
        member: " ".join(f"{topic}{number}" for topic, number in owned)
        for member, owned in assignment.items()
    }


@pytest.mark.parametrize("name", ASSIGNORS)
@given(counts=partition_counts, topics=subscriptions)
def test_every_partition_that_is_wanted_goes_to_one_member_that_wants_it(
    name: str, counts: dict[str, int], topics: list[frozenset[str]]
) -> None:
    """Every partition of a subscribed topic is assigned to one member that subscribes to the
    topic.
    """
    members = members_of(topics)
    assignment = ASSIGNORS[name](counts, members)
    assert assignment.keys() == {one.member_id for one in members}
    given_out = Counter(one for owned in assignment.values() for one in owned)
    wanted = {topic for of in topics for topic in of}
    everything = {
        TopicPartition(topic, number)
        for topic, count in counts.items()
        if topic in wanted
        for number in range(count)
    }
    assert given_out == Counter(everything)
    for one in members:
        assert {topic for topic, _ in assignment[one.member_id]} <= one.topics


@pytest.mark.parametrize("name", ASSIGNORS)
@given(counts=partition_counts, topics=subscriptions, seed=st.integers())
def test_the_order_of_topics_and_members_does_not_matter(
    name: str, counts: dict[str, int], topics: list[frozenset[str]], seed: int
) -> None:
    """The assignment does not depend on the order of topics and members."""
    members = members_of(topics)
    chance = random.Random(seed)
    shuffled = dict(chance.sample(list(counts.items()), len(counts)))
    again = ASSIGNORS[name](shuffled, chance.sample(members, len(members)))
    assert again == ASSIGNORS[name](counts, members)


@pytest.mark.parametrize("name", ["roundrobin", "sticky"])
@given(counts=partition_counts, count=st.integers(1, 6))
def test_members_that_want_the_same_differ_by_one_partition_at_most(
    name: str, counts: dict[str, int], count: int
) -> None:
    """The numbers of partitions of members with equal subscriptions differ by at most one."""
    loads = [len(owned) for owned in ASSIGNORS[name](counts, alike(count, *TOPICS)).values()]
    assert max(loads) - min(loads) <= 1


@given(count=st.integers(0, 20), readers=st.integers(1, 6))
def test_a_range_is_one_piece_and_the_first_members_have_one_more(count: int, readers: int) -> None:
    """`range` assigns consecutive partitions, and the first members have one more."""
    shares = list(range_({"a": count}, alike(readers, "a")).values())
    numbers = [[number for _, number in owned] for owned in shares]
    assert [number for owned in numbers for number in owned] == list(range(count))
    sizes = list(map(len, numbers))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@given(counts=partition_counts, topics=subscriptions, seed=st.integers())
def test_sticky_leaves_no_partition_that_a_poorer_member_should_have(
    counts: dict[str, int], topics: list[frozenset[str]], seed: int
) -> None:
    """`sticky` leaves no partition that a subscriber with at least two fewer partitions could
    have.
    """
    members = members_of(topics)
    chance = random.Random(seed)
    everything = [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)]
    # The partitions that members report may overlap, or no longer exist.
    claimed = [
        one._replace(owned=tuple(chance.sample(everything, chance.randint(0, len(everything)))))
        for one in members
    ]
    assignment = sticky(counts, claimed)
    loads = {member: len(owned) for member, owned in assignment.items()}
    for member, owned in assignment.items():
        for partition in owned:
            for other in members:
                if partition.topic in other.topics:
                    assert loads[member] <= loads[other.member_id] + 1


@given(counts=partition_counts, topics=subscriptions)
def test_sticky_changes_nothing_while_nothing_changes(
    counts: dict[str, int], topics: list[frozenset[str]]
) -> None:
    """`sticky` changes nothing while members and topics stay the same."""
    members = members_of(topics)
    first = sticky(counts, members)
    assert sticky(counts, after(members, first)) == first


@given(counts=partition_counts, count=st.integers(2, 6), leaving=st.integers(0, 5))
def test_sticky_takes_nothing_from_those_that_stay_when_one_leaves(
    counts: dict[str, int], count: int, leaving: int
) -> None:
    """`sticky` takes no partition from the remaining members when one leaves."""
    members = alike(count, *TOPICS)
    first = sticky(counts, members)
    stay = [one for one in members if one.member_id != f"m{leaving % count}"]
    then = sticky(counts, after(stay, first))
    for one in stay:
        assert set(first[one.member_id]) <= set(then[one.member_id])


@given(counts=partition_counts, count=st.integers(1, 5), joining=st.integers(1, 3))
def test_sticky_moves_to_new_members_what_they_need_and_no_more(
    counts: dict[str, int], count: int, joining: int
) -> None:
    """`sticky` moves only the partitions that new members get."""
    members = alike(count + joining, *TOPICS)
    first = sticky(counts, members[:count])
    then = sticky(counts, after(members, first))
    moved = sum(len(set(owned) - set(then[member])) for member, owned in first.items())
    assert moved == sum(len(then[one.member_id]) for one in members[count:])


def test_kafkas_examples() -> None:
    """Assignments equal the examples in the Javadoc of Kafka's three assignors."""
    two = alike(2, "a", "b")
    assert shown(range_({"a": 3, "b": 3}, two)) == {"m0": "a0 a1 b0 b1", "m1": "a2 b2"}
    assert shown(roundrobin({"a": 3, "b": 3}, two)) == {"m0": "a0 a2 b1", "m1": "a1 b0 b2"}
    uneven = members_of([frozenset("a"), frozenset("ab"), frozenset("abc")])
    counts = {"a": 1, "b": 2, "c": 3}
    assert shown(roundrobin(counts, uneven)) == {"m0": "a0", "m1": "b0", "m2": "b1 c0 c1 c2"}
    assert shown(sticky(counts, uneven)) == {"m0": "a0", "m1": "b0 b1", "m2": "c0 c1 c2"}
    three = alike(3, "a", "b", "c", "d")
    counts = dict.fromkeys("abcd", 2)
    first = sticky(counts, three)
    assert sorted(map(len, first.values())) == [2, 3, 3]
    then = sticky(counts, after(three[1:], first))
    assert sorted(map(len, then.values())) == [4, 4]


def test_static_members_keep_their_place_whatever_id_they_restart_with() -> None:
    """A static member keeps its place if it restarts with another member id."""

    def members(of_static: str) -> list[MemberSubscription]:
        return [
            MemberSubscription("k", frozenset("a")),
            MemberSubscription(of_static, frozenset("a"), group_instance_id="i-1"),
        ]

    for assign in (range_, roundrobin):
        assert assign({"a": 3}, members("b"))["b"] == assign({"a": 3}, members("z"))["z"]
        assert len(assign({"a": 3}, members("z"))["z"]) == 2, "the static one comes first"
