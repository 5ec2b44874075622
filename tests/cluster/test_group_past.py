"""`group_history`: the past of consumer groups, from commits that any client may have written."""

from __future__ import annotations

from pathlib import Path

from sparklog.cluster.group_past import GROUP_HISTORY, group_past
from sparklog.cluster.roots import ClusterRoot
from sparklog.groups.group import ConsumerGroups, Member, deleted, joined, without
from sparklog.model import CONSUMER_GROUPS
from sparklog.storage.commits import Cause
from sparklog.storage.delta_checkpoints import write_checkpoint
from sparklog.storage.delta_log_files import commit_path
from sparklog.storage.location import Location
from sparklog.testing import LocalCluster


def group_of(cluster: ClusterRoot) -> ConsumerGroups:
    """Return the groups of a cluster, with one group of one member that has left."""
    groups = ConsumerGroups(cluster.consumer_groups)
    member = Member("m-1", None, "m", 0, ("t",), ("range",), (), 45_000, 300_000)
    groups.change("g", lambda group: joined(group, member))
    groups.change("g", lambda group: without(group, ["m-1"]), "session_timeout")
    return groups


def opened(folder: Path) -> tuple[ClusterRoot, Location]:
    cluster = LocalCluster(folder, [0])
    return cluster.connection.root, cluster.location()


def test_each_change_names_its_members_its_generation_and_its_state(tmp_path: Path) -> None:
    cluster, location = opened(tmp_path)
    groups = group_of(cluster)
    groups.change("g", deleted, "deleted")
    found = group_past(location).drop_columns(["at_ms", "version"]).to_pylist()
    assert [tuple(row.values()) for row in found] == [
        ("g", 1, "CompletingRebalance", "member_joined", '["m-1"]', 1),
        ("g", 2, "Empty", "session_timeout", '["m-1"]', 0),
        ("g", 3, "Dead", "deleted", "[]", 0),
    ]


def test_the_commits_that_are_kept_are_its_past(tmp_path: Path) -> None:
    """Clean-up of the table's log leaves the later changes."""
    cluster, location = opened(tmp_path)
    groups = group_of(cluster)
    table = location.child(CONSUMER_GROUPS.name)
    write_checkpoint(table)
    for version in range(cluster.consumer_groups.version):
        table.remove(commit_path(version))
    groups.change("g", deleted, "deleted")
    causes = group_past(location)["cause"].to_pylist()
    assert causes == ["session_timeout", "deleted"]


def test_parameters_that_no_member_writes_are_null_or_shown_as_they_are(tmp_path: Path) -> None:
    """A client may write any commit to the table, also with a text in place of a number."""
    cluster, location = opened(tmp_path)
    rows = CONSUMER_GROUPS.rows([])
    for told in (
        {"groupId": "g", "generation": "many", "memberCount": "9" * 40, "cause": "'; drop"},
        {"groupId": "g", "generation": "-1", "memberCount": "²"},
        {"cause": "of no group"},
    ):
        cluster.consumer_groups.compare_and_set(rows, cause=Cause("CHANGE GROUP", told))
    found = group_past(location).drop_columns(["at_ms", "version"]).to_pylist()
    assert [tuple(row.values()) for row in found] == [
        ("g", None, None, "'; drop", None, None),
        ("g", None, None, None, None, None),
    ]


def test_a_root_without_the_table_has_no_past(tmp_path: Path) -> None:
    found = group_past(Location.of(str(tmp_path)))
    assert (found.num_rows, found.schema) == (0, GROUP_HISTORY)
