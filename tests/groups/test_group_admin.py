"""Administration of groups: which members are alive, and what remains after a deletion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from sparklog.clock import SystemClock
from sparklog.cluster.connection import Connection
from sparklog.config import ConsumerConfig, parse
from sparklog.errors import ProtocolError
from sparklog.groups.admin import GroupAdmin, ResetTo
from sparklog.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata
from sparklog.groups.group import ConsumerGroups, GroupFence
from sparklog.groups.member import GroupMember
from sparklog.model import TopicIdPartition
from sparklog.testing import LocalCluster


class Administered:
    """A group of a cluster with one partition, its members, and its administrator."""

    def __init__(self, folder: Path) -> None:
        cluster = LocalCluster(folder, [0])
        cluster.create_topic("t", assignment={0: [0]})
        cluster.produce("t", 0, [b"a", b"b"])
        cluster.tick_until_idle()
        connection = Connection(str(folder / "cluster"))
        self.root = connection.root
        self.admin = GroupAdmin(connection)
        self.groups = ConsumerGroups(self.root.consumer_groups)
        self.offsets = CommittedOffsets(self.root.consumer_offsets)
        [self.key] = connection.metadata().partitions

    def join(self, session_timeout_ms: int = 500) -> GroupMember:
        """Return a member that leads a new generation and reads the partition."""
        keys = {"session.timeout.ms": session_timeout_ms, "heartbeat.interval.ms": 100}
        config = parse(ConsumerConfig, keys, "the test")
        member = GroupMember(self.root, "g", config, SystemClock())
        member.join(["t"])
        self.offsets.fence("g", member.poll().fence, {self.key: "t"})
        member.assign({member.member_id: [self.key]})
        member.beat()
        return member

    def land(self, fence: GroupFence, offset: int) -> None:
        """Let a commit land that was checked before."""
        committed: dict[TopicIdPartition, tuple[str, OffsetAndMetadata]]
        committed = {self.key: ("t", OffsetAndMetadata(offset))}
        self.offsets.commit("g", fence, committed)

    def names(self) -> list[str]:
        return [one.group_id for one in self.admin.list_groups()]


@pytest.fixture
def administered(tmp_path: Path) -> Administered:
    return Administered(tmp_path)


def test_members_that_died_do_not_keep_a_group_from_being_deleted(
    administered: Administered,
) -> None:
    """Members observe each other, and here no other member is left."""
    administered.join()
    administered.land(GroupFence(1, 2), 1)
    administered.admin.delete("g")
    assert administered.names() == []
    assert administered.offsets.fetch("g") == {}
    assert administered.root.consumer_group_heartbeats.rows().num_rows == 0


def test_the_history_of_the_table_says_why_a_group_rebalanced(administered: Administered) -> None:
    """Each commit of a group has its cause, and the members that it is about."""
    first = administered.join()
    second = administered.join()
    first.join(["t"])
    second.leave()
    first.join(["t", "u"])
    administered.admin.delete("g")
    table = DeltaTable(administered.root.consumer_groups.location.uri)
    changes = [
        one["operationParameters"]
        for one in reversed(table.history())
        if one["operation"] == "CHANGE GROUP"
    ]
    assert {one["groupId"] for one in changes} == {"g"}
    one, other = json.dumps([first.member_id]), json.dumps([second.member_id])
    assert [(each["cause"], each.get("members")) for each in changes] == [
        ("member_joined", one),
        ("partitions_assigned", None),
        ("member_joined", other),
        ("member_joined_again", one),
        ("member_left", other),
        ("subscription_changed", one),
        ("session_timeout", one),
        ("deleted", "[]"),
    ]


def test_a_commit_that_was_on_its_way_does_not_bring_a_deleted_group_back(
    administered: Administered,
) -> None:
    """A commit that lands after the deletion of its group is refused."""
    member = administered.join()
    fence = member.poll().fence
    administered.land(fence, 1)
    administered.admin.delete("g")
    with pytest.raises(ProtocolError, match="ILLEGAL_GENERATION"):
        administered.land(fence, 2)
    assert administered.names() == []

    again = administered.join()
    assert again.generation > member.generation
    administered.land(again.poll().fence, 0)
    assert administered.names() == ["g"]
    assert administered.offsets.fetch("g") == {administered.key: OffsetAndMetadata(0)}


def test_a_reset_removes_who_died_and_fences_their_commits(administered: Administered) -> None:
    """A reset removes dead members and refuses their later commits."""
    member = administered.join()
    fence = member.poll().fence
    administered.land(fence, 1)
    resets = administered.admin.plan_reset("g", "t", ResetTo("latest"))
    assert [tuple(one) for one in resets] == [("t", 0, 1, 2)]
    administered.admin.reset("g", resets)
    assert administered.groups.find("g").members == ()
    assert administered.offsets.fetch("g")[administered.key].offset == 2
    with pytest.raises(ProtocolError, match="ILLEGAL_GENERATION"):
        administered.land(fence, 1)


def test_a_deletion_that_stopped_halfway_can_be_repeated(administered: Administered) -> None:
    """A deletion that was interrupted can be repeated."""
    member = administered.join()
    fence = member.poll().fence
    administered.land(fence, 1)
    member.leave()
    admin = administered.admin

    def stop(*_: object) -> None:
        raise OSError("stopped between two tables")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CommittedOffsets, "delete", stop)
        with pytest.raises(OSError, match="stopped"):
            admin.delete("g")
    assert administered.names() == ["g"]
    admin.delete("g")
    assert administered.names() == []


def test_removed_offsets_do_not_come_back_by_an_older_commit(administered: Administered) -> None:
    """Removing offsets removes dead members, and refuses their later commits, as a reset does."""
    fence = administered.join().poll().fence
    administered.land(fence, 1)
    partitions = administered.admin.committed_partitions("g")
    assert partitions == administered.admin.partitions_of("t")
    administered.admin.delete_offsets("g", partitions)
    assert administered.offsets.fetch("g") == {}
    assert administered.admin.committed_partitions("g") == []
    with pytest.raises(ProtocolError, match="ILLEGAL_GENERATION"):
        administered.land(fence, 1)
    with pytest.raises(ProtocolError, match="GROUP_ID_NOT_FOUND"):
        administered.admin.delete_offsets("h", partitions)
