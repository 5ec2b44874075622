"""Consumer groups: generations, fencing of stale members, and every record once per group."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from hypothesis import given
from hypothesis import strategies as st

from sparklog.cluster.connection import Connection
from sparklog.cluster.group_past import group_past
from sparklog.cluster.roots import ClusterRoot
from sparklog.config import ConsumerConfig, parse
from sparklog.consumer.assigned_partition import ConsumerRecord
from sparklog.consumer.consumer import Consumer
from sparklog.errors import ProtocolError
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata, PartitionLag, lag
from sparklog.groups.group import (
    ConsumerGroups,
    Group,
    GroupFence,
    Member,
    assigned,
    joined,
    without,
)
from sparklog.groups.member import GroupMember
from sparklog.model import CONSUMER_GROUP_HEARTBEATS, FORMAT, TopicIdPartition, TopicPartition
from sparklog.storage.control_table import ControlTable
from sparklog.storage.location import Location
from sparklog.storage.sharded_table import ShardedTable
from sparklog.testing import LocalCluster, ManualClock

PARTITION = TopicIdPartition("topic-id", 0)


class Members:
    """Members of one group on a real cluster root, each with its own manual clock."""

    def __init__(self, folder: Path) -> None:
        self.location = Location.of(str(folder / "cluster"))
        self.root = ClusterRoot.create(self.location)
        self.offsets = CommittedOffsets(self.root.consumer_offsets)
        self.clocks: dict[str, ManualClock] = {}

    def make(self, name: str, **config: Any) -> GroupMember:
        """Return a member with a clock that differs from all others."""
        keys = {"client.id": name} | {key.replace("_", "."): v for key, v in config.items()}
        self.clocks[name] = ManualClock(start_ms=len(self.clocks) * 1_000_000_000)
        parsed = parse(ConsumerConfig, keys, "the test")
        return GroupMember(ClusterRoot(self.location), "g", parsed, self.clocks[name])

    def advance(self, ms: int) -> None:
        for clock in self.clocks.values():
            clock.advance(ms)

    def last_cause(self) -> str:
        """Return the cause of the newest commit of the group."""
        [last] = DeltaTable(self.root.consumer_groups.location.uri).history(1)
        return str(last["operationParameters"]["cause"])

    @property
    def group(self) -> Group:
        return ConsumerGroups(self.root.consumer_groups).find("g")

    def commit(self, member: GroupMember, offset: int) -> None:
        """Commit as the consumer of `member` does."""
        group = member.poll()
        member.check(group)
        self.land(group.fence, offset)

    def land(self, fence: GroupFence, offset: int) -> None:
        """Let a commit land that was checked before."""
        self.offsets.commit("g", fence, {PARTITION: ("t", OffsetAndMetadata(offset))})

    def stabilise(self, leader: GroupMember) -> None:
        """Let the leader of a new generation assign the partition to itself."""
        self.offsets.fence("g", leader.poll().fence, {PARTITION: "t"})
        assert leader.assign({leader.member_id: [PARTITION]}).state == "Stable"

    @property
    def committed(self) -> int | None:
        found = self.offsets.fetch("g").get(PARTITION)
        return found.offset if found else None


@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path)


class TestGenerations:
    def test_the_first_member_leads_a_generation_of_its_own(self, members: Members) -> None:
        """The first member leads a new generation."""
        one = members.make("one")
        group = one.join(["t"])
        assert (group.state, group.generation) == ("CompletingRebalance", 1)
        assert (group.leader, one.generation) == (one.member_id, 1)
        members.stabilise(one)
        [stored] = members.group.members
        assert (stored.assignment, stored.topics) == ((PARTITION,), ("t",))

    def test_a_generation_begins_when_every_member_has_joined_it(self, members: Members) -> None:
        """A generation begins once every member has joined it."""
        one, two, three = (members.make(name) for name in ("one", "two", "three"))
        one.join(["t"])
        members.stabilise(one)
        assert two.join(["t"]).state == "PreparingRebalance"
        assert three.join(["t"]).state == "PreparingRebalance"
        assert [missing.member_id for missing in members.group.missing] == [one.member_id]
        group = one.join(["t"])
        assert (group.state, group.generation) == ("CompletingRebalance", 2)
        assert {one.generation, two.generation, three.generation} == {2}
        assert group.leader == one.member_id, "who leads goes on leading"

    def test_only_the_leader_of_the_current_generation_assigns(self, members: Members) -> None:
        """Only the leader of the current generation can assign partitions."""
        one, two = members.make("one"), members.make("two")
        one.join(["t"])
        two.join(["t"])
        assert one.assign({one.member_id: [PARTITION]}).state == "PreparingRebalance"
        one.join(["t"])
        assert two.assign({two.member_id: [PARTITION]}).state == "CompletingRebalance"
        assert one.assign({two.member_id: [PARTITION]}).state == "Stable"
        assert two.assign({}).members == members.group.members

    def test_the_last_to_leave_leaves_an_empty_group_whose_generation_goes_on(
        self, members: Members
    ) -> None:
        """A group without members is empty, and its generation goes on increasing."""
        one = members.make("one")
        one.join(["t"])
        one.leave()
        assert members.group == Group("g", "Empty", 2, group_epoch=2)
        assert members.root.consumer_group_heartbeats.rows().num_rows == 0
        assert one.join(["t"]).generation == 3

    def test_leaving_lets_the_others_go_on_without(self, members: Members) -> None:
        """If a member leaves during a rebalance, the others complete it."""
        one, two = members.make("one"), members.make("two")
        one.join(["t"])
        two.join(["t"])
        one.leave()
        group = members.group
        assert (group.state, group.leader) == ("CompletingRebalance", two.member_id)

    def test_the_assignor_is_the_one_that_most_members_like_best_of_those_all_know(
        self, members: Members
    ) -> None:
        """The assignor is the most preferred one of those that all members support."""
        strategies = ["range,sticky,roundrobin", "roundrobin,sticky", "sticky,roundrobin"]
        made = [
            members.make(str(number), partition_assignment_strategy=strategy)
            for number, strategy in enumerate(strategies)
        ]
        for one in made:
            one.join(["t"])
        made[0].join(["t"])
        assert members.group.protocol == "sticky"
        stranger = members.make("stranger", partition_assignment_strategy="range")
        before = members.group
        with pytest.raises(ProtocolError, match="INCONSISTENT_GROUP_PROTOCOL"):
            stranger.join(["t"])
        assert members.group == before

    def test_members_that_join_at_once_all_get_in(self, members: Members) -> None:
        """Members that join at the same time all become members."""
        made = [members.make(str(number)) for number in range(6)]
        threads = [threading.Thread(target=one.join, args=(["t"],)) for one in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        late = {one.member_id for one in members.group.missing}
        for one in made:
            if one.member_id in late:
                one.join(["t"])
        group = members.group
        assert len(group.members) == 6
        assert group.state == "CompletingRebalance"
        assert {one.joined_generation for one in group.members} == {group.generation}

    def test_groups_do_not_meet(self, members: Members) -> None:
        """Members of one group do not affect another group."""
        one = members.make("one")
        one.join(["t"])
        before = members.group
        config = parse(ConsumerConfig, {}, "the test")
        other = GroupMember(ClusterRoot(members.location), "h", config, ManualClock())
        other.join(["t"])
        other.beat()
        other.leave()
        assert members.group == before


steps = st.lists(
    st.tuples(st.sampled_from(["join", "restart", "leave", "assign"]), st.integers(0, 3)),
    max_size=30,
)


@given(steps)
def test_whatever_members_do_a_generation_is_complete_before_it_is_led_and_none_comes_twice(
    taken: list[tuple[str, int]],
) -> None:
    """Member 3 is a static one, which may restart with another member id."""
    group = Group("g")
    ids = [f"m{number}" for number in range(4)]
    led: set[int] = set()
    for number, (step, who) in enumerate(taken):
        before = group
        if step == "restart" and who == 3:
            ids[3] = f"m3-{number}"
        if step in ("join", "restart"):
            instance = "i-3" if who == 3 else None
            group = joined(group, Member(ids[who], instance, "", 0, ("t",), ("range",), (), 1, 1))
            assert group.member(ids[who]) is not None
        elif step == "leave":
            group = without(group, [ids[who]])
            assert group.member(ids[who]) is None
        elif group.state == "CompletingRebalance":
            group = assigned(group, {ids[who]: [PARTITION]})
        assert group.generation >= before.generation
        assert (group.state == "Empty") == (not group.members)
        assert len({one.group_instance_id or one.member_id for one in group.members}) == len(
            group.members
        )
        if group.members:
            assert group.leader in [one.member_id for one in group.members]
            joined_generations = {one.joined_generation for one in group.members}
            if group.state == "PreparingRebalance":
                assert group.missing
                assert max(joined_generations) <= group.generation + 1
            else:
                assert joined_generations == {group.generation}
        if group.state == "CompletingRebalance" and before.state != "CompletingRebalance":
            assert group.generation not in led
            led.add(group.generation)


class TestSilence:
    def test_a_silent_member_is_removed_after_its_own_session_timeout(
        self, members: Members
    ) -> None:
        """A silent member is removed after its own session timeout."""
        one = members.make("one")
        two = members.make("two", session_timeout_ms=10_000)
        one.join(["t"])
        two.join(["t"])
        one.join(["t"])
        for _ in range(3):
            two.beat()
            one.beat()
            members.advance(9_000)
        assert len(one.beat().members) == 2
        members.advance(2_000)
        group = one.beat()
        assert [member.member_id for member in group.members] == [one.member_id]
        assert group.state == "PreparingRebalance"
        assert members.last_cause() == "session_timeout"

    def test_silence_counts_from_when_the_watcher_first_saw_it(self, members: Members) -> None:
        """Silence is measured from the observer's first read, so a member that returns late removes
        no other.
        """
        one, two = members.make("one"), members.make("two")
        one.join(["t"])
        two.join(["t"])
        one.join(["t"])
        members.stabilise(one)
        members.advance(1_000_000)
        assert len(one.beat().members) == 2
        two.beat()
        members.advance(1_000_000)
        assert len(one.beat().members) == 2
        assert len(two.beat().members) == 2

    def test_a_member_that_beats_but_does_not_join_is_removed_after_max_poll_interval(
        self, members: Members
    ) -> None:
        """A member that heartbeats but does not join is removed after max.poll.interval.ms."""
        one = members.make("one", max_poll_interval_ms=20_000)
        two = members.make("two", max_poll_interval_ms=20_000)
        one.join(["t"])
        members.stabilise(one)
        two.join(["t"])
        for _ in range(3):
            one.beat()
            assert len(two.beat().members) == 2
            members.advance(9_000)
        one.beat()
        group = two.beat()
        assert [member.member_id for member in group.members] == [two.member_id]
        assert members.last_cause() == "max_poll_interval"
        assert (group.state, group.leader) == ("CompletingRebalance", two.member_id)

    def test_silent_and_late_members_are_removed_each_with_its_cause(
        self, members: Members
    ) -> None:
        """They were removed by one commit, which named all of them as silent."""
        one = members.make("one", max_poll_interval_ms=20_000, session_timeout_ms=25_000)
        two, late = (members.make(name, max_poll_interval_ms=20_000) for name in ("two", "late"))
        one.join(["t"])
        late.join(["t"])
        one.join(["t"])
        two.join(["t"])
        for _ in range(2):
            late.beat()
            two.beat()
            members.advance(14_000)
        late.beat()
        group = two.beat()
        assert [member.member_id for member in group.members] == [two.member_id]
        history = group_past(members.location).to_pylist()
        causes = [(row["cause"], row["members"]) for row in history[-2:]]
        assert causes == [
            ("session_timeout", json.dumps([one.member_id])),
            ("max_poll_interval", json.dumps([late.member_id])),
        ]

    def test_a_removed_member_joins_as_a_new_one(self, members: Members) -> None:
        """A removed member joins with a new member id."""
        one, two = members.make("one"), members.make("two")
        one.join(["t"])
        two.join(["t"])
        one.beat()
        members.advance(46_000)
        one.beat()
        assert two.beat().member(two.member_id) is None
        before = two.member_id
        two.generation = -1
        two.join(["t"])
        assert two.member_id != before
        assert members.group.member(two.member_id) is not None


class TestFencing:
    @pytest.fixture
    def pair(self, members: Members) -> tuple[GroupMember, GroupMember]:
        """Two members, of which the first has the partition and has committed offset 10."""
        one, two = members.make("one"), members.make("two")
        one.join(["t"])
        two.join(["t"])
        one.join(["t"])
        members.stabilise(one)
        members.commit(one, 10)
        return one, two

    def test_a_removed_members_commit_is_refused(
        self, members: Members, pair: tuple[GroupMember, GroupMember]
    ) -> None:
        """The commit of a removed member is refused with UNKNOWN_MEMBER_ID."""
        one, two = pair
        two.beat()
        members.advance(46_000)
        two.beat()
        with pytest.raises(ProtocolError, match="UNKNOWN_MEMBER_ID"):
            members.commit(one, 99)
        assert members.committed == 10

    def test_a_commit_of_an_older_generation_never_lands_behind_the_new_assignment(
        self, members: Members, pair: tuple[GroupMember, GroupMember]
    ) -> None:
        """A delayed commit of an older generation is refused by the compare-and-set."""
        one, two = pair
        one.check(one.poll())
        checked = one.poll().fence
        two.beat()
        members.advance(46_000)
        two.beat()
        two.join(["t"])
        members.land(checked, 11)
        assert members.committed == 11, "nobody has been told to go on from here yet"
        members.stabilise(two)
        before = members.root.consumer_offsets.version
        with pytest.raises(ProtocolError, match="ILLEGAL_GENERATION: group g is at generation"):
            members.land(checked, 99)
        assert (members.committed, members.root.consumer_offsets.version) == (11, before)
        members.commit(two, 12)
        assert members.committed == 12

    def test_members_may_commit_while_they_are_asked_to_join_but_not_after_they_have(
        self, members: Members, pair: tuple[GroupMember, GroupMember]
    ) -> None:
        """A member may commit during a rebalance until it has joined the new generation."""
        one, two = pair
        members.make("three").join(["t"])
        members.commit(one, 11)
        two.join(["t"])
        with pytest.raises(ProtocolError, match="REBALANCE_IN_PROGRESS"):
            members.commit(two, 99)
        one.join(["t"])
        with pytest.raises(ProtocolError, match="REBALANCE_IN_PROGRESS"):
            members.commit(one, 99)
        assert members.committed == 11

    def test_a_leader_that_the_group_has_left_behind_fences_nobody(
        self, members: Members, pair: tuple[GroupMember, GroupMember]
    ) -> None:
        """A leader of an older generation cannot fence commits."""
        one, two = pair
        one.leave()
        two.join(["t"])
        members.stabilise(two)
        with pytest.raises(ProtocolError, match="ILLEGAL_GENERATION"):
            members.offsets.fence("g", GroupFence(two.generation - 1, 0), {PARTITION: "t"})
        members.commit(two, 11)

    def test_a_static_member_that_restarts_goes_on_with_what_it_had_and_fences_itself(
        self, members: Members
    ) -> None:
        """A restarted static member keeps its assignment and fences its older process."""
        before = members.make("one", group_instance_id="i-1")
        other = members.make("two")
        before.join(["t"])
        other.join(["t"])
        before.join(["t"])
        members.stabilise(before)
        generation = members.group.generation
        restarted = members.make("one", group_instance_id="i-1")
        group = restarted.join(["t"])
        assert (group.state, group.generation) == ("Stable", generation)
        mine = group.member(restarted.member_id)
        assert mine is not None
        assert mine.assignment == (PARTITION,)
        assert group.leader == restarted.member_id
        members.commit(restarted, 11)
        with pytest.raises(ProtocolError, match="FENCED_INSTANCE_ID"):
            members.commit(before, 99)
        assert members.committed == 11


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """A cluster without background activity, with 60 records in the six partitions of t."""
    cluster = LocalCluster(tmp_path, [0])
    cluster.create_topic("t", partitions=6)
    produce(cluster, range(10))
    return cluster


def produce(cluster: LocalCluster, numbers: range) -> None:
    """Write one record for each of `numbers` to each of the six partitions of t."""
    for partition in range(6):
        cluster.produce("t", partition, [b"%d-%d" % (partition, one) for one in numbers])
    cluster.tick_until_idle()


@pytest.fixture
def connection(cluster: LocalCluster, tmp_path: Path) -> Connection:
    return Connection(str(tmp_path / "cluster"))


Make = Callable[..., Consumer]


@pytest.fixture
def make(connection: Connection, request: pytest.FixtureRequest) -> Make:
    """Return a function that creates members of the group g, which are closed after the test."""

    def made(*topics: str, group_id: str = "g", **config: Any) -> Consumer:
        timeouts: dict[str, Any] = {"session_timeout_ms": 20_000, "heartbeat_interval_ms": 100}
        callbacks = {name: config.pop(name) for name in list(config) if name.startswith("on_")}
        pattern = config.pop("pattern", None)
        settings = timeouts | {"auto_offset_reset": "earliest"} | config
        consumer = Consumer(connection, group_id, **settings)
        wanted = () if pattern else topics or ("t",)
        consumer.subscribe(wanted, pattern=pattern, **callbacks)
        request.addfinalizer(consumer.close)
        return consumer

    return made


def poll_until(
    done: Callable[[], bool], *consumers: Consumer, max_records: int | None = None
) -> list[ConsumerRecord]:
    """Poll the consumers in turn until `done`; return the records."""
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, [one.assignment() for one in consumers]
        for one in consumers:
            for records in one.poll(10, max_records).values():
                found += records
    return found


def shared(*consumers: Consumer) -> Callable[[], bool]:
    """Return a function that returns whether the consumers share the six partitions evenly."""

    def is_shared() -> bool:
        owned = [one.assignment() for one in consumers]
        each = 6 // len(consumers)
        return all(len(of) == each for of in owned) and len({p for of in owned for p in of}) == 6

    return is_shared


def once(*found: list[ConsumerRecord], each: int = 10) -> None:
    """Check that the `each` records of each of the six partitions were read once."""
    counts = Counter(record.value for some in found for record in some)
    assert counts == Counter(b"%d-%d" % (p, one) for p in range(6) for one in range(each))


class TestMembers:
    @pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky"])
    def test_that_come_and_go_in_good_order_read_every_record_once(
        self, make: Make, strategy: str, cluster: LocalCluster
    ) -> None:
        """Members that join and leave cleanly read every record once."""
        config = {"partition_assignment_strategy": strategy, "max_poll_records": 1}
        one = make(**config)
        found = poll_until(shared(one), one)
        found += [record for records in one.poll().values() for record in records]
        two = make(**config)
        found += poll_until(shared(one, two), one, two)
        three = make(**config)
        found += poll_until(shared(one, two, three), one, two, three)
        one.close()
        found += poll_until(shared(two, three), two, three)
        two.close()
        found += poll_until(shared(three), three)
        # The others may have read everything by now: something must be left for the one that stays.
        produce(cluster, range(10, 12))
        deadline = time.monotonic() + 30
        while len(found) < 72 and time.monotonic() < deadline:
            found += [record for records in three.poll(10).values() for record in records]
        assert three.poll(50) == {}
        once(found, each=12)

    def test_go_on_where_the_group_had_committed(self, make: Make, connection: Connection) -> None:
        """A new member continues at the group's committed offsets, and `lag` reports the rest."""
        one = make(max_poll_records=25)
        found = poll_until(lambda: bool(one.assignment()), one)
        while len(found) < 25:
            found += [record for records in one.poll(10).values() for record in records]
        one.close()
        two = make(max_poll_records=100)
        found += poll_until(lambda: len(found) > 0 and bool(two.assignment()), two)
        while more := two.poll(100):
            found += [record for records in more.values() for record in records]
        once(found)
        behind = {one.partition: one.lag for one in lag(connection, "g")}
        assert sum(number or 0 for number in behind.values()) == 35
        two.commit()
        assert lag(connection, "g") == [
            PartitionLag("t", number, 10, 10, 0, lag(connection, "g")[0].member_id)
            for number in range(6)
        ]

    def test_learn_what_they_get_and_what_they_give_up_and_may_commit_then(
        self, make: Make
    ) -> None:
        """Members get their assigned and revoked partitions by callbacks, in which they may
        commit.
        """
        told: list[tuple[str, list[TopicPartition]]] = []

        def revoked(partitions: list[TopicPartition]) -> None:
            told.append(("revoked", partitions))
            one.commit({partitions[0]: OffsetAndMetadata(5, "on revoke")})

        one = make(
            on_assign=lambda partitions: told.append(("assigned", partitions)),
            on_revoke=revoked,
            enable_auto_commit=False,
        )
        poll_until(shared(one), one, max_records=1)
        everything = [TopicPartition("t", number) for number in range(6)]
        assert told == [("assigned", everything)]
        two = make()
        poll_until(shared(one, two), one, two)
        assert told[1:] == [("revoked", everything), ("assigned", one.assignment())]
        assert one.committed(("t", 0)) == OffsetAndMetadata(5, "on revoke")
        told.clear()
        mine = one.assignment()
        one.close()
        assert told == [("revoked", mine)]

    def test_that_do_not_poll_lose_their_partitions_and_may_not_commit(self, make: Make) -> None:
        """A member that does not poll loses its partitions, and its commits are refused."""
        lost: list[TopicPartition] = []
        slow = make(max_poll_interval_ms=1_000, on_lost=lost.extend)
        poll_until(shared(slow), slow)
        other = make()
        poll_until(shared(other), other)
        with pytest.raises(ProtocolError, match="UNKNOWN_MEMBER_ID"):
            slow.commit()
        slow.poll()
        assert len(lost) == 6
        poll_until(shared(slow, other), slow, other)

    def test_that_are_killed_are_replaced_after_their_session(
        self, make: Make, connection: Connection
    ) -> None:
        """A separate process is killed by the system while it holds all partitions."""
        program = (
            "import sys\n"
            "from sparklog import Consumer\n"
            "consumer = Consumer(sys.argv[1], 'g', auto_offset_reset='earliest',\n"
            "    session_timeout_ms=1000, heartbeat_interval_ms=100, max_poll_records=5)\n"
            "consumer.subscribe(['t'])\n"
            "while not consumer.poll(1000): pass\n"
            "consumer.commit()\n"
            "print(len(consumer.assignment()), flush=True)\n"
            "while True: consumer.poll(50, 1)\n"
        )
        killed = subprocess.Popen(
            [sys.executable, "-c", program, connection.cluster], stdout=subprocess.PIPE, text=True
        )
        try:
            assert killed.stdout is not None
            assert killed.stdout.readline() == "6\n"
        finally:
            killed.kill()
            killed.wait()
        one = make()
        found = poll_until(shared(one), one)
        while more := one.poll(100):
            found += [record for records in more.values() for record in records]
        assert Counter(Counter(record.value for record in found).values()) == {1: 55}
        groups = ConsumerGroups(connection.root.consumer_groups)
        assert len(groups.find("g").members) == 1

    def test_of_two_static_ones_with_one_name_the_older_ends(self, make: Make) -> None:
        """Of two static members with one group.instance.id, the older one gets
        FENCED_INSTANCE_ID.
        """
        older = make(group_instance_id="i-1")
        poll_until(shared(older), older)
        newer = make(group_instance_id="i-1")
        poll_until(shared(newer), newer)
        deadline = time.monotonic() + 30
        with pytest.raises(ProtocolError, match="FENCED_INSTANCE_ID"):  # noqa: PT012 - in time
            while time.monotonic() < deadline:
                older.poll(10)

    @pytest.mark.parametrize("offset", [7, None])
    def test_a_suspended_static_member_commits_nothing_over_its_successor(
        self,
        make: Make,
        connection: Connection,
        monkeypatch: pytest.MonkeyPatch,
        offset: int | None,
    ) -> None:
        """A suspended static member commits nothing after its successor.

        It is suspended between the check of its membership and the write of its offsets. Both are
        in the generation of its successor, which reads on meanwhile and may commit as well.
        """
        older = make(group_instance_id="i-1", enable_auto_commit=False)
        other = make(enable_auto_commit=False)
        poll_until(shared(older, other), older, other)
        [name, *_] = older.assignment()
        older.seek(name, 3)
        generation = ConsumerGroups(connection.root.consumer_groups).find("g").generation
        table = older._root.consumer_offsets
        original = table.change_rows

        def resume_late(*arguments: Any, **cause: Any) -> Any:
            monkeypatch.setattr(table, "change_rows", original)
            newer = make(group_instance_id="i-1", enable_auto_commit=False)
            poll_until(shared(newer, other), newer, other)
            if offset is not None:
                newer.commit({name: offset})
            return original(*arguments, **cause)

        monkeypatch.setattr(table, "change_rows", resume_late)
        with pytest.raises(ProtocolError, match="FENCED_INSTANCE_ID"):
            older.commit()
        committed = CommittedOffsets(connection.root.consumer_offsets).fetch("g")
        assert [one.offset for one in committed.values()] == [7] * (offset is not None)
        assert ConsumerGroups(connection.root.consumer_groups).find("g").generation == generation
        other.commit()
        committed = CommittedOffsets(connection.root.consumer_offsets).fetch("g")
        assert len(committed) == 3 + (offset is not None), "the others go on without a rebalance"

    def test_read_topics_and_partitions_that_come_later(
        self, make: Make, cluster: LocalCluster
    ) -> None:
        """Members read topics and partitions that are created later."""
        named, matching = make("later", group_id="named"), make(pattern="la.*", group_id="matching")
        assert (named.poll(50), matching.poll(50)) == ({}, {})
        cluster.create_topic("later", partitions=2)
        cluster.create_topic("larger", partitions=1)
        cluster.produce("larger", 0, [b"x"])
        cluster.tick_until_idle()
        poll_until(lambda: len(named.assignment()) == 2, named)
        found = poll_until(lambda: len(matching.assignment()) == 3, matching)
        deadline = time.monotonic() + 30
        while not found and time.monotonic() < deadline:
            found += [record for records in matching.poll(10).values() for record in records]
        assert [(record.topic, record.value) for record in found] == [("larger", b"x")]

    def test_share_nothing_with_consumers_that_assign_partitions_themselves(
        self, make: Make, connection: Connection
    ) -> None:
        """A consumer with assigned partitions cannot commit for a group that has members."""
        alone = Consumer(connection, "g", auto_offset_reset="earliest")
        alone.assign([("t", 0)])
        alone.commit({TopicPartition("t", 0): 4})
        one = make(enable_auto_commit=False)
        poll_until(shared(one), one, max_records=1)
        assert one.committed(("t", 0)) == OffsetAndMetadata(4)
        with pytest.raises(ProtocolError, match="UNKNOWN_MEMBER_ID: group g has members"):
            alone.commit({TopicPartition("t", 0): 9})
        one.close()
        alone.commit({TopicPartition("t", 0): 5})
        assert alone.committed(("t", 0)) == OffsetAndMetadata(5)


class TestChurn:
    """Members join and leave in threads of their own, as fast as they can."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 100,
        "auto_commit_interval_ms": 20,
        "max_poll_records": 2,
    }

    def test_members_that_leave_cleanly_read_every_record_once(
        self, connection: Connection
    ) -> None:
        """Members that leave cleanly read every record once."""
        found: list[ConsumerRecord] = []

        def read(seed: int) -> None:
            chance = random.Random(seed)
            deadline = time.monotonic() + 60
            while len(found) < 60 and time.monotonic() < deadline:
                with Consumer(connection, "g", **self.SETTINGS) as consumer:
                    consumer.subscribe(["t"])
                    for _ in range(chance.randint(1, 20)):
                        for records in consumer.poll(20).values():
                            found.extend(records)

        run_all([partial(read, seed) for seed in range(3)])
        once(found)
        assert self.committed_never_went_back(connection) == 10

    def test_members_that_vanish_lose_nothing_and_commit_nothing_afterwards(
        self, connection: Connection
    ) -> None:
        """Records that they read but did not commit are read again, and committed ones are not."""
        found: list[ConsumerRecord] = []
        refused: list[str] = []
        stays = Consumer(connection, "g", session_timeout_ms=600, **self.SETTINGS)
        stays.subscribe(["t"])
        vanished: list[Consumer] = []

        def vanish(number: int) -> None:
            consumer = Consumer(connection, "g", session_timeout_ms=600, **self.SETTINGS)
            consumer.subscribe(["t"])
            vanished.append(consumer)
            deadline = time.monotonic() + 60
            polls = 0
            while polls <= number and time.monotonic() < deadline:
                records = [one for some in consumer.poll(20).values() for one in some]
                found.extend(records)
                polls += bool(consumer.assignment())
            stop_heartbeats(consumer)

        threads = [threading.Thread(target=vanish, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        found += poll_until(shared(stays), stays)
        while any(thread.is_alive() for thread in threads):
            found += [one for some in stays.poll(10).values() for one in some]
        found += poll_until(shared(stays), stays)
        while more := stays.poll(300):
            found += [one for some in more.values() for one in some]
        stays.commit()
        assert {record.value for record in found} == {
            b"%d-%d" % (p, one) for p in range(6) for one in range(10)
        }
        for consumer in vanished:
            with pytest.raises(ProtocolError) as raised:
                consumer.commit({TopicPartition("t", 0): 3})
            refused.append(raised.value.code.name)
            consumer.close()
        assert refused == ["UNKNOWN_MEMBER_ID"] * 2
        assert self.committed_never_went_back(connection) == 10
        stays.close()

    def committed_never_went_back(self, connection: Connection) -> int:
        """Check every commit that was made; return the lowest offset of the last one."""
        table = connection.root.consumer_offsets
        table.refresh()
        highest: dict[int, int] = {}
        for version in range(table.version + 1):
            for row in table.rows_at(version).to_pylist():
                offset = row["committed_offset"] or 0
                assert offset >= highest.get(row["partition"], 0), (version, row)
                highest[row["partition"]] = offset
        return min(highest.values())


def run_all(jobs: list[Callable[[], None]]) -> None:
    """Run jobs in parallel; raise an exception of any of them."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        for result in [pool.submit(job) for job in jobs]:
            result.result()


def stop_heartbeats(consumer: Consumer) -> None:
    """Stop a member's heartbeats, as if its process had been stopped."""
    coordinator = consumer._coordinator
    assert coordinator is not None
    coordinator._heartbeats.remove(coordinator)


def thread_names() -> list[str]:
    """Return the names of this process's threads, except those of delta-rs.

    Its pool belongs to the process and ends threads that were idle for ten seconds.
    """
    tasks = Path("/proc/self/task").iterdir()
    names = [(task / "comm").read_text().strip() for task in tasks]
    return sorted(name for name in names if not name.startswith("tokio"))


def files_of(table: ShardedTable) -> set[str]:
    """Return the live files of a table, as delta-rs lists them."""
    return set(DeltaTable(table.location.uri).file_uris())


class TestManyMembersOfOneProcess:
    @pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
    def test_share_their_threads_and_one_heartbeat_commit_an_interval(
        self, make: Make, connection: Connection
    ) -> None:
        """Previously each had a thread, a database with eight more, and a commit per interval of
        its own.
        """
        never_ms = 10**9
        members = [make(heartbeat_interval_ms=never_ms, session_timeout_ms=10**10)]
        members[0].poll()
        before = thread_names()
        for _ in range(39):
            members.append(make(heartbeat_interval_ms=never_ms, session_timeout_ms=10**10))
            members[-1].poll()
        assert thread_names() == before
        table = connection.root.consumer_group_heartbeats
        table.refresh()
        version = table.version
        [heartbeats] = {one._coordinator._heartbeats for one in members if one._coordinator}
        for count in (1, 2):
            heartbeats.beat()
            table.refresh()
            assert table.version == version + count
            assert table.rows()["heartbeat"].to_pylist() == [count] * 40

    def test_beat_also_where_one_of_them_cannot_leave(
        self, make: Make, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A heartbeat of a process succeeds although one of its members cannot leave."""
        idle, busy = (make(heartbeat_interval_ms=10**9, session_timeout_ms=10**10) for _ in "ab")
        poll_until(shared(idle, busy), idle, busy)
        assert idle._coordinator is not None

        def fail() -> None:
            raise OSError("the store is away")

        monkeypatch.setattr(idle._coordinator._member, "leave", fail)
        idle._coordinator._polled_ms -= idle.config.max_poll_interval_ms + 1
        idle._coordinator._heartbeats.beat()
        monkeypatch.undo()
        table = connection.root.consumer_group_heartbeats
        table.refresh()
        assert table.rows()["heartbeat"].to_pylist() == [1]

    def test_beat_without_the_files_of_other_groups(
        self, make: Make, connection: Connection
    ) -> None:
        """Previously a heartbeat replaced the heartbeats of all groups, and so waited for each
        group's.
        """
        table = connection.root.consumer_group_heartbeats
        others = [
            {"group_id": f"other-{number // 10}", "member_id": f"{number}", "heartbeat": 1}
            for number in range(4_000)
        ]
        table.update(lambda _: (CONSUMER_GROUP_HEARTBEATS.rows(others), None))
        member = make(heartbeat_interval_ms=10**9, session_timeout_ms=10**10)
        member.poll()
        assert member._coordinator is not None
        # The first heartbeat splits the only file.
        member._coordinator._heartbeats.beat()
        before = set(files_of(table))
        member._coordinator._heartbeats.beat()
        replaced = before - files_of(table)
        assert len(replaced) == 1 < len(before)
        assert len(files_of(table) - before) == 1
        table.refresh()
        assert table.rows().num_rows == 4_001

    def test_are_removed_one_by_one(self, make: Make, connection: Connection) -> None:
        """A member that does not poll leaves; the other members of its process stay."""
        idle, busy = (make(max_poll_interval_ms=one) for one in (1_000, 300_000))
        poll_until(shared(idle, busy), idle, busy)
        poll_until(shared(busy), busy)
        groups = ConsumerGroups(connection.root.consumer_groups)
        assert len(groups.find("g").members) == 1


class TestGroupsFromOutside:
    def test_lag_is_the_high_watermark_less_what_was_committed(
        self, make: Make, connection: Connection
    ) -> None:
        """The lag is the high watermark minus the committed offset."""
        one = make(enable_auto_commit=False)
        poll_until(shared(one), one)
        one.commit({TopicPartition("t", 1): 4, TopicPartition("t", 2): 10})
        shown = lag(connection, "g")
        assert [tuple(row)[1:5] for row in shown] == [
            (0, None, 10, None),
            (1, 4, 10, 6),
            (2, 10, 10, 0),
            *((number, None, 10, None) for number in (3, 4, 5)),
        ]
        assert len({row.member_id for row in shown}) == 1
        with pytest.raises(ProtocolError, match="GROUP_ID_NOT_FOUND: there is no group 'other'"):
            lag(connection, "other")

    def test_have_their_generation_in_every_row_before_anybody_reads(
        self, make: Make, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The generation is written to every row before a member reads, so older commits are
        refused.

        Nothing is assigned until that is done.
        """
        one = make(enable_auto_commit=False)
        original = CommittedOffsets.fence

        def fail(*_: object) -> None:
            raise OSError("the store is away")

        monkeypatch.setattr(CommittedOffsets, "fence", fail)
        assert one.poll(300) == {}
        groups = ConsumerGroups(connection.root.consumer_groups)
        assert groups.find("g").state == "CompletingRebalance"
        monkeypatch.setattr(CommittedOffsets, "fence", original)
        poll_until(shared(one), one)
        two = make(enable_auto_commit=False)
        poll_until(shared(one, two), one, two)
        connection.root.consumer_offsets.refresh()
        rows = connection.root.consumer_offsets.rows().to_pylist()
        found = [(row["partition"], row["generation"], row["committed_offset"]) for row in rows]
        generation = groups.find("g").generation
        assert sorted(found) == [(number, generation, None) for number in range(6)]

    def test_work_on_a_cluster_root_that_is_older_than_they_are(
        self, connection: Connection, tmp_path: Path
    ) -> None:
        """Groups work on an older cluster root, which has no table of heartbeats and other columns
        of groups.
        """
        cluster = tmp_path / "cluster"
        formats = ControlTable(Location.of(str(cluster)), FORMAT)
        [row] = formats.rows().to_pylist()
        formats.compare_and_set(FORMAT.rows([row | {"tables": None}]))
        shutil.rmtree(cluster / "consumer_group_heartbeats")
        shutil.rmtree(cluster / "consumer_groups")
        names = ("group_id", "member_id", "protocol", "assignment")
        columns = [(name, pa.string()) for name in names]
        columns += [("generation", pa.int32()), ("deadline", pa.int64())]
        DeltaTable.create(
            str(cluster / "consumer_groups"), schema=Schema.from_arrow(pa.schema(columns))
        )
        older = Connection(connection.cluster)
        consumer = Consumer(older, "g", auto_offset_reset="earliest", heartbeat_interval_ms=50)
        consumer.subscribe(["t"])
        found = poll_until(shared(consumer), consumer)
        while more := consumer.poll(100):
            found += [record for records in more.values() for record in records]
        consumer.close()
        once(found)
        assert [row.lag for row in lag(older, "g")] == [0] * 6
