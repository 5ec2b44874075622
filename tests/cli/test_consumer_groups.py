"""`sparklog consumer-groups` and `sparklog get-offsets`."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparklog.consumer.consumer import Consumer
from sparklog.model import TopicPartition
from sparklog.testing import LocalCluster
from tests.cli.command_line import Finished, files_in, run

_NUMBERS = itertools.count()


class Groups:
    """A cluster with three records in one partition and one in another, a minute apart each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "cluster"
        self.cluster = LocalCluster(folder, [0, 1, 2])
        self.cluster.create_topic("t", assignment={0: [0, 1], 1: [1, 0]})
        self.times_ms = []
        self.group_id = "g"
        for partition, value in [(0, b"a"), (0, b"b"), (1, b"c"), (0, b"d")]:
            self.times_ms.append(self.cluster.clock.now_ms())
            self.cluster.produce("t", partition, [value])
            self.cluster.tick_until_idle()
            self.cluster.clock.advance(1)

    def commit(self, **offsets: int) -> None:
        with Consumer(str(self.root), self.group_id) as consumer:
            consumer.commit({TopicPartition("t", int(key[1:])): n for key, n in offsets.items()})

    def run(self, *arguments: str) -> Finished:
        return run("consumer-groups", *arguments, cluster=self.root)

    def reset(self, *arguments: str) -> Finished:
        return self.run("reset-offsets", self.group_id, "--topic", "t", *arguments)

    def described(self) -> dict[int, tuple[int | None, int | None]]:
        """Return the committed offset and the lag of each partition."""
        rows = json.loads(self.run("describe", self.group_id, "--json").printed)
        return {row["partition"]: (row["committed_offset"], row["lag"]) for row in rows}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    made = Groups(tmp_path_factory.mktemp("groups"))
    yield made
    made.cluster.close()


@pytest.fixture
def groups(shared: Groups) -> Groups:
    """The cluster that all tests share, with a separate group for each test."""
    shared.group_id = f"group-{next(_NUMBERS)}"
    return shared


def lines(finished: Finished) -> list[str]:
    return [line.strip() for line in finished.printed.splitlines() if line.strip()]


def test_groups_are_listed_with_and_without_members(tmp_path: Path) -> None:
    """Groups are listed with their states, generations and numbers of members."""
    groups = Groups(tmp_path)
    assert lines(groups.run("list"))[-1] == "(0 rows)"
    groups.group_id = "by-hand"
    groups.commit(p0=1)
    with Consumer(str(groups.root), "shared") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(1_000)
        assert lines(groups.run("list")) == [
            "group_id   state    generation   members",
            "────────────────────────────────────────",
            "by-hand    Empty             0         0",
            "shared     Stable            1         1",
            "(2 rows)",
        ]
        [row] = json.loads(groups.run("list", "--json").printed)[1:]
        assert row == {"group_id": "shared", "state": "Stable", "generation": 1, "members": 1}


def test_a_groups_lag_is_described_partition_by_partition(groups: Groups) -> None:
    """The lag of a group is described for each partition."""
    groups.commit(p0=1)
    assert lines(groups.run("describe", groups.group_id)) == [
        "topic   partition   committed_offset   high_watermark   lag   member_id",
        "───────────────────────────────────────────────────────────────────────",
        "t               0                  1                3     2   NULL",
        "(1 row)",
    ]
    with Consumer(str(groups.root), groups.group_id, client_id="app") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(1_000)
        rows = json.loads(groups.run("describe", groups.group_id, "--json").printed)
    assert [(row["partition"], row["committed_offset"], row["lag"]) for row in rows] == [
        (0, 1, 2),
        (1, None, None),
    ]
    assert all(row["member_id"].startswith("app-") for row in rows)


def test_a_group_is_deleted_with_its_offsets_and_may_come_back(groups: Groups) -> None:
    """A group is deleted with its offsets, and may be created again."""
    name = groups.group_id
    groups.commit(p0=1, p1=1)
    groups.group_id = "other"
    groups.commit(p0=2)
    assert groups.run("delete", name).printed == f"Deleted group {name}.\n"
    assert groups.described() == {0: (2, 1)}
    unknown = f"GROUP_ID_NOT_FOUND: there is no group '{name}': name another"
    assert groups.run("describe", name).refusal == unknown
    assert groups.run("delete", name).refusal == unknown
    groups.group_id = name
    groups.commit(p1=0)
    assert groups.described() == {1: (0, 1)}


def test_a_group_with_a_member_that_lives_is_left_alone(groups: Groups) -> None:
    """A group with a live member can be neither deleted nor reset."""
    name = groups.group_id
    with Consumer(str(groups.root), name, heartbeat_interval_ms=50) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(1_000)
        for refused in (groups.run("delete", name), groups.reset("--to-latest", "--execute")):
            assert refused.refusal.startswith(f"NON_EMPTY_GROUP: group {name} has members, stop")
        assert len(consumer.assignment()) == 2
        consumer.commit()


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        (["--to-earliest"], {0: (0, 3), 1: (0, 1)}),
        (["--to-latest"], {0: (3, 0), 1: (1, 0)}),
        (["--to-offset", "2"], {0: (2, 1), 1: (1, 0)}),
        (["--shift-by", "-1"], {0: (1, 2), 1: (0, 1)}),
        (["--shift-by", "7"], {0: (3, 0), 1: (1, 0)}),
        (["--to-datetime", "1970-01-01"], {0: (0, 3), 1: (0, 1)}),
        (["--to-datetime", "9999-01-01T00:00:00Z"], {0: (3, 0), 1: (1, 0)}),
        (["--to-current"], {0: (2, 1), 1: (0, 1)}),
        (["--by-duration", "P100000D"], {0: (0, 3), 1: (0, 1)}),
        (["--by-duration", "PT0S"], {0: (3, 0), 1: (1, 0)}),
    ],
)
def test_offsets_are_set_where_that_is_executed(
    groups: Groups, arguments: list[str], after: dict[int, tuple[int, int]]
) -> None:
    """A reset changes offsets only with --execute."""
    groups.commit(p0=2, p1=0)
    before = files_in(groups.folder)
    planned = groups.reset(*arguments, "--dry-run")
    assert lines(planned)[-1] == "Nothing was changed: add --execute to set these offsets."
    after_plan = files_in(groups.folder)
    # A checkpoint of the commits before may be written meanwhile, in the background.
    ignored = (".checkpoint.parquet", "_last_checkpoint")
    assert {name: after_plan[name] for name in after_plan if not name.endswith(ignored)} == {
        name: before[name] for name in before if not name.endswith(ignored)
    }
    done = groups.reset(*arguments, "--execute")
    assert lines(done) == lines(planned)[:-1]
    assert groups.described() == after


def test_offsets_are_set_by_time(groups: Groups) -> None:
    """A reset can set offsets by time."""
    groups.reset("--to-datetime", str(groups.times_ms[1]), "--execute")
    assert groups.described() == {0: (1, 2), 1: (0, 1)}
    groups.reset("--to-datetime", str(groups.times_ms[3]), "--execute")
    assert groups.described() == {0: (2, 1), 1: (1, 0)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "one of --to-earliest, .* is required: 0 are given"),
        (["--to-earliest", "--to-offset", "1"], "2 are given"),
        (["--shift-by", "1"], "has not committed an offset in every partition of t"),
        (["--to-datetime", "yesterday"], "--to-datetime 'yesterday' is not a time"),
        (["--by-duration", "1 day"], "--by-duration '1 day' is not a duration"),
        (["--by-duration", "P"], "is not a duration"),
        (["--to-latest", "--dry-run"], "--execute and --dry-run are given"),
        (["--to-latest", "--all-topics"], "give the partitions in one way"),
        (["--to-latest", "--topic", "t:2"], "topic t has no partition 2, it has 2"),
        (["--to-latest", "--topic", "t:a"], "'t:a' is not TOPIC:0,1,..."),
        (["--to-latest", "--all-groups"], "name the groups in one way"),
        (["--to-latest", "--export", "--json"], "--export and --json are both given"),
    ],
)
def test_a_reset_that_makes_no_sense_is_refused(
    groups: Groups, arguments: list[str], said: str
) -> None:
    """An invalid reset is refused."""
    groups.commit(p0=2)
    before = files_in(groups.folder)
    assert re.search(said, groups.reset(*arguments, "--execute").refusal)
    assert files_in(groups.folder) == before


def offsets(groups: Groups, *arguments: str) -> list[Any]:
    printed = run("get-offsets", "t", "--json", *arguments, cluster=groups.root).printed
    return [row["offset"] for row in json.loads(printed)]


def test_offsets_of_a_topic_are_found_at_its_ends_and_by_time(groups: Groups) -> None:
    """`get-offsets` returns the latest, the earliest and offsets by time."""
    assert lines(run("get-offsets", "t", cluster=groups.root)) == [
        "topic   partition   offset",
        "──────────────────────────",
        "t               0        3",
        "t               1        1",
        "(2 rows)",
    ]
    assert offsets(groups, "--time", "latest") == [3, 1]
    assert offsets(groups, "--time", "earliest") == [0, 0]
    assert offsets(groups, "--time", "max-timestamp") == [2, 0]
    assert offsets(groups, "--time", str(groups.times_ms[3])) == [2, None]
    assert offsets(groups, "--time", "1970-01-01T00:00:01+00:00") == [0, 0]
    refusal = run("get-offsets", "t", "--time", "soon", cluster=groups.root).refusal
    assert refusal.startswith("--time 'soon' is not a time: write it like ")
    refusal = run("get-offsets", "u", cluster=groups.root).refusal
    assert refusal.startswith("UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'u'")


def test_offsets_are_those_of_the_named_partitions(groups: Groups) -> None:
    """`get-offsets` takes topics and partitions in the forms of Kafka's tool."""

    def partitions(*arguments: str) -> list[int]:
        found = run("get-offsets", "--json", *arguments, cluster=groups.root)
        return [row["partition"] for row in json.loads(found.printed)]

    assert partitions() == partitions("t.*") == [0, 1]
    assert partitions("--partitions", "1,7") == [1]
    for text, expected in {"t": [0, 1], "t:1": [1], "t:0-1": [0], ":1-": [1], "t:-1": [0]}.items():
        assert partitions("--topic-partitions", text) == expected
    assert partitions("--topic-partitions", "t:1,.*:0") == [0, 1]
    for arguments, said in (
        (["--partitions", "a"], "--partitions 'a' is not a list of numbers"),
        (["t", "--partitions", "7"], "--partitions 7 names no partition of t"),
        (["--topic-partitions", "t:a"], "'t:a' is not topic:partitions, such as t:1 or t:0-3"),
        (["--topic-partitions", "u"], "--topic-partitions 'u' names no partition"),
        (["t", "--topic-partitions", "t"], "give nothing else"),
    ):
        assert said in run("get-offsets", *arguments, cluster=groups.root).refusal


def test_offsets_are_set_in_a_part_of_the_partitions(groups: Groups) -> None:
    """The scope is partitions of topics, or those in which the group has committed."""
    groups.commit(p0=2)
    name = groups.group_id
    groups.run("reset-offsets", name, "--topic", "t:1", "--to-latest", "--execute")
    assert groups.described() == {0: (2, 1), 1: (1, 0)}
    groups.run("delete-offsets", name, "--topic", "t:1")
    groups.run("reset-offsets", name, "--all-topics", "--shift-by", "-1", "--execute")
    assert groups.described() == {0: (1, 2)}
    none = groups.run("reset-offsets", "absent", "--all-topics", "--to-latest").refusal
    assert none == "group absent has no committed offsets: name topics by --topic"


def test_exported_offsets_are_set_from_a_file(groups: Groups, tmp_path: Path) -> None:
    """--from-file reads the CSV of --export, of one group or of several."""
    file = tmp_path / "offsets.csv"
    first = groups.group_id
    groups.commit(p0=1, p1=1)
    exported = groups.reset("--to-current", "--export")
    assert exported.stdout == "t,0,1\nt,1,1\n"
    assert "Nothing was changed" in exported.stderr
    file.write_text(exported.stdout)
    groups.reset("--to-latest", "--execute")
    groups.run("reset-offsets", first, "--from-file", str(file), "--execute")
    assert groups.described() == {0: (1, 2), 1: (1, 0)}

    groups.group_id = second = f"{first}-second"
    groups.commit(p0=2)
    both = ("reset-offsets", first, second)
    exported = groups.run(*both, "--topic", "t:0", "--to-current", "--export")
    assert exported.stdout == f"{first},t,0,1\n{second},t,0,2\n"
    file.write_text(exported.stdout)
    groups.run(*both, "--topic", "t", "--to-earliest", "--execute")
    rows = json.loads(groups.run(*both, "--from-file", str(file), "--execute", "--json").printed)
    assert [(row["group_id"], row["committed_offset"], row["new_offset"]) for row in rows] == [
        (first, 0, 1),
        (second, 0, 2),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no lines"),
        ("t,0", "has in line 1 't,0': give topic,partition,offset"),
        ("t,0,-1", "has in line 1 't,0,-1'"),
        ("t,0,1\nt,0,2", "has the partition t-0 twice"),
        ("h,t,0,1", "has group 'h' in line 1, which is not named"),
        ("u,0,1", "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_a_file_of_offsets_that_makes_no_sense_is_refused(
    groups: Groups, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(text)
    refused = groups.run("reset-offsets", "g", "--from-file", str(file), "--execute").refusal
    assert said in refused
    missing = groups.run("reset-offsets", "g", "--from-file", str(tmp_path / "none")).refusal
    assert "cannot be read: No such file" in missing


def test_several_groups_are_described_and_deleted(tmp_path: Path) -> None:
    """The rows of several groups have the group's name in front; so have those of all groups."""
    groups = Groups(tmp_path)
    for name in ("a", "b", "c"):
        groups.group_id = name
        groups.commit(p0=1)

    def described(*arguments: str) -> list[str]:
        rows = json.loads(groups.run("describe", "--json", *arguments).printed)
        return [row["group_id"] for row in rows]

    assert described("a", "b") == ["a", "b"]
    assert described("--all-groups") == ["a", "b", "c"]
    assert "name the groups in one way" in groups.run("describe").refusal
    assert groups.run("delete", "a").printed == "Deleted group a.\n"
    deleted = json.loads(groups.run("delete", "--all-groups", "--json").printed)
    assert deleted == [{"group_id": "b"}, {"group_id": "c"}]
    assert json.loads(groups.run("list", "--json").printed) == []


def test_members_and_states_of_groups(groups: Groups) -> None:
    """`describe --members`, `describe --state`, and `list --state` by states."""
    name = groups.group_id
    with Consumer(str(groups.root), name, client_id="app") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(1_000)
        [member] = json.loads(groups.run("describe", name, "--members", "--json").printed)
        [state] = json.loads(groups.run("describe", name, "--state", "--json").printed)
        listed = json.loads(groups.run("list", "--state", "stable,Empty", "--json").printed)
        others = json.loads(groups.run("list", "--state", "empty", "--json").printed)
    assert member.pop("member_id") == state["leader"]
    assert member == {
        "group_instance_id": None,
        "client_id": "app",
        "partitions": 2,
        "assignment": ["t-0", "t-1"],
    }
    assert (state["state"], state["assignor"], state["members"]) == ("Stable", "range", 1)
    assert name in [row["group_id"] for row in listed]
    assert name not in [row["group_id"] for row in others]
    for arguments, said in (
        (["describe", name, "--members", "--state"], "give one of them"),
        (["describe", "absent", "--members"], "GROUP_ID_NOT_FOUND"),
        (["list", "--state", "dead"], "--state 'dead' is not a state of groups"),
        (["delete-offsets", name], "--topic is missing"),
    ):
        assert said in groups.run(*arguments).refusal
